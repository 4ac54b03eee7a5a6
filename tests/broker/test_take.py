"""Taking of requests by a worker: what it reads, in which turns, and what it leaves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.fakes import KEYS, SETTINGS
from tests.broker.taking import Taking
from toolbus.bus.broker.lease.recover import MAY_BE_ABANDONED_MS
from toolbus.bus.broker.transport.command import ReplyError
from toolbus.bus.values.results import BrokerUnavailable

pytestmark = pytest.mark.anyio


async def test_a_read_waits_for_every_stream(taking: Taking) -> None:
    """And takes of each no more than its share of the slots."""
    taking.two()
    taking.found = [[[KEYS.queue("pool").encode(), taking.entries(1, 2)]]]
    taken = await taking.intake.take(10)
    assert [delivery.entry for delivery in taken] == [b"1-0", b"2-0"]
    streams = (KEYS.queue("pool").encode(), KEYS.queue("other").encode(), ">", ">")
    assert taking.blocking.args("XREADGROUP") == [("GROUP", "g", "mine", "COUNT", 5, "BLOCK", 2000, "STREAMS", *streams)]
    assert taking.did == ["checked"]
    assert taken[0].attempt == 1


@pytest.mark.parametrize(
    ("slots", "depth", "gaining", "count"),
    [(10, 0, False, 10), (500, 0, False, 32), (500, 100, False, 50), (500, 5_000, False, 128), (500, 5_000, True, 8)],
)
async def test_a_worker_takes_half_of_what_there_is(taking: Taking, slots: int, depth: int, gaining: bool, count: int) -> None:
    """Within bounds, and small parts while sessions begin, so that these spread."""
    taking.bench.stream.depth = depth
    taking.gaining = gaining
    await taking.intake.take(slots)
    assert taking.blocking.args("XREADGROUP")[0][4] == count


async def test_nothing_is_taken_once_the_lease_is_over(taking: Taking) -> None:
    """Others would take it over at once; the next beat that succeeds begins again."""
    taking.found = [[[KEYS.queue("pool").encode(), taking.entries(1)]]]
    taking.intake.beaten(taking.bench.times.now - SETTINGS.lease - 0.01)
    assert await taking.intake.take(10) == []
    assert taking.blocking.names == []
    taking.intake.beaten(taking.bench.times.now - SETTINGS.lease + 0.01)
    assert [delivery.entry for delivery in await taking.intake.take(10)] == [b"1-0"]


async def test_nothing_is_taken_of_a_replica(taking: Taking) -> None:
    """A connection that is made again may lead to the same server; only a beat says that it is the master."""
    taking.found = [[[KEYS.queue("pool").encode(), taking.entries(1)]]]
    taking.intake.demoted()
    assert await taking.intake.take(10) == []
    assert taking.blocking.names == []
    taking.intake.beaten(taking.bench.times.now)
    assert [delivery.entry for delivery in await taking.intake.take(10)] == [b"1-0"]


async def test_with_fewer_slots_than_streams_they_take_turns(taking: Taking) -> None:
    """A script takes what is there; only when there was nothing a read waits. The next turn begins after the last."""
    taking.two()
    answers: list[Any] = [[2, taking.entries(1), []], [1, [], []], [2, [], []]]
    taking.blocking.answers["take"] = lambda keys, args: answers.pop(0)
    assert [delivery.entry for delivery in await taking.intake.take(1)] == [b"1-0"]
    assert taking.blocking.keys("take")[0] == (KEYS.queue("pool"), KEYS.queue("other"))
    assert taking.blocking.args("take")[0] == ("mine", 1)
    assert taking.blocking.names == ["take"]
    await taking.intake.take(1)
    assert taking.blocking.names == ["take", "take", "XREADGROUP"]
    await taking.intake.take(1)
    assert taking.blocking.keys("take")[2] == (KEYS.queue("other"), KEYS.queue("pool"))


async def test_a_full_read_is_followed_by_turns(taking: Taking) -> None:
    """Its stream may hold more than its share, while another has had none."""
    taking.two()
    taking.found = [[[KEYS.queue("pool").encode(), taking.entries(1)]]]
    taking.blocking.answers["take"] = lambda keys, args: [1, [], []]
    await taking.intake.take(2)
    await taking.intake.take(10)
    assert taking.blocking.names == ["XREADGROUP", "take", "XREADGROUP"]
    await taking.intake.take(10)
    assert taking.blocking.names[-1] == "XREADGROUP"
    assert taking.blocking.names.count("take") == 1


async def test_a_group_that_is_missing_is_made_again(taking: Taking) -> None:
    """By registering, unless the worker drains; another error waits a moment."""
    taking.blocking.answers["XREADGROUP"] = ReplyError("NOGROUP no such key")
    assert await taking.intake.take(10) == []
    assert taking.again == [["pool"]]
    taking.taking = False
    await taking.intake.take(10)
    assert len(taking.again) == 1


async def test_an_error_of_one_stream_concerns_it_alone(taking: Taking) -> None:
    """When one stream has an error, the entries of the others are taken, and its group is made again."""
    taking.two()
    taking.blocking.answers["take"] = lambda keys, args: [1, taking.entries(1), b"NOGROUP no such key"]
    assert [delivery.entry for delivery in await taking.intake.take(1)] == [b"1-0"]
    assert taking.again == [["other"]]


async def test_when_all_streams_fail_nothing_is_waited_for(taking: Taking) -> None:
    """Their groups are made again first. What the error says may be of any bytes."""
    taking.two()
    taking.blocking.answers["take"] = lambda keys, args: [1, b"NOGROUP \xff", b"NOGROUP no such key"]
    assert await taking.intake.take(1) == []
    assert taking.blocking.names == ["take"]
    assert taking.again == [["pool", "other"]]


async def test_turns_go_on_while_they_find_something(taking: Taking) -> None:
    """However many slots there are."""
    taking.two()
    answers: list[Any] = [[1, taking.entries(1), []], [1, taking.entries(2), []], [1, [], []]]
    taking.blocking.answers["take"] = lambda keys, args: answers.pop(0)
    for slots in (1, 10, 10, 10):
        await taking.intake.take(slots)
    assert taking.blocking.names == ["take", "take", "take", "XREADGROUP", "XREADGROUP"]


@pytest.mark.parametrize("why", ["postponed", "interrupted"])
async def test_what_comes_up_during_a_turn_is_not_waited_with(taking: Taking, why: str) -> None:
    """A read that waits would keep it up for two seconds."""
    taking.two()

    def take(keys: Any, args: Any) -> Any:
        if why == "postponed":
            taking.postponed = taking.has_postponed = True
        else:
            taking.intake.interrupt()
        return [1, [], []]

    taking.blocking.answers["take"] = take
    assert await taking.intake.take(1) == []
    assert taking.blocking.names == ["take"]


async def test_each_turn_begins_where_the_last_one_ended(taking: Taking) -> None:
    """The script says at how many streams it looked, counted from the first of its turn."""
    taking.two()
    taking.bench.streams["third"] = taking.bench.new_stream("third")
    taking.blocking.answers["take"] = lambda keys, args: [2, [], [], []]
    for _ in range(3):
        await taking.intake.take(1)
    first = [keys[0] for keys in taking.blocking.keys("take")]
    assert first == [KEYS.queue(service) for service in ("pool", "third", "other")]


async def test_one_stream_needs_no_turns(taking: Taking) -> None:
    """A full read is followed by a read."""
    taking.bench.listener.slots = 2
    taking.found = [[[KEYS.queue("pool").encode(), taking.entries(1, 2)]]]
    assert [delivery.entry for delivery in await taking.intake.take(2)] == [b"1-0", b"2-0"]
    assert taking.bench.started == [], "as many as there are slots"
    await taking.intake.take(2)
    assert taking.blocking.names == ["XREADGROUP"] * 2


async def test_an_answer_may_name_its_streams_as_a_map(taking: Taking) -> None:
    """As servers do in RESP3."""
    taking.blocking.answers["XREADGROUP"] = lambda keys, args: {KEYS.queue("pool").encode(): taking.entries(1)}
    assert [delivery.entry for delivery in await taking.intake.take(10)] == [b"1-0"]


@pytest.mark.parametrize(("waited_ms", "checked"), [(MAY_BE_ABANDONED_MS, False), (MAY_BE_ABANDONED_MS + 1, True)])
async def test_only_callers_of_old_requests_are_looked_for(taking: Taking, waited_ms: float, checked: bool) -> None:
    """A request that has not waited has a caller that lives."""
    published_ms = int(taking.bench.times.now * 1000 - waited_ms)
    taking.found = [[[KEYS.queue("pool").encode(), taking.entries(published_ms)]]]
    assert len(await taking.intake.take(10)) == 1
    assert taking.did == (["checked"] if checked else [])


async def test_what_comes_beyond_the_slots_goes_back(taking: Taking) -> None:
    """The oldest stay; a worker that drains finishes what it was still given."""
    taking.bench.listener.slots = 2
    taking.found = [[[KEYS.queue("pool").encode(), taking.entries(3, 1, 2)]]]
    assert [delivery.entry for delivery in await taking.intake.take(10)] == [b"1-0", b"2-0"]
    await taking.bench.settle()
    assert taking.writing.args("hand_back")[0][5:] == (b"3-0", 1, "")
    taking.taking = False
    taking.bench.listener.slots = 0
    taking.found = [[[KEYS.queue("pool").encode(), taking.entries(4, 5)]]]
    assert len(await taking.intake.take(10)) == 2


async def test_sessions_are_settled_last(taking: Taking) -> None:
    """Sessions are settled after the other checks, because what the server says of their owners holds only for that moment."""
    taking.serves = True
    taking.found = [[[KEYS.queue("pool").encode(), taking.entries(1)]]]
    assert [delivery.entry for delivery in await taking.intake.take(10)] == [b"1-0"]
    assert taking.did == ["checked", "settled"]


async def test_postponed_requests_come_before_new_ones(taking: Taking) -> None:
    """Postponed requests start before anything is read, because they take slots."""
    taking.postponed = taking.has_postponed = True
    assert await taking.intake.take(10) == []
    assert (taking.did, taking.blocking.names) == (["postponed"], [])


async def test_postponed_requests_of_a_paused_stream_wait(taking: Taking) -> None:
    """Other streams are read meanwhile."""
    taking.postponed = True
    await taking.intake.take(10)
    assert (taking.did, taking.blocking.names) == ([], ["XREADGROUP"])


@pytest.mark.parametrize("why", ["paused", "unlisted", "disconnected", "lost"])
async def test_without_streams_or_a_connection_nothing_is_taken(taking: Taking, why: str) -> None:
    """It waits a moment, or until it is interrupted."""
    if why == "paused":
        taking.bench.stream.pause(True, 1.0)
    elif why == "unlisted":
        taking.bench.stream.unlisted = "its lease was lost there"
    elif why == "disconnected":
        taking.blocking.connected = False
    else:
        taking.blocking.answers["XREADGROUP"] = BrokerUnavailable("lost")
    assert await taking.intake.take(10) == []
    assert len(taking.blocking.names) == (1 if why == "lost" else 0)
