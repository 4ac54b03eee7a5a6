"""Number the requirements of the protocol, gather them with their checks in tables, and serve the tools that the checks call."""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec

from toolbus.bus.values.results import ToolError, ToolResult
from toolbus.bus.worker.function import tool
from toolbus.bus.worker.invocation import invocation
from toolbus.bus.worker.service import Retry, Session, ToolService

T = TypeVar("T")
S = TypeVar("S")
Status = Literal["holds", "broken", "not checked"]

LEVELS = {
    0: "answers unary calls",
    1: "streams, cancellation, deadlines",
    2: "leases, drain, taking over",
    3: "once, shared calls, sessions",
}
"""The levels of docs/protocol.md. Each includes those below it."""


TENANT = "kit"
"""The user who may call conformance-private."""


class Broken(AssertionError):
    """The program under test did something that the protocol forbids, or left out something that it asks for."""


def broken_if(fault: object, problem: str) -> None:
    """Raise ``Broken`` with what is wrong if there is a fault, which is any true value."""
    if fault:
        raise Broken(problem)


class NotChecked(Exception):
    """The program has nothing that a requirement is about, for example no sessions."""


def not_checked_if(reason: object, said: str) -> None:
    """Raise ``NotChecked`` with what the program lacks if there is a reason, which is any true value."""
    if reason:
        raise NotChecked(said)


class Described(msgspec.Struct, frozen=True):
    """The description of a requirement.

    Attributes:
        id: ``W`` (of a worker) or ``A`` (of an agent) and a number, which stays.
        level: the level that asks for it.
        name: a short name, for the table and for ``--only``.
        meaning: the requirement, in one sentence.
    """

    id: str
    level: int
    name: str
    meaning: str


class Outcome(Described, frozen=True):
    """The outcome of one requirement.

    Attributes:
        status: ``holds``, ``broken`` or ``not checked``.
        problem: what is broken, or why it was not checked.
        frames: the last ones that the program sent, or was sent, when it is broken.
        output: the end of what the program wrote to standard error (and a worker to standard output) meanwhile.
        exit_code: of the program, if it ended by itself; negative for a signal.
        seconds: that the check took.
    """

    status: Status
    problem: str = ""
    frames: tuple[str, ...] = ()
    output: str = ""
    exit_code: int | None = None
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """True if the program keeps what was checked."""
        return self.status == "holds"


class Requirement(Described, Generic[S], frozen=True):
    """One thing that docs/protocol.md asks for, where it stands beside the same number.

    Attributes:
        run: raises ``Broken`` when the program does not keep it; None when no check can tell.
        unchecked: why there is no check.
    """

    run: Callable[[S], Awaitable[None]] | None
    unchecked: str = ""

    @property
    def about(self) -> dict[str, str | int]:
        """The requirement as programs read it."""
        return {"id": self.id, "level": self.level, "name": self.name, "meaning": self.meaning, "unchecked": self.unchecked}


class Table(Generic[S]):
    """The requirements of workers or of agents, in the order in which they are defined."""

    def __init__(self) -> None:
        self.requirements: list[Requirement[S]] = []

    def check(self, number: str, level: int) -> Callable[[Callable[[S], Awaitable[None]]], Callable[[S], Awaitable[None]]]:
        """Add a function that checks a requirement: its name and its docstring describe it."""

        def add(run: Callable[[S], Awaitable[None]]) -> Callable[[S], Awaitable[None]]:
            meaning = " ".join((run.__doc__ or "").split()).removesuffix(".")
            self.requirements.append(Requirement(number, level, run.__name__.replace("_", "-"), meaning, run))
            return run

        return add

    def unchecked(self, number: str, level: int, name: str, meaning: str, why: str) -> None:
        """Add a requirement that no check can see the program keep."""
        self.requirements.append(Requirement(number, level, name, meaning, None, why))

    def chosen(self, level: int, only: tuple[str, ...] = ()) -> list[Requirement[S]]:
        """Return the requirements up to a level, lowest level first; with ``only``, those of these numbers or names, of whatever level."""
        wanted = {word.lower() for word in only}
        found = [each for each in self.requirements if (wanted & {each.name, each.id.lower()} if only else each.level <= level)]
        return sorted(found, key=lambda each: each.level)


async def until(condition: Callable[[], Awaitable[T | None]], within: float, problem: str, is_enough: Callable[[Any], object] = bool) -> T:
    """Return the first value of a condition that is enough, by default the first true one; it is asked again and again.

    Raises:
        Broken: there was none within the seconds; ``problem`` says what is missing.
    """
    end = asyncio.get_running_loop().time() + within
    while True:
        found = await condition()
        if is_enough(found):
            return cast("T", found)
        broken_if(asyncio.get_running_loop().time() > end, f"{problem} (within {within:g} s)")
        await asyncio.sleep(0.02)


async def until_not(condition: Callable[[], Awaitable[object]], within: float, problem: str) -> None:
    """Wait until a condition is true no more; see ``until``."""
    await until(condition, within, problem, operator.not_)


_PIECE = 32_768


async def _count(to: int, delay: float) -> AsyncIterator[str]:
    for number in range(1, to + 1):
        yield f"{number} "
        await asyncio.sleep(delay)


class Beside(ToolService):
    """Serves a tool beside those of ``Conformance``, from a stream of its own."""

    id = "conformance-beside"

    @tool("conformance-beside-count", effect="read")
    async def count(self, to: int, delay: float = 0.1) -> AsyncIterator[str]:
        """Count, one number each `delay` seconds."""
        async for part in _count(to, delay):
            yield part


class Conformance(ToolService):
    """Serves the tools that `toolbus protocol conformance worker` calls."""

    id = "conformance"
    sticky_sessions = True
    _cleaned = 0

    async def cleanup(self, session: Session | None = None) -> None:
        """Count the sessions that have ended."""
        self._cleaned += session is not None

    @tool("conformance-echo", effect="read")
    async def echo(self, text: str) -> str:
        """Return a text."""
        return text

    @tool("conformance-count", effect="read")
    async def count(self, to: int, delay: float = 0.1) -> AsyncIterator[str]:
        """Count, one number each `delay` seconds."""
        async for part in _count(to, delay):
            yield part

    @tool("conformance-data", effect="read")
    async def data(self, size: int) -> ToolResult:
        """Return an object for programs with a text of some characters."""
        return ToolResult(data={"text": "x" * size})

    @tool("conformance-private", effect="read", tenants=[TENANT])
    async def private(self, text: str) -> str:
        """Return a text to its tenant."""
        return text

    @tool("conformance-large", effect="read")
    async def large(self, size: int) -> AsyncIterator[str]:
        """Return a text of some letters."""
        for start in range(0, size, _PIECE):
            yield "x" * min(_PIECE, size - start)

    @tool("conformance-block", effect="read")
    async def block(self, seconds: float) -> str:
        """Keep the thread of the handler busy for some seconds."""
        threading.Event().wait(seconds)
        return "done"

    @tool("conformance-retry", effect="read", retry=Retry(attempts=2, delay=0.1))
    async def count_again(self, to: int, delay: float = 0.1) -> AsyncIterator[str]:
        """Count, and fail behind the first number of the first attempt."""
        async for part in _count(to, delay):
            yield part
            if invocation().attempt == 1:
                raise ToolError("the first attempt fails", retryable=True)

    @tool("conformance-ask", effect="read")
    async def ask(self, question: str, delay: float = 0.0) -> str:
        """Ask a person, and return a word some seconds after the permission."""
        await invocation().confirm(question)
        await asyncio.sleep(delay)
        return "allowed"

    @tool("conformance-cleaned", effect="read")
    async def cleaned(self) -> str:
        """Return the number of sessions that were cleaned up after."""
        return str(self._cleaned)

    @tool("conformance-once", effect="once")
    async def once(self, to: int, delay: float = 0.1) -> AsyncIterator[str]:
        """Count, and never twice."""
        async for part in _count(to, delay):
            yield part
