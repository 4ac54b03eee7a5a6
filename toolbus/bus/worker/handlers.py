"""The handlers of a service's tools."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from toolbus.bus.broker.protocols import session_of
from toolbus.bus.values.confirmations import digests_of
from toolbus.bus.values.descriptors import Effect, Publication
from toolbus.bus.values.envelope import Request
from toolbus.bus.values.results import ErrorInfo, ToolError
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.function import FunctionTool
from toolbus.bus.worker.invocation import invocation
from toolbus.bus.worker.provide import Services
from toolbus.bus.worker.service import Retry, Session, ToolService, overrides
from toolbus.bus.worker.statistics import ToolCounts

_UNKNOWN = 1.0


class Pace(msgspec.Struct, eq=False):
    """Tells how long the calls of one function take, by its last ones."""

    seconds: float = _UNKNOWN

    def learn(self, seconds: float) -> None:
        """Take in how long a call took: a single long one is remembered for dozens of quick ones."""
        self.seconds = seconds if self.seconds == _UNKNOWN else max(seconds, 0.8 * self.seconds + 0.2 * seconds)


Start = Callable[[Request], Any]
"""Binds a request and starts its handler: a value, an awaitable, or a sync or async iterator."""


def starting(function: Callable[..., Any], bind: Callable[[Mapping[str, Any]], dict[str, Any]], *, state: bool = False) -> Start:
    """Return what binds a request's arguments to a function and calls it; ``state``: behind the state of the call's session."""

    def start(request: Request) -> Any:
        return function(**bind(request.arguments))

    def start_on_state(request: Request) -> Any:
        return function(invocation().state, **bind(request.arguments))

    return start_on_state if state else start


def filling_in(
    bind: Callable[[Mapping[str, Any]], dict[str, Any]], spared: Mapping[str, Any], given: Mapping[str, type], services: Services
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return what binds arguments to a function, and fills in its other parameters.

    Args:
        bind: makes keyword arguments of a request's arguments.
        spared: values of the parameters that are left at their defaults.
        given: the types of the parameters that services fill in.
        services: where these services are.
    """

    def bound(arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {**bind(arguments), **spared, **{name: services.get(type_) for name, type_ in given.items()}}

    return bound


class Handler(msgspec.Struct, eq=False):
    """The handler of one tool, ready to run.

    Attributes:
        function: what it calls.
        start: binds the request's arguments and calls the function; raises ToolError when they do not fit.
        coroutine: the function is a coroutine function, the most frequent kind.
        threaded: the function is plain, so calling it belongs in a thread.
        effect: the declared effect, or empty.
        retry: when a failed run is tried again, or None.
        isolated: the tool, when it runs in a child process; ``start`` is not called then.
        check: refuses arguments that do not fit; raises ToolError.
        tenants: the only users whose calls run; empty for every user's.
        cache: whether an earlier answer may stand for a later one; None when only the caller has the tool's descriptor.
        pace: how long its calls take in a thread.
        counts: of its runs.
        beside: its calls run beside the others of their session, and are taken to change nothing of its state.
    """

    function: Callable[..., Any]
    start: Start
    effect: Effect
    retry: Retry | None
    isolated: FunctionTool | None = None
    check: Callable[[Mapping[str, Any]], object] | None = None
    tenants: Collection[str] = ()
    cache: bool | None = None
    beside: bool = False
    coroutine: bool = False
    threaded: bool = False
    pace: Pace = msgspec.field(default_factory=Pace)
    counts: ToolCounts = msgspec.field(default_factory=ToolCounts)

    def __post_init__(self) -> None:
        function = self.function
        called = function if inspect.isroutine(function) or isinstance(function, functools.partial) else type(function).__call__
        self.coroutine = inspect.iscoroutinefunction(called) and self.isolated is None
        # A generator function does nothing before its first item is wanted.
        generates = inspect.isasyncgenfunction(called) or inspect.isgeneratorfunction(called)
        self.threaded = self.isolated is None and not self.coroutine and not generates
        self.retry = None if self.effect == "once" else self.retry
        self.tenants = frozenset(self.tenants)


class Served:
    """One service as this process serves it.

    Attributes:
        origin: the file of its code, when its owner is named after that alone.
        session_idle, max_sessions: what the service says of them.
        sticky: the calls of each session are at one worker, and it has a state that may be lost.
        opens_sessions, restores_sessions: the service makes the states, and keeps snapshots of them.
        session_lost: ``error``, ``restart`` or ``restore``.
        unknown: counts of the requests of tools that it does not have.
    """

    def __init__(
        self, publication: Publication, handlers: Mapping[str, Handler], untyped: Handler | None = None, service: ToolService | None = None
    ) -> None:
        self.publication = publication
        self.origin = ""
        self._handlers = handlers
        self._untyped = untyped
        # Functions are served as if by a service that adds nothing.
        self._service = service = service or ToolService()
        self.unknown = ToolCounts()
        self._cleans_sessions = _positional(service.cleanup) > 0
        self.session_idle = service.session_idle
        self.max_sessions = service.max_sessions
        self.sticky = publication.service.sticky_sessions
        self.opens_sessions = overrides(type(service), "open_session")
        self.session_lost = service.session_lost or ("error" if self.opens_sessions else "restart")
        self.restores_sessions = self.session_lost == "restore"

    @property
    def id(self) -> str:
        """The service's id."""
        return self.publication.service.id

    @property
    def made_by(self) -> type[ToolService]:
        """The class of the service."""
        return type(self._service)

    def is_of(self, service: ToolService) -> bool:
        """Return whether this is how the service is served."""
        return self._service is service

    def revise(self, made: Served) -> None:
        """Take on the tools of a later revision of the same service; calls that run go on with the handlers that they have."""
        self.publication, self._handlers, self._untyped = made.publication, made._handlers, made._untyped

    def handler(self, request: Request) -> Handler:
        """Return the handler of a request.

        Raises:
            ToolError: there is none for it, or it is not what a person allowed, or its arguments are for another revision.
        """
        found = self._handlers.get(request.tool) or self._untyped
        if found is not None and found.tenants and request.user not in found.tenants:
            raise ToolError(f"the tool {request.tool!r} is for other tenants", type="forbidden")
        if found is None:
            mine = (name for name, handler in self._handlers.items() if not handler.tenants or request.user in handler.tenants)
            known = ", ".join(sorted(mine)) or "none"
            raise ToolError(f"service {self.id!r} has no tool {request.tool!r} (it has: {known})", type="not_found")
        if request.confirmed:
            self._check_confirmed(request)
        if request.digest and found.check is not None and request.digest != self.publication.digest:
            found.check(request.arguments)
        return found

    def is_of_other_revision(self, request: Request) -> bool:
        """Return whether the caller chose its arguments by another revision, whose worker may be asked to run the call.

        A call of a session stays with the worker that has the session.
        """
        other = bool(request.digest) and request.digest != self.publication.digest
        return other and not (self.sticky and session_of(request) is not None)

    def _check_confirmed(self, request: Request) -> None:
        """Compare a call with what a person allowed.

        Raises:
            ToolError: it is another call, or the tool was described otherwise.
        """
        if request.digest and request.digest != self.publication.digest:
            message = (
                f"a person allowed {request.tool!r} as descriptor {request.digest} describes it, and this worker serves"
                f" {self.publication.digest}; it did not run"
            )
            raise ToolError(ErrorInfo("unavailable", "other_revision", message, retryable=True))
        allowed = digests_of("agent", request.service, request.tool, request.user, request.session, "", request.arguments)
        if request.confirmed not in allowed:
            raise ToolError(f"a person allowed another call of {request.tool!r} than this one", type="forbidden", code="unconfirmed")

    def handlers(self) -> Iterator[tuple[str, Handler]]:
        """Yield each handler with its tool's name, which is empty for what runs tools that only callers know."""
        yield from self._handlers.items()
        if self._untyped is not None:
            yield "", self._untyped

    def counts_of(self, tool: str) -> ToolCounts:
        """Return the counts of a tool, or of all that it does not have."""
        found = self._handlers.get(tool) or self._untyped
        return self.unknown if found is None else found.counts

    @property
    def tools(self) -> Iterable[str]:
        """The names of its tools."""
        return self._handlers.keys()

    @property
    def serves_any_tool(self) -> bool:
        """True if it also runs tools of which only callers have the descriptors."""
        return self._untyped is not None

    def undeclared(self) -> list[str]:
        """Return the tools that do not say what a second execution would do."""
        return sorted(name for name, handler in self._handlers.items() if not handler.effect)

    def isolated(self) -> list[FunctionTool]:
        """Return the tools whose handlers run in child processes."""
        return [handler.isolated for handler in self._handlers.values() if handler.isolated is not None]

    async def startup(self, settings: Settings) -> None:
        """Run the service's own preparation."""
        self._service.worker_settings = settings
        await _await(self._service.startup())

    @property
    def has_sessions(self) -> bool:
        """True if its sessions must be kept: the service cleans up after them, or wants the calls of each at one worker."""
        return self._cleans_sessions or self.sticky

    async def open_session(self, session: Session, initial: dict[str, Any]) -> Any:
        """Return the state of a session, as the service makes it."""
        if not self.opens_sessions:
            return None
        opens: Callable[..., Any] = self._service.open_session
        return await _called(opens, *(session, initial)[: _positional(opens)])

    async def save_session(self, session: Session, state: Any) -> Any:
        """Return a snapshot of a state."""
        return await _called(self._service.save_session, session, state)

    async def load_session(self, session: Session, saved: Any) -> Any:
        """Return the state of a snapshot."""
        return await _called(self._service.load_session, session, saved)

    async def cleanup(self, session: Session | None = None, state: Any = None) -> None:
        """Run the service's own clean-up: after a session if it wants that, or with None after everything."""
        clean: Callable[..., Any] = self._service.cleanup
        if self._cleans_sessions:
            await _called(clean, *(session, state)[: _positional(clean)])
        elif session is None:
            await _await(clean())


def _positional(function: Callable[..., Any]) -> int:
    """Return how many positional arguments a function takes, two at most."""
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return 2
    return min(2, sum(kind in {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD} for kind in kinds))


async def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a coroutine function returns, or a plain function in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    value = await asyncio.to_thread(function, *arguments)
    return await value if inspect.isawaitable(value) else value


async def _await(value: Any) -> None:
    if inspect.isawaitable(value):
        await value
