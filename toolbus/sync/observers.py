"""``EventBus``: the events of every call that executors make, for other threads than the event loop's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self

from toolbus.bus.client.executor import observers as aio
from toolbus.bus.client.executor.observers import Observer, ToolEvent
from toolbus.sync.loop import FindLoop, Loop


class EventBus:
    """Tells observers, and those who watch, of every call that the bus's executors make."""

    def __init__(self, loop: FindLoop, events: aio.EventBus) -> None:
        self._loop = loop
        self._events = events

    def __len__(self) -> int:
        return len(self._events)

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Call ``observer`` with each event; what is returned ends that. It stays subscribed when the bus is closed and opened again.

        It is called in the bus's own thread, so it must return at once and can't use the bus. What it raises is logged and nothing else.

        Raises:
            ConfigurationError: it is a coroutine function.
        """
        return self._events.subscribe(observer)

    def watch(self, limit: int = 1000) -> Watch:
        """Events from now on, for ``with`` and then ``for``; a reader that is ``limit`` behind loses the oldest.

        Raises:
            ConfigurationError: the bus is not open.
        """
        return Watch(self._loop(), self._events.watch(limit))

    def publish(self, event: ToolEvent) -> None:
        """Tell every observer.

        Raises:
            ConfigurationError: the bus is not open.
        """
        self._loop().run(lambda: self._events.publish(event))


class Watch:
    """Events that wait for one reader, until the bus is closed."""

    def __init__(self, loop: Loop, watch: aio.Watch) -> None:
        self._loop = loop
        self._watch = watch

    @property
    def dropped(self) -> int:
        """The number of events that were lost because the reader was too slow."""
        return self._watch.dropped

    def __enter__(self) -> Self:
        self._watch.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._watch.__exit__(*exception)

    def __iter__(self) -> Iterator[ToolEvent]:
        yield from self._loop.each(self._watch, lasting=True)
