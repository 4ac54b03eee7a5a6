"""Define checks, and gather them in tables; and the service whose tools they call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

import msgspec

from toolbus.bus.worker.function import tool
from toolbus.bus.worker.service import ToolService

T = TypeVar("T")
S = TypeVar("S")

LEVELS = {
    0: "answers unary calls",
    1: "streams, cancellation, deadlines",
    2: "leases, drain, taking over",
    3: "once, shared calls",
}
"""The levels of docs/protocol.md. Each includes those below it."""


class Broken(AssertionError):
    """The program under test did something that the protocol forbids, or left out something that it asks for."""


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of one check; ``problem`` is empty when it holds."""

    level: int
    name: str
    meaning: str
    problem: str = ""

    @property
    def holds(self) -> bool:
        """True if the program keeps what was checked."""
        return not self.problem


class Check(msgspec.Struct, Generic[S], frozen=True):
    """One promise of the protocol.

    Attributes:
        level: the level that asks for it.
        name: a short name, for the table and for ``--only``.
        meaning: the promise, in one line.
        run: raises ``Broken`` when the program does not keep it.
    """

    level: int
    name: str
    meaning: str
    run: Callable[[S], Awaitable[None]]


class Table(Generic[S]):
    """Checks in the order in which they are defined."""

    def __init__(self) -> None:
        self.checks: list[Check[S]] = []

    def check(self, level: int) -> Callable[[Callable[[S], Awaitable[None]]], Callable[[S], Awaitable[None]]]:
        """Add a function to the table: its name and the first line of its docstring describe the check."""

        def add(run: Callable[[S], Awaitable[None]]) -> Callable[[S], Awaitable[None]]:
            meaning = (run.__doc__ or "").partition("\n")[0].removesuffix(".")
            self.checks.append(Check(level, run.__name__.replace("_", "-"), meaning, run))
            return run

        return add

    def chosen(self, level: int, only: tuple[str, ...] = ()) -> list[Check[S]]:
        """Return the checks up to a level, lowest level first; with ``only``, those of these names, of whatever level."""
        found = [check for check in self.checks if (check.name in only if only else check.level <= level)]
        return sorted(found, key=lambda check: check.level)


async def until(condition: Callable[[], Awaitable[T | None]], within: float, problem: str) -> T:
    """Return the first true value of a condition, which is asked again and again.

    Raises:
        Broken: there was none within the seconds; ``problem`` says what is missing.
    """
    end = asyncio.get_running_loop().time() + within
    while True:
        found = await condition()
        if found:
            return found
        if asyncio.get_running_loop().time() > end:
            raise Broken(f"{problem} (within {within:g} s)")
        await asyncio.sleep(0.02)


async def _count(to: int, delay: float) -> AsyncIterator[str]:
    for number in range(1, to + 1):
        yield f"{number} "
        await asyncio.sleep(delay)


class Conformance(ToolService):
    """Serves the tools that `toolbus protocol conformance worker` calls."""

    id = "conformance"

    @tool("conformance-echo", effect="read")
    async def echo(self, text: str) -> str:
        """Return a text."""
        return text

    @tool("conformance-count", effect="read")
    async def count(self, to: int, delay: float = 0.1) -> AsyncIterator[str]:
        """Count, one number each `delay` seconds."""
        async for part in _count(to, delay):
            yield part

    @tool("conformance-once", effect="once")
    async def once(self, to: int, delay: float = 0.1) -> AsyncIterator[str]:
        """Count, and never twice."""
        async for part in _count(to, delay):
            yield part
