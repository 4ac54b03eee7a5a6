"""Memory limits of a fork server and its children, and signals that end them with their parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

LINUX = sys.platform.startswith("linux")

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True) if LINUX else None


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent dies, in whatever way; Linux only."""
    if _libc is None:
        return
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        # It died before it could matter.
        os._exit(0)


def adopt_orphans() -> None:
    """Become the parent of processes that lose theirs below this one, so that none can slip away; Linux only."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def offspring() -> set[int]:
    """Return the ids of this process's children, those that it adopted among them; none where that can't be told."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            found.update(map(int, (thread / "children").read_text("ascii").split()))
    return found


def address_space(more: int) -> None:
    """Let this process have so many bytes of address space beyond what it has now; 0 lifts the limit. Linux only."""
    if not LINUX:
        return
    import resource  # noqa: PLC0415 - there is none on Windows

    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    soft = hard
    if more:
        pages = int(Path("/proc/self/statm").read_text("ascii").partition(" ")[0])
        soft = pages * resource.getpagesize() + more
        soft = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def native_threads() -> int:
    """Return how many threads this process has, also those that Python does not know of; 0 where that can't be told."""
    try:
        return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - only the number matters
    except OSError:
        return 0


def leave_signals_to_worker() -> None:
    """Let SIGTERM and SIGINT pass by: only the worker ends this process."""
    # A handler, unlike SIG_IGN, is not passed on to the programs that a tool starts.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)
