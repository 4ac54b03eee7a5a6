"""The event loop of a worker's own program, which no code of a tool ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from toolbus import telemetry

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
    else:
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
