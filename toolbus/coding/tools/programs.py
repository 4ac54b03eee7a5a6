"""Programs that tools run: in the foreground with their output as it comes, in the background under a handle."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec

from toolbus.coding.workspace.limits import WorkspaceOptions
from toolbus.coding.workspace.programs import MOST_PRINTED, REASONS, Finished, Program
from toolbus.results import ToolError, ToolResult

# Seconds that a program in the background has to end by itself when it is stopped.
_GRACE = 2.0

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3_600)]
"""Bounds of the time that a command may run."""


class Background:
    """The programs of a task that run in the background, by their handles."""

    def __init__(self, options: WorkspaceOptions) -> None:
        self._options = options
        self._programs: dict[str, Program] = {}

    def check(self) -> None:
        """Make sure that one more may run.

        Raises:
            ToolError: as many as allowed run already.
        """
        running = [handle for handle, program in self._programs.items() if program.running]
        if len(running) >= self._options.background:
            message = f"{len(running)} programs run in the background, which is the most: stop one first ({', '.join(running)})"
            raise ToolError(message, code="too_many_programs")
        # Programs that ended long ago are forgotten.
        for handle in [each for each in self._programs if each not in running][: -self._options.background]:
            del self._programs[handle]

    def add(self, program: Program) -> str:
        """Take in a program; return its handle."""
        handle = f"run_{secrets.token_hex(4)}"
        self._programs[handle] = program
        return handle

    async def read(self, handle: str) -> ToolResult:
        """Return what it has printed since it was last read.

        Raises:
            ToolError: there is no such handle.
        """
        program = self._program(handle)
        if program.running:
            return ToolResult.ok({"handle": handle, "running": True}, output=program.unread.take() + "\n[it runs]")
        finished = await program.finished()
        data = {"handle": handle, "running": False, **told(finished)}
        return ToolResult.ok(data, output=f"{program.unread.take()}\n[{ending(finished, self._options)}]")

    async def stop(self, handle: str) -> ToolResult:
        """End it, and return what it has printed since it was last read.

        Raises:
            ToolError: there is no such handle.
        """
        await self._program(handle).end(_GRACE)
        return await self.read(handle)

    def _program(self, handle: str) -> Program:
        program = self._programs.get(handle)
        if program is None:
            known = ", ".join(self._programs) or "none"
            raise ToolError(f"there is no program with the handle {handle[:80]!r}; there are: {known}", type="not_found", code="no_handle")
        return program


async def streamed(program: Program, options: WorkspaceOptions) -> AsyncIterator[str | ToolResult]:
    """Yield a program's output as it comes, then how it ended.

    Raises:
        ToolError: the machine lets no program be confined.
    """
    async for piece in program.pieces():
        yield piece
    finished = await program.finished()
    yield f"{program.rest}\n[{ending(finished, options)}]"
    yield ToolResult.ok(told(finished))


def told(finished: Finished) -> dict[str, Any]:
    """Return how a program ended, as data."""
    return {"status": finished.status, "ended": finished.reason, "seconds": round(finished.seconds, 3)}


def ending(finished: Finished, options: WorkspaceOptions) -> str:
    """Return how a program ended, as a text."""
    if not finished.reason:
        return f"exit status {finished.status}, {finished.seconds:.1f} s"
    text = REASONS.get(finished.reason, finished.reason)
    return text.format(
        seconds=finished.seconds,
        memory=options.memory,
        processes=options.processes,
        printed=MOST_PRINTED,
        total_bytes=options.total_bytes,
        entries=options.entries,
    )
