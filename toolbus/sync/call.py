"""``Call``: one call, read synchronously."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from toolbus.client.calls.call import Call as AsyncCall
from toolbus.events import Event
from toolbus.results import ToolResult
from toolbus.sync.loop import Loop


class Call:
    """One call, read synchronously; see ``toolbus.Call``."""

    def __init__(self, loop: Loop, make: Callable[[], AsyncCall]) -> None:
        self._loop = loop
        # A call belongs to the event loop, so it is made there.
        self._call: AsyncCall = loop.run(make)

    @property
    def id(self) -> str:
        """The call's correlation id."""
        return self._call.id

    @property
    def done(self) -> bool:
        """True when the call has its result."""
        return self._call.done

    def __enter__(self) -> Self:
        self._loop.run(self._call.__aenter__)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.cancel()

    def __iter__(self) -> Iterator[str]:
        yield from self._loop.each(self._call)

    def events(self) -> Iterator[Event]:
        """Yield everything that happens, in order; the last event is ``Finished``."""
        yield from self._loop.each(self._call.events())

    def result(self) -> ToolResult:
        """Wait for the result; unread events are dropped."""
        return self._loop.run(self._call.result)

    def cancel(self) -> None:
        """End the call now; the handler is told."""
        # Closing the bus ended its calls, so there is nothing to ask of a closed one.
        if not self._call.done:
            self._loop.run(self._call.cancel)
