"""Keep the standard streams usable: closed ones are opened on nothing, and what can't be written is dropped."""

from __future__ import annotations

import os
import sys

_MODES = ("r", "w", "w")
_NAMES = ("stdin", "stdout", "stderr")


def open_closed() -> None:
    """Open standard streams that are closed: input ends at once, and output goes nowhere.

    Otherwise the next file or connection would get the stream's number, and be written to by whatever prints.
    """
    for number, (name, mode) in enumerate(zip(_NAMES, _MODES, strict=True)):
        try:
            os.fstat(number)
        except OSError:
            # The system gives the lowest free number, and those before are open.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - open until the end


def drop_unwritable_output() -> bool:
    """Discard output that can't be written, since Python would try again at exit and report exit code 120; return whether there is any."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False
