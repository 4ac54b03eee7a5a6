"""``MiddlewareRunner``: runs the calls of a bus within its middleware."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from toolbus.bus import telemetry
from toolbus.bus.client.calls.call import Call, CallTarget
from toolbus.bus.client.calls.dispatcher import Dispatcher
from toolbus.bus.client.calls.refusals import check_name
from toolbus.bus.middleware import Middleware, ToolCall, chained
from toolbus.bus.support.safe_text import reason_of, type_name
from toolbus.bus.values.envelope import new_id
from toolbus.bus.values.events import Event, Finished, Text
from toolbus.bus.values.results import Blob, ConfigurationError, ErrorInfo, ToolError, ToolResult, deadline_exceeded

# Seconds that a closing bus waits for middleware that does not end when it is cancelled.
_CLOSING = 2.0
# Seconds that middleware has after the call within has expired, which takes a second at most.
_EXPIRING = 1.5


class MiddlewareCall(Call, eq=False):
    """A call that runs within middleware: it is answered by other calls, or by the middleware itself."""

    _start: Callable[[MiddlewareCall], asyncio.Task[None]] | None = None
    _task: asyncio.Task[None] | None = None
    _misused: ConfigurationError | None = None
    _heard: bool = False
    # The bytes of text and blobs that were streamed so far.
    delivered: int = 0

    def pass_on(self, event: Event) -> None:
        """Deliver an event of the call that runs for this one."""
        if isinstance(event, (Text, Blob)):
            self._heard = True
            self.delivered += len(event.text.encode("utf-8", "replace")) if isinstance(event, Text) else len(event.data)
        if not self.streaming or self._result is not None:
            return
        buffer = self._buffer()
        if buffer.size > self._limit:
            self._refuse_slow_reader()
        else:
            buffer.put(event)

    def finish(self, result: ToolResult) -> None:
        """End the call with what came out of the middleware."""
        if self._result is not None:
            return
        if self.streaming and not self._heard:
            # No call has streamed this answer, which came from the middleware itself.
            for event in (*([Text(result.output)] if result.output else ()), *result.content):
                self._buffer().put(event)
        self._complete(result)

    def misused(self, error: ConfigurationError) -> None:
        """End the call with an exception: it was made with wrong options."""
        self._misused = error
        self._end(ToolResult.fail(ErrorInfo("invalid_arguments", message=str(error))))

    def complete_with(self, error: ErrorInfo) -> None:
        """End the call from this side, and what runs for it."""
        if self._result is None:
            self._complete(self._assembled().fail(error))
            if self._task is not None:
                self._task.cancel()

    async def result(self) -> ToolResult:
        """Wait for the result, see ``Call``.

        Raises:
            ConfigurationError: an option is wrong.
        """
        result = await super().result()
        if self._misused is not None:
            raise self._misused
        return result

    def _end(self, result: ToolResult) -> None:
        # The inner calls are counted and traced, and this one is not.
        self._result = result
        self.done = True
        if self._events is not None:
            self._events.wake()
        if not self._done.done():
            self._done.set_result(result)

    async def _more(self) -> bool:
        more = await super()._more()
        if self._misused is not None:
            raise self._misused
        return more

    def _begin(self) -> None:
        self._launched = True
        if self._result is None and self._start is not None:
            self._task = self._start(self)


class MiddlewareRunner:
    """Makes calls that run within middleware, and owns their tasks until they end."""

    def __init__(self, dispatcher: Dispatcher, middleware: tuple[Middleware, ...]) -> None:
        self._dispatcher = dispatcher
        self._middleware = middleware
        self._running: dict[asyncio.Task[None], MiddlewareCall] = {}

    def make_call(self, target: CallTarget, arguments: Any, options: Mapping[str, Any], *, streaming: bool) -> Call:
        """Return a call that has not been started yet, see ``Dispatcher.make_call``."""
        if target.tool or not target.service:
            check_name(target.tool)
        done: asyncio.Future[ToolResult] = self._dispatcher.check().loop.create_future()
        limit = self._dispatcher.settings.call_buffer
        host, started = self._dispatcher, time.monotonic()
        return MiddlewareCall(host, done, new_id(), target, arguments, options, streaming, limit, started, _start=self._start)

    async def aclose(self) -> None:
        """End every call as cancelled, and wait for the middleware, two seconds at most."""
        running = dict(self._running)
        for call in running.values():
            call.complete_with(ErrorInfo("cancelled", message="the bus was closed"))
        if running:
            await asyncio.wait(running, timeout=_CLOSING)

    def _start(self, call: MiddlewareCall) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._run(call))
        self._running[task] = call
        task.add_done_callback(self._running.pop)
        return task

    async def _run(self, outer: MiddlewareCall) -> None:
        ids = iter((outer.id,))
        running: set[Call] = set()

        async def innermost(call: ToolCall) -> ToolResult:
            inner = self._dispatcher.make_call(outer.target, call.arguments, outer.options, streaming=outer.streaming)
            # The first inner call has the id that the caller knows; further ones have ids of their own.
            inner.id = next(ids, inner.id)
            inner.grant = outer.grant
            if inner.grant is not None:
                # Middleware may have changed the arguments in place.
                inner.grant.prepared = None
            running.add(inner)
            try:
                if not outer.streaming:
                    return await inner.result()
                async with inner:
                    async for event in inner.events():
                        if not isinstance(event, Finished):
                            outer.pass_on(event)
                return await inner.result()
            finally:
                running.discard(inner)
                outer.waited += inner.waited_in_all

        try:
            with self._deadline(outer, running):
                outer.finish(await chained(self._middleware, innermost)(self._description(outer)))
        except ConfigurationError as error:
            outer.misused(error)
        except ToolError as error:
            outer.finish(ToolResult.fail(error.error))
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - middleware is the application's code: SystemExit would end the event loop
            telemetry.log.exception("middleware.failed", id=outer.id, tool=outer.target.tool or outer.target.service)
            outer.finish(ToolResult.fail(ErrorInfo("tool_error", type_name(error), f"the middleware failed: {reason_of(error)}")))
        finally:
            if not outer.done:
                outer.finish(ToolResult.fail(ErrorInfo("cancelled", message="cancelled by the middleware")))

    @contextlib.contextmanager
    def _deadline(self, outer: MiddlewareCall, running: set[Call]) -> Iterator[None]:
        """End a call when its time is up, whatever its middleware waits for. The time stands still while a person is asked.

        Raises:
            ConfigurationError: the timeout is wrong.
        """
        connection, target, options = self._dispatcher.opened(), outer.target, outer.options
        found = connection.tools.get(target.tool) if target.tool else None
        timeout = self._dispatcher.timeout(options, 0.0 if found is None else found.resolution.usual)
        key, slot = (outer.id, "middleware"), 0
        # By default a call's time begins when there is a worker.
        ends = time.monotonic() + timeout + (self._dispatcher.patience(options) if options.get("timeout") is None else 0.0)
        expired = False

        def look() -> None:
            nonlocal slot, expired
            # Those that run are counted as if people were asked for as long as they may be.
            due = ends + outer.waited + max((call.waited_in_all for call in running), default=0.0)
            if time.monotonic() < due:
                slot = connection.deadlines.add(due, key, look)
            elif running and not expired:
                # Each knows whether its handler may have begun; middleware has a moment to hear of it.
                expired = True
                for call in list(running):
                    call.expire()
                slot = connection.deadlines.add(time.monotonic() + _EXPIRING, key, look)
            else:
                outer.complete_with(deadline_exceeded(f"no result within {timeout:g} s"))

        slot = connection.deadlines.add(ends, key, look)
        try:
            yield
        finally:
            connection.deadlines.remove(slot, key)

    def _description(self, outer: MiddlewareCall) -> ToolCall:
        """Return what the middleware sees of a call."""
        connection, target, options = self._dispatcher.opened(), outer.target, outer.options
        found = connection.tools.get(target.tool) if target.tool else None
        return ToolCall(
            id=outer.id,
            tool=target.tool,
            service=target.service if found is None else found.service,
            user=options.get("user", ""),
            session=options.get("session", ""),
            arguments=outer.arguments if outer.arguments is not None else {},
            config=target.config if found is None else found.descriptor.config,
            metadata=options.get("metadata", {}),
            idempotency_key=options.get("idempotency_key", ""),
            digest="" if found is None else found.digest,
            effect="" if found is None else found.descriptor.effect,
            # What a session keeps in its worker is in no field of the call.
            cache=found is not None and found.descriptor.cacheable and not (found.is_sticky and options.get("session")),
            side="call",
            attempt=0,
            tallies=connection.broker.steps.tallies,
            delivered=lambda: outer.delivered,
        )
