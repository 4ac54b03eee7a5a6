"""The event loop of a worker's own program, which no code of a tool ends."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from toolbus.bus import telemetry

T = TypeVar("T")


def run_loop(main: Callable[[], Coroutine[Any, Any, T]], base: type[asyncio.AbstractEventLoop] | None = None) -> T:
    """Run a program on a loop of a class, or on uvloop when it is installed, else on asyncio's own loop.

    A task or callback that a handler leaves behind and that raises SystemExit is logged, and the loop goes on.
    """
    with asyncio.Runner(loop_factory=_lasting(base or _quickest())) as runner:
        return runner.run(main())


def _quickest() -> type[asyncio.AbstractEventLoop]:
    try:
        import uvloop  # noqa: PLC0415 - an extra
    except ImportError:
        return asyncio.SelectorEventLoop
    found: type[asyncio.AbstractEventLoop] = uvloop.Loop
    return found


def _lasting(base: type[asyncio.AbstractEventLoop]) -> type[asyncio.AbstractEventLoop]:
    """Return a class of loops that end with their main task only."""

    class Lasting(base):  # type: ignore[misc,valid-type] # which of two is known when the program runs
        _main: asyncio.Future[Any] | None = None
        _hears_interrupts = False

        def run_until_complete(self, future: Any) -> Any:
            self._main = asyncio.ensure_future(future, loop=self)
            return super().run_until_complete(self._main)

        def run_forever(self) -> None:
            while True:
                try:
                    super().run_forever()
                except (SystemExit, KeyboardInterrupt) as error:
                    # While the loop hears SIGINT itself, no KeyboardInterrupt comes from the keyboard.
                    ours = isinstance(error, SystemExit) or self._hears_interrupts
                    if not ours or self._main is None or self._main.done():
                        raise
                    telemetry.log.exception("worker.exit_refused")
                else:
                    return

        def add_signal_handler(self, sig: int, callback: Callable[..., Any], *args: Any) -> None:
            super().add_signal_handler(sig, callback, *args)
            self._hears_interrupts = self._hears_interrupts or sig == signal.SIGINT

        def remove_signal_handler(self, sig: int) -> bool:
            if sig == signal.SIGINT:
                self._hears_interrupts = False
            return bool(super().remove_signal_handler(sig))

    return Lasting


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
