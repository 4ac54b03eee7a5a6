"""``Dispatcher``: publishes the calls of a bus, and hands their frames to them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import AgentListener
from toolbus.bus.client.calls.call import Call, CallTarget
from toolbus.bus.client.calls.connection import BusConnection, UsedSessions, WaitingCalls, inquire, may_appear, process_forks, unfinished_of
from toolbus.bus.client.calls.refusals import unavailable, unknown_service, unknown_tool, wrong_arguments
from toolbus.bus.client.tools.catalogue import Catalogue
from toolbus.bus.client.tools.tool import Resolution, Tool
from toolbus.bus.values.envelope import Frame, Request, new_id
from toolbus.bus.values.options import seconds
from toolbus.bus.values.results import ConfigurationError, EnvelopeError, ErrorInfo, ToolbusError, ToolError
from toolbus.bus.values.settings import Settings

_NOTHING: Mapping[str, Any] = {}
_NOT_OPEN = "the bus is not open: use `async with ToolBus(...) as bus`, or `await bus.open()`"


class Dispatcher:
    """Publishes the calls of a bus, and hands the frames that arrive to them.

    It outlives the connection: a bus may be closed and opened again.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        # A call that a handler makes is a part of the handler's own: waiting for that one to end would be waiting forever.
        self.nested = False
        self.most_waiting = settings.max_timeout
        self.early_frames = 0
        self._connection: BusConnection | None = None
        self._calls: dict[str, Call] = {}
        self._waiting = WaitingCalls()
        self._used = UsedSessions()

    # -- life -------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """True while the registry's snapshot is loaded and the bus not closed."""
        return self._connection is not None and self._connection.is_open

    async def open(self) -> None:
        """Connect and load the registry's snapshot.

        Raises:
            BrokerError: the server can't be reached or can't serve.
        """
        connection = self._connection = BusConnection(self.settings)
        known = connection.catalogue
        await connection.broker.open(
            AgentListener(self.on_frames, known.on_registry, known.on_service, known.on_item, self.on_replies_lost, self.on_failed)
        )
        connection.forks = process_forks[0]
        connection.is_open = True

    async def aclose(self) -> None:
        """End every call as cancelled, leave the sessions, and disconnect."""
        connection = self.check()
        for call in [*self._calls.values(), *self._waiting]:
            call.complete_with(ErrorInfo("cancelled", message="the bus was closed"))
        connection.is_open = False
        connection.catalogue.close()
        connection.deadlines.close()
        try:
            await self._used.leave(connection.broker)
        finally:
            await connection.broker.aclose()

    def opened(self) -> BusConnection:
        """Return the open connection.

        Raises:
            ConfigurationError: the bus is not open.
        """
        connection = self._connection
        if connection is None or not connection.is_open:
            raise ConfigurationError(_NOT_OPEN)
        return connection

    def check(self) -> BusConnection:
        """Return the open connection, for use in this process and event loop.

        Raises:
            ConfigurationError: the bus is not open, or was opened in another process or event loop.
        """
        connection = self._connection
        if connection is None or not connection.is_open:
            raise ConfigurationError(_NOT_OPEN)
        if process_forks[0] != connection.forks:
            raise ConfigurationError("this bus was opened before a fork; open one of its own in each process")
        # Only one loop runs in a thread. Asking asyncio for it asks the system for the process id each time.
        if threading.get_ident() != connection.thread or not connection.loop.is_running():
            raise ConfigurationError("this bus was opened in another event loop; use it there, or toolbus.sync from threads")
        return connection

    @property
    def connection(self) -> BusConnection:
        """The last connection, also after its close.

        Raises:
            ConfigurationError: the bus was never opened.
        """
        if self._connection is None:
            raise ConfigurationError(_NOT_OPEN)
        return self._connection

    @property
    def in_flight(self) -> int:
        """The number of calls that are published and have not ended."""
        return len(self._calls)

    # -- calls ------------------------------------------------------------------------------------

    def make_call(self, target: CallTarget, arguments: Any, options: Mapping[str, Any], *, streaming: bool) -> Call:
        """Return a call that has not been published yet.

        Raises:
            ConfigurationError: an option is wrong, or the bus is not open.
        """
        done = self.check().loop.create_future()
        limit, started = self.settings.call_buffer, time.monotonic()
        call = Call(self, done, new_id(), target, arguments, options, streaming, limit, started)
        if options and "resume_from" in options:
            call.resume_from(options["resume_from"])
        return call

    def attach(self, call: Call, request: Request, shared: str) -> None:
        """Let a call that was not published read the replies to a shared call, from their start, as its own."""
        connection, now = self.check(), time.monotonic()
        call.attached(request, now + request.timeout)
        self._calls[call.id] = call
        call.slot = connection.deadlines.add(call.deadline, call.id, call.expire)
        connection.broker.steps.tasks.follow(shared, call.id)

    async def end_session(self, user: str, session: str) -> None:
        """Cancel this bus's calls in a session, and tell every service that it called in it."""
        connection = self.check()
        for call in [*self._calls.values(), *self._waiting]:
            if call.options.get("session") == session and call.options.get("user", "") == user:
                call.complete_with(ErrorInfo("cancelled", "session_closed", "the session was closed"))
        connection.catalogue.wake()
        await self._used.close(connection.broker, user, session)

    def patience(self, options: Mapping[str, Any]) -> float:
        """Return the seconds that a call with these options waits for a worker to appear; they are part of its ``timeout``.

        Raises:
            ConfigurationError: an option is wrong.
        """
        wait = options.get("wait")
        if not wait:
            return 0.0
        if wait is True:
            return self.timeout(options, 0.0)
        limit = seconds(wait, "wait")
        return limit if options.get("timeout") is None else min(limit, self.timeout(options, 0.0))

    async def until_callable(self, find: Callable[[], Tool | None], options: Mapping[str, Any], limit: float) -> ErrorInfo | None:
        """Wait until ``find`` returns an available tool, at most ``limit`` seconds.

        Returns:
            An error when the bus or the session of ``options`` was closed first.
        """
        return await self._waiting.until_callable(find, options, self.connection.catalogue, limit)

    # -- CallHost ---------------------------------------------------------------------------------

    def launch(self, call: Call) -> Coroutine[Any, Any, None] | None:
        """Resolve, check and publish a call; returns what is to be awaited when it waits for a worker."""
        problem = self._publish(call)
        if problem is None:
            return None
        wait = call.options.get("wait")
        if not wait or not may_appear(call, problem):
            call.complete_with(problem)
            return None
        if call.grant is not None:
            # Whoever made the call may change its arguments meanwhile.
            call.grant.prepared = None
        return self._waiting.publish(call, self._publish, self.connection.catalogue, self.patience(call.options))

    def withdraw(self, call: Call, why: str) -> None:
        """Tell the broker that the caller no longer waits for the call, and the type of the error that it has instead."""
        call.withdrawn = why
        if call.lasting and why == "cancelled":
            return
        connection = self.connection
        if call in self._waiting:
            # When it has ended: until then it would be published.
            connection.loop.call_soon(connection.catalogue.wake)
        # Also while the bus closes: what had no entry yet has one only now.
        if call.entry and call.request is not None:
            connection.broker.requests.cancel(call.request, call.queue, call.entry, waited=call.waited_in_all, why=why)

    def inquire(self, call: Call, error: ErrorInfo) -> None:
        """End a call when it is known whether a worker took it, and after a moment in any case."""
        inquire(call, error, self.connection)

    def unfinished(self, call: Call, error: ErrorInfo) -> ErrorInfo:
        """Return the error of a call whose time was up while a worker had it."""
        return unfinished_of(call, error, self.connection)

    def held_up(self, call: Call) -> str:
        """Return why a call is not published yet, as the end of a message; empty when nothing is known to hold it up."""
        why = "" if call.request is None else self.connection.broker.held_up(once=call.request.effect == "once")
        return why and f"; it waits to be published: {why}"

    def service_of(self, target: CallTarget) -> str:
        """Return the service of a target, or an empty text for one that is not known."""
        if self._connection is None:
            return ""
        catalogue = self._connection.catalogue
        if target.service:
            descriptor, _ = catalogue.service(target.service)
            return "" if descriptor is None else descriptor.id
        # What is called may be of any type.
        tool = catalogue.tools.get(target.tool) if isinstance(target.tool, str) else None
        return "" if tool is None else tool.service

    def forget(self, call: Call) -> None:
        """Drop a call that has ended."""
        connection = self._connection
        if self._calls.pop(call.id, None) is None or connection is None:
            return
        if call.state and call.request is not None:
            self._used.learn(call.request.user, call.request.session, call.queue, call.state)
        if call.request is not None and call.request.shared and connection.is_open:
            connection.broker.requests.forget(call.request)
        connection.deadlines.remove(call.slot, call.id)
        if call.idle_slot or call.gap_slot:
            connection.timers.remove(call)

    def watch_gap(self, call: Call, missing: tuple[str, int]) -> None:
        """Let the call check later whether a frame is still missing."""
        self.connection.timers.watch_gap(call, missing)

    def rearm(self, call: Call, now: float) -> None:
        """Move the call's timers after its deadline changed, or a pause began or ended."""
        if call.id in self._calls:
            self.connection.timers.rearm(call, now)

    # -- publishing -------------------------------------------------------------------------------

    def _publish(self, call: Call) -> ErrorInfo | None:
        """Publish a call, or return why it can't be."""
        connection = self.opened()
        if connection.failure is not None:
            return connection.failure
        found = self._resolve(call, connection.catalogue)
        if isinstance(found, ErrorInfo):
            return found
        request = self._request(call, found, connection.agent)
        return self._send(call, request, found, connection)

    def _resolve(self, call: Call, catalogue: Catalogue) -> Resolution | ErrorInfo:
        """Return where a call goes, or why its arguments, its target or its permission keep it from being published."""
        if call.arguments is not None and type(call.arguments) is not dict and not isinstance(call.arguments, Mapping):
            return wrong_arguments(call.arguments)
        name = call.target.tool
        if not name and (call.target.service or name == ""):
            service, config = call.target.service, call.target.config
            descriptor, available = catalogue.service(service)
            if descriptor is None:
                return unknown_service(service)
            if not available:
                return unavailable(f"service {service!r}", service)
            sticky = descriptor.sticky_sessions
            return Resolution(descriptor.id, descriptor.queue, descriptor.queue_limit, config, sticky=sticky, ordered=sticky)
        try:
            tool = catalogue.tools.get(name)
        except TypeError:
            # It can't be a key, so it is no text.
            tool = None
        if tool is None or (tool.descriptor.tenants and not tool.is_for(call.options.get("user", ""))):
            return unknown_tool(name, catalogue, call.options.get("user", ""))
        if not tool.available:
            return unavailable(f"tool {name!r}", tool.service)
        if call.grant is not None and (problem := call.grant.problem(tool, call.arguments or _NOTHING, call.options)) is not None:
            return problem
        if call.grant is not None and call.arguments is not None and call.grant.prepared is call.arguments:
            return tool.resolution
        try:
            given = call.arguments or _NOTHING
            prepared = (tool.preparer or tool).prepare(given)
            if prepared is not given:
                call.arguments = prepared
        except ToolError as error:
            return error.error
        return tool.resolution

    def _request(self, call: Call, found: Resolution, agent: str) -> Request:
        options = call.options
        idle, key = options.get("idle_timeout"), options.get("idempotency_key", "")
        if idle is not None:
            call.idle_timeout = seconds(idle, "idle_timeout")
        timeout = self.timeout(options, found.usual)
        if options.get("wait") and options.get("timeout") is not None:
            timeout = self._waiting.left(call, timeout)
        traceparent = ""
        if telemetry.active():
            span = telemetry.start_call_span(tool=call.target.tool, service=found.service, id=call.id, agent=agent)
            if span is not None:
                traceparent = span.traceparent
                call.span = span
        user, session = options.get("user", ""), options.get("session", "")
        # Its calls are for a state that a worker holds.
        held = found.sticky and bool(user or session)
        return Request(
            call.id,
            agent,
            found.service,
            call.target.tool,
            user,
            session,
            found.config,  # type: ignore[arg-type] # any mapping encodes as an object
            call.arguments or {},
            timeout,
            found.effect,
            found.digest,
            call.streaming,
            0,
            key,
            options.get("metadata", {}),
            traceparent,
            shared=bool(key),
            confirmed="" if call.grant is None else call.grant.digest,
            ordered=held and found.ordered and not self.nested,
            state=self._used.state(user, session, found.queue) if held else "",
            initial=options.get("initial"),
        )

    def _send(self, call: Call, request: Request, found: Resolution, connection: BusConnection) -> ErrorInfo | None:
        now = time.monotonic()
        call.request = request
        call.queue = found.queue
        limit = found.queue_limit or self.settings.queue_limit
        try:
            connection.broker.requests.publish(request, call.queue, limit, now + request.timeout, call)
        except EnvelopeError as error:
            return ErrorInfo("invalid_arguments", error.code, str(error))
        self._calls[call.id] = call
        if call.grant is not None:
            call.grant.publish()
        if request.session:
            self._used.add(request.user, request.session, call.queue)
        call.deadline = now + request.timeout
        call.slot = connection.deadlines.add(call.deadline, call.id, call.expire)
        if call.idle_timeout:
            call.last_heard = now
            connection.timers.watch_idle(call)
        return None

    def timeout(self, options: Mapping[str, Any], usual: float) -> float:
        """Return a call's timeout (seconds); ``usual`` is its tool's own, or 0.

        Raises:
            ConfigurationError: the option is wrong.
        """
        given = options.get("timeout") if options else None
        timeout = usual or self.settings.timeout if given is None else seconds(given, "timeout")
        if timeout > self.settings.max_timeout:
            raise ConfigurationError(f"timeout {timeout:g} s is over the limit of {self.settings.max_timeout:g} s (TOOLBUS_MAX_TIMEOUT)")
        return timeout

    # -- for the broker ---------------------------------------------------------------------------

    def on_frames(self, frames: Sequence[Frame]) -> None:
        """Hand frames to their calls; those of ended calls are dropped."""
        calls, now = self._calls, time.monotonic()
        for frame in frames:
            call = calls.get(frame.id)
            if call is not None:
                call.feed(frame, now)

    def on_replies_lost(self) -> None:
        """Take in that the reply stream was made anew; calls that miss frames of it notice by their seq."""
        telemetry.log.warning("replies.recreated", calls=len(self._calls))
        for call in self._calls.values():
            call.lost = call.lost or bool(call.entry)

    def on_failed(self, error: ToolbusError) -> None:
        """End what runs, and refuse new calls until the bus is closed and another one opened: nothing arrives any more."""
        failure = ErrorInfo("unavailable", "bus_failed", f"this bus can't go on; close it and open another one: {error}")
        connection = self.connection
        connection.failure = failure
        for call in list(self._calls.values()):
            call.give_up(failure)
        for waiting in list(self._waiting):
            waiting.complete_with(failure)
        connection.catalogue.wake()
