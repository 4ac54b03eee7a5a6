"""``Watchdog``: end a run that does not end by itself, and say what it and its hosts were waiting for."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.chaos.platform import stacks

EXIT_CODE = 3
# Seconds in which the loop and the hosts tell their stacks.
_TELLING = 10.0


class Watchdog:
    """Ends this process after so many seconds, unless its ``with`` block has ended.

    Args:
        seconds: that the run may take.
        hosts: returns the processes that are asked for their stacks, and killed.
        logs: where the hosts write theirs, for the message.
    """

    def __init__(self, seconds: float, hosts: Callable[[], Iterable[int]], logs: Path) -> None:
        self._seconds = seconds
        self._hosts = hosts
        self._logs = logs
        self._loop = asyncio.get_running_loop()
        # A thread, since the loop may be what hangs.
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _end(self) -> None:
        sys.stderr.write(f"the run has not ended within {self._seconds:g} s; its hosts tell theirs in {self._logs}/host-*.log\n")
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        told = threading.Event()

        def tell() -> None:
            stacks.tell_tasks(asyncio.all_tasks(self._loop), sys.stderr)
            told.set()

        self._loop.call_soon_threadsafe(tell)
        hosts = list(self._hosts())
        for pid in hosts:
            with suppress(ProcessLookupError):
                os.kill(pid, stacks.ASK)
        if not told.wait(_TELLING):
            sys.stderr.write("the event loop does not run\n")
        # The hosts write their stacks meanwhile.
        threading.Event().wait(1.0)
        for pid in hosts:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os._exit(EXIT_CODE)
