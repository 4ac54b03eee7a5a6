"""The turns of a worker's upkeep by the clock, and the edges of what it takes over, checks and makes room for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.broker.conftest import Observed
from tests.broker.fakes import KEYS, SETTINGS, Bench
from tests.broker.test_recover import Recovery
from toolbus.bus.broker.lease.recover import KeyRepair
from toolbus.bus.broker.take.requests import Fence
from toolbus.bus.broker.transport.command import ReplyError
from toolbus.bus.values.results import BrokerUnavailable

pytestmark = pytest.mark.anyio


@pytest.fixture
async def recovery() -> AsyncIterator[Recovery]:
    """A worker that holds nothing."""
    made = Recovery()
    yield made
    made.bench.forget()


class Pauses:
    """Stands in for ``asyncio.sleep``: takes note of pauses, does ``then`` in each, and cancels the task after ``most`` of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        self.slept: list[float] = []
        self.then = lambda: None
        self._most = most
        self._sleep = asyncio.sleep
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        """Let others run."""
        if seconds:
            self.then()
            self.slept.append(seconds)
            if len(self.slept) > self._most:
                raise asyncio.CancelledError
        await self._sleep(0)


async def test_there_are_three_turns_a_lease_and_one_of_them_does_more(recovery: Recovery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some jitter keeps workers apart. A worker that has just come has just registered, so its first turns need not look for that."""
    pauses = Pauses(monkeypatch, most=60)
    with pytest.raises(asyncio.CancelledError):
        await recovery.upkeep.run()
    assert all(0.8 * SETTINGS.lease / 3 <= each <= SETTINGS.lease / 3 for each in pauses.slept)
    assert len(set(pauses.slept)) > 1
    assert recovery.order == ["reap", "keep", "reap", "keep", "reap", "register_lost", "keep"] * 20


async def test_there_are_no_turns_without_a_connection(recovery: Recovery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that it asks would fail, or wait."""
    pauses = Pauses(monkeypatch, most=7)

    def connect() -> None:
        recovery.bench.link.connected = len(pauses.slept) == 5

    pauses.then = connect
    with pytest.raises(asyncio.CancelledError):
        await recovery.upkeep.run()
    assert recovery.order == ["reap", "register_lost", "keep"], "the sixth turn alone"


async def test_a_wide_reap_that_was_full_is_postponed_as_wide(recovery: Recovery) -> None:
    """After a wide reap that was full the next one is as wide, because an entry that was left over may be a dead worker's."""
    recovery.entries = [recovery.entry(number) for number in range(1, 4)]
    recovery.bench.listener.slots = 2
    await recovery.upkeep.recover()
    recovery.bench.listener.slots = 5
    await recovery.upkeep.reap_postponed()
    assert [args[4] for args in recovery.bench.link.args("reap")] == [0, 0]
    assert len(recovery.ran) == 3


async def test_who_leaves_has_all_that_a_reap_has_moved(recovery: Recovery) -> None:
    """It takes over nothing more, and what was moved is with the listener before it hands anything back."""
    recovery.entries = [recovery.entry(number) for number in range(1, 4)]
    recovery.bench.listener.slots = 5
    reaping = asyncio.create_task(recovery.upkeep.recover())
    for _ in range(20):
        if not recovery.ran:
            await asyncio.sleep(0)
    assert len(recovery.ran) == 1, "the others are on their way"
    await recovery.upkeep.stop_recovering()
    assert len(recovery.ran) == 3
    await reaping
    recovery.entries = [recovery.entry(4)]
    await recovery.upkeep.recover()
    assert len(recovery.ran) == 3


async def test_one_slot_is_enough_to_go_on(recovery: Recovery) -> None:
    """After a part that was full."""
    recovery.entries = [recovery.entry(number) for number in range(1, 258)]
    recovery.bench.listener.slots = 257
    await recovery.upkeep.recover()
    assert [args[2] for args in recovery.bench.link.args("reap")] == [256, 1]
    assert len(recovery.ran) == 257


async def test_what_is_taken_over_is_held_under_the_fence_of_the_reap(recovery: Recovery) -> None:
    """It was moved here under that state, and the stream knows it."""
    newer = Fence(b"1.a", b"9")
    recovery.bench.link.answers["reap"] = lambda keys, args: [*newer, [recovery.entry(1)] if not recovery.ran else [], 0, b"0-0"]
    await recovery.upkeep.recover()
    assert recovery.bench.stream.held[b"1-0"].fence == newer == recovery.bench.stream.fence_known


async def test_an_entry_without_a_note_keeps_its_deadline(recovery: Recovery, observed: Observed) -> None:
    """Nothing is said of a note that was never written."""
    recovery.entries = [recovery.entry(1)]
    await recovery.upkeep.recover()
    assert [event["event"] for event in observed.events] == ["requests.recovered"]


async def test_running_calls_of_dead_callers_are_cancelled(recovery: Recovery) -> None:
    """A running call of a dead caller is cancelled, and one that nobody waits for anyway is left alone."""
    recovery.bench.hold(b"1-0")
    recovery.bench.hold(b"2-0", agent="")
    recovery.missing = {KEYS.replies("agent"), ""}
    await recovery.abandoned.stop_calls()
    [(replies, error)] = recovery.bench.listener.replies_gone
    assert (replies, error.type) == (KEYS.replies("agent"), "cancelled")
    assert "gone" in error.message


async def test_a_request_that_waited_for_less_than_five_seconds_is_run_unasked(recovery: Recovery) -> None:
    """A reply stream outlives its agent by more than that."""
    times = recovery.bench.times.now * 1000
    recovery.missing = {KEYS.replies("agent")}
    young, old = recovery.bench.hold(f"{times - 5_000:.0f}-0".encode()), recovery.bench.hold(f"{times - 5_001:.0f}-0".encode(), agent="old")
    assert await recovery.abandoned.without([young]) == [young]
    assert recovery.order == []
    await recovery.abandoned.without([young, old])
    assert recovery.order == ["EXISTS"]


async def test_a_suspect_that_became_one_by_this_attempt_waits_for_an_idle_worker(recovery: Recovery) -> None:
    """The guard looks at the attempt that would begin now, and lets a busy worker count nothing."""
    recovery.entries = [
        recovery.entry(1, delivered=SETTINGS.alone_from - 1, counted=1),
        recovery.entry(2, delivered=SETTINGS.alone_from - 1, counted=0),
    ]
    recovery.bench.listener.running = True
    await recovery.upkeep.recover()
    assert recovery.ran == [(b"2-0", SETTINGS.alone_from - 1)]
    assert recovery.counted == []


async def test_a_repair_that_is_answered_by_half_is_an_error() -> None:
    """The answer names a key and its type by turns; nothing is guessed."""
    bench = Bench()
    bench.link.answers["mend"] = [1, b"set", 2]
    repair = KeyRepair(bench.as_link, lambda: [{"one": "hash", "two": "hash"}], lambda: None)
    repair.request()
    with pytest.raises(ValueError, match="shorter"):
        await repair.run()


async def test_what_the_server_refuses_in_one_step_keeps_no_other_from_being_taken(recovery: Recovery, observed: Observed) -> None:
    """A damaged key of one service costs neither another service nor the registration."""
    bench = recovery.bench
    bench.streams["other"] = bench.new_stream("other")
    reap = bench.link.answers["reap"]
    bench.link.answers["reap"] = lambda keys, args: ReplyError("ERR damaged") if args[1] == "pool" else reap(keys, args)
    await recovery.upkeep.turn(once_a_lease=True)
    assert [args[1] for args in bench.link.args("reap")] == ["pool", "other"]
    assert recovery.order[-2:] == ["register_lost", "keep"]
    assert [event["error"] for event in observed.events] == ["ERR damaged"]


async def test_a_lost_connection_ends_the_turn(recovery: Recovery, observed: Observed) -> None:
    """Its other steps would fail as well, and say the same."""
    recovery.bench.streams["other"] = recovery.bench.new_stream("other")
    recovery.bench.link.answers["reap"] = BrokerUnavailable("gone")
    await recovery.upkeep.turn(once_a_lease=True)
    assert len(recovery.bench.link.args("reap")) == 1
    assert recovery.order == []
    assert [event["error"] for event in observed.events] == ["gone"]
