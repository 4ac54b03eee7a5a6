"""Run coroutines for synchronous callers."""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def finished(value: Any) -> Any:
    """Return a function's result, awaited when it is a coroutine: in a thread with its own loop, since a loop may run here."""
    if not inspect.iscoroutine(value):
        return value
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, value).result()
