"""``ToolExecutor``: runs the calls that a model asks for, for callers without an event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from toolbus.bus.client.executor import executor as aio
from toolbus.bus.client.executor import turn
from toolbus.bus.client.executor.observers import ToolEvent
from toolbus.bus.client.executor.toolcalls import Observation
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.values.results import ConfigurationError, ToolResult
from toolbus.sync.loop import FindLoop, Loop
from toolbus.sync.tools import Tools


class ToolExecutor:
    """Runs a model's tool calls on a bus, from any number of threads; ``bus.executor(…)`` makes one, adapters take it.

    Attributes:
        asynchronous: the executor of the event loop.
    """

    def __init__(self, loop: FindLoop, asynchronous: aio.ToolExecutor) -> None:
        self._loop = loop
        self.asynchronous = asynchronous

    @property
    def model(self) -> str:
        """The default of ``build_request``."""
        return self.asynchronous.model

    @property
    def user(self) -> str:
        """On whose behalf the calls are made."""
        return self.asynchronous.user

    @property
    def session(self) -> str:
        """The session in which the calls are made."""
        return self.asynchronous.session

    @property
    def tools(self) -> Tools:
        """The tools that may be called, as they are now."""
        loop = self._loop()
        return Tools(loop, loop.run(lambda: self.asynchronous.tools))

    def find(self, name: str) -> Tool | None:
        """Return the tool that a model means, if it may call it."""
        return self._loop().run(lambda: self.asynchronous.find(name))

    def narrowed(self, tools: Tools) -> ToolExecutor:
        """Return the same executor for other tools, with the same observers and earlier results."""
        return ToolExecutor(self._loop, self.asynchronous.narrowed(tools.view))

    def build_request(self, messages: list[Any], **parameters: Any) -> dict[str, Any]:
        """Return the body of a chat completion; see ``toolbus.ToolExecutor.build_request``."""
        return self._loop().run(lambda: self.asynchronous.build_request(messages, **parameters))

    def execute(self, name: str, arguments: object = None) -> ToolResult:
        """Run one call as a model's: repaired, cast, validated, confirmed, observed and logged."""
        return self._loop().run(lambda: self.asynchronous.execute(name, arguments))

    def process_tool_calls(self, message: object, *, concurrent: bool = True) -> list[dict[str, Any]]:
        """Run a turn's calls and return the messages that answer them; see ``toolbus.ToolExecutor.process_tool_calls``."""
        return self._loop().run(lambda: self.asynchronous.process_tool_calls(message, concurrent=concurrent))

    def stream_tool_calls(self, message: object, *, concurrent: bool = True) -> Turn:
        """Return a turn for ``with`` and ``for``: each event as it happens, and then ``messages()``."""
        return Turn(self._loop(), lambda: self.asynchronous.stream_tool_calls(message, concurrent=concurrent))


class Turn:
    """The calls of one turn while they run: ``with``, then ``for event in turn``, then ``turn.messages()``.

    Leaving the context early cancels what still runs.
    """

    def __init__(self, loop: Loop, make: Callable[[], turn.Turn]) -> None:
        self._loop = loop
        self._turn: turn.Turn = loop.run(make)
        self._leave: Callable[[], None] | None = None

    def __enter__(self) -> Self:
        if self._leave is not None:
            raise ConfigurationError("a turn runs once")
        self._leave = self._loop.enter(self._turn)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._leave is not None:
            self._leave()

    def __iter__(self) -> Iterator[ToolEvent]:
        yield from self._loop.each(self._turn)

    def results(self) -> list[ToolResult]:
        """Wait for all calls and return their results in order; unread events are dropped."""
        return self._loop.run(self._turn.results)

    def observations(self) -> list[Observation]:
        """Wait for all calls and return what the model is told of each, in order."""
        return self._loop.run(self._turn.observations)

    def messages(self) -> list[dict[str, Any]]:
        """Wait for all calls and return the messages that answer them, in the shape in which the model made them."""
        return self._loop.run(self._turn.messages)
