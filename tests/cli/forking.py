"""Run ``toolbus`` commands in processes that are forked from one that has imported toolbus: a start costs milliseconds.

Importing takes most of a command's time. ``python -m tests.cli.forking SOCKET`` serves until its standard input ends:
each connection brings a command as JSON with its three standard streams, and is answered with the exit status.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

import toolbus.cli
from tests.servers import eventually_sync

_ENOUGH = 1 << 20


class CommandServer:
    """The process from which commands are forked; use it with ``with``."""

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="toolbus-commands-")
        self._path = Path(self._folder.name) / "socket"
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(self._path)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        eventually_sync(self._path.exists, timeout=60.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=10)
        self._folder.cleanup()

    def run(self, words: tuple[str, ...], folder: Path, environment: dict[str, str], given: str | None) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, at most a minute, in a folder and an environment."""
        with contextlib.ExitStack() as stack:
            given_file, out, err = (stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(3))
            given_file.write(given or "")
            given_file.seek(0)
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.settimeout(60)
            connection.connect(str(self._path))
            order = json.dumps({"words": words, "folder": str(folder), "environment": environment}).encode()
            socket.send_fds(connection, [b"%10d" % len(order)], [file.fileno() for file in (given_file, out, err)])
            connection.sendall(order)
            status = int(connection.recv(_ENOUGH))
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess([*words], os.waitstatus_to_exitcode(status), out.read(), err.read())


def _serve(path: str) -> None:
    _import_everything()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        # Renamed only when it listens, so that whoever finds it can connect.
        listener.bind(f"{path}.new")
        listener.listen(64)
        Path(f"{path}.new").rename(path)
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            connection, _ = listener.accept()
            with connection:
                if os.fork():
                    continue
                listener.close()
                _attend(connection)
                return


def _import_everything() -> None:
    """Import what commands import when they run."""
    for module in pkgutil.iter_modules(toolbus.cli.__path__):
        importlib.import_module(f"toolbus.cli.{module.name}")
    for name in toolbus.__all__:
        getattr(toolbus, name)
    for heavy in ("matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg", "matplotlib.pyplot", "networkx", "ryaml", "yaml"):
        with contextlib.suppress(ImportError):
            importlib.import_module(heavy)


def _attend(connection: socket.socket) -> None:
    """Fork the command, and answer with how it ended. Returns in the command's process only when that is over."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, streams, _, _ = socket.recv_fds(connection, 10, 3)
    left, order = int(head), b""
    while len(order) < left:
        order += connection.recv(left - len(order))
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        connection.sendall(b"%d" % status)
        os._exit(0)
    connection.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    said = json.loads(order)
    os.environ.clear()
    os.environ.update(said["environment"])
    os.chdir(said["folder"])
    sys.path[0] = said["folder"]
    sys.argv[1:] = said["words"]
    random.seed()
    toolbus.cli.main(prog_name="toolbus")


if __name__ == "__main__":
    _serve(sys.argv[1])
