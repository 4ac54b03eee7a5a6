"""Run programs in their own processes, which get one request at a time and can be interrupted or killed.

A program can't reach its worker's memory, files and event loop: a library that crashes, hangs or eats memory ends only this
process. The other end is ``toolbus_workers.confined``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from toolbus import ToolError

# Seconds after which an interrupted request is ended together with its process, and interruptions until then.
_GRACE, _INTERRUPTIONS = 0.5, 10
_MAX_ANSWER = 16 << 20
_PACKAGES = str(Path(__file__).parents[1])


def bare_environment() -> dict[str, str]:
    """Return the environment of a program that handles untrusted data: where its modules are, and nothing of the worker's own."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [*sys.path, _PACKAGES])), "MALLOC_ARENA_MAX": "2"}


class Program:
    """One process; its owner makes sure that requests take turns.

    Args:
        lost: the message for a model when the process ends during a request.
    """

    def __init__(self, process: asyncio.subprocess.Process, lost: str) -> None:
        self._process = process
        self._lost = lost
        self._killed = False

    @classmethod
    async def start(cls, script: Path, *arguments: object, lost: str, cwd: str = "/", pass_fds: Sequence[int] = ()) -> Program:
        """Start the process, without the worker's environment; it answers once it is ready.

        Raises:
            OSError: it can't be started.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            str(script),
            *map(str, arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            pass_fds=pass_fds,
            env=bare_environment(),
            cwd=cwd,
        )
        return cls(process, lost)

    @property
    def alive(self) -> bool:
        """True while the process can answer."""
        return self._process.returncode is None

    async def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any] | None:
        """Return the answer, or None after ``seconds``; in every case no part of the request runs afterwards.

        Raises:
            ToolError: the process ended.
        """
        self._send(request)
        reading = asyncio.ensure_future(self._read())
        try:
            await asyncio.wait([reading], timeout=seconds)
        finally:
            late = not reading.done()
            if late:
                await self._stop(reading)
        return None if late else await reading

    async def aclose(self) -> None:
        """End the process."""
        self._kill()
        await self._process.wait()

    def _kill(self) -> None:
        # Kill only once, since a second call would take the exit status away from the waiting task.
        if self.alive and not self._killed:
            self._killed = True
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _stop(self, reading: asyncio.Future[dict[str, Any]]) -> None:
        try:
            # An interruption before the request has really begun has no effect, so it is repeated.
            for _ in range(_INTERRUPTIONS):
                self._send({"do": "interrupt"})
                if (await asyncio.wait([reading], timeout=_GRACE / _INTERRUPTIONS))[0]:
                    break
        finally:
            if not reading.done():
                self._kill()
            with contextlib.suppress(ToolError):
                await reading

    def _send(self, request: dict[str, Any]) -> None:
        payload = json.dumps(request).encode()
        cast("asyncio.StreamWriter", self._process.stdin).write(struct.pack(">I", len(payload)) + payload)

    async def _read(self) -> dict[str, Any]:
        source = cast("asyncio.StreamReader", self._process.stdout)
        with contextlib.suppress(EOFError, OSError):
            (size,) = struct.unpack(">I", await source.readexactly(4))
            if size < _MAX_ANSWER:
                answer: dict[str, Any] = json.loads(await source.readexactly(size))
                return answer
        self._kill()
        await self._process.wait()
        raise ToolError(self._lost, type="tool_error", code="session_lost")
