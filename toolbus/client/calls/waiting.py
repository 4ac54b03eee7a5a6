"""``WaitingCalls``: calls that wait for a worker before they are published."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from toolbus.client.calls.call import Call
from toolbus.client.tools.catalogue import Catalogue
from toolbus.client.tools.tool import Tool
from toolbus.results import ErrorInfo

# Errors that a newly registered worker may remove.
_MAY_APPEAR = frozenset({"not_found", "unavailable"})


class Arrival(msgspec.Struct, eq=False):
    """The wait of a model's call for its tool, before there is a ``Call``."""

    options: Mapping[str, Any]
    error: ErrorInfo | None = None

    def complete_with(self, error: ErrorInfo) -> None:
        """End the wait."""
        self.error = error


class WaitingCalls:
    """The calls that wait for a worker to register; to end one, wake the catalogue, too."""

    def __init__(self) -> None:
        # Each with the monotonic time since when it waits.
        self._waiting: dict[Call | Arrival, float] = {}

    def __iter__(self) -> Iterator[Call | Arrival]:
        return iter([*self._waiting])

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, call: Call) -> bool:
        return call in self._waiting

    def left(self, call: Call, timeout: float) -> float:
        """Return the seconds that are left of a timeout that counts from the call's begin, at least a millisecond."""
        since = self._waiting.get(call)
        return timeout if since is None else max(0.001, timeout - (time.monotonic() - since))

    async def publish(self, call: Call, publish: Callable[[Call], ErrorInfo | None], catalogue: Catalogue, limit: float) -> None:
        """Try to publish a call after each change of the registry, until it is published or ended, at most ``limit`` seconds.

        Args:
            call: the call.
            catalogue: the catalogue that tells of changes.
            limit: seconds.
            publish: returns why the call could not be published, or None.
        """
        problem: ErrorInfo | None = None

        def ready() -> bool:
            nonlocal problem
            problem = None if call.done else publish(call)
            return problem is None or not may_appear(call, problem)

        self._waiting[call] = time.monotonic()
        try:
            async with asyncio.timeout(limit):
                await catalogue.wait(ready)
        except TimeoutError:
            pass
        finally:
            del self._waiting[call]
        if problem is not None:
            call.complete_with(problem)

    async def until_callable(
        self, find: Callable[[], Tool | None], options: Mapping[str, Any], catalogue: Catalogue, limit: float
    ) -> ErrorInfo | None:
        """Wait until ``find`` returns an available tool, at most ``limit`` seconds.

        Returns:
            An error when the bus or the session of ``options`` was closed first.
        """
        arrival = Arrival(options)
        self._waiting[arrival] = time.monotonic()

        def ready() -> bool:
            found = None if arrival.error is not None else find()
            return arrival.error is not None or (found is not None and found.available)

        try:
            async with asyncio.timeout(limit):
                await catalogue.wait(ready)
        except TimeoutError:
            pass
        finally:
            del self._waiting[arrival]
        return arrival.error


def may_appear(call: Call, problem: ErrorInfo) -> bool:
    """Return whether a newly registered worker may remove what keeps a call from being published."""
    return problem.type in _MAY_APPEAR and not (call.grant is not None and call.grant.superseded)
