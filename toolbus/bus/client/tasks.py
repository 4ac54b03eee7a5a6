"""Calls that outlive the process that began them, found again by the id of a task."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from toolbus.bus.broker.protocols import Fate, TaskRecord
from toolbus.bus.client.calls.assembly import Assembly
from toolbus.bus.client.calls.call import Call, CallTarget
from toolbus.bus.client.confirmations import Grant
from toolbus.bus.client.executor.context import BusState
from toolbus.bus.client.refusing import turning
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.values.envelope import Frame, Request
from toolbus.bus.values.events import Answered, Asked, Event, Finished, Reset, Started, Text
from toolbus.bus.values.options import merged
from toolbus.bus.values.results import BrokerUnavailable, ErrorInfo, Progress, ToolResult, deadline_exceeded

if TYPE_CHECKING:
    from toolbus.bus.broker.held.tasks import Tasks as TaskStore


class TaskState(msgspec.Struct):
    """The state of a task, as far as it is known.

    Attributes:
        started: whether a worker has begun it.
        attempt: the attempt that runs.
        progress: the latest progress.
        question: what the handler waits for a person to answer, or None.
        result: the end, or None while it runs.
        updated: when something was last heard of it, in seconds since 1970.
    """

    started: bool = False
    attempt: int = 0
    progress: Progress | None = None
    question: Asked | None = None
    result: ToolResult | None = None
    updated: float = 0.0
    _text: list[str] = []

    @property
    def text(self) -> str:
        """The text of the call so far."""
        if len(self._text) > 1:
            # Joined when it is asked for: pieces come one by one, and a text may have millions of them.
            self._text = ["".join(self._text)]
        return self._text[0] if self._text else ""

    def hear(self, event: Event) -> None:
        """Take in an event."""
        match event:
            case Text():
                self._text.append(event.text)
            case Started():
                self.started, self.attempt = True, event.attempt
            case Progress():
                self.progress = event
            case Asked():
                self.question = event
            case Answered():
                self.question = None
            case Reset():
                self._text, self.progress, self.attempt = [], None, event.attempt
            case Finished():
                self.question, self.result = None, event.result


def state_of(frames: Iterable[Frame], updated: float) -> TaskState:
    """Return the state that the frames of a call tell of."""
    assembly, state = Assembly(), TaskState(updated=updated)
    run = ""
    for frame in frames:
        events = assembly.feed(frame)
        if assembly.run.token != run:
            # What an earlier run asked is withdrawn.
            run, state.question = assembly.run.token, None
        for event in events:
            state.hear(event)
    state.attempt = assembly.attempt
    return state


_ENTROPY = 24
_LONGEST_ID = 64
_POLL = 0.01
# Seconds past its deadline after which a call is taken for ended although nobody has said so.
_GRACE = 30.0
# Seconds that the server has to answer; while it is away a command waits for it.
_PATIENCE = 10.0


class Task(msgspec.Struct, frozen=True):
    """A task: its id, whose it is, and where its call is."""

    id: str
    user: str
    record: TaskRecord


class Tasks:
    """The tasks of a namespace.

    A task is a shared call whose place is kept on the server under the user and a random id. So any process finds it, and none that
    has another user or no id.
    """

    def __init__(self, state: BusState) -> None:
        self._state, self._dispatcher = state, state.dispatcher

    @turning
    async def begin(self, tool: Tool, arguments: Mapping[str, Any], user: str, grant: Grant | None = None) -> tuple[Task, Call]:
        """Publish a call, and return it with its task as soon as any process would find both.

        The call is this process's own: cancelling it cancels the task, and ``let_go`` leaves it to others. A call that could not be
        published has its result, and its task is kept nowhere.

        Raises:
            BrokerError: the server can't be reached.
        """
        token = secrets.token_urlsafe(_ENTROPY)
        chosen = merged({"user": user}, {"idempotency_key": f"task {token}"})
        call = self._state.make_call(CallTarget(tool.name), arguments, chosen, streaming=True)
        call.grant = grant
        await call.__aenter__()
        try:
            async with self._patience():
                while not call.entry and not call.done:
                    # Its answer comes after that of the publication, unless that waits for a server that is surely the master.
                    await self._store.get(user, token)
                    await asyncio.sleep(0 if call.entry or call.done else _POLL)
                timeout, effect = 0.0 if call.request is None else call.request.timeout, tool.descriptor.effect
                kept = timeout + self._dispatcher.settings.retention
                record = TaskRecord(tool.name, tool.service, call.queue, call.id, call.entry, time.time(), timeout, kept, effect)
                task = Task(token, user, record)
                if call.entry:
                    await self._store.put(user, token, record)
        except BaseException:
            call.cancel()
            raise
        return task, call

    @turning
    async def find(self, id: str, user: str) -> Task | None:
        """Return a user's task; None when there is none of that id, or it is another user's.

        Raises:
            BrokerError: the server can't be reached.
        """
        if not id or len(id) > _LONGEST_ID or not id.isascii():
            return None
        async with self._patience():
            record = await self._store.get(user, id)
        return None if record is None else Task(id, user, record)

    @turning
    async def state(self, task: Task) -> TaskState | None:
        """Return what is known of a task now; None when its answer is not kept any more.

        Raises:
            BrokerError: the server can't be reached.
        """
        async with self._patience():
            found = await self._store.frames(task.record.call)
        if found is None:
            return None
        state = state_of(found.frames, max(found.updated, task.record.created, task.record.cancelled))
        if state.result is None:
            state.result = self._unanswered(task, state)
        return state

    def attach(self, task: Task) -> Call:
        """Return a call that reads the task's events from their start; leaving it does not cancel the task."""
        dispatcher = self._dispatcher
        record = task.record
        call = dispatcher.make_call(CallTarget(record.tool), {}, {"user": task.user}, streaming=True)
        left = max(1.0, record.created + record.kept - time.time())
        request = Request(call.id, "", record.service, record.tool, task.user, timeout=left, shared=True)
        dispatcher.attach(call, request, record.call)
        return call

    def let_go(self, call: Call) -> None:
        """End this process's part of a task's call without cancelling it."""
        call.lasting = True
        call.cancel()

    @turning
    async def cancel(self, task: Task) -> None:
        """Remove a task's call, or tell the worker that runs it.

        Raises:
            BrokerError: the server can't be reached.
        """
        record = task.record
        request = Request(record.call, "", record.service, record.tool, task.user, timeout=record.timeout, effect=record.effect)
        heard: asyncio.Future[Fate] = asyncio.get_running_loop().create_future()

        def on_fate(fate: Fate) -> None:
            if not heard.done():
                heard.set_result(fate)

        left = record.created + record.kept - time.time()
        requests, waited = self._dispatcher.check().broker.requests, max(0.0, left - record.timeout)
        requests.cancel(request, record.queue, record.entry, on_fate, waited=waited)
        async with self._patience():
            fate = await heard
            changed = msgspec.structs.replace(record, cancelled=time.time(), removed=record.removed or fate == "removed")
            await self._store.put(task.user, task.id, changed)

    # -- inside -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def _patience(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(_PATIENCE):
                yield
        except TimeoutError:
            raise BrokerUnavailable(f"the server has not answered within {_PATIENCE:g} s") from None

    @property
    def _store(self) -> TaskStore:
        return self._dispatcher.check().broker.steps.tasks

    def _unanswered(self, task: Task, state: TaskState) -> ToolResult | None:
        """Return the end of a call that no worker will tell of, or None while one may."""
        record = task.record
        if record.removed:
            return ToolResult.fail(ErrorInfo("cancelled", message="cancelled before it ran"))
        late = time.time() - record.created - record.timeout - _GRACE
        if late <= 0 or state.question is not None or state.started:
            return None
        return ToolResult.fail(deadline_exceeded(f"no worker took the call within {record.timeout:g} s"))
