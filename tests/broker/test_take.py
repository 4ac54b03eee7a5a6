"""Taking of requests by a worker: what it reads, what it leaves, and what it makes of stream entries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from tests.broker.fakes import FENCE, KEYS, SETTINGS, Bench, FakeLink, entry_fields, request
from toolbus.broker.replies.reader import ReplyReader
from toolbus.broker.take.intake import Intake
from toolbus.broker.take.requests import Fence
from toolbus.broker.transport.command import ReplyError
from toolbus.envelope import Frame, encode, join_frames
from toolbus.results import BrokerUnavailable

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
            listener=bench.as_listener,
            upkeep=self.cast,
            abandoned=self.cast,
            ownership=self.cast,
            register_again=self.register_again,
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
    await taking.intake.take(10)
    assert taking.did == ["checked", "settled"]


async def test_postponed_requests_come_before_new_ones(taking: Taking) -> None:
    """Postponed requests start before anything is read, because they take slots."""
    taking.postponed = taking.has_postponed = True
    assert await taking.intake.take(10) == []
    assert (taking.did, taking.blocking.names) == (["postponed"], [])


async def test_an_interruption_ends_the_next_take_at_once(taking: Taking) -> None:
    """One of them, and without a read."""
    taking.intake.interrupt()
    assert await taking.intake.take(10) == []
    assert taking.blocking.names == []
    await taking.intake.take(10)
    assert taking.blocking.names == ["XREADGROUP"]


async def test_an_interruption_unblocks_a_read_that_waits(taking: Taking) -> None:
    """Over the other connection, by the waiting one's number; a read that never ends is given up."""
    waits = asyncio.Event()

    async def execute(*args: Any, repeatable: bool = False) -> Any:
        await waits.wait()

    taking.blocking.execute = execute  # type: ignore[method-assign]
    reading = asyncio.ensure_future(taking.intake.take(10))
    await asyncio.sleep(0)
    taking.intake.interrupt()
    assert taking.writing.args("CLIENT") == [("UNBLOCK", 7)]
    taking.intake.abort()
    assert taking.aborted == 1
    waits.set()
    assert await reading == []
    taking.intake.abort()
    assert taking.aborted == 1


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


# -- stream entries -----------------------------------------------------------------------------------


@pytest.fixture
def bench() -> Bench:
    """A stream whose worker is played by hand."""
    return Bench()


def test_an_entry_becomes_a_delivery_in_local_time(bench: Bench) -> None:
    """Its deadline and its wait are by this process's clock, and it is held under the fence that was known before."""
    bench.clock.observe(1_100_000.0, 100.0, 100.0)
    [made] = bench.stream.deliveries([(b"1099000-0", 2, entry_fields(request(b"1-0"), 1_130_000, b"run"))], FENCE)
    assert (made.deadline, made.queued_ms, made.attempt, made.epoch) == (130.0, 1_000.0, 2, 1)
    assert (made.queue, made.fence, made.server, made.extended) == (bench.stream, FENCE, b"run", False)
    assert made.replies == KEYS.replies("agent")
    assert bench.stream.held == {b"1099000-0": made}


def test_replies_go_where_they_are_waited_for(bench: Bench) -> None:
    """To the caller, to everyone with the idempotency key, or nowhere; each run has a token of its own."""
    shared = bench.hold(b"1-0", shared=True, idempotency_key="key")
    nowhere = bench.hold(b"2-0", agent="")
    assert (shared.replies, nowhere.replies) == (KEYS.call("call-1-0"), "")
    assert shared.run != nowhere.run


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (None, "no deadline"),
        ([b"r", b"nonsense", b"d", b"1"], "malformed"),
        ([b"r", b"{}"], "no deadline"),
        ([b"r", b"{}", b"d", b"x"], "whole number"),
    ],
)
def test_an_entry_that_can_not_be_read_is_set_aside(bench: Bench, fields: Any, reason: str) -> None:
    """With its reason; the others are delivered."""
    good = entry_fields(request(b"2-0"))
    made = bench.stream.deliveries([(b"1-0", 3, fields), (b"2-0", 1, good)], FENCE)
    bad = bench.unreadable
    assert [delivery.entry for delivery in made] == [b"2-0"]
    assert [(each.entry, each.attempt, each.fence) for each in bad] == [(b"1-0", 3, FENCE)]
    assert reason in bad[0].reason
    assert set(bench.stream.held) == {b"2-0"}


def test_an_entry_that_is_delivered_once_more_is_another_delivery(bench: Bench) -> None:
    """By a group that was made anew: the first is lost."""
    first, second = bench.hold(b"1-0"), bench.hold(b"1-0")
    assert bench.listener.lost == [first]
    assert bench.stream.held == {b"1-0": second}
    bench.stream.lose(first)
    assert bench.listener.lost == [first], "it was let go before"


async def test_a_retry_is_a_further_attempt_of_the_same_entry(bench: Bench) -> None:
    """Counted under the fence, with a new token; None when another worker has it, or took it meanwhile."""
    one = bench.hold(b"1-0", attempt=2)
    bench.link.answers["count"] = lambda keys, args: 1
    again = await bench.stream.retry(bench.as_link, one)
    assert again is not None
    assert (again.attempt, again.entry, again.run != one.run) == (3, b"1-0", True)
    assert bench.stream.held == {b"1-0": again}
    assert bench.link.args("count") == [("mine", *FENCE, b"1-0", 3)]
    assert await bench.stream.retry(bench.as_link, one) is None, "it is held no more"
    bench.link.answers["count"] = lambda keys, args: 0
    assert await bench.stream.retry(bench.as_link, again) is None
    assert bench.stream.held == {b"1-0": again}


def test_the_fence_of_a_new_worker_takes_nothing(bench: Bench) -> None:
    """Only a known generation can have changed; an equal state is kept as the same object."""
    known = bench.stream.fence_known
    bench.stream.fence_is(*FENCE)
    assert bench.stream.fence_known is known
    held = bench.hold()
    bench.stream.fence_known = Fence(b"", b"")
    bench.stream.fence_is(b"9.z", b"1")
    assert bench.listener.lost == []
    assert bench.stream.held == {held.entry: held}


# -- replies ------------------------------------------------------------------------------------------


class Reading:
    """The reader of one agent; it is its own listener, shared calls, confirmations and registry follower."""

    def __init__(self) -> None:
        self.link, self.blocking = FakeLink(), FakeLink()
        self.cast: Any = self
        self.position = b"7-0"
        self.said: list[Any] = []
        self.shared: list[tuple[bytes, bytes]] = []
        self.applies = True
        self.link.answers |= {"listen": 0, "DEL": 1}
        self.reader = ReplyReader(
            self.cast.link,
            self.cast.blocking,
            KEYS,
            SETTINGS,
            "agent",
            listener=self.cast,
            shared=self.cast,
            confirmations=self.cast,
            follower=self.cast,
        )

    def positions(self) -> list[tuple[bytes, bytes]]:
        """Return the shared calls that are read."""
        return self.shared

    def passed(self, stream: bytes, entry: bytes) -> None:
        """Take note."""
        self.said.append(("passed", stream, entry))

    def addressed(self, stream: bytes, frames: list[Frame]) -> list[Frame]:
        """Pass frames on."""
        return frames

    def answered(self, id: str) -> None:
        """Take note."""
        self.said.append(("confirmed", id))

    def apply(self, entries: list[Any]) -> bool:
        """Take note."""
        self.said.append(("log", len(entries)))
        return self.applies

    async def load(self) -> None:
        """Take note."""
        self.said.append("loaded")

    def on_frames(self, frames: list[Frame]) -> None:
        """Take note."""
        self.said.append([frame.id for frame in frames])

    def on_replies_lost(self) -> None:
        """Take note."""
        self.said.append("lost")

    async def read(self, answer: Any) -> list[Any]:
        """Read once; what came of it."""
        self.said.clear()
        self.blocking.answers["XREAD"] = lambda keys, args: answer
        await self.reader.read()
        return self.said


def frames(*calls: str) -> list[bytes]:
    """Return the fields of a reply entry."""
    return [b"f", join_frames([encode(Frame(call, "run")) for call in calls])]


async def test_one_read_brings_replies_shared_calls_and_changes() -> None:
    """Entries that were read go at once; the next read goes on behind them."""
    reading = Reading()
    replies, log = KEYS.replies("agent").encode(), KEYS.log.encode()
    reading.shared = [(b"call", b"3-0")]
    answer = {replies: [[b"8-1", frames("one", "two")], [b"8-2", [b"o", b"1"]]], b"call": [[b"4-0", frames("three")]], log: [[b"1-0", []]]}
    expected = [["one", "two"], [], ("passed", b"call", b"4-0"), ["three"], ("log", 1)]
    assert await reading.read(answer) == expected
    assert reading.blocking.args("XREAD") == [("COUNT", 512, "BLOCK", 2000, "STREAMS", replies, log, b"call", b"0", b"7-0", b"3-0")]
    assert reading.blocking.args("XTRIM") == [(KEYS.replies("agent"), "MINID", b"8-3")]
    assert reading.reader.frames == 3
    await reading.read(None)
    assert reading.blocking.args("XREAD")[1][8] == b"8-2"
    assert not reading.reader.resync


async def test_what_is_missing_or_unreadable_loads_again() -> None:
    """A gap in the log, or an error of the read; malformed frames and ids are left out."""
    reading = Reading()
    reading.applies = False
    await reading.read({KEYS.log.encode(): [[b"1-0", []]]})
    assert reading.reader.resync
    reading.reader.resync = False
    await reading.read(ReplyError("WRONGTYPE"))
    assert reading.reader.resync
    reading.reader.resync = False
    await reading.read(BrokerUnavailable("lost"))
    assert not reading.reader.resync, "a new connection says so itself"
    replies = KEYS.replies("agent").encode()
    said = await reading.read({replies: [[b"1-0", [b"f", b"nonsense"]], [b"2-0", [b"c", b"id-1"]], [b"3-0", [b"c", b"!"]]]})
    assert said == [[], ("confirmed", "id-1"), [], []]
    assert reading.reader.malformed == 1


async def test_a_stream_whose_ids_are_used_up_is_made_anew() -> None:
    """Otherwise nothing could be added behind it."""
    reading = Reading()
    said = await reading.read({KEYS.replies("agent").encode(): [[b"9999999999999999-0", frames("one")]]})
    assert said == [["one"], "lost"]
    assert reading.link.names == ["DEL", "listen"]
    assert reading.reader.resync


async def test_a_bug_of_the_listener_does_not_stop_the_reader() -> None:
    """The entry would be read, and fail, again and again."""
    reading = Reading()

    def failing(frames: list[Frame]) -> None:
        raise RuntimeError("a bug")

    cast("Any", reading).on_frames = failing
    await reading.read({KEYS.replies("agent").encode(): [[b"1-0", frames("one")]]})
    assert reading.blocking.names == ["XREAD", "XTRIM"]


@pytest.mark.parametrize("missing", [0, 1])
async def test_after_a_gap_replies_are_read_from_their_start(missing: int) -> None:
    """With a stream that was missing, frames may be lost."""
    reading = Reading()
    await reading.read({KEYS.replies("agent").encode(): [[b"8-0", frames("one")]]})
    reading.said.clear()
    reading.link.answers["listen"] = missing
    await reading.reader._resynchronise()
    assert reading.said == (["lost"] if missing else []) + ["loaded"]
    reading.reader.listened(missing)
    assert reading.said.count("lost") == 2 * missing
    await reading.read(None)
    assert reading.blocking.args("XREAD")[-1][7] == b"0"
    assert reading.link.args("listen") == [(15_000,)]
