"""Child processes: started in sessions of their own, watched through /proc, and always ended."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from benchmarks.peers import ROOT, environment

TICKS = os.sysconf("SC_CLK_TCK")


class ChildError(Exception):
    """A child process ended or stayed silent when it should not have."""


class Child:
    """A process with a session of its own, so that what it starts is counted and ended with it."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=ROOT,
            env=environment(),
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        """Process id, which is also its session and its group."""
        return self.process.pid

    def cpu(self) -> float:
        """CPU seconds of the session so far, the children it has reaped included."""
        return session_cpu(self.pid)

    def write(self, line: str) -> None:
        """Send a line to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def line(self, timeout: float) -> str:
        """The next line of its standard output.

        Raises:
            ChildError: it ended or wrote none in time.
        """
        try:
            line = self._lines.get(timeout=max(0.0, timeout))
        except queue.Empty:
            raise ChildError(f"{self.name} was silent for {timeout:.0f} s{self._reason()}") from None
        if line is None:
            raise ChildError(f"{self.name} ended{self._reason()}")
        return line

    def expect(self, word: str, timeout: float) -> None:
        """Read lines until one is ``word``.

        Raises:
            ChildError: it ended or did not say it in time.
        """
        limit = time.monotonic() + timeout
        while self.line(max(0.0, limit - time.monotonic())) != word:
            pass

    def wait(self, timeout: float) -> None:
        """Wait until it ends by itself.

        Raises:
            ChildError: it did not end in time, or with a failure.
        """
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ChildError(f"{self.name} did not end within {timeout:.0f} s") from None
        if code != 0:
            raise ChildError(f"{self.name} ended with code {code}{self._reason()}")

    def stop(self, grace: float = 3.0) -> None:
        """Terminate the session, and kill what is left of it after the grace period."""
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(grace)
        self._signal(signal.SIGKILL)
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout, self._errors):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _read(self) -> None:
        """Read its output as it comes, so that a process that writes much is never held up."""
        assert self.process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            for line in self.process.stdout:
                self._lines.put(line.decode(errors="replace").strip())
        self._lines.put(None)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _reason(self) -> str:
        self._errors.seek(0)
        lines = [line for line in self._errors.read()[-4000:].decode(errors="replace").splitlines() if line.strip()]
        return f": {lines[-1]}" if lines else ""


@contextlib.contextmanager
def child(name: str, command: list[str], grace: float = 3.0) -> Iterator[Child]:
    """A child process that is ended with the block."""
    process = Child(name, command)
    try:
        yield process
    finally:
        process.stop(grace)


def session_cpu(session: int) -> float:
    """CPU seconds used by the processes of a session."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # pid (comm) state ppid pgrp session …; comm may hold spaces and brackets.
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return ticks / TICKS


def resident() -> int:
    """Bytes of this process's memory that are resident now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status names no VmRSS")
