"""Programs that are forked instead of started anew, with the interface of ``subprocess``."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Self, TextIO

import pytest

from tests.servers import eventually_sync, put_down

# What is killed ends at once; a busy machine may tell so later.
_AT_ONCE = 60.0
# Those of which nobody knows yet that they ended.
_running: set[Program] = set()


class Program:
    """A forked program: a process of its own, used like ``subprocess.Popen`` in text mode."""

    def __init__(self, connection: socket.socket, words: tuple[str, ...], stdout: TextIO | None, stderr: TextIO | None) -> None:
        self._connection = connection
        self.args = words
        self.stdout = stdout
        self.stderr = stderr
        self.pid = _number(connection)
        self.returncode: int | None = None
        _running.add(self)
        self._read: dict[str, str] = {}
        self._readers: list[threading.Thread] = []

    def poll(self) -> int | None:
        """Return the exit code, or None while the program runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the program ends, and return its exit code: that of a signal is negative."""
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                self.returncode = os.waitstatus_to_exitcode(_number(self._connection))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self._connection.close()
            _running.remove(self)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read what the program says to its end."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._readers:
            streams = {name: stream for name, stream in (("out", self.stdout), ("err", self.stderr)) if stream is not None}
            self._readers = [threading.Thread(target=self._read_all, args=each, daemon=True) for each in streams.items()]
            for reader in self._readers:
                reader.start()
        for reader in self._readers:
            reader.join(None if deadline is None else max(0, deadline - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if deadline is None else max(0, deadline - time.monotonic()))
        return self._read.get("out", ""), self._read.get("err", "")

    def _read_all(self, name: str, stream: TextIO) -> None:
        with stream:
            self._read[name] = stream.read()

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, and wait until the program has ended."""
        self.send_signal(signal.SIGKILL)
        self.wait(_AT_ONCE)


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """Fail when programs are left running that were started here; they are killed."""
    before = set(_running)
    yield
    left = _running - before
    for program in left:
        program.kill()
    if left:
        pytest.fail(f"left running: {', '.join(' '.join(program.args) for program in left)}", pytrace=False)


class ForkServer:
    """The process from which programs are forked. It imports what they need when the first one is started.

    Use it with ``with``; one that is made with the path of another's socket uses that one without.
    """

    def __init__(self, path: Path = Path()) -> None:
        self.path = path

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="toolbus-forks-")
        self.path = Path(self._folder.name) / "socket"
        command = [sys.executable, str(Path(__file__).with_name("fork_server.py")), str(self.path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        try:
            eventually_sync(self.path.exists, timeout=60.0)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.communicate(timeout=10)
        finally:
            put_down(self._process)
            self._folder.cleanup()

    def start(
        self,
        *words: str,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        session: bool = False,
    ) -> Program:
        """Start a program.

        Args:
            words: as for the interpreter: ``-m`` with a module, ``-c`` with a text, or a script; then its arguments.
            folder: in which it runs; None means the current one.
            environment: None means that of this process.
            stdout: ``subprocess.PIPE``, ``subprocess.DEVNULL``, or None for that of this process.
            stderr: likewise.
            session: give it a session of its own.
        """
        with Path(os.devnull).open() as given, contextlib.ExitStack() as theirs:
            ours: list[TextIO | None] = []
            descriptors = [given.fileno()]
            for number, chosen in ((1, stdout), (2, stderr)):
                stream, descriptor = _stream(number, chosen, theirs)
                ours.append(stream)
                descriptors.append(descriptor)
            return self._order(words, folder, environment, descriptors, ours, session=session)

    def run(self, *words: str, folder: Path, environment: Mapping[str, str], given: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, at most a minute."""
        with contextlib.ExitStack() as stack:
            files: list[IO[str]] = [stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(3)]
            files[0].write(given or "")
            files[0].seek(0)
            program = self._order(words, folder, environment, [file.fileno() for file in files], [None, None], session=False)
            try:
                code = program.wait(60)
            finally:
                program.kill()
            for file in files:
                file.seek(0)
            return subprocess.CompletedProcess([*words], code, files[1].read(), files[2].read())

    def _order(
        self,
        words: tuple[str, ...],
        folder: Path | None,
        environment: Mapping[str, str] | None,
        descriptors: list[int],
        ours: list[TextIO | None],
        *,
        session: bool,
    ) -> Program:
        chosen = dict(os.environ if environment is None else environment)
        order = json.dumps({"words": words, "folder": str(folder or Path.cwd()), "environment": chosen, "session": session}).encode()
        with contextlib.ExitStack() as failed:
            for stream in filter(None, ours):
                failed.enter_context(stream)
            connection = failed.enter_context(socket.socket(socket.AF_UNIX))
            connection.settimeout(60)
            connection.connect(str(self.path))
            socket.send_fds(connection, [b"%10d" % len(order)], descriptors)
            connection.sendall(order)
            program = Program(connection, words, *ours)
            failed.pop_all()
        return program


def _number(connection: socket.socket) -> int:
    """Receive a number of ten digits."""
    text = connection.recv(10)
    if not text:
        connection.close()
        raise RuntimeError("the fork server has ended")
    return int(text)


def _stream(number: int, chosen: int | None, theirs: contextlib.ExitStack) -> tuple[TextIO | None, int]:
    """Return this end of a program's stream, if there is one, and the descriptor of the other, which ``theirs`` closes."""
    if chosen is None:
        return None, number
    if chosen == subprocess.DEVNULL:
        return None, theirs.enter_context(Path(os.devnull).open("w")).fileno()
    read, write = os.pipe()
    theirs.callback(os.close, write)
    return open(read, encoding="utf-8"), write  # noqa: PTH123 - a descriptor; the program's owner closes it
