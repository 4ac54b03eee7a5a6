"""Run the tool calls of a model's message and answer the messages that the model is sent next."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from toolbus.bus.broker.server.reading import document, skip
from toolbus.bus.client.executor.executor import ToolExecutor
from toolbus.bus.client.executor.observers import ATTACHMENTS, LIMIT, Confirming, Requested, ToolEvent
from toolbus.bus.client.executor.references import Kept, kept_of, references
from toolbus.bus.client.executor.toolcalls import ModelCall, said
from toolbus.bus.client.executor.toolcalls import tool_calls as calls_in
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.support.waiting import beside
from toolbus.bus.values import events
from toolbus.bus.values.confirmations import CONFIRM_TIMEOUT
from toolbus.bus.values.encoding import encode_json
from toolbus.bus.values.events import Asked, Finished, Text
from toolbus.bus.values.results import BrokerError, ConfigurationError, EnvelopeError, ErrorInfo, ToolError, ToolResult
from toolbus.edges.gateway.bodies import EVENTS, Problem, answer, call_options, line, wants_events
from toolbus.edges.gateway.calls import COMMENT, named_event
from toolbus.edges.gateway.gateway import Gateway
from toolbus.edges.gateway.guards import unless_disconnected
from toolbus.edges.gateway.operations import Admitted
from toolbus.edges.gateway.options import Principal

HEARTBEAT = 15.0
"""Seconds without an event after which a comment is sent, so that no proxy takes the connection for dead."""

_MOST_WAITING = 16


def event(kind: str, data: Any) -> bytes:
    """Return a server-sent event with JSON data."""
    return named_event(kind.encode(), encode_json(data))


def of_call(happened: ToolEvent) -> bytes:
    """Return something that happened to one call: named after what happened, with the call's id, tool and index."""
    about: dict[str, Any] = {"id": happened.id, "tool": happened.tool, "index": happened.index}
    match happened.event:
        case Text(text):
            return event("text", {**about, "text": text})
        case Requested(arguments, changes):
            return event("requested", {**about, "arguments": arguments, "changes": changes})
        case Confirming(confirmation):
            asked = {"confirmation": confirmation.id, "question": confirmation.request.question, "timeout": confirmation.timeout}
            return event("confirm", {**about, **asked, "arguments": confirmation.arguments})
        case Asked(ident, question, timeout):
            return event("confirm", {**about, "confirmation": ident, "question": question, "timeout": timeout})
        case events.Answered(ident, allowed):
            return event("answered", {**about, "confirmation": ident, "allowed": allowed})
        case Finished(result):
            return event("end", {**about, "success": result.success, "error": result.error})
        case other:
            return event(type_name(other).lower(), {**about, **msgspec.structs.asdict(other)})


async def with_heartbeats(source: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """Yield the events of a source, and a comment whenever none came for a while; leaving early ends the source."""
    made, waiting = anyio.create_memory_object_stream[bytes](_MOST_WAITING)

    # One task makes all of them, because a task group belongs to the task that entered it.
    async def make() -> None:
        async with made, aclosing(source):
            async for found in source:
                await made.send(found)

    async with beside(make()) as making:
        with waiting, suppress(anyio.EndOfStream):
            while True:
                found = COMMENT
                with anyio.move_on_after(HEARTBEAT):
                    found = await waiting.receive()
                yield found
        await making


_MOST_DOCUMENT = 262_144
_TOO_LARGE = "is too large to be referred to in a later turn"


class _Shared(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """One result as the replicas share it."""

    call: str
    tool: str
    value: Any = None
    problem: str = ""


async def recall(executor: ToolExecutor, calls: Sequence[ModelCall]) -> None:
    """Load the results of a session into the executor's memory, if any of these calls refers to one.

    Raises:
        BrokerError: the server could not be asked.
    """
    if not executor.session or not any(map(_refers, calls)):
        return
    for found in await executor.state.steps.results.read(executor.user, executor.session):
        try:
            shared = document(found, _Shared)
        except EnvelopeError as error:
            skip("results", error, field=executor.session)
            continue
        executor.memories.put(executor.user, executor.session, shared.call, Kept(shared.tool, shared.value, len(found), shared.problem))


async def share(executor: ToolExecutor, calls: Sequence[ModelCall], results: Sequence[ToolResult]) -> None:
    """Keep the results of a turn for whichever replica runs the session's next one."""
    if not executor.session:
        return
    made: list[bytes] = []
    for call, result in zip(calls, results, strict=True):
        tool = executor.find(call.name)
        name = call.name if tool is None else tool.name
        if name:
            made.append(_encoded(call.id, name, result))
    await executor.state.steps.results.keep(executor.user, executor.session, made)


def _refers(call: ModelCall) -> bool:
    try:
        arguments, _ = said(call.arguments)
    except ToolError:
        return False
    return any(True for _ in references(arguments))


def _encoded(call: str, tool: str, result: ToolResult) -> bytes:
    kept = kept_of(tool, result)
    made = msgspec.json.encode(_Shared(call, tool, kept.value, kept.problem))
    return made if len(made) <= _MOST_DOCUMENT else msgspec.json.encode(_Shared(call, tool, None, _TOO_LARGE))


MOST_CALLS = 256
"""Most calls of one message."""

MOST_METADATA = 16_384
"""Most bytes of the metadata, as JSON."""

# A message of a provider has one of these; a wrapped one does not.
_OF_MESSAGES = frozenset({"role", "choices", "tool_calls", "output", "content", "name", "function"})


class TurnOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options that a client may give; see ``bus.executor``."""

    session: str = ""
    timeout: float | None = None
    idle_timeout: float | None = None
    wait: float | bool | None = None
    idempotency_key: str | None = None
    metadata: dict[str, str] | None = None
    initial: dict[str, Any] | None = None
    concurrent: bool = True
    sequential: tuple[str, ...] = ()
    output_limit: int = LIMIT
    attachment_limit: int = ATTACHMENTS
    confirm_timeout: float = CONFIRM_TIMEOUT
    confirm_anywhere: bool | None = None


class TurnRequest(msgspec.Struct, frozen=True):
    """The calls of a message and their options."""

    calls: list[ModelCall]
    options: TurnOptions


def turn_request(request: Request, message: Any, longest: float) -> TurnRequest:
    """Return what a request asks for.

    The body is a model's message as its provider gave it, with options in headers; or ``{"message": …}`` with the options beside it.

    Args:
        request: its headers are read.
        message: its body.
        longest: the most seconds of a call.

    Raises:
        Problem: the body holds no message, or an option is wrong.
    """
    found = message
    given: dict[str, Any] = {}
    if isinstance(found, Mapping) and "message" in found and not _OF_MESSAGES & found.keys():
        given = {name: value for name, value in found.items() if name != "message"}
        found = found["message"]
    if "user" in given:
        raise Problem(422, "invalid_options", "the user is whom the token names; a body can't choose one")
    if found is None:
        raise Problem(422, "invalid_message", "the body is null, which is no message of a model")
    try:
        calls = calls_in(found)
        options = msgspec.convert({**call_options(request), **given}, TurnOptions)
    except ConfigurationError as error:
        raise Problem(422, "invalid_message", str(error)) from None
    except msgspec.ValidationError as error:
        raise Problem(422, "invalid_options", f"{error}; there are: {', '.join(TurnOptions.__struct_fields__)}") from None
    if len(calls) > MOST_CALLS:
        raise Problem(422, "invalid_message", f"a message has at most {MOST_CALLS} calls, not {len(calls):,}")
    _check(options, longest)
    return TurnRequest(calls, options)


def _check(options: TurnOptions, longest: float) -> None:
    """Check options of the body as if they stood in headers.

    Raises:
        Problem: 422.
    """
    for name, text in (("session", options.session), ("idempotency_key", options.idempotency_key)):
        # No session and the empty one are the same; an empty key is a mistake.
        if text or (text is not None and name != "session"):
            line(name, text)
    if options.timeout is not None and not 0 < options.timeout <= longest:
        detail = f"timeout is a number of seconds above 0 and at most {longest:g} (TOOLBUS_MAX_TIMEOUT), not {options.timeout:g}"
        raise Problem(422, "invalid_options", detail)
    if options.metadata is not None and len(msgspec.json.encode(options.metadata)) > MOST_METADATA:
        raise Problem(422, "invalid_options", f"metadata has more than {MOST_METADATA:,} bytes")


class Answered(msgspec.Struct, frozen=True):
    """The end of one call of a message."""

    id: str
    name: str
    success: bool
    error: ErrorInfo | None
    changes: tuple[str, ...]


class Answers(msgspec.Struct, frozen=True):
    """The messages that answer a model's message, and the ends of its calls."""

    messages: list[dict[str, Any]]
    calls: list[Answered]


_STREAM = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def tool_calls(asked: Admitted[Any]) -> Response:
    """Answer the messages and the ends of the calls, or the same as the last of the server-sent events."""
    wanted = turn_request(asked.request, asked.body, asked.gateway.settings.max_timeout)
    executor = _executor(asked.gateway, asked.principal, wanted.options)
    if wants_events(asked.request):
        return StreamingResponse(with_heartbeats(_streamed(executor, wanted)), 200, _STREAM, EVENTS)
    return answer(await unless_disconnected(asked.request, _answered(executor, wanted)))


def _executor(gateway: Gateway, principal: Principal, options: TurnOptions) -> ToolExecutor:
    # An executor that is given a view does not wait for tools that may yet appear.
    tools = None if principal.sees_all else principal.sees(gateway.bus)
    given: dict[str, Any] = {name: value for name, value in msgspec.structs.asdict(options).items() if value is not None and value != ""}
    del given["concurrent"]
    try:
        return principal.view(gateway.bus).executor(tools=tools, **given)
    except ConfigurationError as error:
        raise Problem(422, "invalid_options", str(error)) from None


async def _answered(executor: ToolExecutor, asked: TurnRequest) -> Answers:
    try:
        await recall(executor, asked.calls)
        turn = executor.turn(asked.calls, concurrent=asked.options.concurrent)
        results = await turn.results()
        messages = await turn.messages()
        await share(executor, asked.calls, results)
    except ConfigurationError as error:
        raise Problem(422, "invalid_options", str(error)) from None
    return _document(messages, asked.calls, results)


async def _streamed(executor: ToolExecutor, asked: TurnRequest) -> AsyncGenerator[bytes, None]:
    try:
        await recall(executor, asked.calls)
        async with executor.turn(asked.calls, concurrent=asked.options.concurrent, streaming=True) as turn:
            async for happened in turn:
                yield of_call(happened)
            results = await turn.results()
            messages = await turn.messages()
        await share(executor, asked.calls, results)
    except BrokerError as error:
        yield event("error", Problem(503, "unavailable", str(error)).document())
    except ConfigurationError as error:
        yield event("error", Problem(422, "invalid_options", str(error)).document())
    else:
        yield event("messages", _document(messages, asked.calls, results))


def _document(messages: list[dict[str, Any]], calls: Sequence[ModelCall], results: Sequence[ToolResult]) -> Answers:
    ends = [
        Answered(call.id, call.name, result.success, result.error, result.meta.changes) for call, result in zip(calls, results, strict=True)
    ]
    return Answers(messages, ends)
