"""``Program``: the process under test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from toolbus.bus.values.results import ConfigurationError
from toolbus.operations.conformance.checks import Broken

# Seconds for a process to end when it is told to.
_ENDS = 10.0
_MOST_SHOWN = 400


class Program:
    """A command that is started once or several times, in process groups of their own.

    Args:
        command: the words of the command.
        environment: variables beside those of this process.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = list(command)
        self._environment = {**os.environ, **environment}
        self._running: list[asyncio.subprocess.Process] = []
        self._log = Path(tempfile.mkstemp(prefix="toolbus-conformance-", suffix=".log")[1])

    async def start(self, *, pipes: bool = False, **more: str) -> asyncio.subprocess.Process:
        """Start a process.

        Args:
            pipes: its standard input and output are read and written here; otherwise its output goes to a file.
            **more: further variables of its environment.

        Raises:
            ConfigurationError: the command can't be started.
        """
        streams: tuple[int | None, int | IO[bytes]]
        with self._log.open("ab") as log:
            streams = (asyncio.subprocess.PIPE, asyncio.subprocess.PIPE) if pipes else (asyncio.subprocess.DEVNULL, log)
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=streams[0],
                    stdout=streams[1],
                    stderr=log,
                    env={**self._environment, **more},
                    start_new_session=True,
                    limit=1 << 24,
                )
            except OSError as error:
                raise ConfigurationError(f"can't start {self._command[0]!r}: {error.strerror}") from None
        self._running.append(process)
        return process

    def check_alive(self) -> None:
        """Check that no process has ended by itself.

        Raises:
            Broken: one has.
        """
        for process in self._running:
            if process.returncode is not None:
                raise Broken(f"the program ended with exit code {process.returncode}{self.said()}")

    def said(self) -> str:
        """Return the end of its output, for messages."""
        text = self._log.read_text(encoding="utf-8", errors="replace").strip()
        return f"; it said: …{text[-_MOST_SHOWN:]}" if text else ""

    async def stop(self, process: asyncio.subprocess.Process) -> int:
        """Tell a process to end and return its exit code.

        Raises:
            Broken: it did not end; it is killed.
        """
        self._forget(process)
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_ENDS):
                return await process.wait()
        except TimeoutError:
            await self._kill(process)
            raise Broken(f"it did not end within {_ENDS:g} s of SIGTERM") from None

    async def kill(self, process: asyncio.subprocess.Process) -> None:
        """End a process without a warning."""
        self._forget(process)
        await self._kill(process)

    async def close(self) -> None:
        """End all processes and remove the file of their output."""
        for process in list(self._running):
            await self.kill(process)
        self._log.unlink(missing_ok=True)

    def _forget(self, process: asyncio.subprocess.Process) -> None:
        if process in self._running:
            self._running.remove(process)

    async def _kill(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
