"""The ends of calls: which script finishes them, what is lost, what frees a key, and what becomes a dead letter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from tests.broker.fakes import FENCE, KEYS, Bench
from toolbus.broker.confirmations.notes import DeadlineNotes
from toolbus.broker.dead_letters.bury import DEAD_LETTER_LIMIT, FreedKey
from toolbus.broker.finish.endings import Endings
from toolbus.broker.finish.outbox import Outbox
from toolbus.broker.lease.clock import ServerClock
from toolbus.broker.take.begin import begin_once
from toolbus.broker.take.requests import UNSURE, BadEntry, Fence
from toolbus.broker.transport.command import ReplyError
from toolbus.envelope import decode_frames, join_frames, share_digest
from toolbus.results import ErrorInfo

pytestmark = pytest.mark.anyio


class Finishing:
    """An outbox, and sessions that are ours as the test says."""

    def __init__(self) -> None:
        self.bench = bench = Bench()
        self.gone: list[tuple[str, ErrorInfo]] = []
        self.lost: list[Any] = []
        bench.link.answers |= {"send": [], "finish": self._finished, "finish_each": self._finished, "bury": 1}
        self.lost_indexes: list[int] = []
        self.gone_keys: list[bytes] = []
        self.doubted = False
        self.ours = True
        self.outbox = Outbox(
            bench.as_link,
            KEYS,
            reply_limit=100,
            reply_bytes=1_000_000,
            on_replies_gone=lambda *gone: self.gone.append(gone),
            on_lost=self.lost.append,
        )
        self.endings = Endings(
            bench.as_link,
            KEYS,
            "mine",
            outbox=self.outbox,
            ownership=cast("Any", self),
            notes=DeadlineNotes(bench.as_link, KEYS, bench.clock, 60.0),
            start=bench.start,
        )

    def _finished(self, keys: Any, args: Any) -> list[Any]:
        return [*FENCE, self.lost_indexes, self.gone_keys, 3]

    def doubts(self, delivery: Any) -> bool:
        """Return whether a session may be another's."""
        return self.doubted

    async def settle(self, deliveries: list[Any]) -> list[Any]:
        """Ask whose the sessions are."""
        return deliveries if self.ours else []

    async def turn(self) -> None:
        """Let this tick end."""
        await asyncio.sleep(0)


@pytest.fixture
async def finishing() -> AsyncIterator[Finishing]:
    """An outbox of the test's own."""
    made = Finishing()
    yield made
    made.bench.forget()


async def test_frames_and_ends_of_one_tick_are_one_script(finishing: Finishing) -> None:
    """Under a fence that proves that all are ours: frames first, then the ends, one entry for each caller."""
    one, two = finishing.bench.hold(b"1-0"), finishing.bench.hold(b"2-0")
    finishing.outbox.send(one, b"frame")
    finishing.outbox.finish(one, b"end one")
    finishing.outbox.finish(two, b"end two")
    assert finishing.bench.link.names == []
    await finishing.turn()
    replies = KEYS.replies("agent")
    joined = join_frames([b"frame", b"end one", b"end two"])
    assert finishing.bench.link.args("finish") == [("mine", *FENCE, 2, b"1-0", b"2-0", replies, joined)]
    assert finishing.bench.link.keys("finish") == [(finishing.bench.stream.key, finishing.bench.stream.fence)]
    assert finishing.bench.stream.held == {}
    assert (finishing.outbox.frames_sent, finishing.outbox.calls_finished) == (1, 2)
    assert finishing.bench.stream.depth == 3


async def test_unequal_fences_are_finished_entry_by_entry(finishing: Finishing) -> None:
    """No counter proves that all of them are ours, so each is looked at in its attempt."""
    one, two = finishing.bench.hold(b"1-0"), finishing.bench.hold(b"2-0", attempt=2, fence=Fence(FENCE.generation, b"6"))
    finishing.outbox.finish(one, b"end one")
    finishing.outbox.finish(two, b"end two")
    await finishing.turn()
    replies = KEYS.replies("agent")
    [args] = finishing.bench.link.args("finish_each")
    assert args == ("mine", FENCE.generation, UNSURE, 2, b"1-0", 1, b"2-0", 2, replies, 2, 1, b"end one", 2, b"end two")
    assert "finish" not in finishing.bench.link.names


async def test_a_fence_that_has_moved_makes_the_script_look_at_each(finishing: Finishing) -> None:
    """Frames that went before are sent again: the script that finishes all or nothing wrote nothing."""
    one = finishing.bench.hold(b"1-0")
    finishing.bench.link.answers["finish"] = lambda keys, args: [FENCE.generation, b"9"]
    finishing.lost_indexes = [1]
    finishing.outbox.send(one, b"frame")
    finishing.outbox.finish(one, b"end")
    await finishing.turn()
    assert finishing.bench.link.names == ["finish", "send", "finish_each"]
    assert finishing.lost == [one]
    assert finishing.outbox.lost == 1


async def test_what_was_lost_meanwhile_is_not_finished(finishing: Finishing) -> None:
    """A later delivery of the same entry is another one."""
    old = finishing.bench.hold(b"1-0")
    finishing.outbox.finish(old, b"end")
    del finishing.bench.stream.held[b"1-0"]
    await finishing.turn()
    assert finishing.bench.link.names == []
    assert finishing.outbox.lost == 1
    first = finishing.bench.hold(b"2-0")
    finishing.outbox.finish(first, b"end")
    finishing.bench.hold(b"2-0")
    await finishing.turn()
    assert finishing.bench.link.names == []
    assert set(finishing.bench.stream.held) == {b"2-0"}


async def test_one_flush_is_in_flight_at_a_time(finishing: Finishing) -> None:
    """Answers that are produced during a flush go out together in the next one, and drained() returns after the last."""
    link = finishing.bench.link
    link.holding = True
    deliveries = [finishing.bench.hold(f"{number}-0".encode()) for number in range(1, 4)]
    for delivery in deliveries:
        finishing.outbox.finish(delivery, b"end")
        await finishing.turn()
    assert len(link.names) == 1
    link.release()
    assert [args[3] for args in link.args("finish")] == [1, 2]
    drained = asyncio.ensure_future(finishing.outbox.drained())
    await finishing.turn()
    assert not drained.done()
    link.release()
    await drained


async def test_batches_are_bounded_by_ids_and_bytes(finishing: Finishing) -> None:
    """A script of many ids, or bytes, would hold the server up."""
    for number in range(257):
        finishing.outbox.finish(finishing.bench.hold(f"{number}-0".encode()), b"end")
    await finishing.turn()
    assert [args[3] for args in finishing.bench.link.args("finish")] == [256, 1]
    for number in range(2):
        finishing.outbox.finish(finishing.bench.hold(f"{number}-1".encode()), b"x" * 200_000)
    await finishing.turn()
    assert [args[3] for args in finishing.bench.link.args("finish")[2:]] == [1, 1]


async def test_large_frames_go_part_by_part_before_their_end(finishing: Finishing) -> None:
    """The server may refuse one and carry out the next: the end waits for the answer of the last part."""
    one = finishing.bench.hold(b"1-0")
    finishing.bench.link.holding = True
    for _ in range(3):
        finishing.outbox.send(one, b"x" * 150_000)
    finishing.outbox.finish(one, b"end")
    await finishing.turn()
    for expected in (["send"], ["send"] * 2, ["send"] * 3, ["send"] * 3 + ["finish"]):
        assert finishing.bench.link.names == expected
        finishing.bench.link.release()


async def test_a_script_that_is_refused_leaves_the_calls_to_others(finishing: Finishing) -> None:
    """They stay pending without renewal, and are recovered."""
    finishing.bench.link.answers["finish"] = lambda keys, args: ReplyError("OOM")
    finishing.outbox.finish(finishing.bench.hold(b"1-0"), b"end")
    await finishing.turn()
    assert finishing.bench.stream.held == {}
    assert finishing.lost == []
    await finishing.outbox.drained()


async def test_callers_that_are_gone_are_told_of(finishing: Finishing) -> None:
    """By the script that finishes, and by the one that sends."""
    finishing.gone_keys = [KEYS.replies("agent").encode()]
    finishing.outbox.finish(finishing.bench.hold(b"1-0"), b"end")
    await finishing.turn()
    finishing.bench.link.answers["send"] = lambda keys, args: [1]
    finishing.outbox.send(finishing.bench.hold(b"2-0"), b"frame")
    await finishing.turn()
    assert [(replies, error.type) for replies, error in finishing.gone] == [(KEYS.replies("agent"), "cancelled")] * 2


@pytest.mark.parametrize(
    ("shared", "unread", "type_"), [(False, 100, None), (False, 101, "slow_consumer"), (True, 1_000, None), (True, 1_001, "tool_error")]
)
async def test_a_caller_that_reads_too_slowly_is_told_of(finishing: Finishing, shared: bool, unread: int, type_: str | None) -> None:
    """Every 64 entries it is asked how many are unread; answers that are kept for others have room for ten times as many."""
    one = finishing.bench.hold(b"1-0", shared=shared, idempotency_key="key" if shared else "")
    finishing.bench.link.answers["XLEN"] = lambda keys, args: unread
    for number in range(64):
        assert ("XLEN" in finishing.bench.link.names) is False, number
        finishing.outbox.send(one, b"frame")
        await finishing.turn()
    assert [error.type for _, error in finishing.gone] == ([type_] if type_ else [])


async def test_a_full_outbox_makes_producers_wait(finishing: Finishing) -> None:
    """Until what is queued has been handed to the server."""
    one = finishing.bench.hold(b"1-0")
    finishing.outbox.send(one, b"x" * 4 * 1024 * 1024)
    assert not finishing.outbox.congested
    finishing.outbox.send(one, b"x")
    assert finishing.outbox.congested
    waiting = asyncio.ensure_future(finishing.outbox.room())
    await finishing.turn()
    assert not finishing.outbox.congested
    await waiting


async def test_what_packs_before_sending_goes_with_the_flush(finishing: Finishing) -> None:
    """And what is to come afterwards comes when everything before it was answered."""
    one = finishing.bench.hold(b"1-0")
    finishing.outbox.before_sending(lambda: finishing.outbox.send(one, b"packed"))
    finishing.outbox.then(lambda: finishing.bench.link.send(("AFTER",)))
    finishing.bench.link.holding = True
    await finishing.turn()
    assert finishing.bench.link.names == ["send"]
    finishing.bench.link.release()
    assert finishing.bench.link.names == ["send", "AFTER"]


# -- endings that are more than a frame ---------------------------------------------------------------


def freed(delivery: Any) -> FreedKey:
    """Return the idempotency key of a delivery."""
    request = delivery.request
    return FreedKey(KEYS.shared(share_digest(request)), request.id, KEYS.started(request.id), delivery.run)


async def test_a_failure_frees_its_idempotency_key(finishing: Finishing) -> None:
    """In the step that ends the call, unless another run began `once` work; a success keeps it."""
    one, two = (finishing.bench.hold(entry, shared=True, idempotency_key="key") for entry in (b"1-0", b"2-0"))
    finishing.endings.finish(one, b"end", frees=True)
    finishing.endings.finish(two, b"end", frees=False)
    await finishing.turn()
    key = freed(one)
    assert finishing.bench.link.keys("finish_each")[0][2:] == (key.record, key.mark)
    args = finishing.bench.link.args("finish_each")[0]
    assert args[8:14] == ("!3", 2, 1, key.call.encode(), 1, key.run.encode())


@pytest.mark.parametrize(("server", "frees"), [(b"", True), (b"run-one", True), (b"run-two", False)])
async def test_another_server_may_lack_the_mark_of_what_began(finishing: Finishing, server: bytes, frees: bool) -> None:
    """Then the key stays, since an earlier attempt may have had its effect."""
    one = finishing.bench.hold(b"1-0", shared=True, idempotency_key="key")
    one.server = server
    finishing.endings.finish(one, b"end", frees=True)
    await finishing.turn()
    assert ("finish_each" in finishing.bench.link.names) is frees


async def test_a_run_whose_session_may_be_anothers_is_not_told_before_it_is_known(finishing: Finishing) -> None:
    """Once another worker has answered in the session, what was computed here is out of date."""
    finishing.bench.stream.sticky = True
    finishing.doubted = True
    for ours in (False, True):
        finishing.ours = ours
        finishing.endings.finish(finishing.bench.hold(b"1-0"), b"end", frees=False)
        assert finishing.bench.started.pop() == "_finish_doubtful"
        assert finishing.bench.link.names == []
        await finishing.bench.settle()
        await finishing.endings.settled()
        await finishing.turn()
        assert finishing.bench.link.names == (["finish"] if ours else [])


async def test_closing_waits_for_doubtful_ends(finishing: Finishing) -> None:
    """They are known only when the server has said whose the session is."""
    finishing.bench.stream.sticky = True
    finishing.doubted = True
    finishing.endings.finish(finishing.bench.hold(b"1-0"), b"end", frees=False)
    asked = asyncio.Event()

    async def settle(deliveries: list[Any]) -> list[Any]:
        await asked.wait()
        return deliveries

    finishing.settle = settle  # type: ignore[method-assign]
    ending = asyncio.ensure_future(finishing.bench.coroutines.pop())
    settled = asyncio.ensure_future(finishing.endings.settled())
    await finishing.turn()
    await finishing.turn()
    closing = asyncio.ensure_future(finishing.endings.settled())
    await finishing.turn()
    assert not closing.done()
    asked.set()
    await asyncio.gather(ending, settled, closing)


async def test_a_dead_letter_is_buried_after_what_its_run_has_sent(finishing: Finishing) -> None:
    """With its last frame, in one step, and it is held no more."""
    one = finishing.bench.hold(b"1-0", attempt=3)
    finishing.outbox.send(one, b"frame")
    finishing.endings.bury(one, "max_deliveries", "x" * 3_000, b"end")
    await finishing.turn()
    assert finishing.bench.link.names == ["send", "bury"]
    stream = finishing.bench.stream
    assert finishing.bench.link.keys("bury") == [(stream.key, stream.fence, stream.dead_letters)]
    args = finishing.bench.link.args("bury")[0]
    assert args[:7] == ("mine", *FENCE, b"1-0", "max_deliveries", 3, "x" * 2_000)
    assert args[8:] == (DEAD_LETTER_LIMIT, 7 * 86_400_000, KEYS.replies("agent"), join_frames([b"end"]))
    assert stream.held == {}


async def test_a_dead_letter_frees_its_key(finishing: Finishing) -> None:
    """A later caller starts it anew."""
    one = finishing.bench.hold(b"1-0", shared=True, idempotency_key="key")
    finishing.endings.bury(one, "failed", "broken", b"end")
    await finishing.turn()
    key = freed(one)
    assert finishing.bench.link.keys("bury")[0][3:] == (key.record, key.mark)
    assert finishing.bench.link.args("bury")[0][12:] == (key.call, key.run)


@pytest.mark.parametrize("document", [b"nonsense", b'{"id":"call-1","agent":"agent","x":'])
async def test_a_request_that_can_not_be_read_becomes_a_dead_letter(finishing: Finishing, document: bytes) -> None:
    """Its caller is told, when that is readable at least."""
    bad = BadEntry(b"1-0", document, "no JSON", 2, FENCE)
    finishing.endings.set_aside(finishing.bench.stream, bad)
    args = finishing.bench.link.args("bury")[0]
    assert args[:8] == ("mine", *FENCE, b"1-0", "malformed", 2, "no JSON", document)
    assert finishing.endings.malformed == 1
    if bad.address is None:
        assert args[10:] == ("", b"")
    else:
        assert args[10] == KEYS.replies("agent")
        [frame], _ = decode_frames(args[11], limit=10_000)
        assert (frame.id, frame.attempt, frame.end_of_stream, frame.worker) == ("call-1", 2, True, "mine")
        assert frame.error is not None
        assert (frame.error.type, frame.error.code) == ("invalid_arguments", "malformed_request")


async def test_the_note_of_a_later_deadline_goes_with_its_call(finishing: Finishing) -> None:
    """After the end was answered, and only where there is one."""
    one, two, three = (finishing.bench.hold(entry) for entry in (b"1-0", b"2-0", b"3-0"))
    one.extended = three.extended = True
    finishing.endings.finish(one, b"end", frees=False)
    finishing.endings.finish(two, b"end", frees=False)
    finishing.endings.bury(three, "failed", "broken", b"end")
    await finishing.turn()
    assert finishing.bench.link.names == ["finish", "DEL", "bury", "DEL"]
    assert finishing.bench.link.args("DEL") == [(KEYS.pause("pool", "1-0"),), (KEYS.pause("pool", "3-0"),)]


# -- the begin of once work ---------------------------------------------------------------------------


class Master:
    """A mastership that is sure as the test says, and replication that answers as it says."""

    def __init__(self, *sure: bool, reply: bytes = b"started", confirmed: bool = True) -> None:
        self._sure = [*sure, True]
        self.answer = reply, confirmed
        self.waits = 0
        self.args: list[Any] = []

    @property
    def sure(self) -> bool:
        """Return whether the server is surely the master."""
        return self._sure.pop(0)

    async def wait(self) -> None:
        """Count."""
        self.waits += 1

    async def run(self, script: Any, keys: Any, args: Any) -> tuple[bytes, bool]:
        """Answer as start.lua would."""
        self.args.append((keys, args))
        return self.answer


async def begun(bench: Bench, master: Master, delivery: Any) -> str:
    """Begin a delivery."""
    link, both = bench.as_link, cast("Any", master)
    clock: ServerClock = bench.clock
    return await begin_once(link, both, both, delivery, "mark", clock=clock, retention=60.0)


@pytest.mark.parametrize(
    ("reply", "confirmed", "beginning"),
    [(b"started", True, "started"), (b"started", False, "unconfirmed"), (b"began", True, "began"), (b"lost", True, "lost")],
)
async def test_once_work_begins_under_the_fence(reply: bytes, confirmed: bool, beginning: str) -> None:
    """The mark outlives the deadline by the retention."""
    bench = Bench()
    one, master = bench.hold(b"1-0", attempt=2), Master(reply=reply, confirmed=confirmed)
    assert await begun(bench, master, one) == beginning
    left = int((one.deadline - bench.times.now + 60.0) * 1000)
    keys = (bench.stream.key, bench.stream.fence, "mark")
    assert master.args == [(keys, ("mine", *FENCE, b"1-0", 2, one.run, left))]


async def test_once_work_begins_again_until_the_master_is_sure() -> None:
    """A beginning that a master which was replaced has taken is no beginning."""
    bench = Bench()
    master = Master(False, False)
    assert await begun(bench, master, bench.hold(b"1-0")) == "started"
    assert (master.waits, len(master.args)) == (3, 3)


@pytest.mark.parametrize(
    ("info", "unsure"),
    [
        ("aof_enabled:1\r\nmaster_replid2:000", False),
        ("aof_enabled:0\r\nmaster_replid2:000", True),
        ("aof_enabled:1\r\nmaster_replid2:0a0", True),
        ("aof_enabled:1", True),
    ],
)
async def test_a_server_that_may_have_forgotten_starts_no_once_work(info: str, unsure: bool) -> None:
    """A restart over an append-only file keeps every mark; a snapshot or a promoted replica may not."""
    bench = Bench()
    one = bench.hold(b"1-0")
    one.server = b"run-two"
    bench.link.answers["INFO"] = lambda keys, args: info.encode()
    assert await begun(bench, Master(), one) == ("unsure" if unsure else "started")
    one.server = b"run-one"
    assert await begun(bench, Master(), one) == "started"
