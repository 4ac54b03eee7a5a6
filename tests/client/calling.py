"""A call whose host only records what is asked of it, so that a test says which frames come, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from toolbus.bus.client.calls.call import Call, CallTarget
from toolbus.bus.client.calls.refusals import unfinished
from toolbus.bus.values.envelope import Confirm, Frame, Request
from toolbus.bus.values.events import Event
from toolbus.bus.values.results import ErrorInfo


class Host:
    """A bus as a call sees it, which records what the call asks of it.

    Attributes:
        problems: raised by the next launches, in order.
        trouble: awaited by the caller of a call that waits for a worker.
        launched, withdrawn, forgotten: calls, once for each time.
        inquired: calls that may have begun, and the error with which they end if they did not.
        rearmed: calls whose timers were to be moved, and when.
        gaps: calls that miss a frame, and which.
        available: whether workers of the calls' service live.
    """

    most_waiting = 100.0

    def __init__(self) -> None:
        self.available = True
        self.problems: list[Exception] = []
        self.trouble: Coroutine[Any, Any, None] | None = None
        self.launched: list[Call] = []
        self.withdrawn: list[Call] = []
        self.forgotten: list[Call] = []
        self.inquired: list[tuple[Call, ErrorInfo]] = []
        self.rearmed: list[tuple[Call, float]] = []
        self.early_frames = 0
        self.gaps: list[tuple[Call, tuple[str, int]]] = []

    def launch(self, call: Call) -> Coroutine[Any, Any, None] | None:
        """Record that a call is to be published."""
        self.launched.append(call)
        if self.problems:
            raise self.problems.pop(0)
        return self.trouble

    def service_of(self, target: CallTarget) -> str:
        """Know none."""
        return ""

    def withdraw(self, call: Call, why: str) -> None:
        """Record that the caller of a call no longer waits."""
        call.withdrawn = why
        self.withdrawn.append(call)

    def inquire(self, call: Call, error: ErrorInfo) -> None:
        """Record that a call is to end when it is known whether it began."""
        self.inquired.append((call, error))

    def unfinished(self, call: Call, error: ErrorInfo) -> ErrorInfo:
        """Tell of a service whose workers live as ``available`` says."""
        return unfinished(error, "s", available=self.available)

    def held_up(self, call: Call) -> str:
        """Hold nothing up."""
        return ""

    def forget(self, call: Call) -> None:
        """Record that a call has ended."""
        self.forgotten.append(call)

    def rearm(self, call: Call, now: float) -> None:
        """Record that a call's timers are to be moved."""
        self.rearmed.append((call, now))

    def watch_gap(self, call: Call, missing: tuple[str, int]) -> None:
        """Record that a frame of a call is missing."""
        self.gaps.append((call, missing))
        call.gap_slot = len(self.gaps)


def made(
    host: Host, *, streaming: bool = False, limit: int = 1_000_000, started: float = 0.0, launched: bool = True, **fields: Any
) -> Call:
    """Return a call ``c`` of the tool ``t``."""
    call = Call(host, asyncio.get_running_loop().create_future(), "c", CallTarget("t"), {}, {}, streaming, limit, started)
    call._launched = launched
    for name, value in fields.items():
        setattr(call, name, value)
    return call


def request(**fields: Any) -> Request:
    """Return a request of the service ``s``."""
    return Request("c", "agent", "s", "t", **fields)


def answer(attempt: int = 1, response: str = "a") -> Frame:
    """Return the only frame of a run."""
    return Frame("c", f"run-{attempt}", attempt, 0, "end", response, end_of_stream=True, worker=f"worker-{attempt}")


def asking(attempt: int, seq: int = 0, seconds: float = 30.0) -> Frame:
    """Return a frame of a handler that begins to wait for a confirmation."""
    return Frame("c", f"run-{attempt}", attempt, seq, "confirm", worker="w", confirm=Confirm("q", "sure?", seconds))


def answered(attempt: int, seq: int = 1) -> Frame:
    """Return a frame of a handler that waits no longer."""
    return Frame("c", f"run-{attempt}", attempt, seq, "confirm", confirm=Confirm("q", allowed=True))


async def told(call: Call) -> list[Event]:
    """Return the events of a call that has ended."""
    assert call.done
    return [event async for event in call.events()]
