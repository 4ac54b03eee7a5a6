"""A small process that has imported everything and forks workers and agents: starting one costs milliseconds.

It has no event loop and no threads, so that what it forks is as clean as a new process. It reads orders from standard
input and writes what became of its children to standard output, a JSON line each. When its input ends, because
the driver closed it or died, it kills every child and exits: nothing outlives a run.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Literal, NoReturn

import msgspec

from tests.chaos.options import Options
from toolbus.bus import telemetry


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One process to start.

    Attributes:
        name: of its history and its log.
        pid: the number that the run gives it.
        url: where it finds the server, perhaps through the proxy.
        other: whether it is to be forked by the fork server that has imported the other version of toolbus.
        index: of an agent, or of a worker's slot.
        revision: of a worker's descriptors.
        history, logs: folders.
        start: of an agent: the run's beginning (monotonic).
    """

    role: Literal["worker", "agent"]
    name: str
    pid: int
    url: str
    options: Options
    history: str
    logs: str
    other: bool = False
    index: int = 0
    revision: int = 0
    start: float = 0.0


class Born(msgspec.Struct, frozen=True, tag=True):
    """A child was started; ``system`` is its number there."""

    pid: int
    system: int


class Died(msgspec.Struct, frozen=True, tag=True):
    """A child is gone; ``status`` is its exit code, or the negative number of the signal that ended it."""

    pid: int
    status: int


def main() -> None:
    """Fork on order until the input ends."""
    from tests.chaos import agent, worker

    mains = {"worker": worker.main, "agent": agent.main}
    assert threading.active_count() == 1
    # What is loaded is shared by all children: a collection must not touch, and so copy, every page of it.
    gc.collect()
    gc.freeze()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    # What the run calls each of them, by the number of the system.
    children: dict[int, int] = {}
    rest = b""
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
        _reap(children)
        if 0 not in ready:
            continue
        data = os.read(0, 1 << 20)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            order = msgspec.json.decode(line, type=Order)
            system = os.fork()
            if system == 0:
                signal.set_wakeup_fd(-1)
                _be_child(order, mains[order.role])
            children[system] = order.pid
            _tell(Born(order.pid, system))
    for system in children:
        os.kill(system, signal.SIGKILL)
    while children:
        _reap(children, wait=True)


def _be_child(order: Order, run: object) -> NoReturn:
    """Become the process that was ordered; never returns."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A kill of the terminal's group is the driver's to pass on.
        os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        log = os.open(Path(order.logs) / f"{order.name}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        telemetry.configure_logging("warning", "json")
        run(order)  # type: ignore[operator]
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _reap(children: dict[int, int], *, wait: bool = False) -> None:
    while children:
        system, status = os.waitpid(-1, 0 if wait else os.WNOHANG)
        if system == 0:
            return
        _tell(Died(children.pop(system), os.waitstatus_to_exitcode(status)))


def _tell(event: Born | Died) -> None:
    # When the driver is gone, the end of input says so.
    with contextlib.suppress(BrokenPipeError):
        os.write(1, msgspec.json.encode(event) + b"\n")


if __name__ == "__main__":
    main()
