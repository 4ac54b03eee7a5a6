"""``Readiness``: how it is known that a program can be called, and that it still is well."""

from __future__ import annotations

import asyncio
import contextlib

from toolbus.backends.http.calls import HttpCalls
from toolbus.backends.keeper import descendants
from toolbus.backends.ports import LOOPBACK, Listening, listening
from toolbus.backends.program import Program
from toolbus.platform.records import ToolSource

_FIRST, _MOST = 0.02, 0.25
_CONNECT = 2.0
_HEALTHY_WITHIN = 5.0


class Readiness:
    """Says when a program is ready.

    Args:
        source: says how readiness is known: ``port``, ``path:/health`` or ``log:TEXT``.
        port: of the program.
        relayed: whether the host passes on connections, so that it has the port, and takes them once the program listens.

    Attributes:
        taken: another process listens on its port.
        everywhere: it listens on all addresses of the machine; known when it is ready.
    """

    def __init__(self, source: ToolSource, port: int, *, relayed: bool = False) -> None:
        self._kind, _, self._what = source.ready.partition(":")
        self._port = port
        self._relayed = relayed
        self.taken = self.everywhere = False

    @property
    def wanted(self) -> str:
        """Name what it waits for, in words."""
        if self._kind == "path":
            return f"GET {self._what} was not answered well"
        if self._kind == "log":
            return f"no line with {self._what!r} was written"
        return f"nothing listens on port {self._port}"

    async def wait(self, running: Program, calls: HttpCalls) -> None:
        """Wait until the program is ready; for ever, if it never is."""
        if self._kind == "log":
            await running.wrote(self._what)
            if not self._relayed:
                self.everywhere = (await self._listening(running)).everywhere
                return
        pause = _FIRST
        while True:
            if (
                await self._connects()
                and await self._is_own(running)
                and not (self._kind == "path" and await calls.get(self._what, _CONNECT))
            ):
                return
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _MOST)

    async def health(self, calls: HttpCalls) -> str:
        """Return why a program that runs is not well; empty when it is."""
        if self._kind == "path":
            return await calls.get(self._what, _HEALTHY_WITHIN)
        return "" if await self._connects() else f"nothing listens on its port {self._port}"

    async def _connects(self) -> bool:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CONNECT):
                _, writer = await asyncio.open_connection(LOOPBACK, self._port)
            writer.close()
            return True
        return False

    async def _is_own(self, running: Program) -> bool:
        """Return whether it is the program that listens; true where the system does not say."""
        if self._relayed:
            return True
        found = await self._listening(running)
        self.taken = found.known and found.anyone and not found.ours
        self.everywhere = found.everywhere
        return not self.taken

    async def _listening(self, running: Program) -> Listening:
        return await asyncio.to_thread(lambda: listening(self._port, [running.pid, *descendants(running.pid)]))
