"""Mark processes with the host that they belong to, and end those of hosts that are dead.

The mark is an environment variable, which everything that a program starts inherits: ``NAMESPACE:PID:STARTED:NAME``, where the first
three say which process the host is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

VARIABLE = "TOOLBUS_PROGRAM_OF"

_PROC = Path("/proc")
_LONGEST = 10.0


def new(name: str) -> str:
    """Return the mark of a program of this process; ``name`` tells it from others."""
    return f"{_host_mark(os.getpid())}:{name}"


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
            ended.setdefault(pid, _name(pid))
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return ended


def _marked() -> Iterator[tuple[int, str]]:
    """Yield the marked processes of this user that are no zombies."""
    wanted = f"{VARIABLE}=".encode()
    own = os.getpid()
    for pid in _pids():
        with contextlib.suppress(OSError):
            if pid == own:
                continue
            for each in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                if each.startswith(wanted):
                    yield pid, each[len(wanted) :].decode("utf-8", "replace")
                    break


def _pids() -> list[int]:
    try:
        return [int(each.name) for each in _PROC.iterdir() if each.name.isdecimal()]
    except OSError:
        return []


def _host_mark(pid: int) -> str:
    return f"{_namespace()}:{pid}:{_started(pid)}"


def _namespace() -> str:
    try:
        return "".join(filter(str.isdecimal, str((_PROC / "self/ns/pid").readlink())))
    except OSError:
        return "0"


def _started(pid: int) -> str:
    """Return when a process was started, in ticks since the machine was; empty when there is none, or it is a zombie."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in b"ZX" else fields[19].decode()


def _name(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "comm").read_text("utf-8", "replace").strip()
    except OSError:
        return "?"
