"""Fixtures of tests without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.virtual_time import VirtualLoop
from tests.worker.unit.fakes import handlers
from toolbus.bus.worker.handling import Pace, ThreadCall, Threads


@pytest.fixture(scope="package")
def anyio_backend() -> Any:
    """Run each test on a loop whose time passes at once."""
    return ("asyncio", {"loop_factory": VirtualLoop})


@pytest.fixture(autouse=True)
def _counted_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the clock stand still while handlers run in threads."""
    call, end = Threads.call, ThreadCall.end

    def begin(self: Threads, function: Callable[[], Any], pace: Pace) -> ThreadCall:
        cast("VirtualLoop", asyncio.get_running_loop()).at_work += 1
        return call(self, function, pace)

    def ended(self: ThreadCall) -> None:
        cast("VirtualLoop", self._loop).at_work -= 1
        end(self)

    monkeypatch.setattr(Threads, "call", begin)
    monkeypatch.setattr(ThreadCall, "end", ended)


@pytest.fixture(autouse=True)
def gate() -> asyncio.Event:
    """Return the event that the handlers of a test wait for."""
    handlers.gate = asyncio.Event()
    return handlers.gate


@pytest.fixture(autouse=True)
def seen() -> list[Any]:
    """Return the list in which the handlers of a test take notes."""
    handlers.seen = []
    return handlers.seen
