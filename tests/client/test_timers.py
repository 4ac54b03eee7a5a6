"""The timers of running calls, with a call that only records what is asked of it."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.servers import eventually
from toolbus.client.calls import timers
from toolbus.client.calls.timers import CallTimers
from toolbus.deadlines import Deadlines
from toolbus.results import ErrorInfo

pytestmark = pytest.mark.anyio


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
    CallTimers(deadlines).watch_idle(silent)
    await eventually(lambda: bool(silent.ended))
    [error] = silent.ended
    assert isinstance(error, ErrorInfo)
    assert (error.type, error.code) == ("deadline_exceeded", "idle_timeout")


async def test_a_paused_call_may_be_silent() -> None:
    """While its handler waits for a confirmation, silence is counted from the end of the pause."""
    deadlines = Deadlines(asyncio.get_running_loop(), 0.005)
    paused = call(idle_timeout=0.02, last_heard=time.monotonic() - 1, pause=SimpleNamespace(until=time.monotonic() + 60))
    CallTimers(deadlines).watch_idle(paused)
    assert paused.ended == []
    assert paused.idle_slot


async def test_a_missing_frame_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call checks for the frame once the time for it is over."""
    monkeypatch.setattr(timers, "GAP_SECONDS", 0.01)
    deadlines = Deadlines(asyncio.get_running_loop(), 0.005)
    waiting = call()
    CallTimers(deadlines).watch_gap(waiting, ("run", 3))
    await eventually(lambda: bool(waiting.looked))
    assert waiting.looked == [("run", 3)]


async def test_timers_go_with_their_call() -> None:
    """Neither timer of a call that has ended stays, and a moved deadline replaces the one before."""
    deadlines = Deadlines(asyncio.get_running_loop(), 0.005)
    made, kept = call(idle_timeout=60.0, ends=time.monotonic() + 60), CallTimers(deadlines)
    kept.watch_idle(made)
    kept.watch_gap(made, ("run", 1))
    kept.rearm(made, time.monotonic())
    kept.rearm(made, time.monotonic())
    assert len(deadlines) == 3
    kept.remove(made)
    assert len(deadlines) == 1
    deadlines.close()
