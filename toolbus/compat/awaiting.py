"""Synchronous facades over what may be a coroutine."""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def finished(value: Any) -> Any:
    """What a function returned, awaited when it is a coroutine: a loop of its own in a thread, since one may run here."""
    if not inspect.iscoroutine(value):
        return value
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, value).result()
