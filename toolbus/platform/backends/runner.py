"""Define what every kind of source can do: start, be called, be looked after, and stop."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from toolbus.bus.values.results import Blob, ConfigurationError, Progress, ToolbusError, ToolResult
from toolbus.bus.values.secrets import value_of
from toolbus.platform.checks import FORMS, VARIABLE
from toolbus.platform.records import RecordedTool, ToolSource

Line = Callable[[str], None]
"""Takes in one line of a program's output, without its end; must return at once."""

Output = Callable[[str | Blob | Progress], Awaitable[None]]
"""Takes in what a program answers while it works: text, files, and how far it is; a program that answers too fast waits for it."""

NOT_REACHED = "not_reached"
"""The code of a call that did not reach its program."""

CONNECTION_LOST = "connection_lost"
"""The code of a call whose connection ended before its answer was complete."""


class CannotStart(ToolbusError):
    """A source can't be started, or did not become ready; the text says why in one line, and what to do.

    Attributes:
        permanent: whether trying again can't help until somebody changes the record, the folder or the host.
    """

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        self.permanent = permanent
        super().__init__(message)


def impossible(message: str) -> CannotStart:
    """Return the error of a source that can't be started until somebody changes the record, the folder or the host."""
    return CannotStart(message, permanent=True)


def fitting(field: str, value: str) -> str:
    """Return the value of a field of a source, which has the form of that field.

    Raises:
        CannotStart: it has not.
    """
    form, wanted = FORMS[field]
    if not form.fullmatch(value):
        raise impossible(f"{field} is {value[:80]!r}: give {wanted}")
    return value


def variables_of(source: ToolSource) -> dict[str, str]:
    """Return the environment variables that a source names, with their values.

    Raises:
        CannotStart: one has a name that is none, or one of them, of the headers or of the query has no value at this host.
    """
    for name in source.env:
        if not VARIABLE.fullmatch(name):
            raise impossible(f"env is {name[:80]!r}: give letters, digits and _")
    try:
        # The calls read them, later.
        for value in (*source.headers.values(), *source.query.values()):
            value_of(value)
        return {name: value_of(value) for name, value in source.env.items()}
    except ConfigurationError as error:
        raise impossible(str(error)) from None


class Instance(ABC):
    """One running instance of a tool.

    Attributes:
        pid, port: of its program as seen from the host; 0 where there is none.
    """

    pid = 0
    port = 0

    @abstractmethod
    async def call(self, arguments: dict[str, Any], output: Output, *, user: str = "", deadline: float = 0.0) -> ToolResult:
        """Run one call; cancelling it closes its connection.

        Args:
            arguments: are the JSON body.
            output: takes what is streamed.
            user: on whose behalf it runs.
            deadline: when the call ends in any case, in the loop's time; 0 for never.

        Raises:
            ToolError: the call failed; ``type`` is ``unavailable`` and ``code`` is ``NOT_REACHED`` when the program was not reached, so
                that it can't have run, and ``code`` is ``CONNECTION_LOST`` when it ended before its answer was complete.
        """

    @abstractmethod
    async def health(self, *, answered: bool = False) -> str:
        """Return why it is not well in one line; empty when it is.

        Args:
            answered: whether its program must answer a request; the kernel takes connections for one that is dying.
        """

    async def unfinished(self) -> int:
        """Return how many calls it goes on with although their connections were closed; 0 where that can't be known."""
        return 0

    async def ended(self) -> str:
        """Wait until it has ended by itself, and return why; never returns for one that can't."""
        await asyncio.Event().wait()
        raise AssertionError

    @abstractmethod
    async def stop(self, within: float) -> None:
        """End it with everything that it started: ask first, and kill it after ``within`` seconds. Twice is once."""


class Runner(ABC):
    """Starts the instances of one kind of source."""

    @abstractmethod
    async def start(self, tool: RecordedTool, source: ToolSource, line: Line) -> Instance:
        """Start an instance, and return it when it is ready; cancelling it leaves nothing behind.

        Raises:
            CannotStart: it can't be started, or did not become ready in time.
        """

    async def clean(self) -> list[str]:
        """End what hosts of this machine left that are dead; return a line for each."""
        return []

    async def aclose(self) -> None:
        """Close what is shared by the instances, which have been stopped before."""
        return
