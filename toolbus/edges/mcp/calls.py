"""Answer ``tools/call``."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import Any

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolRequestParams

from toolbus.bus.client.bus import ToolBus
from toolbus.bus.client.calls.call import Call
from toolbus.bus.client.confirmations import Confirmation, Grant
from toolbus.bus.client.tools.definitions import task_after
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.support.display import visible
from toolbus.bus.support.waiting import at_most
from toolbus.bus.values.confirmations import CONFIRM_TIMEOUT, ConfirmationRequest
from toolbus.bus.values.envelope import new_run
from toolbus.bus.values.events import Answered, Asked, Event, Reset, Text
from toolbus.bus.values.naming import did_you_mean
from toolbus.bus.values.options import CallOptions
from toolbus.bus.values.results import Progress, ToolError
from toolbus.edges.gateway.options import Principal
from toolbus.edges.mcp.client import (
    CallerOf,
    Context,
    Exchange,
    OpenQuestions,
    SdkExchange,
    allowed,
    content_of,
    failure_of,
    form,
    reached,
)
from toolbus.edges.mcp.tasks import created

# Characters of a message, and messages that wait; a client that reads slowly gets the latest.
_MOST_MESSAGE = 8_000
_MOST_WAITING = 64
# What a piece of text adds to the progress: it has no measure of its own, and progress must grow.
_STEP = 0.001


class _Note(msgspec.Struct):
    """One notification to be sent."""

    is_text: bool
    done: float
    total: float | None
    message: str
    place: str


class ProgressReport:
    """Sends the progress of one request; a task runs ``send`` while another one calls ``hear``.

    What comes while a notification is on its way is put together, so that a slow client slows no call down.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._waiting: deque[_Note] = deque(maxlen=_MOST_WAITING)
        self._ready = asyncio.Event()
        self._over = False

    def hear(self, event: Event) -> None:
        """Take in an event of the call."""
        if isinstance(event, Text):
            self._text(event.text)
        elif isinstance(event, Progress):
            self._add(False, event.done, event.total, event.message)
        elif isinstance(event, Reset):
            self._text(f"\n[attempt {event.attempt} starts from the beginning]\n")
        elif isinstance(event, Asked):
            self._add(False, 0, None, f"waits for a person: {event.question} (toolbus confirm allow {event.id})")

    def end(self) -> None:
        """Let ``send`` return when it has sent what there is."""
        self._over = True
        self._ready.set()

    async def send(self) -> None:
        """Send until the end."""
        while not self._over or self._waiting:
            await self._ready.wait()
            self._ready.clear()
            while self._waiting:
                note = self._waiting.popleft()
                total = note.total if note.total is not None and note.total >= note.done else None
                await self._exchange.report(note.done, total, note.message or None, note.place)

    def _text(self, text: str) -> None:
        last = self._waiting[-1] if self._waiting else None
        if last is not None and last.is_text and len(last.message) < _MOST_MESSAGE:
            last.message += text
            last.place = self._exchange.place()
        else:
            self._add(True, 0, None, text)

    def _add(self, is_text: bool, done: float, total: float | None, message: str) -> None:
        exchange = self._exchange
        # Progress must grow.
        if done <= exchange.progress:
            done = max(round(exchange.progress + _STEP, 3), math.nextafter(exchange.progress, math.inf))
        exchange.progress = done
        self._waiting.append(_Note(is_text, done, total, message, exchange.place()))
        self._ready.set()


class Following:
    """Reads the events of a call until it ends, its time here is up, or its handler asks what only a new request can answer.

    Args:
        exchange: the request.
        questions: those of handlers.
        call: entered by the caller.
        answered: ids of questions that are answered already.

    Attributes:
        questions: what is asked and waits for an answer in the client's next request.
    """

    def __init__(self, exchange: Exchange, questions: OpenQuestions, call: Call, answered: frozenset[str] = frozenset()) -> None:
        self._exchange = exchange
        self._client = exchange.client
        self._open = questions
        self._call = call
        self._answered = answered
        self._asking: dict[str, asyncio.Task[None]] = {}
        self.questions: list[ConfirmationRequest] = []

    async def run(self, seconds: float | None) -> None:
        """Read the events, for at most ``seconds``; the call has not ended if it must go on elsewhere."""
        report = ProgressReport(self._exchange) if self._client.progress else None
        async with asyncio.TaskGroup() as group:
            if report is not None:
                group.create_task(report.send())
            await at_most(seconds, self._read(report, group))
            if report is not None:
                report.end()
            for task in self._asking.values():
                task.cancel()

    async def _read(self, report: ProgressReport | None, group: asyncio.TaskGroup) -> None:
        async for happened in self._call.events():
            for event in self._exchange.unseen(happened):
                if report is not None:
                    report.hear(event)
                if isinstance(event, (Asked, Answered)) and self._client.elicits and await self._question(event, group):
                    return

    async def _question(self, event: Event, group: asyncio.TaskGroup) -> bool:
        """Let the client's user be asked; return whether this request must end for that."""
        if isinstance(event, Answered):
            task = self._asking.pop(event.id, None)
            if task is not None:
                task.cancel()
                await self._exchange.withdraw(event.id)
            return False
        if not isinstance(event, Asked) or event.id in self._answered:
            return False
        request = await self._open.open(event.id)
        if request is None:
            return False
        if self._client.modern:
            self.questions.append(request)
            return True
        self._asking[event.id] = group.create_task(self._ask(request))
        return False

    async def _ask(self, request: ConfirmationRequest) -> None:
        said = await self._exchange.ask(request.id, str(request))
        if said is not None:
            await self._open.answer(request, allow=said)


_TASK = "task "
_CONFIRM = "confirm "
_CONFIRMATION = "confirm"
_MOST_DIGITS = 6


class ToolCalls:
    """Answers ``tools/call`` with the tools of a bus."""

    def __init__(self, bus: ToolBus, caller_of: CallerOf) -> None:
        self._bus = bus
        self._caller_of = caller_of

    async def call(self, context: Context, params: CallToolRequestParams) -> dict[str, Any]:
        """Call a tool. What fails within the call is a result with ``isError``.

        Raises:
            MCPError: the caller sees no such tool, or the bus can't be used.
        """
        caller, exchange = self._caller_of(context), SdkExchange(context)
        with reached("the tools"):
            tool = _found(self._bus, caller, params.name)
            if exchange.client.modern and params.request_state is not None and params.request_state.startswith(_TASK):
                return await self._resume(exchange, caller, tool, params)
            return await self._call(exchange, caller, tool, params.arguments or {}, params)

    async def answer(
        self, exchange: Exchange, caller: Principal, tool: Tool | None, name: str, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        """Call a tool that was found by its name, or not, as ``call`` does, for a request that the SDK has not received.

        Raises:
            MCPError: the caller sees no such tool, or the bus can't be used.
        """
        with reached("the tools"):
            return await self._call(exchange, caller, tool or _found(self._bus, caller, name), arguments)

    def tool(self, caller: Principal, name: str) -> Tool | None:
        """Return a tool that a caller sees, or None."""
        return caller.sees(self._bus).by_wire_name(name)

    def plain(self, caller: Principal, tool: Tool, arguments: dict[str, Any]) -> Call:
        """Return a call that needs no confirmation and whose result is all that is wanted.

        Raises:
            ToolError: the arguments do not fit.
            ConfigurationError: the bus is not open.
        """
        return caller.view(self._bus).stream(tool.name, tool.prepare(arguments))

    async def _call(
        self, exchange: Exchange, caller: Principal, tool: Tool, arguments: dict[str, Any], params: CallToolRequestParams | None = None
    ) -> dict[str, Any]:
        client = exchange.client
        try:
            arguments = tool.prepare(arguments)
            grant = Grant(tool)
            if tool.descriptor.confirm and tool.available:
                run, limit = exchange.question or new_run(), self._bus.settings.max_request
                confirmation = Confirmation(run, "", tool, arguments, user=caller.user, session="", timeout=CONFIRM_TIMEOUT, limit=limit)
                if params is not None and client.modern and client.elicits:
                    waiting = _not_confirmed(confirmation, params)
                    if waiting is not None:
                        return waiting
                elif not exchange.allowed:
                    await self._confirmed(exchange, confirmation)
                    await exchange.permitted()
                arguments, grant.confirmation = confirmation.arguments, confirmation
        except ToolError as error:
            return failure_of(error.error, tool)
        after = task_after(tool.descriptor) if client.tasks else None
        if after is not None or (client.modern and client.elicits and tool.descriptor.effect != "read"):
            return await self._durable(exchange, caller, tool, arguments, grant, after)
        options: CallOptions = {"idempotency_key": exchange.key} if exchange.key else {}
        call = caller.view(self._bus).stream(tool.name, arguments, **options)
        call.grant = grant
        exchange.making(call)
        if not (client.progress or client.elicits):
            return content_of(await call.result(), tool, modern=client.modern)
        async with call:
            following = Following(exchange, OpenQuestions(self._bus, caller), call)
            await following.run(None)
            return content_of(await call.result(), tool, modern=client.modern)

    async def _durable(
        self, exchange: Exchange, caller: Principal, tool: Tool, arguments: dict[str, Any], grant: Grant, after: float | None
    ) -> dict[str, Any]:
        """Call a tool so that the call can go on without this request: as a task, or while the user is asked."""
        tasks = self._bus.tasks
        task, call = await tasks.begin(tool, arguments, caller.user, grant)
        async with call:
            following = Following(exchange, OpenQuestions(self._bus, caller), call)
            at_once = after == 0
            if not (call.done or at_once):
                await following.run(after)
            # Whether a call has ended while its task was kept is chance, and a tool that always makes tasks makes one. Only a call that was
            # not published has no task.
            if call.done and not (at_once and call.entry):
                return content_of(await call.result(), tool, modern=True)
            tasks.let_go(call)
        if after is not None:
            return created(task)
        return _asking(following, f"{_TASK}{task.id} 1")

    async def _resume(self, exchange: Exchange, caller: Principal, tool: Tool, params: CallToolRequestParams) -> dict[str, Any]:
        """Go on with a call whose handler had asked the client's user."""
        tasks = self._bus.tasks
        name, _, number = str(params.request_state).removeprefix(_TASK).partition(" ")
        task = await tasks.find(name, caller.user)
        if task is None or task.record.tool != tool.name:
            raise MCPError(INVALID_PARAMS, "the request state stands for no call of this tool; it may have expired")
        questions = OpenQuestions(self._bus, caller)
        answered = await questions.take(params.input_responses, task.record.call)
        call = tasks.attach(task)
        following = Following(exchange, questions, call, answered)
        async with call:
            try:
                await following.run(None)
            except BaseException:
                # The client has gone, and with it the only one who waits.
                await tasks.cancel(task)
                raise
            if call.done:
                return content_of(await call.result(), tool, modern=True)
        following_round = int(number) + 1 if number.isdecimal() and len(number) < _MOST_DIGITS else 1
        return _asking(following, f"{_TASK}{task.id} {following_round}")

    # -- confirmations before a call --------------------------------------------------------------

    async def _confirmed(self, exchange: Exchange, confirmation: Confirmation) -> None:
        """Wait until the client's user, or anybody elsewhere, allows the call.

        Raises:
            ToolError: nobody did.
        """

        async def ask(confirmation: Confirmation) -> bool | None:
            return await exchange.ask(confirmation.id, str(confirmation))

        if exchange.client.progress:
            text = f"waits for a person: toolbus confirm allow {confirmation.id}"
            await exchange.report(0, None, text, exchange.place())
        refused = await self._bus.confirmations.settled(confirmation, ask if exchange.client.elicits else None, shared=True)
        if refused is not None:
            raise ToolError(refused)


def _asking(following: Following, state: str) -> dict[str, Any]:
    """Return the result that asks the client's user, after which the client goes on with ``state``."""
    requests = {each.id: form(str(each)) for each in following.questions}
    return {"resultType": "input_required", "inputRequests": requests, "requestState": state}


def _found(bus: ToolBus, caller: Principal, name: str) -> Tool:
    """Return a tool that the caller sees.

    Raises:
        MCPError: there is none of this name.
    """
    tools = caller.sees(bus)
    tool = tools.by_wire_name(name)
    if tool is not None:
        return tool
    near = [each for each in bus.near(name, caller.user) if each in tools]
    gone = "; it was there before, and its service has stopped" if tools.former(name) is not None else ""
    raise MCPError(INVALID_PARAMS, f"Unknown tool: {visible(name[:200])}{gone or did_you_mean(near, visible, ' or ')}")


def _not_confirmed(confirmation: Confirmation, params: CallToolRequestParams) -> dict[str, Any] | None:
    """Return the question to a client's user, or None when the user has allowed this very call.

    Raises:
        ToolError: the user did not.
    """
    state = f"{_CONFIRM}{confirmation.digest}"
    said = allowed((params.input_responses or {}).get(_CONFIRMATION)) if params.request_state == state else None
    if said is None:
        return {"resultType": "input_required", "inputRequests": {_CONFIRMATION: form(str(confirmation))}, "requestState": state}
    if not said:
        confirmation.deny()
        message = f"a person did not allow this call of {confirmation.tool!r}"
        raise ToolError(message, type="forbidden", code="denied")
    return None
