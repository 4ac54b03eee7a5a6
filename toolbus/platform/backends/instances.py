"""``ProgramInstance``: a program or a container of this machine that answers at a port: ready, well, called, and ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from toolbus.bus.support.waiting import either
from toolbus.bus.values.results import ToolResult
from toolbus.platform.backends.containers import Container
from toolbus.platform.backends.http import TOLD_WITHIN, Endpoint, HttpCalls, pairs
from toolbus.platform.backends.marks import LOOPBACK
from toolbus.platform.backends.program import Program
from toolbus.platform.backends.runner import CannotStart, Instance, Line, Output
from toolbus.platform.records import RecordedTool, ToolSource

Running = Program | Container

_FIRST, _MOST = 0.02, 0.25
_CONNECT = 2.0
_HEALTHY_WITHIN = 5.0


class NotReady(CannotStart):
    """A program was not ready in time."""


class Readiness:
    """Says when a program is ready, and whether it is well.

    Args:
        source: says how readiness is known: ``port``, ``path:/health`` or ``log:TEXT``.
        port: at which the host reaches the program.
        shown: the port in the words of errors; that of the host when left out.
        relayed: whether the host passes on connections, and takes them once the program listens, also when that is known by a line.
    """

    def __init__(self, source: ToolSource, port: int, *, shown: int = 0, relayed: bool = False) -> None:
        self._kind, _, self._what = source.ready.partition(":")
        self.port = port
        self._shown = shown or port
        self._relayed = relayed
        self._written = asyncio.Event()

    def seeing(self, line: Line) -> Line:
        """Return what takes in each line of the program's output from its start on, looks whether it is the one, and passes it on."""
        if self._kind != "log":
            return line

        def take(text: str) -> None:
            if self._what in text:
                self._written.set()
            line(text)

        return take

    @property
    def wanted(self) -> str:
        """Name what it waits for, in words."""
        if self._kind == "path":
            return f"GET {self._what} was not answered well"
        if self._kind == "log":
            return f"no line with {self._what!r} was written"
        return f"nothing listens on port {self._shown}"

    async def wait(self, running: Running, calls: HttpCalls) -> None:
        """Wait until the program is ready; for ever, if it never is."""
        if self._kind == "log":
            await self._written.wait()
            if not self._relayed:
                await self.is_own(running)
                return
        pause = _FIRST
        while not (
            await self._connects() and await self.is_own(running) and not (self._kind == "path" and await calls.get(self._what, _CONNECT))
        ):
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _MOST)

    async def is_own(self, running: Running) -> bool:
        """Return whether it is the program that listens at the port."""
        return True

    async def health(self, calls: HttpCalls) -> str:
        """Return why a program that runs is not well; empty when it is."""
        if self._kind == "path":
            return await calls.get(self._what, _HEALTHY_WITHIN)
        return "" if await self._connects() else f"nothing listens on its port {self.port}"

    async def _connects(self) -> bool:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CONNECT):
                _, writer = await asyncio.open_connection(LOOPBACK, self.port)
            writer.close()
            return True
        return False


async def until_ready(name: str, running: Running, readiness: Readiness, calls: HttpCalls, within: float) -> bool:
    """Wait until a program is ready; return False if it ended before.

    Args:
        name: what it is, in the words of errors.
        running: the program.
        readiness: says when it is ready.
        calls: of it.
        within: seconds.

    Raises:
        NotReady: it was not ready in time.
        CannotStart: nobody can see whether it is.
    """
    waiting, ending = await either(readiness.wait(running, calls), running.ended(), within=within)
    if waiting.cancelled() and ending.cancelled():
        wrote = f"; it last wrote: {running.last_words}" if running.last_words else "; it wrote nothing"
        raise NotReady(f"{name} was not ready within {within:g} s ({readiness.wanted}){wrote}")
    if waiting.cancelled():
        return False
    if (error := waiting.exception()) is not None and not running.is_ended:
        raise CannotStart(f"it can't be seen whether it is ready: {error}")
    return error is None


def calls_of(tool: RecordedTool, source: ToolSource, port: int, running: Running, told_within: float = TOLD_WITHIN) -> HttpCalls:
    """Return the calls of a program of this machine."""
    endpoint = Endpoint(
        base=f"http://{LOOPBACK}:{port}",
        method=source.http_method.upper(),
        path=source.endpoint_path,
        shown=tool.tool_id,
        streams=tool.meta.stream_support,
        once=tool.running.effect == "once",
        headers=pairs(source.headers),
        query=pairs(source.query),
        tells_user=True,
    )
    return HttpCalls(endpoint, ended=running.ended, told_within=told_within)


@contextlib.asynccontextmanager
async def held() -> AsyncIterator[AsyncExitStack]:
    """Provide the stack of what an instance has; when the body fails or is cancelled, all of it is released before others go on."""
    stack = AsyncExitStack()
    try:
        yield stack
    except BaseException:
        await asyncio.shield(asyncio.ensure_future(stack.aclose()))
        raise


class ProgramInstance(Instance):
    """One running program.

    Args:
        running: the program.
        calls: of it.
        readiness: says whether it is well, and has the port.
        release: what it has beside itself, which is let go when it has ended.
    """

    def __init__(self, running: Running, calls: HttpCalls, readiness: Readiness, release: AsyncExitStack) -> None:
        self._running = running
        self._calls = calls
        self._readiness = readiness
        self._release = release
        self.pid = running.pid
        self.port = readiness.port

    async def call(self, arguments: dict[str, Any], output: Output, *, user: str = "", deadline: float = 0.0) -> ToolResult:
        """Run one call."""
        return await self._calls.call(arguments, output, user=user, deadline=deadline)

    async def health(self, *, answered: bool = False) -> str:
        """Return why it is not well."""
        if self._running.is_ended:
            return self._running.ending
        return await (self._calls.answers(_HEALTHY_WITHIN) if answered else self._readiness.health(self._calls))

    async def unfinished(self) -> int:
        """Return how many calls it goes on with although their connections were closed."""
        return await self._calls.unfinished()

    async def ended(self) -> str:
        """Wait until it has ended by itself."""
        await self._running.ended()
        return self._running.ending

    async def stop(self, within: float) -> None:
        """End it with everything that it started."""
        try:
            await self._running.stop(within)
        finally:
            await self._release.aclose()
