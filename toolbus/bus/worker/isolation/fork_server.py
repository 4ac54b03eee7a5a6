"""The fork server: a process that imports the isolated tools once, and starts, kills and reaps the children that run them.

Children are forks of it: started in milliseconds, with the tools imported and the memory of that shared. Where something
imported has started threads, which a fork would lose, and on other systems than Linux, a child is a fresh interpreter
instead. It runs no tool itself and always listens, so it can kill whatever its children do. When its worker is gone, in
whatever way, the connection ends: it kills them all and ends too. When it is gone itself, the system kills them.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections import deque
from typing import NoReturn

import msgspec

from toolbus.bus.support.safe_text import described, is_a, reason_of
from toolbus.bus.values.results import ToolbusError
from toolbus.bus.worker import isolation
from toolbus.bus.worker.isolation import child as children
from toolbus.bus.worker.isolation.messages import (
    LINUX,
    Order,
    Report,
    Setup,
    adopt_orphans,
    leave_signals_to_worker,
    native_threads,
    offspring,
)
from toolbus.bus.worker.isolation.targets import ChildTool, find
from toolbus.bus.worker.loading.modules import ask

_FRESH = "from toolbus.bus.worker.isolation.fork_server import fresh_child; fresh_child({descriptor}, {parent})"
_SETUP = "TOOLBUS_ISOLATION_SETUP"


class ForkServer:
    """One worker's children."""

    def __init__(self, worker: socket.socket, found: tuple[ChildTool, ...], setup: bytes) -> None:
        self._worker = worker
        self._found = found
        self._setup = setup
        self._forks = LINUX and native_threads() == 1
        self._children: dict[int, int] = {}
        # What an import started is not of any call.
        self._own = offspring()
        self._channels: deque[int] = deque()
        self._wakes: tuple[int, ...] = ()
        self._unread = b""

    def serve(self) -> NoReturn:
        """Carry out orders until the worker is gone; end the process then."""
        woken, wake = self._wakes = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            selector.register(self._worker, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            self._tell(Report("ready"))
            while True:
                for key, _ in selector.select():
                    if key.fd == woken:
                        os.read(woken, 4096)
                    else:
                        self._obey()
                self._reap()

    def _obey(self) -> None:
        try:
            payload, channels, _, _ = socket.recv_fds(self._worker, 65_536, 64)
        except ConnectionError:
            payload, channels = b"", []
        if not payload:
            self._end()
        for channel in channels:
            os.set_inheritable(channel, False)
        self._channels.extend(channels)
        *lines, self._unread = (self._unread + payload).split(b"\n")
        for line in lines:
            order = msgspec.json.decode(line, type=Order)
            if order.do == "start":
                self._start_child(order.child, self._channels.popleft())
            else:
                self._kill(order.child)

    def _start_child(self, number: int, channel: int) -> None:
        try:
            pid = self._fork(channel) if self._forks else self._spawn(channel)
        except OSError as error:
            self._tell(Report("died", number, error=error.strerror or str(error)))
        else:
            self._children[pid] = number
            self._tell(Report("started", number, pid))
        finally:
            os.close(channel)

    def _fork(self, channel: int) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)
            return pid
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._worker.close()
            # Neither the fork server's signals nor other children's calls are this one's business.
            for descriptor in (*self._wakes, *self._channels):
                os.close(descriptor)
            children.main(channel, self._found, parent)
        except BaseException:  # noqa: BLE001 - a child never returns into the fork server
            traceback.print_exc()
        finally:
            os._exit(1)

    def _spawn(self, channel: int) -> int:
        os.set_inheritable(channel, True)
        code = _FRESH.format(descriptor=channel, parent=os.getpid())
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), _SETUP: self._setup.decode()}
        return os.posix_spawn(sys.executable, [sys.executable, *_options(), "-c", code], environment, setpgroup=0)

    def _kill(self, number: int) -> None:
        for pid, child in self._children.items():
            if child == number:
                _kill_group(pid)

    def _reap(self) -> None:
        for pid, number in list(self._children.items()):
            if LINUX:
                # It stays until its group is killed, so that the group's number can't be another's by then.
                if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    continue
                _kill_group(pid)
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._children[pid]
                self._kill_orphans()
                self._tell(Report("died", number, pid, os.waitstatus_to_exitcode(status)))
        self._kill_orphans()

    def _kill_orphans(self) -> bool:
        """Kill processes of calls that have ended, which have left their groups; return whether there were any.

        When a child dies, what it had started becomes this process's own, and so does what those had started when they die.
        """
        orphans = offspring() - self._own - self._children.keys()
        for pid in orphans:
            _kill_group(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return bool(orphans)

    def _tell(self, news: Report) -> None:
        try:
            self._worker.sendall(msgspec.json.encode(news) + b"\n")
        except ConnectionError:
            self._end()

    def _end(self) -> NoReturn:
        for pid in self._children:
            _kill_group(pid)
        for pid in self._children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._children.clear()
        while self._kill_orphans():
            # Each is dead in a moment, and what it had started is found then.
            time.sleep(0.001)
        os._exit(0)


def main(descriptor: int) -> NoReturn:
    """Run a fork server; ``descriptor`` is the connection to the worker, on which the setup comes first."""
    isolation.inside = True
    leave_signals_to_worker()
    adopt_orphans()
    worker = socket.socket(fileno=descriptor)
    with worker.makefile("rb", buffering=0) as lines:
        setup = lines.readline()
    try:
        found = _prepare(setup)
    except BaseException as error:  # noqa: BLE001 - whatever the user's module raises is told in one line
        said = (reason_of(error) if is_a(error, ToolbusError) else described(error))[:2_000]
        worker.sendall(msgspec.json.encode(Report("refused", error=said)) + b"\n")
        os._exit(1)
    # What is never collected is never written to, and stays shared with the children.
    gc.collect()
    gc.freeze()
    ForkServer(worker, found, setup).serve()


def fresh_child(descriptor: int, parent: int) -> NoReturn:
    """Run a child that is a fresh interpreter."""
    isolation.inside = True
    children.main(descriptor, _prepare(os.environ.pop(_SETUP).encode()), parent)


def _prepare(document: bytes) -> tuple[ChildTool, ...]:
    setup = msgspec.json.decode(document, type=Setup)
    if setup.pythonpath is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = setup.pythonpath
    from multiprocessing import spawn  # noqa: PLC0415 - only a fork server needs it

    ask(setup.places)
    spawn.prepare(setup.prepare)
    return find(setup.targets)


def _options() -> list[str]:
    return [f"-W{each}" for each in sys.warnoptions]


def _kill_group(pid: int) -> None:
    # The group is there from the first moment on, except in a fork that has not come so far yet.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
