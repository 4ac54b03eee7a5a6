"""One turn of a model: its calls, run together, and the messages that answer them."""

from __future__ import annotations

import asyncio
import difflib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.client.calls.refusals import withdrawn
from toolbus.bus.client.confirmations import Confirmation, Grant
from toolbus.bus.client.executor.context import ExecutorContext
from toolbus.bus.client.executor.observers import Confirming, ExecutionEvent, Requested, ToolEvent
from toolbus.bus.client.executor.references import Kept, kept_of, references, resolved
from toolbus.bus.client.executor.toolcalls import ModelCall, Observation, Place, answers, said
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.support.waiting import cancelled
from toolbus.bus.values.envelope import SESSION_LOST, new_run
from toolbus.bus.values.events import Asked, Finished, size_of
from toolbus.bus.values.naming import did_you_mean
from toolbus.bus.values.results import ConfigurationError, ErrorInfo, ToolError, ToolResult


class RunningCall(msgspec.Struct, eq=False):
    """One call of a turn.

    Attributes:
        index: its place in the turn, from 0.
        started: when it was made, and then when it began (monotonic seconds).
        result: what it ended with; None while it has not.
        task: the task that runs it; None when it is the turn's only one.
        after: the calls that end before it begins.
        same: an earlier call of the turn that this one repeats under its id.
        requested: what observers were told of it last.
        changes: what was changed in the model's arguments, also when they are refused all the same.
    """

    call: ModelCall
    index: int
    tool: Tool | None
    started: float
    result: ToolResult | None = None
    place: Place | None = None
    task: asyncio.Task[None] | None = None
    after: list[RunningCall] = []
    same: RunningCall | None = None
    requested: Requested | None = None
    changes: list[str] = []

    @property
    def name(self) -> str:
        """The tool's own name, or what the model called it."""
        return self.call.name if self.tool is None else self.tool.name


async def _ended(calls: Iterable[RunningCall]) -> None:
    """Wait until these calls have ended."""
    running = [each.task for each in calls if each.result is None and each.task is not None]
    if running:
        await asyncio.wait(running)


def set_order(calls: Sequence[RunningCall], executor: ExecutorContext, *, concurrent: bool) -> None:
    """Set which calls wait for others: those of sequential tools, and repetitions of a call under its own id."""
    barrier: RunningCall | None = None
    seen: dict[str, RunningCall] = {}
    for running in calls:
        alone = not concurrent or executor.is_sequential(running.tool)
        if alone:
            running.after = [*calls[: running.index]]
            barrier = running
        elif barrier is not None:
            running.after = [barrier]
        twin = seen.setdefault(running.call.id, running)
        if twin is not running and (twin.call.name, twin.call.arguments) == (running.call.name, running.call.arguments):
            running.same = twin


# Limits of a turn's unread events; beyond, the calls wait for the reader.
_MOST_EVENTS = 1000
_MOST_BYTES = 1_048_576
_MOST_CANDIDATES = 1000
# Limit of how often a call is prepared again because its tool has changed.
_MOST_REVISIONS = 5


class Turn:
    """The calls of one turn while they run: ``async with``, then ``async for event in turn``, then ``await turn.messages()``.

    Leaving the context early cancels what still runs. A turn of which nobody reads the events need not be entered: whoever asks for its
    results first runs it.

    Args:
        known: results of calls, by their ids, that an earlier turn with the same calls had; these are not run.
    """

    def __init__(
        self,
        executor: ExecutorContext,
        calls: Sequence[ModelCall],
        *,
        concurrent: bool = True,
        streaming: bool = False,
        places: Sequence[Place] = (),
        known: Mapping[str, ToolResult] | None = None,
    ) -> None:
        if places and len(places) != len(calls):
            raise ConfigurationError(f"{len(calls)} calls need as many places, and not {len(places)}")
        known, now = known or {}, time.monotonic()
        self._executor = executor
        self._places = places
        self._calls = [RunningCall(call, index, executor.find(call.name), now, known.get(call.id)) for index, call in enumerate(calls)]
        self._streaming = streaming
        self._begun = False
        self._stack: AsyncExitStack | None = None
        self._logs = telemetry.logs(logging.INFO)
        self._events: deque[ToolEvent] = deque()
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._trouble: ConfigurationError | None = None
        if len(self._calls) > 1:
            set_order(self._calls, executor, concurrent=concurrent)

    # -- for callers ------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        left, self._stack = self._begin(), AsyncExitStack()
        group = await self._stack.enter_async_context(asyncio.TaskGroup())
        for running in left:
            running.task = group.create_task(self._run(running))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for running in self._calls:
            if running.task is not None:
                running.task.cancel()
        try:
            if self._stack is not None:
                await self._stack.aclose()
        finally:
            # A task that was cancelled before its first step leaves no place.
            for running in self._calls:
                if running.place is not None:
                    running.place.leave()

    async def __aiter__(self) -> AsyncIterator[ToolEvent]:
        """Yield everything that happens to the calls, each call's events in order; each call ends with ``Finished``."""
        while True:
            while self._events:
                event = self._events.popleft()
                self._bytes -= size_of(event.event)
                if self._bytes < _MOST_BYTES and len(self._events) < _MOST_EVENTS:
                    self._room.set()
                yield event
            if all(running.result is not None for running in self._calls):
                return
            self._arrived.clear()
            await self._arrived.wait()

    async def results(self) -> list[ToolResult]:
        """Wait for all calls and return their results in order; unread events are dropped.

        Raises:
            ConfigurationError: an option is wrong, or the bus was closed.
        """
        self._streaming = False
        self._events.clear()
        self._room.set()
        if self._begun:
            await _ended(self._calls)
        elif len(self._calls) == 1:
            # Most turns are one call, and a task for it would take longer than all that the turn does for it.
            for running in self._begin():
                await self._run(running)
                if running.result is not None and running.result.error is not None:
                    # A model's program that tries refused calls again and again must not starve other tasks.
                    await asyncio.sleep(0)
        else:
            async with self:
                await _ended(self._calls)
        if self._trouble is not None:
            raise self._trouble
        return [running.result for running in self._calls if running.result is not None]

    async def messages(self) -> list[dict[str, Any]]:
        """Wait for all calls and return the messages that answer them, in the shape in which the model made them.

        Raises:
            ConfigurationError: an option is wrong, or the bus was closed.
        """
        return answers([running.call for running in self._calls], await self.observations())

    async def observations(self) -> list[Observation]:
        """Wait for all calls and return what the model is told of each, in order; adapters make their own messages of it.

        Raises:
            ConfigurationError: an option is wrong, or the bus was closed.
        """
        results = await self.results()
        return self._executor.observed([(result, running.tool) for running, result in zip(self._calls, results, strict=True)])

    # -- one call ---------------------------------------------------------------------------------

    def _begin(self) -> list[RunningCall]:
        """Take the places of all calls, and return those that are to be run."""
        self._begun = True
        # Before anything waits, so that the order is that of the turns and of their calls.
        places = self._places or [self._executor.place(running.tool) for running in self._calls]
        for running, place in zip(self._calls, places, strict=True):
            running.place = place
            if running.same is not None or running.result is not None:
                place.leave()
        return [running for running in self._calls if running.result is None]

    async def _run(self, running: RunningCall) -> None:
        result: ToolResult | None = None
        try:
            if running.after:
                await _ended(running.after)
            if running.place is not None:
                await running.place.wait()
            running.started = time.monotonic()
            if self._logs:
                telemetry.log.info("execution.started", tool=running.name, user=self._executor.user, id=running.call.id)
            result = await self._result(running)
        except ToolError as error:
            result = ToolResult.fail(error.error)
        except ConfigurationError as error:
            self._trouble = error
            result = ToolResult.fail(ErrorInfo("unavailable", "not_open", str(error)))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # It was something of the confirmer's own that was cancelled, and the call with it.
        except Exception as error:  # noqa: BLE001 - a bug of ours: the siblings go on, and the model is told
            telemetry.log.exception("execution.bug", tool=running.name, id=running.call.id)
            result = ToolResult.fail(ErrorInfo("tool_error", "not_called", f"the call could not be made ({type_name(error)})"))
        finally:
            if result is None:
                result = ToolResult.fail(ErrorInfo("cancelled", message="the turn was cancelled"))
            self._finish(running, result)

    def _finish(self, running: RunningCall, result: ToolResult) -> None:
        executor = self._executor
        if running.changes:
            result = msgspec.structs.replace(result, meta=msgspec.structs.replace(result.meta, changes=tuple(running.changes)))
        running.result = result
        if running.place is not None:
            if result.error is not None and result.error.code == SESSION_LOST:
                # The model asked for the calls behind it before it could know.
                running.place.spoil()
            running.place.leave()
        if executor.session and running.call.name and running.same is None:
            executor.memories.keep(executor.user, executor.session, running.call.id, running.name, result)
        self._log(running, result)
        if self._is_observed:
            self._emit(running, Finished(result))
        self._arrived.set()

    async def _result(self, running: RunningCall) -> ToolResult:
        call, executor = running.call, self._executor
        if running.place is not None and running.place.in_vain:
            raise ToolError("an earlier call found that the state of this session was lost; this one did not run", code=SESSION_LOST)
        if running.same is not None:
            await _ended([running.same])
            if running.same.result is not None:
                return running.same.result
        if call.problem:
            raise ToolError(call.problem, type="invalid_arguments", code="bad_call")
        arguments, repairs = said(call.arguments)
        running.changes = repairs
        if next(references(arguments), None) is not None:
            arguments = await self._resolved(running, arguments)
        patience = executor.patience()
        for _ in range(_MOST_REVISIONS):
            tool, patience = await self._present(running, patience)
            result = await self._attempt(running, tool, arguments, repairs, patience)
            if result is not None:
                return result
        message = f"the tool {running.name!r} changed again and again while the call was prepared"
        raise ToolError(message, type="unavailable", code="revised", retryable=True)

    async def _present(self, running: RunningCall, patience: float) -> tuple[Tool, float]:
        """Wait for the tool if it may appear, and return it with the seconds that are left to wait.

        Raises:
            ToolError: there is no such tool.
        """
        executor, name = self._executor, running.call.name
        tool = running.tool = executor.find(name)
        may_come = executor.waits if tool is None else not tool.available
        if patience and name and may_come:
            started = time.monotonic()
            problem = await executor.until_callable(name, patience)
            if problem is not None:
                raise ToolError(problem)
            patience = max(0.0, patience - (time.monotonic() - started))
            tool = running.tool = executor.find(name)
        if tool is None:
            former = executor.tools.former(name)
            if former is not None:
                raise ToolError(withdrawn(former, executor.tools.catalogue))
            raise ToolError(_unknown(name, executor), type="not_found", code="unknown_tool")
        return tool, patience

    async def _attempt(
        self, running: RunningCall, tool: Tool, arguments: dict[str, Any], repairs: list[str], patience: float
    ) -> ToolResult | None:
        """Prepare, confirm and make the call of one revision of the tool: the one way to a publication.

        None when there is another revision by now, and nothing was published.
        """
        running.changes = [*repairs]
        arguments = tool.prepare(arguments, running.changes)
        if self._is_observed:
            requested = Requested(arguments, tuple(running.changes))
            if requested != running.requested:
                running.requested = requested
                # Observers may change what they are given, and must not change the call.
                self._emit(running, Requested(_copied(arguments), requested.changes))
        grant = Grant(tool, arguments, on_published=None if running.place is None else running.place.published)
        # A confirmation is useless while no worker serves the tool; if one appears now, the grant without a permission publishes nothing.
        if tool.descriptor.confirm and tool.available:
            grant.confirmation = await self._confirmed(running, tool, arguments)
            arguments = grant.confirmation.arguments
        result = await self._call(running, grant, arguments, patience)
        if grant.superseded and not grant.published and not result.success:
            return None
        return result

    async def _call(self, running: RunningCall, grant: Grant, arguments: dict[str, Any], patience: float) -> ToolResult:
        call = self._executor.stream(grant, arguments, running.call.id or str(running.index), patience)
        relays: list[asyncio.Task[None]] = []
        if self._executor.confirmer is not None:
            tool = grant.tool
            grant.on_asked = lambda asked: relays.append(asyncio.create_task(self._relay(running, tool, arguments, asked)))
        try:
            if not self._is_observed:
                return await call.result()
            async with call:
                async for event in call.events():
                    if type(event) is Finished:
                        return event.result
                    self._emit(running, event)
                    await self._room.wait()
            return await call.result()
        finally:
            if relays:
                await cancelled(*relays)

    async def _relay(self, running: RunningCall, tool: Tool, arguments: dict[str, Any], asked: Asked) -> None:
        """Let the confirmer answer what the running handler asks."""
        confirmer = self._executor.confirmer
        if confirmer is not None:
            await self._executor.confirmations.relay(self._confirmation(running, tool, arguments, asked), confirmer)

    async def _resolved(self, running: RunningCall, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with references replaced by earlier results, after waiting for those of this turn."""
        earlier = self._calls[: running.index]

        def latest(reference: str) -> RunningCall | None:
            """Return an earlier call of this turn, by its id or its tool."""
            by_id = next((other for other in earlier if other.call.id == reference), None)
            return by_id or next((other for other in reversed(earlier) if reference in {other.name, other.call.name}), None)

        for reference in references(arguments):
            other = latest(reference)
            if other is not None:
                await _ended([other])

        def find(reference: str) -> Kept | None:
            other = latest(reference)
            if other is not None and other.result is not None:
                return kept_of(other.name, other.result)
            tool = self._executor.find(reference)
            memory = self._executor.memories.of(self._executor.user, self._executor.session)
            return memory.get(reference) or (None if tool is None else memory.get(tool.name))

        where = "in this session" if self._executor.session else "in this turn (without a session no other turn's results are kept)"
        made: dict[str, Any] = resolved(arguments, find, where=where)
        return made

    async def _confirmed(self, running: RunningCall, tool: Tool, arguments: dict[str, Any]) -> Confirmation:
        """Ask whether a call may run, and return the confirmation once it was given.

        Raises:
            ToolError: ``forbidden`` or ``deadline_exceeded``, or ``invalid_arguments`` that can't be shown.
        """
        executor = self._executor
        if executor.confirmer is None and not executor.confirm_anywhere and not self._is_observed:
            message = f"{tool.name!r} needs a person's permission, and there is nobody to ask"
            raise ToolError(message, type="forbidden", code="unconfirmed")
        confirmation = self._confirmation(running, tool, arguments)
        if self._is_observed:
            self._emit(running, Confirming(confirmation))
        refused = await executor.confirmations.settled(confirmation, executor.confirmer, shared=executor.confirm_anywhere)
        if refused is not None:
            raise ToolError(refused)
        return confirmation

    def _confirmation(self, running: RunningCall, tool: Tool, arguments: dict[str, Any], asked: Asked | None = None) -> Confirmation:
        """Return the request for a call before it runs, or for the question of its running handler."""
        executor = self._executor
        return Confirmation(
            new_run() if asked is None else asked.id,
            running.call.id,
            tool,
            arguments,
            user=executor.user,
            session=executor.session,
            timeout=executor.confirm_timeout if asked is None else asked.timeout,
            question="" if asked is None else asked.question,
            limit=executor.state.dispatcher.settings.max_request,
        )

    # -- telling ----------------------------------------------------------------------------------

    @property
    def _is_observed(self) -> bool:
        """True if somebody is told of what happens to the calls."""
        return self._streaming or bool(self._executor.events.observers)

    def _emit(self, running: RunningCall, event: ExecutionEvent) -> None:
        executor = self._executor
        told = ToolEvent(running.call.id, running.name, running.index, event, executor.user, executor.session)
        executor.events.publish(told)
        if self._streaming:
            self._events.append(told)
            self._bytes += size_of(event)
            if self._bytes >= _MOST_BYTES or len(self._events) >= _MOST_EVENTS:
                self._room.clear()
            self._arrived.set()

    def _log(self, running: RunningCall, result: ToolResult) -> None:
        if result.error is None and not self._logs:
            return
        ms = round((time.monotonic() - running.started) * 1000, 3)
        fields: dict[str, Any] = {"tool": running.name, "user": self._executor.user, "id": running.call.id, "ms": ms}
        if result.error is None:
            telemetry.log.info("execution.finished", **fields)
        elif result.error.type == "tool_error" and result.error.code[:1].isupper():
            # Workers give an exception's class as the code.
            telemetry.log.error("execution.crashed", error=result.error.code, **fields)
        else:
            telemetry.log.warning("execution.failed", error=result.error.type, code=result.error.code, **fields)


def _unknown(name: str, executor: ExecutorContext) -> str:
    first = name[:1].lower()
    candidates = [known for known in executor.tools if known[:1].lower() == first][:_MOST_CANDIDATES]
    near = difflib.get_close_matches(name[:128], candidates, n=3, cutoff=0.5)
    return f"there is no tool {name[:128]!r}{did_you_mean(near)}"


def _copied(value: Any) -> Any:
    """Return JSON-like data whose objects and lists are new ones."""
    if isinstance(value, dict):
        return {name: _copied(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_copied(part) for part in value]
    return value
