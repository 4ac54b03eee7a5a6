"""Find connections that one side has closed, and the program at the other side has not."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

_NET = Path("/proc/net")
# The kernel's number of CLOSE_WAIT. A program that answers nevertheless is refused, and its connection leaves this state.
_HELD = "08"


def half_closed(port: int, others: Collection[int]) -> frozenset[int]:
    """Return those of the other sides' ports to which a program at ``port`` holds on; none where the system does not say."""
    here, wanted = f"{port:04X}", {f"{each:04X}": each for each in others}
    found: set[int] = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (_NET / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, remote, state, *_ = line.split()
            other = remote.rpartition(":")[2]
            if state == _HELD and local.rpartition(":")[2] == here and other in wanted:
                found.add(wanted[other])
    return frozenset(found)
