"""The two connections of a process: one that writes and never waits, one that waits in blocking reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from toolbus.broker.connection import Connector
from toolbus.broker.link import Link
from toolbus.results import BrokerUnavailable

_OPENING = 10.0


class Pair:
    """Both links, kept connected from ``open`` until ``leave``, and the tasks that live as long.

    Args:
        on_push, on_up: of the writing link; ``on_blocking_up`` of the blocking one.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        on_push: Callable[[list[Any]], None] | None = None,
        on_up: Callable[[bool], None] | None = None,
        on_blocking_up: Callable[[bool], None] | None = None,
    ) -> None:
        self._connector = connector
        self.writing = Link(connector, on_push=on_push, on_up=on_up)
        self.blocking = Link(connector, on_up=on_blocking_up)
        self._tasks: asyncio.TaskGroup | None = None
        self._working: list[asyncio.Task[None]] = []
        self._home: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()

    @property
    def connected(self) -> bool:
        """Whether the server can be spoken to now."""
        return self.writing.connected and self.blocking.connected

    @property
    def closing(self) -> bool:
        """Whether ``leave`` was called."""
        return self._leaving.is_set()

    @property
    def open(self) -> bool:
        """Whether it was opened and not left."""
        return self._home is not None

    @asynccontextmanager
    async def opening(self) -> AsyncIterator[None]:
        """Connect both; within the block are the first commands, for which a lost connection is waited for a bounded time.

        What goes wrong in it closes the connections again.

        :raises BrokerUnavailable: the server can't be reached, or did not answer in time.
        :raises BrokerError: it refuses us.
        """
        try:
            await self.writing.connect()
            await self.blocking.connect()
            ready = asyncio.Event()
            self._home = asyncio.create_task(self._live(ready), name="toolbus-links")
            await ready.wait()
            async with asyncio.timeout(_OPENING):
                yield
        except BaseException as error:
            await self.leave()
            if isinstance(error, TimeoutError):
                raise BrokerUnavailable(f"{self._connector.display} did not answer within {_OPENING:g} s") from None
            raise

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something until it is done, or until ``leave`` cancels it."""
        if self._tasks is None or self.closing:
            work.close()
            return
        task = self._tasks.create_task(work)
        self._working.append(task)
        task.add_done_callback(self._working.remove)

    async def leave(self) -> None:
        """Cancel what was started, and disconnect; what waits for answers gets ``BrokerUnavailable``."""
        self._leaving.set()
        self.writing.close()
        self.blocking.close()
        home, self._home = self._home, None
        if home is not None:
            await home
        await self.writing.wait_closed()
        await self.blocking.wait_closed()

    async def _live(self, ready: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self.writing.maintain())
            tasks.create_task(self.blocking.maintain())
            ready.set()
            await self._leaving.wait()
            for task in list(self._working):
                task.cancel()
