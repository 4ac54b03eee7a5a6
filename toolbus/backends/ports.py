"""Choose free ports for programs, and find out who listens on one."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

LOOPBACK = "127.0.0.1"

_PROC = Path("/proc")
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
        found = dict(_sockets(port))
    except OSError:
        return Listening(False)
    ours = _sockets_of(processes) & found.keys() if found else set()
    everywhere = any(found[inode] in _EVERYWHERE for inode in ours)
    return Listening(True, anyone=bool(found), ours=bool(ours), everywhere=everywhere)


def _sockets(port: int) -> Iterator[tuple[str, str]]:
    """Yield the inode and the address of each socket that listens on a port."""
    wanted = f"{port:04X}"
    for number, name in enumerate(("tcp", "tcp6")):
        try:
            lines = (_PROC / "net" / name).read_text().splitlines()[1:]
        except OSError:
            if number == 0:
                raise
            continue
        for line in lines:
            fields = line.split()
            address, _, found = fields[1].rpartition(":")
            if found == wanted and fields[3] == _LISTENS:
                yield fields[9], address


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
