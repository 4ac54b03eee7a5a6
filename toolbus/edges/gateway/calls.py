"""Make the calls that requests ask for, once they are permitted, and answer their results, or their events as they happen."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from toolbus.bus import telemetry
from toolbus.bus.client.calls.call import Call
from toolbus.bus.client.confirmations import Confirmation, Grant, PendingConfirmations
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.values.confirmations import CONFIRM_TIMEOUT
from toolbus.bus.values.envelope import new_id, new_run
from toolbus.bus.values.events import Answered, Asked, Event, Finished, Reset, Started, Text
from toolbus.bus.values.options import ServiceCallOptions
from toolbus.bus.values.results import Blob, ConfigurationError, ErrorInfo, Progress, ToolError, ToolResult
from toolbus.edges.gateway.bodies import EVENTS, RESUME, Problem, answer, call_options, is_answer, wants_events
from toolbus.edges.gateway.gateway import Gateway
from toolbus.edges.gateway.guards import disconnected, unless_disconnected
from toolbus.edges.gateway.operations import Admitted
from toolbus.edges.gateway.options import Principal

TRACE = "traceparent"

# A call that is quicker than this needs nobody who watches for its client's leave.
_QUICK = 0.1
_LEFT: ErrorInfo | None = ErrorInfo("cancelled")


class RequestedCall(msgspec.Struct, frozen=True):
    """A call that a request asks for.

    Attributes:
        tool: name of the tool; empty for a call of a service.
        service: id of the service.
        arguments: as given.
        options: of the call.
    """

    tool: str
    arguments: Mapping[str, Any]
    options: ServiceCallOptions
    service: str = ""

    @property
    def name(self) -> str:
        """The tool, or the service without one."""
        return self.tool or self.service


def made(gateway: Gateway, principal: Principal, asked: RequestedCall) -> Call:
    """Return the call, which is not published yet.

    Raises:
        Problem: 422, an option is wrong.
    """
    try:
        if asked.tool:
            return principal.view(gateway.bus).stream(asked.tool, asked.arguments, **asked.options)
        return gateway.bus.service(asked.service).stream(principal.user, {}, asked.arguments, **asked.options)
    except ConfigurationError as error:
        raise Problem(422, "invalid_request", str(error)) from None


async def answered(request: Request, gateway: Gateway, call: Call, name: str) -> ToolResult:
    """Publish a call and return its result; when the client leaves, the call is cancelled, or kept for it to come back.

    Raises:
        Problem: 422, an option is wrong.
    """
    watching: asyncio.Task[None] | None = None

    async def until_gone() -> None:
        """Wait until the client has gone, and end its call; one with an idempotency key after the time that it has to come back."""
        await disconnected(request.receive)
        if call.options.get("idempotency_key"):
            await asyncio.sleep(gateway.options.resume)
        call.cancel()

    def watch() -> None:
        nonlocal watching
        watching = asyncio.get_running_loop().create_task(until_gone())

    measures, began, error = gateway.measures, time.monotonic(), _LEFT
    slot = gateway.deadlines.add(began + _QUICK, call.id, watch)
    measures.in_flight += 1
    try:
        with telemetry.continued(request.headers.get(TRACE, "")):
            result = await call.result()
        error = result.error
    except ConfigurationError as wrong:
        error = ErrorInfo("invalid_arguments")
        raise Problem(422, "invalid_request", str(wrong)) from None
    finally:
        gateway.deadlines.remove(slot, call.id)
        if watching is not None:
            watching.cancel()
        measures.in_flight -= 1
        measures.ended(name, time.monotonic() - began, error, known=call.request is not None)
    return result


def trace_headers(call: Call) -> dict[str, str]:
    """Return the trace context of the call's span."""
    return {} if call.span is None else {TRACE: call.span.traceparent}


def problem_of(result: ToolResult, headers: dict[str, str]) -> Problem:
    """Return the problem that a failed call is, with what it had answered until then."""
    if result.error is None:
        raise ValueError("the call has not failed")
    problem = Problem.of(result.error)
    problem.headers |= headers
    problem.members["id"] = result.meta.id
    if result.output or result.content:
        problem.members["result"] = result
    if problem.status in {429, 503}:
        problem.headers.setdefault("Retry-After", "1")
    return problem


class Permission:
    """Asks for one call; any process of the namespace may answer.

    Args:
        confirmations: where people are asked.
        tool: the tool, which needs a confirmation.
        call: the call, which is not published yet.
        limit: most bytes of the arguments.

    Raises:
        ToolError: ``invalid_arguments``.
    """

    def __init__(self, confirmations: PendingConfirmations, tool: Tool, call: Call, limit: int) -> None:
        arguments = tool.prepare(call.arguments or {})
        given = call.options.get("timeout")
        user, session = call.options.get("user", ""), call.options.get("session", "")
        timeout = CONFIRM_TIMEOUT if given is None else min(CONFIRM_TIMEOUT, given)
        self._confirmations = confirmations
        self._call = call
        self._grant = Grant(tool)
        self._confirmation = Confirmation(new_run(), "", tool, arguments, user=user, session=session, timeout=timeout, limit=limit)
        self._asking: asyncio.Task[ErrorInfo | None] | None = None

    @property
    def id(self) -> str:
        """The id that an answer names."""
        return self._confirmation.id

    async def refusal(self) -> ErrorInfo | None:
        """Wait for the answer; return None when the call may be published, which has the rest of its time then."""
        began = time.monotonic()
        call, confirmation = self._call, self._confirmation
        call.grant = self._grant
        refused = await self._confirmations.settled(confirmation, None, shared=True)
        if refused is None:
            call.arguments, self._grant.confirmation = confirmation.arguments, confirmation
            if call.options.get("timeout") is not None:
                call.options = {**call.options, "timeout": max(0.001, call.options["timeout"] - (time.monotonic() - began))}
        return refused

    async def events(self) -> AsyncIterator[Event]:
        """Yield that a person is asked and has answered, and then the events of the call."""
        confirmation = self._confirmation
        self._asking = asyncio.create_task(self.refusal())
        yield Asked(confirmation.id, confirmation.request.question, confirmation.timeout)
        await asyncio.wait({self._asking})
        if self._asking.cancelled():
            yield Finished(ToolResult.fail(ErrorInfo("cancelled")))
            return
        refused = self._asking.result()
        yield Answered(confirmation.id, refused is None if refused is None or refused.type == "forbidden" else None)
        if refused is not None:
            yield Finished(ToolResult.fail(refused))
            return
        async for event in self._call.events():
            yield event

    def withdraw(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()


def permission_of(gateway: Gateway, call: Call) -> Permission | None:
    """Return the permission that a call needs, or None.

    Raises:
        Problem: 422, the arguments are wrong.
    """
    tool = gateway.bus.tools.catalogue.tools.get(call.target.tool or "")
    if tool is None or not tool.descriptor.confirm or (tool.descriptor.tenants and not tool.is_for(call.options.get("user", ""))):
        return None
    if not tool.available:
        # Nobody is asked in vain; if a worker appears now, the grant without a permission publishes nothing.
        call.grant = Grant(tool)
        return None
    try:
        return Permission(gateway.bus.confirmations, tool, call, gateway.settings.max_request)
    except ToolError as error:
        raise Problem.of(error.error) from None


async def permitted(request: Request, gateway: Gateway, call: Call) -> None:
    """Return when a call may be published: at once, unless a person must allow it.

    Raises:
        Problem: nobody did, or the client has gone.
    """
    permission = permission_of(gateway, call)
    if permission is not None:
        refused = await unless_disconnected(request, permission.refusal())
        if refused is not None:
            raise Problem.of(refused)


_ID = re.compile(r"([0-9]{1,9})\.([0-9]{1,12})\.([0-9]{1,9})\.([\x20-\x7e]{1,255})").fullmatch


class Position(msgspec.Struct):
    """The part of a call's events that a client has. The same call yields the same events to everybody who reads it from its start.

    Attributes:
        resets: resets so far.
        characters: characters of text since the last reset.
        others: other events since the last reset.
    """

    resets: int = 0
    characters: int = 0
    others: int = 0

    def pass_(self, event: Event) -> None:
        """Move on by one event."""
        if type(event) is Text:
            self.characters += len(event.text)
        elif type(event) is Reset:
            self.resets += 1
            self.characters = self.others = 0
        elif isinstance(event, (Progress, Blob, Asked, Answered)):
            self.others += 1

    def id(self, key: str) -> str:
        """Return the id of the event that led here, in a call with an idempotency key. Any replica can go on from it."""
        return f"{self.resets}.{self.characters}.{self.others}.{key}"


def read_id(id: str) -> tuple[Position, str]:
    """Return the position and the idempotency key that an event's id stands for.

    Raises:
        Problem: 422, it is no id of such an event.
    """
    found = _ID(id)
    if found is None:
        raise Problem(422, "invalid_header", "Last-Event-ID is not the id of an event of a call with an Idempotency-Key")
    return Position(int(found[1]), int(found[2]), int(found[3])), found[4]


class Replay:
    """Leaves out the events that a client has.

    Args:
        had: its position.
    """

    def __init__(self, had: Position) -> None:
        self._had = had
        self._now = Position()

    def unseen(self, event: Event) -> Iterator[Event]:
        """Yield what the client does not have of an event."""
        had, before = self._had, msgspec.structs.replace(self._now)
        self._now.pass_(event)
        now = self._now
        if type(event) is Finished:
            if (now.resets, now.characters) < (had.resets, had.characters):
                # What the client has is of an execution that is not kept any more, so that nothing of it counts.
                yield Reset(event.result.meta.attempts)
                if event.result.output:
                    yield Text(event.result.output)
            yield event
        elif type(event) is Started or before.resets > had.resets:
            yield event
        elif type(event) is Reset:
            if now.resets > had.resets:
                yield event
        elif before.resets == had.resets:
            yield from _rest(event, before, had)


def _rest(event: Event, before: Position, had: Position) -> Iterator[Event]:
    if type(event) is Text:
        left = event.text[max(0, had.characters - before.characters) :]
        if left:
            yield Text(left)
    elif before.others >= had.others:
        yield event


COMMENT = b":\n\n"
"""A line that clients leave out: it shows that the connection lives."""

OPENING = b"retry: 1000\n\n"
"""The line that says when to come back after a lost connection, in milliseconds."""

_NAMES: dict[type[Any], bytes] = {
    Started: b"started",
    Text: b"text",
    Progress: b"progress",
    Blob: b"blob",
    Asked: b"confirm",
    Answered: b"answered",
    Reset: b"reset",
    Finished: b"end",
}
_SEPARATORS = tuple((each.encode(), f"\\u{ord(each):04x}".encode()) for each in "\x85\u2028\u2029")
_encode = msgspec.json.Encoder().encode


def event_bytes(event: Event, id: str = "") -> bytes:
    """Return an event of a call, with its id if it has one."""
    return named_event(_NAMES[type(event)], _encode(event.result if type(event) is Finished else event), id)


def named_event(name: bytes, data: bytes, id: str = "") -> bytes:
    """Return an event with JSON data, in one line: an encoder of JSON escapes line ends, so that no text can begin a line of its own."""
    if not data.isascii():
        # Some clients take these for line ends, too.
        for character, escaped in _SEPARATORS:
            data = data.replace(character, escaped)
    if id:
        return b"event: %b\nid: %b\ndata: %b\n\n" % (name, id.encode("ascii"), data)
    return b"event: %b\ndata: %b\n\n" % (name, data)


# Seconds within which a call that fails is answered with its status, and after which an answer begins in any case.
_OPENING = 1.0


class EventStream(Response):
    """Sends the events of one call; when the client leaves, the call is cancelled, or kept for it to come back.

    Args:
        request, gateway, call: of the client.
        name: of what is called, for the metrics.
        had: the position of a client that has some of the events.
        permission: what the call waits for before it is published.
    """

    def __init__(
        self, request: Request, gateway: Gateway, call: Call, name: str, had: Position | None, permission: Permission | None
    ) -> None:
        self.background = None
        self._request = request
        self._gateway = gateway
        self._call = call
        self._name = name
        self._key = call.options.get("idempotency_key", "")
        self._position = had or Position()
        self._replay = None if had is None else Replay(Position(had.resets, had.characters, had.others))
        self._permission = permission
        self._events: AsyncIterator[Event] = call.events() if permission is None else permission.events()
        self._first: asyncio.Future[Event] | None = None
        self._error: ErrorInfo | None = ErrorInfo("cancelled")
        self._began = time.monotonic()
        self._gone = False
        self._closed = False
        self._wrote = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Publish the call, once it is permitted, and wait a moment for its first event.

        Raises:
            Problem: it failed before anything happened, or an option is wrong.
        """
        self._gateway.measures.in_flight += 1
        try:
            await self._begin()
        except ConfigurationError as error:
            self.close()
            raise Problem(422, "invalid_request", str(error)) from None
        except BaseException:
            self.close()
            raise

    async def _begin(self) -> None:
        with telemetry.continued(self._request.headers.get(TRACE, "")):
            self._first = asyncio.ensure_future(anext(self._events))
        await asyncio.wait({self._first}, timeout=_OPENING)
        if not self._first.done():
            return
        event = self._first.result()
        if type(event) is Finished and not is_answer(event.result.error):
            self._error = event.result.error
            raise problem_of(event.result, trace_headers(self._call))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the call ends."""
        self._gateway.measures.streams += 1
        self._gateway.buffers.add(self._call)
        try:
            await self._send_all(send)
        finally:
            self._gateway.measures.streams -= 1
            self._gateway.buffers.remove(self._call)
            self.close()

    def close(self) -> None:
        """End the call, if it has not ended, and count it."""
        if self._closed:
            return
        self._closed = True
        self._cancel()
        for task in self._tasks:
            task.cancel()
        if self._first is not None and not self._first.done():
            self._first.cancel()
        measures = self._gateway.measures
        measures.in_flight -= 1
        measures.ended(self._name, time.monotonic() - self._began, self._error, known=self._call.request is not None)

    # -- inside -----------------------------------------------------------------------------------

    async def _send_all(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._watch()))
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", **trace_headers(self._call)}
        listed = [(b"content-type", EVENTS.encode()), *((name.encode(), value.encode()) for name, value in headers.items())]
        await send({"type": "http.response.start", "status": 200, "headers": listed})
        await self._write(send, OPENING if self._key else COMMENT)
        self._tasks.append(loop.create_task(self._beat(send)))
        if self._key:
            self._tasks.append(loop.create_task(self._part(send)))
        if self._first is not None:
            await self._send_seen(await self._first, send)
        async for event in self._events:
            await self._send_seen(event, send)
        await self._write(send, b"", last=True)

    async def _send_seen(self, event: Event, send: Send) -> None:
        if type(event) is Finished:
            self._error = event.result.error
        elif self._permission is not None and isinstance(event, (Asked, Answered)) and event.id == self._permission.id:
            # It is no event of the call, which another stream of the same key would have at the same position.
            await self._write(send, event_bytes(event))
            return
        for unseen in (event,) if self._replay is None else self._replay.unseen(event):
            self._position.pass_(unseen)
            await self._write(send, event_bytes(unseen, self._position.id(self._key) if self._key else ""))

    async def _write(self, send: Send, data: bytes, *, last: bool = False) -> None:
        if self._gone:
            return
        self._gone, self._wrote = last, time.monotonic()
        try:
            await send({"type": "http.response.body", "body": data, "more_body": not last})
        except (OSError, RuntimeError):
            # uvloop raises the second when the client has just closed the connection.
            self._gone = True

    async def _beat(self, send: Send) -> None:
        """Write a heartbeat whenever nothing was written for long."""
        pause = self._gateway.options.heartbeat
        while not self._gone:
            await asyncio.sleep(max(0.01, self._wrote + pause - time.monotonic()))
            if time.monotonic() - self._wrote >= pause:
                await self._write(send, COMMENT)

    async def _watch(self) -> None:
        """End the call when the client has gone; one with an idempotency key after the time that it has to come back."""
        await disconnected(self._request.receive)
        self._gone = True
        if self._key:
            await asyncio.sleep(self._gateway.options.resume)
        self._cancel()

    def _cancel(self) -> None:
        if self._permission is not None:
            self._permission.withdraw()
        self._call.cancel()

    async def _part(self, send: Send) -> None:
        """End the stream, but not its call, when the gateway stops: the client goes on at another replica."""
        await self._gateway.stopping.wait()
        if not self._gone:
            await self._write(send, b"", last=True)
            await asyncio.sleep(self._gateway.options.resume)
            self._cancel()


class RunTool(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The body of ``POST /run_tool``."""

    tool_id: str
    params: dict[str, Any] = {}


async def run_tool(asked: Admitted[RunTool]) -> Response:
    """Call the tool that the body names."""
    return await run(asked, asked.body.tool_id, asked.body.params)


async def invoke(asked: Admitted[dict[str, Any]]) -> Response:
    """Call the tool that the path names; the body has its arguments."""
    return await run(asked, asked.request.path_params["name"], asked.body)


async def run(asked: Admitted[Any], tool: str, arguments: dict[str, Any]) -> Response:
    """Call a tool, and answer its result or its events.

    Raises:
        Problem: the call failed for another reason than the tool's own, or can't be made.
    """
    if not tool:
        raise Problem(422, "invalid_body", "a tool has a name; the empty text is none")
    if not asked.principal.sees_all and tool not in asked.principal.sees(asked.gateway.bus):
        # One that the sender may not see is told of as one that does not exist.
        raise Problem(404, "not_found", f"there is no tool {tool!r}", code="unknown_tool")
    return await respond(asked, RequestedCall(tool, arguments, call_options(asked.request)))


async def respond(asked: Admitted[Any], wanted: RequestedCall) -> Response:
    """Make a call, and answer its events if the client asks for them, else its result.

    Raises:
        Problem: see ``run``.
    """
    request, gateway = asked.request, asked.gateway
    await gateway.reachable()
    if wants_events(request):
        had = _resumed(request, wanted)
        call = made(gateway, asked.principal, wanted)
        stream = EventStream(request, gateway, call, wanted.name, had, permission_of(gateway, call))
        await stream.begin()
        return stream
    call, result = await _answered(asked, wanted)
    headers = trace_headers(call)
    if not is_answer(result.error):
        raise problem_of(result, headers)
    return Response(_encode(result), 200, headers, "application/json")


async def _answered(asked: Admitted[Any], wanted: RequestedCall) -> tuple[Call, ToolResult]:
    """Make a call, once it is permitted, and return it with its result."""
    call = made(asked.gateway, asked.principal, wanted)
    await permitted(asked.request, asked.gateway, call)
    return call, await answered(asked.request, asked.gateway, call, wanted.name)


def _resumed(request: Request, wanted: RequestedCall) -> Position | None:
    """Return the client's position in a call that it comes back to, whose key becomes the call's."""
    last = request.headers.get(RESUME)
    if not last:
        return None
    position, key = read_id(last)
    given = wanted.options.setdefault("idempotency_key", key)
    if given != key:
        raise Problem(422, "invalid_header", "Last-Event-ID is of a call with another Idempotency-Key")
    return position


class Chat(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``POST /chat``; without a ``chat_id`` a new conversation begins."""

    message: str
    chat_id: Annotated[str, msgspec.Meta(max_length=255)] = ""


class ChatAnswer(msgspec.Struct, frozen=True):
    """The answer of ``POST /chat``."""

    response: str
    chat_id: str


async def chat(asked: Admitted[Chat]) -> Response:
    """Hand a message to the chat service, in the session that its ``chat_id`` names."""
    chat_id = asked.body.chat_id or new_id()
    options = call_options(asked.request)
    options["session"] = chat_id
    wanted = _chat_call(asked.gateway, asked.principal, {"message": asked.body.message, "chat_id": chat_id}, options)
    if wants_events(asked.request):
        return await respond(asked, wanted)
    await asked.gateway.reachable()
    call, result = await _answered(asked, wanted)
    headers = trace_headers(call)
    if not result.success:
        raise problem_of(result, headers)
    said = result.data.get("response") if isinstance(result.data, dict) else None
    return answer(ChatAnswer(said if isinstance(said, str) else str(result), chat_id), headers=headers)


def _chat_call(gateway: Gateway, principal: Principal, arguments: dict[str, Any], options: ServiceCallOptions) -> RequestedCall:
    """Return the call of the chat service: of the tool with its name, else of the service.

    Raises:
        Problem: 503, there is none.
    """
    name = gateway.options.chat
    if name in principal.sees(gateway.bus):
        return RequestedCall(name, arguments, options)
    if name in gateway.bus.services and principal.sees_all:
        return RequestedCall("", arguments, options, name)
    detail = f"no chat service is registered: start a worker that serves a tool or service with the name {name!r}"
    raise Problem(503, "unavailable", detail, {"Retry-After": "5"}, code="no_chat_service", retryable=True)
