"""Mark processes with the host that they belong to, and end those of hosts that are dead.

The mark is an environment variable, which everything that a program starts inherits: ``NAMESPACE:PID:STARTED:NAME``, where the first
three say which process the host is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

VARIABLE = "TOOLBUS_PROGRAM_OF"

_PROC = Path("/proc")
_LONGEST = 10.0


def new(name: str) -> str:
    """Return the mark of a program of this process; ``name`` tells it from others."""
    return f"{host()}:{name}"


def host() -> str:
    """Return the part of a mark that names this process."""
    return _host_mark(os.getpid())


def is_dead(host: str) -> bool:
    """Return whether a host is dead for certain: it was a process that can be seen from here, and is none now."""
    namespace, _, rest = host.partition(":")
    pid = rest.partition(":")[0]
    # A process of another namespace may be seen from here, but the number of its host means another process.
    return namespace == _namespace() and pid.isdecimal() and _host_mark(int(pid)) != host


def end(mark: str) -> int:
    """Kill all processes with this mark; return how many there were."""
    return len(_end(lambda found: found == mark))


def end_orphans() -> list[str]:
    """Kill all processes of this user whose host is dead; return a line for each."""
    return [
        f"process {pid} ({name}) was left by a host that is dead, and is ended"
        for pid, name in _end(lambda mark: is_dead(mark.rpartition(":")[0])).items()
    ]


def _end(is_meant: Callable[[str], bool]) -> dict[int, str]:
    """Kill processes until there are no more of them; return their names by number."""
    ended: dict[int, str] = {}
    until = time.monotonic() + _LONGEST
    while time.monotonic() < until:
        found = [pid for pid, mark in _marked() if is_meant(mark)]
        if not found:
            break
        for pid in found:
            ended.setdefault(pid, _read(pid, "comm").decode("utf-8", "replace").strip() or "?")
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return ended


def _marked() -> Iterator[tuple[int, str]]:
    """Yield the marked processes of this user that are no zombies."""
    wanted = f"{VARIABLE}=".encode()
    try:
        pids = [int(each.name) for each in _PROC.iterdir() if each.name.isdecimal()]
    except OSError:
        return
    for pid in pids:
        mark = next((each for each in _read(pid, "environ").split(b"\0") if each.startswith(wanted)), b"")
        if mark and pid != os.getpid():
            yield pid, mark[len(wanted) :].decode("utf-8", "replace")


def _read(pid: int, file: str) -> bytes:
    """Return what the system says of a process in a file; nothing when there is no such process, or it is another user's."""
    try:
        return (_PROC / str(pid) / file).read_bytes()
    except OSError:
        return b""


def _host_mark(pid: int) -> str:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    # In ticks since the machine was started; nothing for a process that is none, or a zombie.
    started = "" if not fields or fields[0] in b"ZX" else fields[19].decode()
    return f"{_namespace()}:{pid}:{started}"


def _namespace() -> str:
    try:
        return "".join(filter(str.isdecimal, str((_PROC / "self/ns/pid").readlink())))
    except OSError:
        return "0"


LOOPBACK = "127.0.0.1"

_LISTENS = "0A"
_MOST_TRIES = 100
_EVERYWHERE = frozenset({"00000000", "00000000000000000000000000000000"})


class Ports:
    """Hands out free ports, none of them twice until it is given back."""

    def __init__(self) -> None:
        self._given: set[int] = set()

    def take(self) -> int:
        """Return a port that is free now; another process may take it before the program does."""
        for _ in range(_MOST_TRIES):
            with socket.socket() as tried:
                tried.bind((LOOPBACK, 0))
                port: int = tried.getsockname()[1]
            if port not in self._given:
                self._given.add(port)
                return port
        raise OSError("there is no free port")

    def give_back(self, port: int) -> None:
        """Allow a port to be handed out again."""
        self._given.discard(port)


class Listening(msgspec.Struct, frozen=True):
    """The processes that listen on a port.

    Attributes:
        known: whether the system says so.
        anyone: whether a process listens.
        ours: whether one of the processes in question does.
        everywhere: whether it does on all addresses of the machine.
    """

    known: bool
    anyone: bool = False
    ours: bool = False
    everywhere: bool = False


def listening(port: int, processes: Collection[int]) -> Listening:
    """Return who listens on a port, and whether it is one of these processes."""
    try:
        found = {each.inode: each.address for each in tcp_sockets(port) if each.state == _LISTENS}
    except OSError:
        return Listening(False)
    ours = _sockets_of(processes) & found.keys() if found else set()
    everywhere = any(found[inode] in _EVERYWHERE for inode in ours)
    return Listening(True, anyone=bool(found), ours=bool(ours), everywhere=everywhere)


class TcpSocket(NamedTuple):
    """A socket of this machine, as the kernel lists it."""

    address: str
    other_port: int
    state: str
    inode: str


def tcp_sockets(port: int) -> Iterator[TcpSocket]:
    """Yield the sockets at a port of this machine.

    Raises:
        OSError: the system does not say.
    """
    wanted = f"{port:04X}"
    for number, name in enumerate(("tcp", "tcp6")):
        try:
            lines = (_PROC / "net" / name).read_text().splitlines()[1:]
        except OSError:
            if number == 0:
                raise
            continue
        for line in lines:
            _, local, other, state, *_ = fields = line.split()
            address, _, found = local.rpartition(":")
            if found == wanted:
                yield TcpSocket(address, int(other.rpartition(":")[2], 16), state, fields[9])


def _sockets_of(processes: Collection[int]) -> set[str]:
    found: set[str] = set()
    for pid in processes:
        with contextlib.suppress(OSError):
            for each in (_PROC / str(pid) / "fd").iterdir():
                with contextlib.suppress(OSError):
                    target = str(each.readlink())
                    if target.startswith("socket:["):
                        found.add(target[8:-1])
    return found
