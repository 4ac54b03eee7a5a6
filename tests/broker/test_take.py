"""Taking of requests by a worker: what it reads, what it leaves, and what it makes of stream entries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.broker.fakes import KEYS, SETTINGS, Bench, FakeLink, entry_fields, request
from toolbus.broker.recover.abandoned import MAY_BE_ABANDONED_MS
from toolbus.broker.take.intake import Intake
from toolbus.broker.transport.command import ReplyError
from toolbus.results import BrokerUnavailable, ToolbusError

pytestmark = pytest.mark.anyio


class Taking:
    """The intake of one worker over two connections; it is the upkeep, the sessions and the callers' check at once."""

    def __init__(self) -> None:
        self.bench = bench = Bench()
        self.writing, self.blocking = bench.link, FakeLink()
        self.aborted = 0
        self.cast: Any = self
        # Upkeep.
        self.taking = True
        self.postponed = self.has_postponed = False
        self.did: list[str] = []
        # Ownership.
        self.serves = self.gaining = False
        self.again: list[list[str]] = []
        self.intake = Intake(
            self.cast,
            bench.streams,
            "mine",
            SETTINGS.lease,
            listener=bench.as_listener,
            upkeep=self.cast,
            abandoned=self.cast,
            ownership=self.cast,
            register_again=self.register_again,
            monotonic=bench.times,
        )
        self.found: list[list[Any]] = []
        self.blocking.answers["XREADGROUP"] = lambda keys, args: self.found.pop(0) if self.found else None
        self.blocking.abort = self.abort  # type: ignore[attr-defined]

    def start(self, work: Any) -> None:
        """Run beside the others."""
        self.bench.start(work)

    def abort(self) -> None:
        """Count."""
        self.aborted += 1

    async def pause(self) -> None:
        """Take note instead of waiting."""
        self.did.append("paused")

    async def reap_postponed(self) -> None:
        """Take note."""
        self.did.append("postponed")

    async def without(self, taken: list[Any]) -> list[Any]:
        """Keep everything."""
        self.did.append("checked")
        return taken

    async def settle(self, taken: list[Any]) -> list[Any]:
        """Take note."""
        self.did.append("settled")
        return taken

    async def register_again(self, services: list[str]) -> None:
        """Take note."""
        self.again.append(services)

    def entries(self, *numbers: int) -> list[Any]:
        """Return stream entries as a read brings them."""
        return [[entry, entry_fields(request(entry))] for entry in (f"{number}-0".encode() for number in numbers)]

    def two(self) -> None:
        """Serve a second stream."""
        self.bench.streams["other"] = self.bench.new_stream("other")


@pytest.fixture
async def taking() -> AsyncIterator[Taking]:
    """A worker with ten slots."""
    made = Taking()
    yield made
    made.bench.forget()


async def test_a_read_waits_for_every_stream(taking: Taking) -> None:
    """And takes of each no more than its share of the slots."""
    taking.two()
    taking.found = [[[KEYS.queue("pool").encode(), taking.entries(1, 2)]]]
    taken = await taking.intake.take(10)
    assert [delivery.entry for delivery in taken] == [b"1-0", b"2-0"]
    streams = (KEYS.queue("pool"), KEYS.queue("other"), ">", ">")
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
    assert taking.writing.args("hand_back")[0][5:] == (b"3-0", 1)
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


@pytest.mark.parametrize("why", ["paused", "disconnected", "lost"])
async def test_without_streams_or_a_connection_nothing_is_taken(taking: Taking, why: str) -> None:
    """It waits a moment, or until it is interrupted."""
    if why == "paused":
        taking.bench.stream.pause(True, 1.0)
    elif why == "disconnected":
        taking.blocking.connected = False
    else:
        taking.blocking.answers["XREADGROUP"] = BrokerUnavailable("lost")
    assert await taking.intake.take(10) == []
    assert len(taking.blocking.names) == (1 if why == "lost" else 0)


class Failing:
    """A worker whose reads are refused, and what it is told when it can't go on."""

    def __init__(self, taking: Taking) -> None:
        self.taking = taking
        self.failures: list[str] = []
        taking.intake.pause = taking.pause  # type: ignore[method-assign]
        taking.bench.listener.on_failed = self.on_failed  # type: ignore[method-assign]

    def on_failed(self, error: Exception) -> None:
        """Take note."""
        assert type(error) is ToolbusError
        self.failures.append(str(error))

    async def read(self, answer: Any, *, after: float = 0.0) -> None:
        """Read once, after some seconds in which the worker has beaten, and have this answered."""
        self.taking.bench.times.now += after
        self.taking.intake.beaten(self.taking.bench.times.now)
        self.taking.blocking.answers["XREADGROUP"] = answer
        await self.taking.intake.take(10)


FORBIDDEN = ReplyError("NOPERM no permissions to run 'xreadgroup'")


async def test_a_worker_that_can_take_nothing_for_long_is_told_that_it_failed(taking: Taking) -> None:
    """It would beat for ever, and its callers would wait; several leases and half a minute are longer than a brief fault."""
    failing = Failing(taking)
    await failing.read(FORBIDDEN)
    await failing.read(FORBIDDEN, after=29.9)
    assert failing.failures == []
    await failing.read(FORBIDDEN, after=0.2)
    assert failing.failures == ["no requests could be taken for 30 s: NOPERM no permissions to run 'xreadgroup'"]


@pytest.mark.parametrize("lost", ["before", "meanwhile"])
async def test_a_worker_without_the_connection_that_waits_fails_in_time(taking: Taking, lost: str) -> None:
    """It beats over another one, so it looks alive; when both are gone the server is, which comes back."""
    failing = Failing(taking)
    taking.blocking.connected = lost != "before"
    gone = BrokerUnavailable("gone")
    await failing.read(gone)
    await failing.read(gone, after=29.9)
    taking.writing.connected = False
    await failing.read(gone, after=60.0)
    taking.writing.connected = True
    await failing.read(gone)
    assert failing.failures == []
    await failing.read(gone, after=30.1)
    assert failing.failures == ["no requests could be taken for 30 s: the connection that waits for them is lost or can't be made"]


async def test_a_connection_that_is_there_again_has_not_failed(taking: Taking) -> None:
    """Also with nothing to take, and while the worker drains or everything is paused nothing is missed."""
    failing = Failing(taking)
    await failing.read(BrokerUnavailable("gone"))
    await failing.read(None, after=20.0)
    await failing.read(BrokerUnavailable("gone"), after=20.0)
    taking.taking = False
    await failing.read(BrokerUnavailable("gone"), after=40.0)
    taking.taking, taking.blocking.connected, taking.bench.stream.paused = True, False, True
    await failing.read(None, after=40.0)
    assert failing.failures == []


async def test_a_long_lease_gives_more_time(taking: Taking) -> None:
    """Three leases, if those are longer than half a minute."""
    taking.intake = Intake(
        taking.cast, taking.bench.streams, "mine", 20.0, listener=taking.bench.as_listener, upkeep=taking.cast, abandoned=taking.cast,
        ownership=taking.cast, register_again=taking.register_again, monotonic=taking.bench.times,
    )  # fmt: skip
    failing = Failing(taking)
    await failing.read(FORBIDDEN)
    await failing.read(FORBIDDEN, after=59.9)
    assert failing.failures == []
    await failing.read(FORBIDDEN, after=0.2)
    assert len(failing.failures) == 1


@pytest.mark.parametrize(
    "answer",
    [None, ReplyError("MISCONF no disk"), ReplyError("OOM no memory")],
    ids=["read", "disk", "memory"],
)
async def test_a_read_that_is_not_refused_starts_the_count_anew(taking: Taking, answer: Any) -> None:
    """Nor does it count while the server refuses the writes of all processes."""
    failing = Failing(taking)
    await failing.read(FORBIDDEN)
    await failing.read(answer, after=40.0)
    await failing.read(FORBIDDEN, after=29.0)
    assert failing.failures == []
    await failing.read(FORBIDDEN, after=31.0)
    assert len(failing.failures) == 1


async def test_what_was_delivered_before_is_left_alone(taking: Taking, caplog: pytest.LogCaptureFixture) -> None:
    """A group that was set back delivers it again; whoever runs it goes on, and what is new is taken."""
    stream = taking.bench.stream
    taking.writing.answers["HGET"] = stream.fence_known.generation
    taking.found = [[[stream.key.encode(), taking.entries(*numbers)]] for numbers in ((7, 8), (7, 8, 9), (8,))]
    running = await taking.intake.take(10)
    assert [delivery.entry for delivery in await taking.intake.take(10)] == [b"9-0"]
    assert await taking.intake.take(10) == []
    assert [stream.held[each.entry] for each in running] == running
    assert taking.writing.args("HGET") == [(stream.fence, "generation")] * 2
    assert [record.message for record in caplog.records] == [f"requests.delivered_again service=pool calls={calls}" for calls in (2, 1)]


async def test_what_others_have_taken_is_left_alone(taking: Taking) -> None:
    """A reap tells how far the group had come, by its number and not by its text; also where the server is gone just now."""
    stream = taking.bench.stream
    taking.writing.answers["HGET"] = BrokerUnavailable("gone")
    stream.position.advance(b"10-1")
    stream.position.advance(b"9-5")
    taking.found = [[[stream.key.encode(), taking.entries(9, 10, 11)]]]
    assert [delivery.entry for delivery in await taking.intake.take(10)] == [b"11-0"]


@pytest.mark.parametrize("happened", ["reaped", "made anew"])
async def test_what_is_learned_while_a_read_is_under_way_says_nothing_of_its_entries(taking: Taking, happened: str) -> None:
    """A reap over the other connection may be answered first, and its position is that of the very entries which the read delivers."""
    stream = taking.bench.stream
    stream.position.advance(b"9-0" if happened == "made anew" else b"5-0")

    def read(keys: Any, args: Any) -> Any:
        if happened == "made anew":
            stream.fence_is(b"3.c", b"1")
        else:
            stream.position.advance(b"8-0")
        return [[stream.key.encode(), taking.entries(7, 8)]]

    taking.blocking.answers["XREADGROUP"] = read
    assert [delivery.entry for delivery in await taking.intake.take(10)] == [b"7-0", b"8-0"]


async def test_a_group_that_was_made_anew_delivers_everything_again(taking: Taking) -> None:
    """All of it is taken, since what was held is lost."""
    stream = taking.bench.stream
    taking.writing.answers["HGET"] = b"2.b"
    taking.found = [[[stream.key.encode(), taking.entries(*numbers)]] for numbers in ((7, 8), (7, 8))]
    await taking.intake.take(10)
    assert len(await taking.intake.take(10)) == 2
    stream.position.advance(b"20-0")
    stream.fence_is(b"3.c", b"1")
    assert stream.position.newest == ()
