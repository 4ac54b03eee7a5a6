"""Python's garbage collector, kept out of the way."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection(wanted: bool = True) -> Iterator[None]:
    """Keep the collector from running while many objects are made that all stay: half of the time goes into it."""
    if not wanted or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
