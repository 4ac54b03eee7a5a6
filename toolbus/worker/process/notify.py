"""Tell the service manager that this process serves, stops, and still runs (``sd_notify``)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, MutableMapping

_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Notifier:
    """Tells the service manager of this process, if one asked for it.

    Its variables leave the environment, so that no child speaks for this process.
    """

    def __init__(self, environ: MutableMapping[str, str] | None = None) -> None:
        given = os.environ if environ is None else environ
        place, period, pid = (given.pop(name, "") for name in _VARIABLES)
        self._place = place
        ours = pid in {"", str(os.getpid())}
        self.period = int(period) / 2e6 if place and ours and period.isdigit() and int(period) else 0.0
        """Seconds between two signs of life; 0 when none are asked for."""

    def ready(self) -> None:
        """Tell that this process serves."""
        self._tell("READY=1")

    def stopping(self) -> None:
        """Tell that it takes nothing more, and finishes what runs."""
        self._tell("STOPPING=1")

    @contextlib.asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        """Tell again and again that the event loop runs."""
        if not self.period:
            yield
            return
        task = asyncio.create_task(self._keep_telling())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _keep_telling(self) -> None:
        while True:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self.period)

    def _tell(self, state: str) -> None:
        if not self._place:
            return
        # The manager may be gone, and must hold up nothing.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
            line.setblocking(False)
            abstract = self._place.startswith("@")
            line.connect("\0" + self._place[1:] if abstract else self._place)
            line.send(state.encode())
