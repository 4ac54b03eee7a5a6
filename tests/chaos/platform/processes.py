"""Find the programs of a run, and the keepers that hosts put above them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")


def programs(folder: Path) -> dict[int, bool]:
    """Return the processes that run in a folder or below it, but zombies; True for one that keeps a program."""
    found: dict[int, bool] = {}
    for pid in _pids():
        try:
            if (_PROC / str(pid) / "cwd").readlink().is_relative_to(folder) and is_alive(pid):
                found[pid] = b"keeper.py" in (_PROC / str(pid) / "cmdline").read_bytes()
        except OSError:
            continue
    return found


def below(pid: int) -> set[int]:
    """Return the processes that a process has started, and those that these have."""
    children: dict[int, list[int]] = {}
    for each in _pids():
        parent = _stat(each)[1:2]
        if parent:
            children.setdefault(int(parent[0]), []).append(each)
    found: set[int] = set()
    look = [pid]
    while look:
        own = children.pop(look.pop(), [])
        found.update(own)
        look += own
    return found


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    return _stat(pid)[:1] not in ([], [b"Z"], [b"X"])


def _pids() -> Iterator[int]:
    return (int(each.name) for each in _PROC.iterdir() if each.name.isdecimal())


def _stat(pid: int) -> list[bytes]:
    """Return the fields of a process after its name: the state, the parent, and so on."""
    try:
        return (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []
