"""The end of a process: by a signal, or because its parent is gone, which is no signal of a person."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_begin: list[Callable[[], object]] = []
# True once this process has heard signals itself; after that it ends by itself.
_heard = False


@contextlib.contextmanager
def ended_by(begin: Callable[[], object], again: Callable[[], object]) -> Iterator[None]:
    """Hear SIGTERM and SIGINT in the event loop.

    Args:
        begin: begins the end of this process; calling it again must change nothing.
        again: called at every signal but the first one.
    """
    global _heard  # noqa: PLW0603 - signals are the process's as well
    loop, signalled = asyncio.get_running_loop(), False

    def hear() -> None:
        nonlocal signalled
        first, signalled = not signalled, True
        (begin if first else again)()

    _heard = True
    _begin.append(begin)
    for number in _SIGNALS:
        loop.add_signal_handler(number, hear)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
        _begin.remove(begin)


def end_process() -> None:
    """Begin the end of this process as SIGTERM does, unless it has begun.

    Two signals end a process at once, and drop what it runs. So the end of its parent is none while it drains.
    """
    for begin in [*_begin]:
        begin()
    if not _heard:
        os.kill(os.getpid(), signal.SIGTERM)
