"""``toolbus.sync.ToolBus``: calls and tools for synchronous callers, over one event loop in a thread."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from anyio.from_thread import BlockingPortal, start_blocking_portal

from toolbus.broker.protocols import Usage
from toolbus.client import bus as aio
from toolbus.client import views
from toolbus.client.calls.call import Call as AsyncCall
from toolbus.client.tools.formats import Format
from toolbus.client.tools.tool import Tool
from toolbus.client.tools.view import ToolView
from toolbus.events import Event
from toolbus.middleware.chain import Middleware, checked
from toolbus.options import CallOptions, ServiceCallOptions, merged, session_id
from toolbus.results import ConfigurationError, ToolResult
from toolbus.safe_text import type_name
from toolbus.settings import Settings

T = TypeVar("T")

_CLOSED = "the bus is not open: use `with ToolBus(...) as bus`, or `bus.open()`"


@overload
def _run(portal: BlockingPortal, function: Callable[[], Coroutine[Any, Any, T]]) -> T: ...
@overload
def _run(portal: BlockingPortal, function: Callable[[], T]) -> T: ...
def _run(portal: BlockingPortal, function: Callable[[], Any]) -> Any:
    """Run a function in the bus's event loop and wait for it; Ctrl-C here cancels it there.

    Raises:
        ConfigurationError: the bus was closed.
    """
    try:
        future = portal.start_task_soon(function)
    except RuntimeError as error:
        if "not running" in str(error):
            raise ConfigurationError(_CLOSED) from None
        raise
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


class Call:
    """One call, read synchronously; see ``toolbus.Call``."""

    def __init__(self, portal: BlockingPortal, make: Callable[[], AsyncCall]) -> None:
        self._portal = portal
        # A call belongs to the event loop, so it is made there.
        self._call: AsyncCall = _run(portal, make)

    @property
    def id(self) -> str:
        """The call's correlation id."""
        return self._call.id

    @property
    def done(self) -> bool:
        """True when the call has its result."""
        return self._call.done

    def __enter__(self) -> Self:
        _run(self._portal, self._call.__aenter__)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.cancel()

    def __iter__(self) -> Iterator[str]:
        yield from self._iterate(self._call)

    def events(self) -> Iterator[Event]:
        """Yield everything that happens, in order; the last event is ``Finished``."""
        yield from self._iterate(self._call.events())

    def result(self) -> ToolResult:
        """Wait for the result; unread events are dropped."""
        return _run(self._portal, self._call.result)

    def cancel(self) -> None:
        """End the call now; the handler is told."""
        # Closing the bus ended its calls, so there is nothing to ask of a closed one.
        if not self._call.done:
            _run(self._portal, self._call.cancel)

    def _iterate(self, items: Any) -> Iterator[Any]:
        iterator: AsyncIterator[Any] = aiter(items)

        async def following() -> tuple[bool, Any]:
            try:
                return True, await anext(iterator)
            except StopAsyncIteration:
                return False, None

        while True:
            more, item = _run(self._portal, following)
            if not more:
                return
            yield item


class _View:
    """The methods that a bus and a bound view share."""

    @property
    def _view(self) -> views.BusView:
        """The asynchronous view of the bus that is open now."""
        raise NotImplementedError

    def _portal_or_fail(self) -> BlockingPortal:
        raise NotImplementedError

    # Not for type checkers: to them every name would be there.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            hint = "; it needs an event loop: use toolbus.ToolBus" if not name.startswith("_") and hasattr(aio.ToolBus, name) else ""
            raise AttributeError(f"{type_name(self)!r} of toolbus.sync has no {name!r}{hint}", name=name, obj=self)

    def bind(self, **options: Unpack[CallOptions]) -> BoundBus:
        """Return a cheap view with these options as defaults, for whenever the bus is open."""
        merged({}, options)  # tells of unknown options here already
        return BoundBus(self._portal_or_fail, lambda: self._view.bind(**options))

    @contextmanager
    def session(self, id: str, **options: Unpack[CallOptions]) -> Iterator[BoundBus]:
        """Return a view bound to a session, which is closed at the end of the ``with``."""
        options["session"] = session_id(id)
        view = self.bind(**options)
        try:
            yield view
        finally:
            view.close_session()

    def close_session(self) -> None:
        """End the bound session; see ``toolbus.ToolBus.close_session``."""
        _run(self._portal_or_fail(), self._view.close_session)

    def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> ToolResult:
        """Call a tool and wait for its result; see ``toolbus.ToolBus.call``."""
        return _run(self._portal_or_fail(), lambda: self._view.call(tool, arguments, **options))

    def stream(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> Call:
        """Return a call to be entered with ``with`` and read as it is produced; see ``toolbus.ToolBus.stream``."""
        return Call(self._portal_or_fail(), lambda: self._view.stream(tool, arguments, **options))

    def execute(self, tool: str, arguments: object = None, **options: Unpack[CallOptions]) -> ToolResult:
        """Run one call as a model's: repaired, cast, validated and confirmed; see ``ToolExecutor.execute``."""
        return _run(self._portal_or_fail(), lambda: self._view.executor(**options).execute(tool, arguments))

    def process_tool_calls(self, message: object, *, concurrent: bool = True, **options: Unpack[CallOptions]) -> list[dict[str, Any]]:
        """Run a model's turn of tool calls; see ``ToolExecutor.process_tool_calls``."""
        return _run(self._portal_or_fail(), lambda: self._view.process_tool_calls(message, concurrent=concurrent, **options))

    def usage(self, days: int = 1) -> list[Usage]:
        """Return what calls cost on the last days, by user and tool; see ``toolbus.ToolBus.usage``."""
        return _run(self._portal_or_fail(), lambda: self._view.usage(days))

    def service(self, id: str) -> Service:
        """Return the untyped lower tier of one service, for whenever the bus is open."""
        return Service(self._portal_or_fail, lambda: self._view.service(id))


class BoundBus(_View):
    """A bus with default options; what ``bind`` returns."""

    def __init__(self, portal: Callable[[], BlockingPortal], view: Callable[[], views.BusView]) -> None:
        self._portal_or_fail = portal  # type: ignore[method-assign] # the bus's own check, so that a closed bus says so here too
        self._made = view

    @property
    def _view(self) -> views.BusView:
        return self._made()


class Service:
    """The untyped lower tier of one service."""

    def __init__(self, portal: Callable[[], BlockingPortal], view: Callable[[], views.ServiceView]) -> None:
        self._portal = portal
        self._view = view

    def call(self, user: str, config: Mapping[str, Any], arguments: Mapping[str, Any], **options: Unpack[ServiceCallOptions]) -> ToolResult:
        """Call the service; ``str()`` of the result is the observation."""
        return _run(self._portal(), lambda: self._view().call(user, config, arguments, **options))

    def stream(self, user: str, config: Mapping[str, Any], arguments: Mapping[str, Any], **options: Unpack[ServiceCallOptions]) -> Call:
        """Call the service and read its answer as it is produced."""
        return Call(self._portal(), lambda: self._view().stream(user, config, arguments, **options))


class Tools(dict[str, Tool]):
    """Tools by name, sorted, as they were when they were asked for."""

    def __init__(self, portal: BlockingPortal, view: ToolView) -> None:
        super().__init__(_run(portal, lambda: dict(view)))
        self._portal = portal
        self._view = view

    def filter(
        self,
        *,
        groups: Collection[str] | None = None,
        categories: Collection[str] | None = None,
        names: Collection[str] | None = None,
    ) -> Tools:
        """Return the tools in any of these groups, of any of these categories, with any of these names."""
        return Tools(self._portal, self._view.filter(groups=groups, categories=categories, names=names))

    def definitions(self, format: Format = "bare", *, strict: bool = False, namespaces: bool = True) -> list[dict[str, Any]]:
        """Definitions of the tools for a model, as they are now; see ``ToolView.definitions``."""
        return _run(self._portal, lambda: self._view.definitions(format, strict=strict, namespaces=namespaces))


class ToolBus(_View):
    """Finds the tools of a namespace and calls them, from any number of threads.

    ``with``, or ``open()`` and ``close()``. Arguments and errors are those of ``toolbus.ToolBus``.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        settings: Settings | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self._settings = Settings.load(base=settings, url=url, namespace=namespace)
        self._middleware = checked(middleware)
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._lock = threading.Lock()
        self._process = 0
        self._bus: aio.ToolBus
        self._opened: views.BusView

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def open(self) -> None:
        """Start the thread, connect, and load the registry's snapshot; opening an open bus does nothing."""
        with self._lock, ExitStack() as stack:
            if self._portal is not None:
                self._portal_or_fail()
                return
            portal = stack.enter_context(start_blocking_portal("asyncio"))

            async def opened() -> aio.ToolBus:
                bus = aio.ToolBus(settings=self._settings, middleware=self._middleware)
                await bus.open()
                return bus

            self._bus = portal.call(opened)
            self._opened = self._bus.bind()
            stack.callback(lambda: portal.call(self._bus.aclose))
            self._stack = stack.pop_all()
            self._process = os.getpid()
            self._portal = portal

    def close(self) -> None:
        """End every running call as cancelled, disconnect, and stop the thread; closing a closed bus does nothing."""
        with self._lock:
            if self._portal is not None:
                self._portal_or_fail()
            self._portal = None
            self._stack.close()

    @property
    def _view(self) -> views.BusView:
        self._portal_or_fail()
        return self._opened

    @property
    def tools(self) -> Tools:
        """The tools as they are now, by name, sorted."""
        portal = self._portal_or_fail()
        return Tools(portal, _run(portal, lambda: self._bus.tools))

    def wait_for_tool(self, name: str, timeout: float = 10.0) -> Tool:
        """Wait until a tool can be called.

        Raises:
            TimeoutError: it could not within ``timeout`` seconds.
        """
        return _run(self._portal_or_fail(), lambda: self._bus.wait_for_tool(name, timeout))

    def put(self, key: str, document: bytes) -> None:
        """Store a static descriptor; see ``toolbus.ToolBus.put``."""
        _run(self._portal_or_fail(), lambda: self._bus.put(key, document))

    def delete(self, key: str) -> bool:
        """Delete a static descriptor; False when there was none."""
        return _run(self._portal_or_fail(), lambda: self._bus.delete(key))

    def statistics(self) -> dict[str, int]:
        """Return counts: calls in flight, tools known, and the broker's own."""
        return _run(self._portal_or_fail(), self._bus.statistics)

    def _portal_or_fail(self) -> BlockingPortal:
        if self._portal is None:
            raise ConfigurationError(_CLOSED)
        if self._process != os.getpid():
            raise ConfigurationError("this bus was opened before a fork; open one of its own in each process")
        return self._portal
