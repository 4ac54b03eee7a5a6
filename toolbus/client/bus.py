"""``ToolBus``: the caller's side."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import msgspec

from toolbus import telemetry
from toolbus.broker import AgentBroker, agent_broker
from toolbus.broker.protocols import Confirmations, Fate, RefusedTool, ServiceRecord, Tallies
from toolbus.client.assembly import GAP_SECONDS
from toolbus.client.call import Call, Target
from toolbus.client.catalogue import Catalogue
from toolbus.client.guarded import Guard
from toolbus.client.sessions import UsedSessions
from toolbus.client.tool import Resolution, Tool
from toolbus.client.toolview import ToolView
from toolbus.client.views import BusView
from toolbus.deadlines import Deadlines
from toolbus.descriptors import ServiceDescriptor
from toolbus.envelope import Frame, Request, new_id
from toolbus.middleware.chain import Middleware, checked
from toolbus.options import CallOptions, merged, seconds
from toolbus.results import ConfigurationError, EnvelopeError, ErrorInfo, ToolbusError, ToolError, ToolResult
from toolbus.settings import Settings

# How many forks lie above this process: asking for the pid at each call cost 6 % of a caller's time.
_forks = [0]
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _forks.__setitem__(0, _forks[0] + 1))

# Seconds that a `once` call whose time is up waits to learn whether it began.
_INQUIRY = 1.0
_NOTHING: Mapping[str, Any] = {}
# What a worker that registers may mend.
_MAY_APPEAR = frozenset({"not_found", "unavailable"})


class Arrival(msgspec.Struct, eq=False):
    """Somebody who waits for a tool before there is a call of it."""

    options: Mapping[str, Any]
    error: ErrorInfo | None = None

    def complete_with(self, error: ErrorInfo) -> None:
        """End the wait."""
        self.error = error


class ToolBus(BusView):
    """Finds the tools of a namespace and calls them.

    ``async with``, or ``open()`` and ``aclose()``, which may run in different tasks of one event loop.

    Args:
        url, namespace: as in ``Settings``; ``memory://`` is a bus within the event loop, without a server.
        settings: everything else.
        middleware: around every call, the first one outermost; see ``toolbus.middleware``.

    Raises:
        ConfigurationError: a setting or the URL is wrong.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        settings: Settings | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        super().__init__(self, {})
        self.settings = Settings.load(base=settings, url=url, namespace=namespace)
        self.most_waiting = self.settings.max_timeout
        self._broker: AgentBroker | None = None
        self._catalogue: Catalogue | None = None
        self._calls: dict[str, Call] = {}
        self._waiting: set[Call | Arrival] = set()
        self._used = UsedSessions()
        self._forks = _forks[0]
        self._lock = asyncio.Lock()
        self._guard: Guard | None = None
        self._failure: ErrorInfo | None = None
        if middleware:
            # It stands before the method, so that a bus without middleware does not even ask.
            self._guard = Guard(self, self.make_call, self._check, checked(middleware))
            self.make_call = self._guard.make_call  # type: ignore[method-assign]

    # -- life -------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def open(self) -> None:
        """Connect and load the registry's snapshot; opening an open bus does nothing.

        Raises:
            BrokerError: the server can't be reached or can't serve.
        """
        async with self._lock:
            if self._broker is not None:
                self._check()
                return
            self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
            self._deadlines = Deadlines(self._loop)
            self._catalogue = Catalogue()
            self._tools = ToolView(self._catalogue)
            broker = agent_broker(self.settings)
            self._agent = broker.agent
            self._failure = None
            await broker.open(self)
            self._forks = _forks[0]
            self._broker = broker

    async def aclose(self) -> None:
        """End every running call as cancelled, leave the sessions, and disconnect; closing a closed bus does nothing.

        A session that no other bus uses ends with it.
        """
        async with self._lock:
            broker = self._broker
            if broker is None:
                return
            self._check()
            if self._guard is not None:
                await self._guard.aclose()
            for call in [*self._calls.values(), *self._waiting]:
                call.complete_with(ErrorInfo("cancelled", message="the bus was closed"))
            self._broker = None
            if self._catalogue is not None:
                self._catalogue.close()
            self._deadlines.close()
            await self._used.leave(broker)
            await broker.aclose()

    # -- tools ------------------------------------------------------------------------------------

    @property
    def agent(self) -> str:
        """This bus's agent id, fresh at each start."""
        self._opened()
        return self._agent

    @property
    def tools(self) -> ToolView:
        """The live tools of the namespace, by name.

        Raises:
            ConfigurationError: the bus is not open.
        """
        self._opened()
        return self._tools

    @property
    def tallies(self) -> Tallies:
        """What all processes of the namespace count together."""
        return self._opened().tallies

    @property
    def shared_confirmations(self) -> Confirmations:
        """The requests of all processes of the namespace that wait for a person; ``confirmations`` is the door."""
        return self._opened().confirmations

    @property
    def services(self) -> Mapping[str, ServiceRecord]:
        """The services in the registry, by id."""
        return self._known().services

    @property
    def refused(self) -> list[RefusedTool]:
        """The tools whose descriptors can't be used, with the reason; their siblings can."""
        return self._known().refused()

    def near(self, name: str) -> list[str]:
        """Names of tools that look like a wrong one."""
        return self._known().near(name)

    async def wait_for_tool(self, name: str, timeout: float = 10.0) -> Tool:
        """Wait until a tool can be called.

        Raises:
            TimeoutError: it could not within ``timeout`` seconds.
            ConfigurationError: the bus is not open, or was closed meanwhile.
        """
        self._check()
        catalogue = self._known()
        try:
            async with asyncio.timeout(timeout):
                await catalogue.wait(lambda: self._broker is None or (name in catalogue.tools and catalogue.tools[name].available))
        except TimeoutError:
            raise TimeoutError(f"no live worker offered the tool {name!r} within {timeout:g} s") from None
        self._opened()
        return catalogue.tools[name]

    async def put(self, key: str, document: bytes, owner: str = "") -> None:
        """Store a document (JSON): a static descriptor under ``tool/<name>`` or ``tool-service/<id>``, a preset under ``toolkit/<name>``.

        Args:
            owner: who alone may change it from now on.

        Raises:
            RegistrationRefused: a service publishes that name, or it is somebody else's.
        """
        self._check()
        await self._opened().put_item(key, document, owner)

    async def delete(self, key: str, owner: str = "") -> bool:
        """Delete a document; False when there was none.

        Raises:
            RegistrationRefused: it is somebody else's than ``owner``'s, if one is given.
        """
        self._check()
        return await self._opened().delete_item(key, owner)

    def statistics(self) -> dict[str, int]:
        """Counts: calls in flight, tools known, and the broker's own."""
        broker = self._opened()
        return {"in_flight": len(self._calls), "tools": len(self._known().tools), **broker.statistics()}

    # -- calls ------------------------------------------------------------------------------------

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> ToolResult:
        """Call a tool and wait for its result. A failure of the tool is a value, not an exception.

        Raises:
            ConfigurationError: an option is wrong, or the bus is not open.
        """
        return await self.make_call(Target(tool), arguments, merged(_NOTHING, options), streaming=False).result()

    def stream(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> Call:
        """A call to be entered with ``async with`` and read as it is produced.

        Raises:
            ConfigurationError: an option is wrong, or the bus is not open.
        """
        return self.make_call(Target(tool), arguments, merged(_NOTHING, options), streaming=True)

    def make_call(self, target: Target, arguments: Any, options: Mapping[str, Any], *, streaming: bool) -> Call:
        """A call that has not been published yet; ``call`` and ``stream`` are the doors."""
        self._check()
        call = Call(
            self, self._loop.create_future(), new_id(), target, arguments, options, streaming, self.settings.call_buffer, time.monotonic()
        )
        if options and "resume_from" in options:
            call.resume_from(options["resume_from"])
        return call

    async def end_session(self, user: str, session: str) -> None:
        """End a session for everybody; ``close_session`` of a bound view is the door."""
        self._check()
        for call in [*self._calls.values(), *self._waiting]:
            if call.options.get("session") == session and call.options.get("user", "") == user:
                call.complete_with(ErrorInfo("cancelled", "session_closed", "the session was closed"))
        self._known().wake()
        self._executors.memories.forget(user, session)
        await self._used.close(self._opened(), user, session)

    # -- Desk, for calls --------------------------------------------------------------------------

    def launch(self, call: Call) -> Coroutine[Any, Any, None] | None:
        """Resolve, check and publish; returns what is to be awaited when the call waits for a worker."""
        problem = self._try(call)
        if problem is None:
            return None
        wait = call.options.get("wait")
        if not wait or not _may_appear(call, problem):
            call.complete_with(problem)
            return None
        return self._wait(call, self.patience(call.options))

    def patience(self, options: Mapping[str, Any]) -> float:
        """Seconds that a call with these options waits for a worker to appear.

        Raises:
            ConfigurationError: the option is wrong.
        """
        wait = options.get("wait")
        if not wait:
            return 0.0
        return self._timeout(options, 0.0) if wait is True else seconds(wait, "wait")

    async def until_callable(self, find: Callable[[], Tool | None], options: Mapping[str, Any], limit: float) -> ErrorInfo | None:
        """Wait until a tool can be called, at most so many seconds; an error when the bus or the session of ``options`` is closed first."""
        arrival = Arrival(options)
        self._waiting.add(arrival)

        def ready() -> bool:
            found = None if arrival.error is not None else find()
            return arrival.error is not None or (found is not None and found.available)

        try:
            async with asyncio.timeout(limit):
                await self._known().wait(ready)
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(arrival)
        return arrival.error

    def withdraw(self, call: Call) -> None:
        """Tell the broker that nobody waits for the call any more."""
        call.withdrawn = True
        if call in self._waiting and self._catalogue is not None:
            self._catalogue.wake()
        if call.entry and call.request is not None and self._broker is not None:
            self._broker.cancel(call.request, call.queue, call.entry, waited=call.ends - call.deadline + call.waited)

    def inquire(self, call: Call, error: ErrorInfo) -> None:
        """End a ``once`` call when it is known whether it began, and after a second in any case."""

        def heard(fate: Fate) -> None:
            if fate == "removed":
                call.complete_with(error)
            elif fate != "gone" or self._broker is None:
                # When it is gone it was answered, and the answer may be on its way.
                unknown()

        def unknown() -> None:
            message = f"{error.message}; it may or may not have taken effect"
            call.complete_with(ErrorInfo("outcome_unknown", error.type, message))

        self._deadlines.add(time.monotonic() + _INQUIRY, (call.id, "inquiry"), unknown)
        if call.request is not None and self._broker is not None:
            self._broker.cancel(call.request, call.queue, call.entry, heard, waited=call.ends - call.deadline + call.waited)

    def forget(self, call: Call) -> None:
        """Drop a call that has ended."""
        if self._calls.pop(call.id, None) is not None:
            if self._broker is not None and call.request is not None and call.request.shared:
                self._broker.forget(call.request)
            self._deadlines.remove(call.slot, call.id)
            if call.idle_slot:
                self._deadlines.remove(call.idle_slot, (call.id, "idle"))
            if call.gap_slot:
                self._deadlines.remove(call.gap_slot, (call.id, "gap"))

    def watch_gap(self, call: Call, missing: tuple[str, int]) -> None:
        """Have the call look in a moment whether a frame is still missing."""
        call.gap_slot = self._deadlines.add(time.monotonic() + GAP_SECONDS, (call.id, "gap"), lambda: call.look_for(missing))

    def rearm(self, call: Call, now: float) -> None:
        """Take in that the call's deadline has changed, or its time stands still, or goes on."""
        if call.id in self._calls:
            self._deadlines.remove(call.slot, call.id)
            call.slot = self._deadlines.add(call.ends, call.id, call.expire)
            if call.idle_slot:
                self._deadlines.remove(call.idle_slot, (call.id, "idle"))
                call.last_heard = now
                self._watch_idle(call)

    def _try(self, call: Call) -> ErrorInfo | None:
        """Publish the call, or say why it can't be."""
        if self._failure is not None:
            return self._failure
        found = self._resolve(call)
        if isinstance(found, ErrorInfo):
            return found
        options = call.options
        idle, key = options.get("idle_timeout"), options.get("idempotency_key", "")
        if idle is not None:
            call.idle_timeout = seconds(idle, "idle_timeout")
        request = Request(
            call.id,
            self._agent,
            found.service,
            call.target.tool,
            options.get("user", ""),
            options.get("session", ""),
            found.config,  # type: ignore[arg-type] # any mapping encodes as an object
            call.arguments or {},
            self._timeout(options, found.usual),
            found.effect,
            found.digest,
            call.streaming,
            options.get("priority", 0),
            key,
            options.get("metadata", {}),
        )
        if key:
            request = msgspec.structs.replace(request, shared=True)
        if call.grant is not None and call.grant.digest:
            request = msgspec.structs.replace(request, confirmed=call.grant.digest)
        if telemetry.active():
            call.span = telemetry.start_call_span(tool=request.tool, service=request.service, id=call.id, agent=self._agent)
            if call.span is not None:
                request = msgspec.structs.replace(request, traceparent=call.span.traceparent)
        return self._publish(call, request, found.descriptor)

    def _resolve(self, call: Call) -> Resolution | ErrorInfo:
        if call.arguments is not None and type(call.arguments) is not dict and not isinstance(call.arguments, Mapping):
            return ErrorInfo("invalid_arguments", message=f"arguments must be an object, not {type(call.arguments).__name__}")
        catalogue, name = self._known(), call.target.tool
        if not name:
            service, config = call.target.service, call.target.config
            descriptor, available = catalogue.service(service)
            if descriptor is None:
                return ErrorInfo("not_found", message=f"there is no service {service!r}")
            return Resolution(descriptor.id, descriptor, config) if available else _unavailable(f"service {service!r}", service)
        tool = catalogue.tools.get(name)
        if tool is None or (tool.descriptor.tenants and not tool.is_for(call.options.get("user", ""))):
            return _unknown_tool(name, catalogue)
        if not tool.available:
            return _unavailable(f"tool {name!r}", tool.service)
        if call.grant is not None and (problem := call.grant.problem(tool, call.arguments or _NOTHING, call.options)) is not None:
            return problem
        try:
            tool.check(call.arguments or _NOTHING)
        except ToolError as error:
            return error.error
        return tool.resolution

    def _publish(self, call: Call, request: Request, service: ServiceDescriptor | None) -> ErrorInfo | None:
        now = time.monotonic()
        call.request = request
        call.queue = request.service if service is None else service.queue
        limit = (0 if service is None else service.queue_limit) or self.settings.queue_limit
        try:
            self._opened().publish(request, call.queue, limit, now + request.timeout, call)
        except EnvelopeError as error:
            return ErrorInfo("invalid_arguments", message=str(error))
        self._calls[call.id] = call
        if call.grant is not None:
            call.grant.published = True
        if request.session:
            self._used.add(request.user, request.session, call.queue)
        call.deadline = now + request.timeout
        call.slot = self._deadlines.add(call.deadline, call.id, call.expire)
        if call.idle_timeout:
            call.last_heard = now
            self._watch_idle(call)
        return None

    async def _wait(self, call: Call, limit: float) -> None:
        """Try again at each change of the registry, for ``limit`` seconds or until the call is ended."""
        problem: ErrorInfo | None = None

        def ready() -> bool:
            nonlocal problem
            problem = None if call.done else self._try(call)
            return problem is None or not _may_appear(call, problem)

        self._waiting.add(call)
        try:
            async with asyncio.timeout(limit):
                await self._known().wait(ready)
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(call)
        if problem is not None:
            call.complete_with(problem)

    def _timeout(self, options: Mapping[str, Any], usual: float) -> float:
        given = options.get("timeout") if options else None
        timeout = usual or self.settings.timeout if given is None else seconds(given, "timeout")
        if timeout > self.settings.max_timeout:
            raise ConfigurationError(f"timeout {timeout:g} s is over the limit of {self.settings.max_timeout:g} s (TOOLBUS_MAX_TIMEOUT)")
        return timeout

    def _watch_idle(self, call: Call) -> None:
        heard = call.last_heard if call.pause is None else call.pause.until
        left = heard + call.idle_timeout - time.monotonic()
        if left <= 0:
            message = f"nothing was heard for {call.idle_timeout:g} s (idle timeout)"
            call.give_up(ErrorInfo("deadline_exceeded", "idle_timeout", message, retryable=True))
            return
        call.idle_slot = self._deadlines.add(time.monotonic() + left, (call.id, "idle"), lambda: self._watch_idle(call))

    # -- AgentListener ----------------------------------------------------------------------------

    def on_frames(self, frames: Sequence[Frame]) -> None:
        """Hand frames to their calls; those of ended calls are dropped."""
        calls, now = self._calls, time.monotonic()
        for frame in frames:
            call = calls.get(frame.id)
            if call is not None:
                call.feed(frame, now)

    def on_registry(self, services: dict[str, ServiceRecord], items: dict[str, bytes]) -> None:
        """A fresh snapshot of the registry."""
        self._known().on_registry(services, items)

    def on_service(self, service: str, record: ServiceRecord | None) -> None:
        """A service changed, or is gone."""
        self._known().on_service(service, record)

    def on_item(self, key: str, document: bytes | None) -> None:
        """A static descriptor changed, or was deleted."""
        self._known().on_item(key, document)

    def on_replies_lost(self) -> None:
        """The reply stream was made anew; calls that miss frames of it notice by their seq."""
        telemetry.log.warning("replies.recreated", calls=len(self._calls))

    def on_failed(self, error: ToolbusError) -> None:
        """Nothing arrives any more: what runs ends, and new calls are refused until the bus is closed and another one opened."""
        self._failure = ErrorInfo("unavailable", "bus_failed", f"this bus can't go on; close it and open another one: {error}")
        for call in list(self._calls.values()):
            call.give_up(self._failure)
        for waiting in list(self._waiting):
            waiting.complete_with(self._failure)

    # -- inside -----------------------------------------------------------------------------------

    def _opened(self) -> AgentBroker:
        if self._broker is None:
            raise ConfigurationError("the bus is not open: use `async with ToolBus(...) as bus`, or `await bus.open()`")
        return self._broker

    def _known(self) -> Catalogue:
        if self._catalogue is None:
            raise ConfigurationError("the bus is not open: use `async with ToolBus(...) as bus`, or `await bus.open()`")
        return self._catalogue

    def _check(self) -> None:
        self._opened()
        if _forks[0] != self._forks:
            raise ConfigurationError("this bus was opened before a fork; open one of its own in each process")
        # Only one loop runs in a thread. Asking asyncio for it asks the system for the process id each time.
        if threading.get_ident() != self._thread or not self._loop.is_running():
            raise ConfigurationError("this bus was opened in another event loop; use it there, or toolbus.sync from threads")


def _may_appear(call: Call, problem: ErrorInfo) -> bool:
    """Whether a worker that registers may mend what keeps a call from being published."""
    return problem.type in _MAY_APPEAR and not (call.grant is not None and call.grant.superseded)


def _unknown_tool(name: str, catalogue: Catalogue) -> ErrorInfo:
    for refused in catalogue.refused():
        if refused.name == name:
            return ErrorInfo("not_found", "refused", f"the tool {name!r} of {refused.service!r} can't be used: {refused.reason}")
    near = catalogue.near(name)
    hint = f"; did you mean {', '.join(map(repr, near))}?" if near else ""
    return ErrorInfo("not_found", message=f"there is no tool {name!r}{hint}", details={"near": near} if near else None)


def _unavailable(what: str, service: str) -> ErrorInfo:
    message = f"{what} is known, but no live worker serves {service!r}; pass wait=… to wait for one"
    return ErrorInfo("unavailable", message=message, retryable=True)
