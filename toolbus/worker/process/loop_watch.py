"""Tell of an event loop that something blocks."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback

from toolbus import telemetry

_EVERY = 0.25
_PATIENCE = 0.5
_MOMENT = 0.05
_LOOK_AGAIN = 1.0


class LoopWatch:
    """Logs ``worker.loop_blocked`` when the event loop does not answer for half a second: once for each time, with its stack.

    Asks from a thread, four times a second. Code that does not let go of the interpreter either, such as a long match of a regular
    expression, is told of when it ends, with the stack that is there then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, patience: float = _PATIENCE) -> None:
        self._loop = loop
        self._patience = patience
        self._loop_thread = threading.get_ident()
        self._answered = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="toolbus-loop-watch", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; does not wait for the thread."""
        self._stopped.set()
        self._answered.set()

    def _run(self) -> None:
        while True:
            began, used = time.monotonic(), time.process_time()
            if self._stopped.wait(_EVERY):
                return
            held = time.monotonic() - began - _EVERY
            if held > self._patience and _was_running(held, used):
                self._tell(held)
            if not self._ask():
                return

    def _ask(self) -> bool:
        """Ask the loop for a sign, and wait until it comes; return whether to go on."""
        self._answered.clear()
        asked, used = time.monotonic(), time.process_time()
        try:
            self._loop.call_soon_threadsafe(self._answered.set)
        except RuntimeError:
            # The loop is closed: the process is going away.
            return False
        answered = self._answered.wait(self._patience)
        silent = time.monotonic() - asked
        # What held the interpreter kept this thread from seeing the sign in time.
        if not (silent > self._patience and _was_running(silent, used)) and (answered or self._answered.wait(_MOMENT)):
            return True
        self._tell(silent)
        while not self._answered.wait(_LOOK_AGAIN):
            if self._loop.is_closed():
                return False
        return True

    def _tell(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        stack = "".join(traceback.format_stack(frame)) if frame else "unknown"
        telemetry.log.warning("worker.loop_blocked", seconds=round(seconds, 1), stack=stack)


def _was_running(seconds: float, used: float) -> bool:
    """Return whether the process has computed in the last seconds; one that was stopped, or got no processor, has not."""
    return time.process_time() - used > seconds / 10
