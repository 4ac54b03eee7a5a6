"""An event loop whose time passes at once, for tests of delays and deadlines."""

from __future__ import annotations

import asyncio
import selectors
import threading
from typing import Any

NOW = 1000.0
"""The first moment of a virtual clock, in seconds."""

# Real seconds that a virtual clock stands still for a thread.
_PATIENCE = 0.5


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that does not wait for its timers: when nothing else is to be done, its clock jumps to the next one.

    Attributes:
        at_work: how many functions run in threads, and are to end before its clock jumps.
    """

    def __init__(self) -> None:
        self.now = NOW
        self.at_work = 0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.now

    def run_in_executor(self, *given: Any) -> Any:  # type: ignore[override]
        """Run a function in a thread, and count it until its end."""
        self.at_work += 1
        future = super().run_in_executor(*given)
        future.add_done_callback(self._done)
        return future

    def _done(self, _: object) -> None:
        self.at_work -= 1


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        # Threads take real time. What a thread does is nearly always short, and comes first.
        real = _PATIENCE if self._loop.at_work else 0.0 if threading.active_count() == 1 else min(timeout, 0.002)
        found = super().select(real)
        if not found:
            self._loop.now += timeout
        return found
