"""Refusals that come without waiting for the server: the event loop turns once before each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

from toolbus.bus.values.results import ToolbusError

P = ParamSpec("P")
T = TypeVar("T")


async def raised(error: Exception) -> NoReturn:
    """Raise an error after one turn of the event loop."""
    await asyncio.sleep(0)
    raise error


def turning(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let the event loop turn before an error of a method is raised.

    A program that tries again and again would keep all other tasks from running, and with them what removes the error.
    """

    @wraps(method)
    async def turned(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(*args, **kwargs)
        except ToolbusError:
            await asyncio.sleep(0)
            raise

    return turned
