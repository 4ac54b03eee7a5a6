"""The timers of running calls, with a call that only records what is asked of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.servers import eventually
from toolbus.bus.client.calls import connection as timers
from toolbus.bus.client.calls.connection import CallTimers
from toolbus.bus.support.deadlines import Deadlines
from toolbus.bus.values.results import ErrorInfo

pytestmark = pytest.mark.anyio

LEASE = 3.0
GAP = 4.0 + timers.GAP_SECONDS
"""Seconds until a dead worker's call runs again, and some."""


def call(**fields: Any) -> Any:
    """Return a call that records its end in ``ended`` and the frames that it looks for in ``looked``."""
    made = SimpleNamespace(
        id="c", slot=0, idle_slot=0, gap_slot=0, idle_timeout=0.0, last_heard=time.monotonic(), pause=None, ended=[], looked=[]
    )
    vars(made).update(fields)
    made.give_up, made.look_for, made.expire = made.ended.append, made.looked.append, lambda: made.ended.append(None)
    return made


async def test_a_silent_call_ends() -> None:
    """A call of which nothing is heard for its idle timeout is given up."""
    deadlines = Deadlines(asyncio.get_running_loop(), 0.005)
    silent = call(idle_timeout=0.02)
    CallTimers(deadlines, LEASE, lambda: True).watch_idle(silent)
    await eventually(lambda: bool(silent.ended))
    [error] = silent.ended
    assert isinstance(error, ErrorInfo)
    assert (error.type, error.code) == ("deadline_exceeded", "idle_timeout")


async def test_a_paused_call_may_be_silent() -> None:
    """While its handler waits for a confirmation, silence is counted from the end of the pause."""
    deadlines = Deadlines(asyncio.get_running_loop(), 0.005)
    paused = call(idle_timeout=0.02, last_heard=time.monotonic() - 1, pause=SimpleNamespace(until=time.monotonic() + 60))
    CallTimers(deadlines, LEASE, lambda: True).watch_idle(paused)
    assert paused.ended == []
    assert paused.idle_slot


async def test_timers_go_with_their_call() -> None:
    """Neither timer of a call that has ended stays, and a moved deadline replaces the one before."""
    deadlines = Deadlines(asyncio.get_running_loop(), 0.005)
    made, kept = call(idle_timeout=60.0, ends=time.monotonic() + 60), CallTimers(deadlines, LEASE, lambda: True)
    kept.watch_idle(made)
    kept.watch_gap(made, ("run", 1))
    kept.rearm(made, time.monotonic())
    kept.rearm(made, time.monotonic())
    assert len(deadlines) == 3
    kept.remove(made)
    assert len(deadlines) == 1
    deadlines.close()


# --- At a time that stands still ---

NOW = 100.0


class Due:
    """Deadlines that never pass, with a slot of its own for each.

    Attributes:
        kept: by slot and key, when each is due and what is then called.
    """

    def __init__(self) -> None:
        self.kept: dict[tuple[int, object], tuple[float, Callable[[], None]]] = {}
        self._slots = 0

    def add(self, when: float, key: object, callback: Callable[[], None]) -> int:
        """Keep a deadline, and return its slot."""
        self._slots += 1
        self.kept[self._slots, key] = when, callback
        return self._slots

    def remove(self, slot: int, key: object) -> None:
        """Drop a deadline."""
        self.kept.pop((slot, key), None)

    def times(self) -> list[float]:
        """When the deadlines are due."""
        return sorted(when for when, _ in self.kept.values())

    def run(self) -> None:
        """Let all of them be due."""
        kept, self.kept = self.kept, {}
        for _, callback in kept.values():
            callback()


@pytest.fixture
def due(monkeypatch: pytest.MonkeyPatch) -> Due:
    """Stop the clock, and collect deadlines."""
    monkeypatch.setattr(timers, "time", SimpleNamespace(monotonic=lambda: NOW))
    return Due()


async def test_silence_is_counted_from_the_last_frame(due: Due) -> None:
    """A call is looked at when its idle timeout may be over, and given up when it is, to the instant."""
    silent = call(idle_timeout=5.0, last_heard=NOW - 4.5)
    CallTimers(due, LEASE, lambda: True).watch_idle(silent)
    assert (due.times(), silent.ended) == ([NOW + 0.5], [])
    silent.last_heard = NOW - 5.0
    due.run()
    [error] = silent.ended
    assert (error.code, error.retryable) == ("idle_timeout", True)
    assert "5 s" in error.message


async def test_a_call_that_was_heard_is_watched_on(due: Due) -> None:
    """When the timer is due and something was heard in between, the call goes on."""
    heard = call(idle_timeout=5.0, last_heard=NOW - 4.5)
    CallTimers(due, LEASE, lambda: True).watch_idle(heard)
    heard.last_heard = NOW - 1.0
    due.run()
    assert heard.ended == []
    assert NOW + 4.0 in due.times()


async def test_a_moved_deadline_replaces_the_one_before(due: Due) -> None:
    """A call has one timer for its deadline and one for its silence, which is counted anew."""
    kept = CallTimers(due, LEASE, lambda: True)
    moved = call(idle_timeout=5.0, last_heard=NOW - 1.0, ends=NOW + 60.0)
    kept.watch_idle(moved)
    kept.rearm(moved, NOW - 0.5)
    assert (moved.last_heard, due.times()) == (NOW - 0.5, [NOW + 4.5, NOW + 60.0])
    moved.ends = NOW + 90.0
    kept.rearm(moved, NOW)
    assert (moved.last_heard, due.times()) == (NOW, [NOW + 5.0, NOW + 90.0])
    moved.last_heard = NOW - 9.0
    due.run()
    assert len(moved.ended) == 2
    assert None in moved.ended


async def test_a_call_without_an_idle_timeout_has_one_timer(due: Due) -> None:
    """Moving its deadline watches for no silence."""
    moved = call(ends=NOW + 60.0)
    CallTimers(due, LEASE, lambda: True).rearm(moved, NOW)
    assert due.times() == [NOW + 60.0]


async def test_a_missing_frame_has_its_time(due: Due, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gap is looked at when a dead worker's run would have been replaced, and the timers of a call go one by one."""
    kept = CallTimers(due, LEASE, lambda: True)
    waiting = call(idle_timeout=5.0, last_heard=NOW)
    kept.watch_gap(waiting, ("run", 1))
    for second in range(int(GAP)):
        assert due.times() == [NOW + second + 1]
        assert waiting.looked == []
        monkeypatch.setattr(timers.time, "monotonic", lambda now=NOW + second + 1: now)
        due.run()
    assert waiting.looked == [("run", 1)]
    kept.watch_gap(waiting, ("run", 2))
    kept.watch_idle(waiting)
    kept.remove(waiting)
    assert due.times() == []


@pytest.mark.parametrize("late", [0.0, 10.0], ids=["disconnected", "stalled"])
async def test_time_in_which_nothing_could_be_read_is_no_time_for_a_missing_frame(
    due: Due, monkeypatch: pytest.MonkeyPatch, late: float
) -> None:
    """A loop that stood still, or a connection that was lost, ends no call."""
    waiting = call()
    CallTimers(due, LEASE, lambda: late > 0).watch_gap(waiting, ("run", 1))
    now = NOW
    for _ in range(20):
        now += 1.0 + late
        monkeypatch.setattr(timers.time, "monotonic", lambda now=now: now)
        due.run()
    assert waiting.looked == []
    assert due.times()
