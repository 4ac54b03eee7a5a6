"""``Worker``: takes requests of the services it serves and runs their handlers in its slots."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import WorkerId
from toolbus.bus.broker.statistics.answers import InstanceAnswer
from toolbus.bus.middleware import Middleware, Only, checked
from toolbus.bus.values.results import BrokerError, BrokerUnavailable, ConfigurationError, RegistrationRefused
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker import isolation
from toolbus.bus.worker.collect import collect
from toolbus.bus.worker.function import tool_of
from toolbus.bus.worker.handlers import Served
from toolbus.bus.worker.isolation.pool import Isolation
from toolbus.bus.worker.outcome import without_exits
from toolbus.bus.worker.process.event_loop import LoopWatch
from toolbus.bus.worker.process.lifeline import ended_by, orphaned
from toolbus.bus.worker.provide import Services
from toolbus.bus.worker.service import ToolService, failure_named
from toolbus.bus.worker.sessions import CLEANUP_WITHIN
from toolbus.bus.worker.slots import Slots, sign_off

if TYPE_CHECKING:
    from toolbus.bus.broker.worker import WorkerBroker
    from toolbus.bus.client.bus import ToolBus


class Worker:
    """Serves tools: one process start, one consumer of each service's group.

    Args:
        services: a ``ToolService`` (class or instance), functions decorated with ``@tool``, modules that define
            them, packages of such modules, or lists of these; None for a worker whose services come with ``add``.
        middleware: around every handler, the first one outermost; see ``toolbus.middleware``.
        provide: what handlers' parameters of these types are filled in with, before what ``toolbus.provide`` was told.
        url: as in ``Settings``; ``settings`` gives everything else.
        namespace: as in ``Settings``.
        concurrency: as in ``Settings``.

    ``async with``, or ``open()`` and ``aclose()`` (a notebook's cells, for example), serve in the background without touching
    signals; ``run()`` handles them and returns after the drain. When half of the slots are held by handlers that can't be stopped
    it drains too, so that a supervisor starts a fresh process.

    Raises:
        ConfigurationError: there is nothing to serve, or a service or setting is wrong.
    """

    def __init__(
        self,
        services: object,
        *,
        url: str | None = None,
        namespace: str | None = None,
        concurrency: int | None = None,
        settings: Settings | None = None,
        middleware: Sequence[Middleware] = (),
        provide: Mapping[type, object] | None = None,
    ) -> None:
        self.settings = Settings.load(base=settings, url=url, namespace=namespace, concurrency=concurrency)
        self._services = Services(provide)
        self._left_out: dict[str, str] = {}
        found = [] if services is None else collect(services, self.settings, self._services, self._left_out)
        self._served = {served.id: served for served in found}
        self.middleware = _checked_around(middleware, self._served.values())
        # What services said of themselves when they were last published, before names of others were left out.
        self._revisions = {served.id: served.publication.digest for served in self._served.values()}
        self._slots: Slots | None = None
        self._nested: NestedBus | None = None
        self._home: asyncio.Task[None] | None = None
        self._watch: LoopWatch | None = None
        self._altering = asyncio.Lock()
        self._withdrawing: set[str] = set()
        # What it does now, in another task perhaps: "starts" or "drains".
        self._changing = ""
        self._on_connect: Callable[[], object] | None = None
        # The task that starts, which waits for the server and for the services' own preparation.
        self._opening: asyncio.Task[Any] | None = None
        self._start_ended = False

    # -- life -------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.drain()

    async def open(self) -> None:
        """Serve in the background until ``aclose()``, which may run in another task; opening a worker that serves does nothing.

        Raises:
            BrokerError: the server refuses, or can't serve.
            RegistrationRefused: others own what it publishes.
            ConfigurationError: a service can't be started; or it starts or drains in another task, or has failed.
        """
        if self._changing or not self._serving:
            await self._open()

    async def aclose(self) -> None:
        """Leave as ``drain`` does; closing a worker that does not serve does nothing.

        Raises:
            ToolbusError: it has failed before.
            ConfigurationError: it is starting in another task.
        """
        await self.drain()

    async def run(
        self,
        on_open: Callable[[], object] | None = None,
        on_drain: Callable[[], object] | None = None,
        *,
        on_connect: Callable[[], object] | None = None,
    ) -> None:
        """Serve until SIGTERM or SIGINT, then drain and return. A signal half a second later or more ends the process at once.

        One that comes before the worker serves ends its start.

        Args:
            on_open: called once when the worker is registered.
            on_drain: called once when it begins to drain.
            on_connect: called once when it has its ``instance``, before it can hold any call.
        """
        stop = asyncio.Event()
        self._on_connect = on_connect
        self._start_ended = False

        def begin() -> None:
            if not stop.is_set() and self._opening is not None:
                self._opening.cancel()
            stop.set()

        def again() -> None:
            telemetry.log.warning("worker.killed", running=self._running)
            telemetry.flush_logging()
            os._exit(1)

        try:
            with ended_by(begin, again):
                # In this process, which is the worker's own, and before anybody can call it: collecting garbage blocks the event loop.
                gc.collect()
                async with self:
                    if on_open is not None:
                        on_open()
                    _collect_rarely()
                    await self._until(stop)
                    if on_drain is not None:
                        on_drain()
                    telemetry.log.info("worker.draining", running=self._running, grace=self.settings.grace)
        except asyncio.CancelledError:
            # A signal ends the start, which waits for the server, and for what services prepare, as long as it takes.
            task = asyncio.current_task()
            if not stop.is_set() or self._home is not None or task is None or task.uncancel():
                raise

    async def republish(self, service: ToolService) -> bool:
        """Publish a service anew whose ``tools`` have changed; False when they are what they were.

        Calls that run go on. Tools whose names belong to others are left out, as at the start.

        Raises:
            ConfigurationError: this worker does not serve it, or a tool is wrong; then the tools are what they were.
            RegistrationRefused: others own all of its names.
            BrokerError: the server could not be told; say it again.
        """
        [made] = collect(service, self.settings, self._services)
        served = self._served.get(made.id)
        if served is None or not served.is_of(service):
            raise ConfigurationError(f"this worker does not serve {made.id!r}")
        if made.publication.digest == self._revisions[made.id]:
            return False
        # Its handlers come first: calls of a new tool may arrive as soon as it is published.
        served.revise(made)
        if self._serving:
            await _publish(self.broker, served)
        self._revisions[made.id] = made.publication.digest
        return True

    async def add(self, service: ToolService) -> None:
        """Serve one more service; calls of others run on. What goes wrong leaves the worker as it was.

        Raises:
            ConfigurationError: it serves one with this id, starts or drains, or the service is wrong, or has isolated tools, whose
                processes begin with the worker.
            RegistrationRefused: others own its names.
            BrokerError: the server could not be told.
        """
        [made] = collect(service, self.settings, self._services)
        async with self._alteration(made.id):
            if made.id in self._served:
                raise ConfigurationError(f"this worker serves {made.id!r} already; see republish()")
            if made.isolated() and self._serving:
                raise ConfigurationError(f"{made.id!r} has isolated tools; give it to the worker before that is opened")
            revision = made.publication.digest
            if self._serving:
                await self._services.start()
                await _begin(made, self._opened(), self._served)
            self._served[made.id] = made
            self._revisions[made.id] = revision

    async def withdraw(self, service: str) -> None:
        """Serve a service no longer: leave the registry, let its running calls end within the grace period, and hand back the others.

        Other services are served meanwhile. It may be added again afterwards.

        Args:
            service: its id.

        Raises:
            ConfigurationError: this worker does not serve it, or starts or drains.
            BrokerError: the server could not be told; say it again.
        """
        if service in self._withdrawing or service not in self._served:
            raise ConfigurationError(f"this worker does not serve {service!r}")
        self._withdrawing.add(service)
        try:
            async with self._alteration(service):
                if self._serving:
                    await self.broker.withdraw(service)
            if self._serving:
                # Others come and go while its calls end.
                await self._opened().withdraw(service)
            async with self._alteration(service):
                served = self._served[service]
                if self._serving:
                    await _end(served, self._opened())
                del self._served[service], self._revisions[service]
        finally:
            self._withdrawing.discard(service)

    @contextlib.asynccontextmanager
    async def _alteration(self, service: str) -> AsyncIterator[None]:
        """Let one service after the other come or go, and none while the worker starts or drains."""
        self._check_steady(service)
        async with self._altering:
            self._check_steady(service)
            yield

    def _check_steady(self, service: str) -> None:
        if self._changing:
            raise ConfigurationError(f"this worker {self._changing}, and {service!r} with it")

    async def drain(self) -> None:
        """Leave the registry, stop taking, finish what runs within the grace period, and close.

        Raises:
            ToolbusError: it has failed before.
            ConfigurationError: it is starting in another task.
        """
        if self._changing == "starts":
            raise ConfigurationError("this worker starts; drain it when it serves")
        home, self._home = self._home, None
        slots = self._slots
        if home is None or slots is None:
            return
        self._changing = "drains"
        try:
            async with contextlib.AsyncExitStack() as closing:
                self._close_by(closing, slots, self._served.values())
                closing.push_async_callback(asyncio.wait, [home])
                try:
                    await self._leave(home, slots)
                except asyncio.CancelledError:
                    # There is no grace for what still runs.
                    home.cancel()
                    raise
        finally:
            self._changing = ""
        if home.cancelled():
            # Code of a tool cancels whatever tasks it finds, for example.
            telemetry.log.error("worker.failed", error="its tasks were cancelled from within", running=slots.running)
        else:
            telemetry.log.info("worker.stopped", calls=slots.finished)
        # Raises what made it fail, for its caller to know.
        await home

    async def _leave(self, home: asyncio.Task[None], slots: Slots) -> None:
        # Whoever kills a worker that does not end counts from here, too.
        grace_ends = slots.clock() + self.settings.grace
        try:
            if slots.failure is None:
                await self.broker.outlive(self.settings.grace / 2)
        finally:
            slots.stop(grace_ends)
        async with self._altering:
            # Its services are missed where nobody has asked it to end.
            await sign_off(self.broker, died=orphaned() or slots.overgrown.is_set())
        await slots.hand_back_waiting()
        await asyncio.wait([home])

    def _close_by(self, closing: contextlib.AsyncExitStack, slots: Slots, served: Iterable[Served]) -> None:
        """Have ``closing`` close everything, each step also when the one before it fails or is cancelled."""
        if self._watch is not None:
            closing.callback(self._watch.stop)
        closing.callback(slots.close)
        closing.push_async_callback(self.broker.aclose)
        if self._nested is not None:
            closing.push_async_callback(self._nested.aclose)
        closing.push_async_callback(self.isolation.aclose)
        closing.push_async_callback(_clean_up, self._services.aclose, "provided")
        for each in reversed(list(served)):
            closing.push_async_callback(_clean_up, each.cleanup, each.id)
        closing.push_async_callback(slots.sessions.aclose)

    async def _until(self, stop: asyncio.Event) -> None:
        """Wait until the worker is to stop, or has failed: its home task ends by itself only then, and drain() says why."""
        events = (stop,) if self._slots is None else (stop, self._slots.overgrown)
        ends = [asyncio.ensure_future(event.wait()) for event in events]
        await asyncio.wait([*ends, *([self._home] if self._home else [])], return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()

    async def _open(self) -> None:
        if self._changing or self._home is not None:
            raise ConfigurationError(f"this worker already {self._changing or 'serves'}; make another one, or wait until it has drained")
        self._changing = "starts"
        try:
            await self._start()
            # It takes from now on, and not only when its opener next waits for something.
            await asyncio.sleep(0)
        except BaseException:
            self._changing = ""
            await self.drain()
            raise
        finally:
            self._changing = ""

    def _new_caller(self) -> ToolBus:
        # The client is loaded when a handler first calls another tool.
        from toolbus.bus.client.bus import ToolBus  # noqa: PLC0415

        return ToolBus(settings=self.settings).for_handlers()

    async def _start(self) -> None:
        # A worker that is described and never started needs no client of Redis.
        from toolbus.bus.broker.worker import WorkerBroker  # noqa: PLC0415

        if isolation.inside:
            # Its tools' processes would import the module again, and never end.
            raise ConfigurationError("a module starts a worker when it is imported: put that under `if __name__ == '__main__':`")
        isolated = [made for served in self._served.values() for made in served.isolated()]
        pool, broker, nested = Isolation(self.settings, isolated), WorkerBroker(self.settings), NestedBus(self._new_caller)
        self._nested = nested
        slots = self._slots = Slots(self.settings, self._served, self.middleware, broker, pool, nested.get, nested.close_session)
        self._opening = asyncio.current_task()
        try:
            await self.broker.open(slots)
            await self._start_services(slots)
        finally:
            self._opening = None
        self._watch = LoopWatch(asyncio.get_running_loop())
        self._watch.start()
        self._home = asyncio.create_task(slots.serve(), name="toolbus-worker")

    async def _start_services(self, slots: Slots) -> None:
        """Prepare and publish everything; what goes wrong leaves nothing."""
        ready: list[Served] = []
        try:
            if self._on_connect is not None:
                self._on_connect()
            if any(served.isolated() for served in self._served.values()):
                await self.isolation.open()
            await self._services.start()
            for served in self._served.values():
                await _start_up(served, self.settings)
                ready.append(served)
                slots.sessions.open(served)
            for served in self._served.values():
                await _publish(self.broker, served)
                # Calls of it may run now, which only a drain ends well.
                self._opening = None
            _log_served(self._served.values(), self._left_out)
        except BaseException:
            # No signal ends the clean-up of what has started. A thread of it can't be stopped.
            self._opening, self._start_ended = None, True
            async with contextlib.AsyncExitStack() as closing:
                self._close_by(closing, slots, ready)
                await sign_off(self.broker)
            raise

    # -- for people -------------------------------------------------------------------------------

    @property
    def healthy(self) -> bool:
        """True while the worker takes requests."""
        return not self.unready

    @property
    def leaving(self) -> bool:
        """True while it drains: it takes no more requests, and finishes what it runs."""
        return self._changing == "drains"

    @property
    def unready(self) -> str:
        """Why the worker takes no requests now; empty while it does."""
        if self._slots is not None and self._slots.failure is not None:
            return f"it ends: {self._slots.failure}"
        if not self._serving:
            return "it starts, or leaves"
        steps = self.broker.steps
        return steps.links.trouble or steps.intake.trouble

    @property
    def _serving(self) -> bool:
        return self._home is not None and not self._home.done()

    @property
    def stuck(self) -> bool:
        """True if threads of given-up calls still run after the drain, or those of a start that a signal ended may do so."""
        return self._start_ended or self._running > 0

    @property
    def broker(self) -> WorkerBroker:
        """The broker that this worker uses.

        Raises:
            ConfigurationError: the worker was never opened.
        """
        return self._opened().broker

    @property
    def isolation(self) -> Isolation:
        """The child processes of its isolated tools.

        Raises:
            ConfigurationError: the worker was never opened.
        """
        return self._opened().isolation

    @property
    def instance(self) -> WorkerId:
        """This process start's instance id."""
        return self.broker.instance

    @property
    def started(self) -> int:
        """The number of calls that began to run."""
        return 0 if self._slots is None else self._slots.started

    def statistics(self) -> dict[str, int]:
        """Return counts: running, free, started and finished calls, open sessions, and the broker's own.

        Raises:
            ConfigurationError: the worker was never opened.
        """
        slots = self._opened()
        return {**slots.statistics(), **slots.broker.statistics()}

    async def answer(self) -> InstanceAnswer:
        """Return the counts of each tool and service, as far as the broker does not know them better; calls go on meanwhile.

        Raises:
            ConfigurationError: the worker was never opened.
        """
        slots, tools = self._opened(), []
        for tool in slots.counts():
            tools.append(tool)
            if len(tools) % _COUNTED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return slots.answer(tools)

    def _opened(self) -> Slots:
        if self._slots is None:
            raise ConfigurationError("this worker has not served yet: use `async with worker`, or `await worker.open()` or `worker.run()`")
        return self._slots

    @property
    def _running(self) -> int:
        return 0 if self._slots is None else self._slots.running


_RETRY_FIRST, _RETRY_MOST = 0.05, 1.0
# Tools whose counts are read without a pause, which takes some milliseconds.
_COUNTED_AT_ONCE = 100


class NestedBus:
    """One bus for all nested calls of a worker.

    Args:
        make: makes a bus that is not open yet; it may take tenths of a second.
    """

    def __init__(self, make: Callable[[], ToolBus]) -> None:
        self._make = make
        # The bus outlives the call that opens it: what it starts is not to see that call's context variables.
        self._context = contextvars.copy_context()
        self._lock = asyncio.Lock()
        self._bus: ToolBus | None = None
        self._closed = False

    async def get(self) -> ToolBus:
        """Return the open bus. While the server can't be reached it is tried again, for as long as the call that asks may run.

        Raises:
            BrokerError: the server refuses the connection, or the worker has left.
        """
        async with self._lock:
            delay = _RETRY_FIRST
            while self._bus is None:
                if self._closed:
                    raise BrokerError("this worker has left: a handler that goes on calls no other tools")
                bus = await asyncio.to_thread(self._make)
                try:
                    await asyncio.create_task(bus.open(), context=self._context.copy())
                except BrokerUnavailable as error:
                    telemetry.log.warning("nested.unavailable", error=str(error), retry_in=delay)
                    await asyncio.sleep(delay)
                    delay = min(2 * delay, _RETRY_MOST)
                except BaseException:
                    # It may have been opened all the same.
                    await bus.aclose()
                    raise
                else:
                    if self._closed:
                        await bus.aclose()
                    else:
                        self._bus = bus
            return self._bus

    async def close_session(self, user: str, session: str) -> None:
        """End a session that handlers' calls were made in."""
        if self._bus is not None:
            await self._bus.end_session(user, session)

    async def aclose(self) -> None:
        """Close the bus, if a handler ever needed it."""
        # While it closes, nothing more can be asked of it.
        self._closed = True
        bus, self._bus = self._bus, None
        if bus is not None:
            await bus.aclose()


_MOST_LOGGED = 20


async def _start_up(made: Served, settings: Settings) -> None:
    with failure_named(made.made_by, "started", made.id):
        await without_exits(made.startup(settings))


async def _begin(made: Served, slots: Slots, served: MutableMapping[str, Served]) -> None:
    """Prepare and publish a service while others are ``served``; what goes wrong leaves nothing."""
    await _start_up(made, slots.settings)
    try:
        slots.sessions.open(made)
        # Calls may arrive as soon as it is published.
        served[made.id] = made
        await _publish(slots.broker, made)
    except BaseException:
        served.pop(made.id, None)
        await slots.sessions.close(made)
        await _clean_up(made.cleanup, made.id)
        raise


async def _end(served: Served, slots: Slots) -> None:
    """Leave the stream of a service that was withdrawn."""
    await slots.sessions.close(served)
    await slots.broker.retire(served.id)
    slots.forget(served.id)
    await _clean_up(served.cleanup, served.id)


async def _publish(broker: WorkerBroker, served: Served) -> None:
    """Publish a service; tools whose names belong to others are left out and named, the rest goes live."""
    publication = served.publication
    try:
        await broker.register(publication, served.origin)
    except RegistrationRefused as refusal:
        kept = tuple(tool for tool in publication.tools if f"tool/{tool.name}" not in refusal.names)
        if not kept or any(not name.startswith("tool/") for name in refusal.names):
            raise
        telemetry.log.warning("tools.refused", service=served.id, error=str(refusal))
        left = msgspec.structs.replace(publication, tools=kept).with_digest()
        await broker.register(left, served.origin)
        served.publication = left
    undeclared = served.undeclared()
    if undeclared:
        telemetry.log.info("tools.undeclared_effect", service=served.id, tools=undeclared, meaning="may be re-run after a crash")


def _log_served(served: Iterable[Served], left_out: Mapping[str, str]) -> None:
    """Say what a worker serves, and what it left out and why."""
    every = list(served)
    tools = sorted(tool.name for each in every for tool in each.publication.tools)
    refused = dict.fromkeys((name for each in every for name in each.tools if name not in tools), "its name belongs to another owner")
    missing = {**left_out, **refused}
    fields: dict[str, object] = {"services": sorted(each.id for each in every)[:_MOST_LOGGED], "tools": tools[:_MOST_LOGGED]}
    if len(tools) > _MOST_LOGGED:
        fields["further"] = len(tools) - _MOST_LOGGED
    if missing:
        fields["left_out"] = dict(sorted(missing.items())[:_MOST_LOGGED])
    if len(missing) > _MOST_LOGGED:
        fields["further_left_out"] = len(missing) - _MOST_LOGGED
    telemetry.log.info("worker.serving", **fields)


async def _clean_up(clean: Callable[[], Awaitable[None]], service: str) -> None:
    """Run a clean-up of a user's, for a bounded time; what goes wrong is logged."""
    try:
        async with asyncio.timeout(CLEANUP_WITHIN):
            await without_exits(clean())
    except Exception:  # noqa: BLE001 - one failing clean-up must not stop the others
        telemetry.log.exception("service.cleanup_failed", service=service)


def _collect_rarely() -> None:
    """Let Python look for garbage more rarely, in a process that is only a worker.

    What was loaded stays for good, and what calls leave behind is nearly all freed by counting. It gave 10 to 20 % more calls/s.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _checked_around(middleware: Iterable[Middleware], served: Iterable[Served]) -> tuple[Middleware, ...]:
    """Return the middleware as it was given; names of ``only`` that nothing here has are logged.

    Raises:
        ConfigurationError: one is no middleware, or is a tool.
    """
    found = checked(middleware)
    for each in found:
        made = tool_of(each)
        if made is not None:
            raise ConfigurationError(
                f"{made.origin} is a tool, not middleware: give what runs around tools, an async function of (call, next)"
            )
    names: set[str] = set()
    for one in served:
        if one.serves_any_tool:
            return found
        names |= {one.id, *one.tools}
    for each in found:
        unknown = sorted(each.tools - names) if isinstance(each, Only) else []
        if unknown:
            telemetry.log.warning("middleware.unknown_tools", tools=unknown, served=sorted(names)[:20])
    return found
