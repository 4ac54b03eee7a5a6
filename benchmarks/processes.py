"""Run child processes in their own sessions, watch them through /proc, and always end them."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from benchmarks.peers import ROOT, environment

TICKS = os.sysconf("SC_CLK_TCK")


class ChildError(Exception):
    """A child process ended or stayed silent unexpectedly."""


class Child:
    """A process in its own session, so that its children are counted and ended with it."""

    def __init__(self, name: str, command: list[str], env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=ROOT,
            env=environment() if env is None else env,
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its session and its group."""
        return self.process.pid

    def cpu(self) -> float:
        """Return the CPU seconds of the session so far, including children that it has reaped."""
        return session_cpu(self.pid)

    def memory(self) -> int:
        """Return the bytes that the session holds, of which what processes share counts in parts."""
        return session_memory(self.pid)

    def write(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def line(self, timeout: float) -> str:
        """Return the next line of its standard output.

        Raises:
            ChildError: it ended, or wrote no line in time.
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
            ChildError: it ended, or did not write the word in time.
        """
        limit = time.monotonic() + timeout
        while self.line(max(0.0, limit - time.monotonic())) != word:
            pass

    def wait(self, timeout: float) -> None:
        """Wait until it ends on its own.

        Raises:
            ChildError: it did not end in time, or it failed.
        """
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ChildError(f"{self.name} did not end within {timeout:.0f} s") from None
        if code != 0:
            raise ChildError(f"{self.name} ended with code {code}{self._reason()}")

    def stop(self, grace: float = 3.0) -> None:
        """Terminate the session, and kill the remaining processes after the grace period (seconds)."""
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
        """Read its output continuously, so that a process that writes much is never held up."""
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
def child(name: str, command: list[str], grace: float = 3.0, env: Mapping[str, str] | None = None) -> Iterator[Child]:
    """Run a child process for the duration of a ``with``."""
    process = Child(name, command, env)
    try:
        yield process
    finally:
        process.stop(grace)


def session_cpu(session: int) -> float:
    """Return the CPU seconds used by the processes of a session, and by those that they started in sessions of their own."""
    return sum(ticks for _, ticks in _members(session)) / TICKS


def session_memory(session: int) -> int:
    """Return the bytes held by the same processes; a page that several share counts in equal parts."""
    found = 0
    for pid, _ in _members(session):
        with contextlib.suppress(OSError):
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            found += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) * 1024
    return found


def _members(session: int) -> list[tuple[int, int]]:
    """Return the processes of a session, and those that they started in sessions of their own, each with its ticks of CPU."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    members: set[int] = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # pid (comm) state ppid pgrp session …; comm may hold spaces and brackets.
            fields = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
            if int(fields[3]) == session:
                members.add(pid)
    found = 0
    while found < len(members):
        found = len(members)
        members |= {pid for pid, parent in parents.items() if parent in members}
    return [(pid, ticks[pid]) for pid in members]


def resident() -> int:
    """Return the bytes of this process's resident memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status names no VmRSS")
