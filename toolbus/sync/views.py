"""Views of a synchronous bus: with default options, and of one service's untyped lower tier."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Unpack

from toolbus.bus.broker.protocols import Usage
from toolbus.bus.client import views as aio
from toolbus.bus.client.executor.observers import ATTACHMENTS, LIMIT
from toolbus.bus.client.tools.view import ToolView
from toolbus.bus.values.confirmations import CONFIRM_TIMEOUT
from toolbus.bus.values.options import CallOptions, ServiceCallOptions, session_id
from toolbus.bus.values.results import ToolResult
from toolbus.sync.confirmations import Confirmer, PendingConfirmations, in_threads
from toolbus.sync.executor import ToolExecutor, Turn
from toolbus.sync.loop import Call, FindLoop
from toolbus.sync.observers import EventBus
from toolbus.sync.tools import Tools

if TYPE_CHECKING:
    from toolbus.bus.broker import limits


class BoundBus:
    """A bus with default options; what ``bind`` returns, for whenever the bus is open."""

    def __init__(self, loop: FindLoop, view: aio.BusView) -> None:
        self._loop = loop
        self._view = view

    @property
    def tools(self) -> Tools:
        """The tools as they are now, by name, sorted; those that the bound user may call, if there is one."""
        loop = self._loop()
        return Tools(loop, loop.run(lambda: self._view.tools))

    @property
    def events(self) -> EventBus:
        """Tells observers of every call that executors make on this bus."""
        return EventBus(self._loop, self._view.events)

    @property
    def confirmations(self) -> PendingConfirmations:
        """The open confirmations: this bus's own by id, and methods to answer those of every process."""
        return PendingConfirmations(self._loop, self._view.confirmations)

    def bind(self, **options: Unpack[CallOptions]) -> BoundBus:
        """Return a cheap view with these options as defaults, for whenever the bus is open.

        Raises:
            ConfigurationError: an option does not exist.
        """
        return BoundBus(self._loop, self._view.bind(**options))

    def session(self, id: str, **options: Unpack[CallOptions]) -> AbstractContextManager[BoundBus]:
        """Return a view bound to a session, for ``with``, which closes the session.

        Raises:
            ConfigurationError: the id is no text, or is empty, or an option is wrong.
        """
        options["session"] = session_id(id)
        return _closing(self.bind(**options))

    def close_session(self) -> None:
        """End the bound session; see ``toolbus.ToolBus.close_session``."""
        self._loop().run(self._view.close_session)

    def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> ToolResult:
        """Call a tool and wait for its result; see ``toolbus.ToolBus.call``."""
        return self._loop().run(lambda: self._view.call(tool, arguments, **options))

    def stream(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> Call:
        """Return a call to be entered with ``with`` and read as it is produced; see ``toolbus.ToolBus.stream``."""
        return Call(self._loop(), lambda: self._view.stream(tool, arguments, **options))

    def executor(
        self,
        *,
        tools: Tools | ToolView | None = None,
        output_limit: int = LIMIT,
        attachment_limit: int = ATTACHMENTS,
        confirmer: Confirmer | None = None,
        confirm_timeout: float = CONFIRM_TIMEOUT,
        confirm_anywhere: bool | None = None,
        sequential: Collection[str] = (),
        model: str = "",
        **options: Unpack[CallOptions],
    ) -> ToolExecutor:
        """Return an executor of a model's tool calls, see ``toolbus.ToolBus.executor``.

        Args:
            tools: the tools that may be called (``bus.tools.filter(…)``); all when left out.
            output_limit: most characters of an observation, for tools that set no limit of their own.
            attachment_limit: most bytes of images and files that a model is shown of one turn; 0 for none.
            confirmer: a plain function that asks a person about tools that declare ``confirm``; it runs in a thread.
            confirm_timeout: seconds that a call waits for the person.
            confirm_anywhere: whether any process of the namespace may answer; left out, when there is no confirmer.
            sequential: names of tools whose calls run alone.
            model: the model of ``build_request``.

        Raises:
            ConfigurationError: an option is wrong.
        """
        made = self._view.executor(
            tools=tools.view if isinstance(tools, Tools) else tools,
            output_limit=output_limit,
            attachment_limit=attachment_limit,
            confirmer=in_threads(confirmer, self._loop),
            confirm_timeout=confirm_timeout,
            confirm_anywhere=confirm_anywhere,
            sequential=sequential,
            model=model,
            **options,
        )
        return ToolExecutor(self._loop, made)

    def execute(self, tool: str, arguments: object = None, **options: Unpack[CallOptions]) -> ToolResult:
        """Run one call as a model's: repaired, cast, validated and confirmed; see ``ToolExecutor.execute``."""
        return self.executor(**options).execute(tool, arguments)

    def process_tool_calls(self, message: object, *, concurrent: bool = True, **options: Unpack[CallOptions]) -> list[dict[str, Any]]:
        """Run a model's turn of tool calls; see ``ToolExecutor.process_tool_calls``."""
        return self.executor(**options).process_tool_calls(message, concurrent=concurrent)

    def stream_tool_calls(self, message: object, *, concurrent: bool = True, **options: Unpack[CallOptions]) -> Turn:
        """Run a model's turn of tool calls and read what happens to them; see ``ToolExecutor.stream_tool_calls``."""
        return self.executor(**options).stream_tool_calls(message, concurrent=concurrent)

    def usage(self, days: int = 1) -> list[Usage]:
        """Return what calls cost on the last days, by user and tool; see ``toolbus.ToolBus.usage``."""
        return self._loop().run(lambda: self._view.usage(days))

    def service(self, id: str) -> Service:
        """Return the untyped lower tier of one service, for whenever the bus is open."""
        return Service(self._loop, self._view.service(id))


@contextmanager
def _closing(view: BoundBus) -> Iterator[BoundBus]:
    """Close the session of a view at the end of the ``with``."""
    try:
        yield view
    finally:
        view.close_session()


class Service:
    """The untyped lower tier of one service."""

    def __init__(self, loop: FindLoop, view: aio.ServiceView) -> None:
        self._loop = loop
        self._view = view

    def call(self, user: str, config: Mapping[str, Any], arguments: Mapping[str, Any], **options: Unpack[ServiceCallOptions]) -> ToolResult:
        """Call the service; ``str()`` of the result is the observation."""
        return self._loop().run(lambda: self._view.call(user, config, arguments, **options))

    def stream(self, user: str, config: Mapping[str, Any], arguments: Mapping[str, Any], **options: Unpack[ServiceCallOptions]) -> Call:
        """Call the service and read its answer as it is produced."""
        return Call(self._loop(), lambda: self._view.stream(user, config, arguments, **options))


class Tallies:
    """The counts that all processes of a namespace share; see ``toolbus.ToolBus.tallies``."""

    def __init__(self, loop: FindLoop, tallies: Callable[[], limits.Tallies]) -> None:
        self._loop = loop
        self._tallies = tallies

    def spend(self, name: str, limit: int, period: float) -> float:
        """Count one use against a rate of ``limit`` per ``period`` seconds; returns 0, or the seconds until there is room."""
        return self._loop().run(lambda: self._tallies().spend(name, limit, period))

    def use(self, name: str, limit: int, period: float) -> float:
        """Count one use against a quota, which starts anew in each period of the server's clock; returns as ``spend``."""
        return self._loop().run(lambda: self._tallies().use(name, limit, period))

    def count(self, user: str, tool: str, *, ms: float, size: int, failed: bool) -> None:
        """Add a call to today's usage."""
        self._loop().run(lambda: self._tallies().count(user, tool, ms=ms, size=size, failed=failed))

    def usage(self, days: int = 1) -> list[Usage]:
        """Return the usage of the last days (UTC, today is the first), by user and tool."""
        return self._loop().run(lambda: self._tallies().usage(days))
