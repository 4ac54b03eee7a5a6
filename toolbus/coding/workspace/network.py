"""A network that reaches nothing but itself, shared by the programs of a workspace."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys

from toolbus.backends.confinement import LAUNCHER
from toolbus.coding.workspace.programs import cant_confine


class ClosedNetwork:
    """A process that keeps the network; it starts with the first program that needs it."""

    def __init__(self) -> None:
        self._starting: asyncio.Lock = asyncio.Lock()
        self._holder: asyncio.subprocess.Process | None = None

    async def pid(self) -> int:
        """Return the process whose network programs join.

        Raises:
            ToolError: the machine lets no network be closed off.
        """
        async with self._starting:
            if self._holder is None or self._holder.returncode is not None:
                self._holder = await _held()
            return self._holder.pid

    async def close(self) -> None:
        """End it."""
        holder, self._holder = self._holder, None
        if holder is not None and holder.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                holder.kill()
            await holder.wait()


async def _held() -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    words = (sys.executable, "-I", "-S", LAUNCHER, json.dumps({"parent": os.getpid()}))
    holder = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, env={}, start_new_session=True)
    try:
        assert holder.stdout is not None  # noqa: S101 - it is started with a pipe
        told = await holder.stdout.readline()
    except BaseException:
        holder.kill()
        raise
    if told != b"\n":
        await holder.wait()
        raise cant_confine(told.decode("utf-8", "replace").strip())
    return holder
