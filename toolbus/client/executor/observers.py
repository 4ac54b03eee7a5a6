"""Events of executors for observers such as audit logs, user interfaces and meters, whose failures never reach a call."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

import msgspec

from toolbus import telemetry
from toolbus.client.confirmations import Confirmation
from toolbus.events import Event
from toolbus.results import ConfigurationError


class Requested(msgspec.Struct, frozen=True):
    """An executor took a call in; ``changes`` is what it changed in the model's arguments."""

    arguments: dict[str, Any]
    changes: tuple[str, ...] = ()


class Confirming(msgspec.Struct, frozen=True):
    """The call waits until a person allows or denies it."""

    confirmation: Confirmation


ExecutionEvent = Requested | Confirming | Event


class ToolEvent(msgspec.Struct, frozen=True):
    """Something that happened to one call of a turn.

    Attributes:
        id: the model's id of the call.
        tool: the tool's own name, or what the model called it when there is no such tool.
        index: the call's place in its turn, from 0.
        event: what happened; the last of a call is ``Finished``.
        user, session: on whose behalf.
    """

    id: str
    tool: str
    index: int
    event: ExecutionEvent
    user: str = ""
    session: str = ""


Observer = Callable[[ToolEvent], object]


class EventBus:
    """Tells observers, and those who watch, of every call that the bus's executors make."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []

    def __len__(self) -> int:
        return len(self._observers)

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Call ``observer`` with each event, in the event loop; what is returned ends that.

        It must return at once. What it raises is logged and nothing else.

        Raises:
            ConfigurationError: it is a coroutine function; ``watch()`` is for those.
        """
        if inspect.iscoroutinefunction(observer):
            raise ConfigurationError("an observer is a plain function; coroutines read `bus.events.watch()`")
        self._observers.append(observer)

        def unsubscribe() -> None:
            if observer in self._observers:
                self._observers.remove(observer)

        return unsubscribe

    def watch(self, limit: int = 1000) -> Watch:
        """Events from now on, for ``with`` and then ``async for``; a reader that is ``limit`` behind loses the oldest."""
        return Watch(self, limit)

    def publish(self, event: ToolEvent) -> None:
        """Tell every observer."""
        for observer in [*self._observers]:
            try:
                observer(event)
            except BaseException:  # noqa: BLE001 - observers are the application's own code: SystemExit would end the event loop
                telemetry.log.exception("observer.failed", tool=event.tool, id=event.id)


class Watch:
    """Events that wait for one reader.

    Attributes:
        dropped: how many were lost because the reader was too slow.
    """

    def __init__(self, bus: EventBus, limit: int) -> None:
        self._bus = bus
        self._waiting: deque[ToolEvent] = deque(maxlen=limit)
        self._arrived = asyncio.Event()
        self._leave: Callable[[], None] = lambda: None
        self.dropped = 0

    def __enter__(self) -> Self:
        self._leave = self._bus.subscribe(self._put)
        return self

    def __exit__(self, *exception: object) -> None:
        self._leave()

    async def __aiter__(self) -> AsyncIterator[ToolEvent]:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                yield self._waiting.popleft()

    def _put(self, event: ToolEvent) -> None:
        if len(self._waiting) == self._waiting.maxlen:
            self.dropped += 1
        self._waiting.append(event)
        self._arrived.set()
