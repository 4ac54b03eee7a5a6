"""``Sessions``: streamable HTTP for clients of the revisions with a handshake; any gateway answers any session."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, cast

import msgspec
from mcp.server.context import CallNext, HandlerResult, ServerMiddleware, ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, PARSE_ERROR, InitializeRequestParams
from mcp_types.methods import serialize_server_result
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION
from pydantic import ValidationError
from starlette.types import Message, Receive, Scope, Send

from toolbus.bus import telemetry
from toolbus.bus.broker.held.mcp import McpRequest, McpSession
from toolbus.bus.broker.server.keys import session_digest
from toolbus.bus.client.bus import ToolBus
from toolbus.bus.support.deadlines import Deadlines
from toolbus.bus.support.latest import Latest
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.results import BrokerError
from toolbus.edges.gateway.calls import named_event
from toolbus.edges.gateway.guards import disconnected
from toolbus.edges.gateway.options import Principal
from toolbus.edges.mcp.calls import ToolCalls
from toolbus.edges.mcp.client import OpenQuestions, allowed, asks_in_forms
from toolbus.edges.mcp.exchange import (
    CANCELLED,
    COMMENT,
    END,
    PATIENCE,
    PING,
    PRIMED,
    STREAM,
    Place,
    RefusalError,
    SessionCaller,
    SessionExchange,
    failure,
    loop_time,
    priming,
    read_body,
    request_digest,
    send_json,
)
from toolbus.edges.mcp.listing import ListChanges, definitions_of, page_of

MOSTSTREAMS = 10_000
"""Most streams of sessions that one process has open."""

# Seconds after which a call takes long: its request is kept, and its client gets a stream that it can come back to.
_SOON = 0.2
# Seconds for which a session that was found is not looked for again, and after which it has been used again.
_KNOWN = 1.0
_USED = 60.0
_MOST_KNOWN = 20_000
# Seconds for a tick of the clock of what takes long.
_TICK = 0.05
_MOST_ID = 200
_ENTROPY = 24
_QUICK_EFFECTS = frozenset({"read", "idempotent"})
# Of these two revisions our own results have no more than a client may see.
_CURRENT = frozenset({"2025-06-18", "2025-11-25"})

_SESSION = b"mcp-session-id"
_LIST = "list "
_LISTED = re.compile(rf"{_LIST}[0-9a-f]{{32}}").fullmatch
_CHANGED = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'


class _Message(msgspec.Struct):
    """One message of JSON-RPC: a request, a notification, or an answer to a request."""

    jsonrpc: Literal["2.0"]
    id: int | str | msgspec.UnsetType = msgspec.UNSET
    method: str | msgspec.UnsetType = msgspec.UNSET
    params: dict[str, Any] | None = None
    result: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    error: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


_messages = msgspec.json.Decoder(_Message)


class _Known(NamedTuple):
    session: McpSession
    until: float
    used: float


class Sessions:
    """Answers the requests of sessions; it begins no task before the first request.

    Args:
        bus: open while requests are answered.
        server: says what clients are told of the server.
        calls: how tools are called.
        changes: tells of changes of lists.
        limit: bytes of a request's body.
    """

    def __init__(self, bus: ToolBus, server: Server[None], calls: ToolCalls, changes: ListChanges, limit: int) -> None:
        self._bus = bus
        self._server = server
        self._calls = calls
        self._changes = changes
        self._limit = limit
        self._known: Latest[str, _Known] = Latest(_MOST_KNOWN)
        self._streams: dict[str, asyncio.Event] = {}
        self._running: dict[tuple[str, int | str], SessionExchange] = {}
        self._deadlines: Deadlines | None = None
        self._closing = asyncio.Event()

    def close_streams(self) -> None:
        """End every stream that its client can go on with at another gateway."""
        self._closing.set()

    async def answer(self, principal: Principal, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of a client that speaks no revision without sessions."""
        headers = dict(scope["headers"])
        try:
            match scope["method"]:
                case "POST":
                    await self._post(principal, headers, receive, send)
                case "GET":
                    await self._get(principal, headers, receive, send)
                case "DELETE":
                    await self._delete(principal, headers, send)
                case _:
                    await _send_error(send, RefusalError(405, "Method Not Allowed"), (b"allow", b"GET, POST, DELETE"))
        except RefusalError as error:
            await _send_error(send, error)

    # -- sessions ---------------------------------------------------------------------------------

    async def _begin(self, principal: Principal, message: _Message, send: Send) -> None:
        """Begin a session."""
        try:
            wanted = InitializeRequestParams.model_validate(message.params or {}, by_name=False)
        except ValidationError:
            await send_json(send, failure(message.id, INVALID_PARAMS, "Invalid request parameters"))
            return
        version = wanted.protocol_version if wanted.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION
        capabilities = (message.params or {}).get("capabilities")
        asking = capabilities.get("elicitation") if isinstance(capabilities, dict) else None
        session = McpSession(version, isinstance(asking, dict) and asks_in_forms(asking))
        name = secrets.token_hex(_ENTROPY)
        digest = _digest_of(principal.name, principal.user, name)
        async with _reached():
            if not await self._bus.mcp_sessions.begin(principal.user, digest, session):
                raise RefusalError(503, "Too many open sessions", INTERNAL_ERROR)
        self._known[digest] = _Known(session, loop_time() + _KNOWN, loop_time())
        options = self._server.create_initialization_options()
        told = {
            "protocolVersion": version,
            "capabilities": options.capabilities.model_dump(by_alias=True, mode="json", exclude_none=True),
            "serverInfo": self._server.server_info_stamp,
        }
        result = serialize_server_result("initialize", version, told)
        await send_json(send, {"jsonrpc": "2.0", "id": message.id, "result": result}, (_SESSION, name.encode()))

    async def _caller(self, principal: Principal, headers: Mapping[bytes, bytes]) -> SessionCaller:
        """Return the sender of a request in a session.

        Raises:
            RefusalError: the request is of no session of its sender's.
        """
        name = headers.get(_SESSION)
        if not name:
            raise RefusalError(400, "Bad Request: Missing session ID")
        if len(name) <= _MOST_ID:
            digest = _digest_of(principal.name, principal.user, name.decode("latin-1"))
            session = await self._find(principal, digest)
            if session is not None:
                return SessionCaller(principal, digest, session)
        raise RefusalError(404, "Session not found")

    async def _find(self, principal: Principal, digest: str) -> McpSession | None:
        known, now = self._known.get(digest), loop_time()
        if known is not None and now < known.until:
            return known.session
        store = self._bus.mcp_sessions
        try:
            async with asyncio.timeout(PATIENCE):
                session = await store.find(digest)
                used = now if known is None else known.used
                if session is not None and (known is None or now - used > _USED):
                    await store.use(principal.user, digest)
                    used = now
        except (BrokerError, TimeoutError) as error:
            if known is not None:
                # It goes on while the server is away.
                return known.session
            raise RefusalError(503, f"the server can't be reached now: {error}", INTERNAL_ERROR) from None
        if session is None:
            self._forget(digest)
        else:
            self._known[digest] = _Known(session, loop_time() + _KNOWN, used)
        return session

    def _forget(self, digest: str) -> None:
        self._known.pop(digest, None)
        stream = self._streams.get(digest)
        if stream is not None:
            stream.set()

    async def _delete(self, principal: Principal, headers: Mapping[bytes, bytes], send: Send) -> None:
        caller = await self._caller(principal, headers)
        async with _reached():
            await self._bus.mcp_sessions.end(principal.user, caller.digest)
        self._forget(caller.digest)
        await _send_empty(send, 200)

    # -- messages ---------------------------------------------------------------------------------

    async def _post(self, principal: Principal, headers: Mapping[bytes, bytes], receive: Receive, send: Send) -> None:
        accept = headers.get(b"accept", b"")
        if not (_takes(accept, "application/json") and _takes(accept, "text/event-stream")):
            raise RefusalError(406, "Not Acceptable: Client must accept both application/json and text/event-stream")
        message = await self._read(receive)
        if message is None:
            return
        if message.method == "initialize" and message.id is not msgspec.UNSET:
            await self._begin(principal, message, send)
            return
        caller = await self._caller(principal, headers)
        if message.id is not msgspec.UNSET and message.method is not msgspec.UNSET:
            await self._request(caller, message, receive, send)
            return
        await _send_empty(send, 202)
        with contextlib.suppress(BrokerError, TimeoutError):
            async with asyncio.timeout(PATIENCE):
                if message.method == "notifications/cancelled":
                    await self._cancel(caller, message.params)
                elif isinstance(message.id, str) and caller.session.forms:
                    await self._answered(caller, message.id, message)

    async def _read(self, receive: Receive) -> _Message | None:
        """Return the message in a request's body; None when its client has gone.

        Raises:
            RefusalError: it is none, or too long.
        """
        read: list[Message] = []
        body = await read_body(receive, self._limit, read)
        if body is None and read[-1]["type"] != "http.request":
            return None
        if body is None:
            raise RefusalError(413, "Request body too large")
        try:
            message = _messages.decode(body)
        except msgspec.ValidationError as error:
            raise RefusalError(400, f"Validation error: {error}", INVALID_PARAMS) from None
        except DECODE_ERRORS as error:
            raise RefusalError(400, f"Parse error: {error}", PARSE_ERROR) from None
        kinds = [each is not msgspec.UNSET for each in (message.method, message.result, message.error)]
        if sum(kinds) != 1 or (message.id is msgspec.UNSET and not kinds[0]):
            raise RefusalError(400, "Validation error: the body is no request, notification or response", INVALID_PARAMS)
        return message

    async def _request(self, caller: SessionCaller, message: _Message, receive: Receive, send: Send) -> None:
        if message.method != "tools/call":
            await send_json(send, await self._answer(caller, message, lambda: self._simple(caller, message)))
            return
        wanted = _wanted(message.params or {})
        if wanted is None:
            await send_json(send, failure(message.id, INVALID_PARAMS, "Invalid request parameters"))
            return
        exchange = SessionExchange(self._bus, self._closing, caller, cast("int | str", message.id), wanted, receive, send)
        exchange.tool = tool = self._calls.tool(caller.principal, wanted.tool)
        # A request that comes again because its gateway has died joins the call, unless that may as well run twice.
        if tool is not None and (tool.descriptor.effect not in _QUICK_EFFECTS or exchange.client.progress):
            exchange.key = exchange.own_key
        await self._serve(exchange, caller, message)

    async def _simple(self, caller: SessionCaller, message: _Message) -> dict[str, Any]:
        """Return the result of a request that calls no tool.

        Raises:
            MCPError: it is unknown, or its parameters are wrong.
        """
        match message.method:
            case "ping":
                return {}
            case "tools/list":
                cursor = (message.params or {}).get("cursor")
                if not isinstance(cursor, str | None):
                    raise MCPError(INVALID_PARAMS, "Invalid request parameters", "")
                page = page_of(caller.principal.sees(self._bus), cursor, modern=False)
                return serialize_server_result("tools/list", caller.session.version, page)
        raise MCPError(METHOD_NOT_FOUND, "Method not found", message.method)

    async def _serve(self, exchange: SessionExchange, caller: SessionCaller, message: _Message) -> None:
        """Call a tool and answer with its result, as JSON when it comes soon, else at the end of a stream."""
        if self._deadlines is None:
            self._deadlines = Deadlines(asyncio.get_running_loop(), _TICK)
        place = (caller.digest, exchange.id)
        self._running[place] = exchange
        slot = self._deadlines.add(asyncio.get_running_loop().time() + _SOON, exchange, exchange.begin)
        try:
            try:
                answer = await self._answer(caller, message, lambda: self._call(exchange, caller))
            except asyncio.CancelledError:
                if exchange.parted:
                    exchange.task.uncancel()
                    return
                if not exchange.cancelled:
                    raise
                exchange.task.uncancel()
                answer = failure(exchange.id, CANCELLED, "Request cancelled")
            finally:
                self._deadlines.remove(slot, exchange)
                if self._running.get(place) is exchange:
                    del self._running[place]
            delivered = await exchange.finish(answer)
        finally:
            exchange.close()
        if exchange.key and delivered:
            # A client that uses the id of a request again means another call.
            self._bus.mcp_sessions.release(caller.principal.user, exchange.key)

    async def _call(self, exchange: SessionExchange, caller: SessionCaller) -> dict[str, Any]:
        wanted, version = exchange.request, caller.session.version
        result = await self._calls.answer(exchange, caller.principal, exchange.tool, wanted.tool, wanted.arguments)
        if version not in _CURRENT:
            return serialize_server_result("tools/call", version, result)
        result.pop("resultType", None)
        return result

    async def _answer(self, caller: SessionCaller, message: _Message, work: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Return the answer to a request: the result of ``work``, or why there is none."""
        try:
            result = await (self._traced(caller, message, work) if telemetry.active() else work())
        except MCPError as error:
            return failure(message.id, error.error.code, error.error.message, error.error.data)
        except Exception as error:  # noqa: BLE001 - its client is told, and goes on
            telemetry.log.error("gateway.bug", exc_info=error)
            return failure(message.id, INTERNAL_ERROR, "Internal server error")
        return {"jsonrpc": "2.0", "id": message.id, "result": result}

    async def _traced(self, caller: SessionCaller, message: _Message, work: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Do the work within the span that the SDK has for each request."""
        meta = (message.params or {}).get("_meta")
        context = ServerRequestContext[None, None](
            session=cast("Any", None),
            lifespan_context=None,
            protocol_version=caller.session.version,
            method=str(message.method),
            params=message.params,
            request_id=cast("int | str", message.id),
            meta=cast("Any", meta if isinstance(meta, dict) else None),
        )

        async def innermost(_: ServerRequestContext[Any, Any]) -> dict[str, Any]:
            return await work()

        run: CallNext = innermost
        for middleware in reversed(self._server.middleware):
            run = _within(middleware, run)
        return cast("dict[str, Any]", await run(context))

    async def _cancel(self, caller: SessionCaller, params: Mapping[str, Any] | None) -> None:
        """End a call of the session, at whichever gateway it is."""
        request = (params or {}).get("requestId")
        if isinstance(request, bool) or not isinstance(request, (int, str)):
            return
        exchange = self._running.get((caller.digest, request))
        if exchange is not None:
            exchange.cancel()
        else:
            await self._bus.mcp_sessions.cancel(request_digest(caller, request))

    async def _answered(self, caller: SessionCaller, id: str, message: _Message) -> None:
        """Take in what the client's user has answered; what is no answer to the form allows nothing."""
        if message.result is msgspec.UNSET:
            # Others may answer meanwhile, so the call goes on.
            telemetry.log.warning("mcp.elicitation_failed", error=str(message.error)[:_MOST_ID])
            return
        questions = OpenQuestions(self._bus, caller.principal)
        request = await questions.open(id)
        if request is not None:
            await questions.answer(request, allow=allowed(message.result) is True)

    # -- streams ----------------------------------------------------------------------------------

    async def _get(self, principal: Principal, headers: Mapping[bytes, bytes], receive: Receive, send: Send) -> None:
        if not _takes(headers.get(b"accept", b""), "text/event-stream"):
            raise RefusalError(406, "Not Acceptable: Client must accept text/event-stream")
        caller = await self._caller(principal, headers)
        last = headers.get(b"last-event-id", b"").decode("latin-1")
        if not last or _LISTED(last):
            await self._listen(caller, last.removeprefix(_LIST), receive, send)
        elif last.startswith(END):
            # Its client has the whole stream. Clients take this status for a server that has nothing more to send.
            raise RefusalError(405, "Method Not Allowed: the stream has ended")
        else:
            await self._resume(caller, last, receive, send)

    async def _listen(self, caller: SessionCaller, had: str, receive: Receive, send: Send) -> None:
        """Send what concerns no request: changes of the list of tools, ``had`` being the one that the client knows."""
        if len(self._streams) >= MOSTSTREAMS:
            raise RefusalError(503, f"this process has {MOSTSTREAMS} streams and takes no more", INTERNAL_ERROR)
        ended, before = asyncio.Event(), self._streams.get(caller.digest)
        if before is not None:
            # The client has lost it, perhaps without this gateway's knowledge.
            before.set()
        self._streams[caller.digest] = ended
        watch = self._changes.watch(caller.principal.sees(self._bus))
        waits = [asyncio.ensure_future(each) for each in (disconnected(receive), ended.wait(), self._closing.wait())]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": STREAM})
            await self._tell_lists(caller, had, watch.changed, waits, send)
            if not waits[0].done():
                await send({"type": "http.response.body", "body": b""})
        except (OSError, RuntimeError):
            # uvloop raises the second when the client has just closed the connection.
            return
        finally:
            self._changes.stop(watch)
            for each in waits:
                each.cancel()
            if self._streams.get(caller.digest) is ended:
                del self._streams[caller.digest]

    async def _tell_lists(
        self, caller: SessionCaller, had: str, changed: asyncio.Event, ends: Sequence[asyncio.Future[Any]], send: Send
    ) -> None:
        """Tell of changes until one of ``ends`` is done, or the session has ended."""
        tools = caller.principal.sees(self._bus)
        known = had or _list_digest(definitions_of(tools))
        if caller.session.version >= PRIMED:
            await _write(send, priming(f"{_LIST}{known}"))
        elif not had:
            # Older clients understand no event without a message, and need an id to come back with.
            known = ""
        while not any(each.done() for each in ends):
            now = _list_digest(definitions_of(tools))
            if now != known:
                known = now
                await _write(send, named_event(b"message", _CHANGED, f"{_LIST}{now}"))
            change = asyncio.ensure_future(changed.wait())
            await asyncio.wait((change, *ends), timeout=PING, return_when=asyncio.FIRST_COMPLETED)
            if not change.cancel():
                changed.clear()
            elif not any(each.done() for each in ends):
                await _write(send, COMMENT)
                if await self._find(caller.principal, caller.digest) is None:
                    return

    async def _resume(self, caller: SessionCaller, last: str, receive: Receive, send: Send) -> None:
        """Go on with the stream of a call, after the event that the client has."""
        place = Place.read(last)
        async with _reached():
            kept = await self._bus.mcp_sessions.request(request_digest(caller, place.request))
        request = (kept and kept.request) or McpRequest("", {})
        exchange = SessionExchange(self._bus, self._closing, caller, place.request, request, receive, send)
        exchange.come_back(place)
        if kept is None or (kept.request is None and not kept.cancelled):
            await exchange.end(failure(place.request, INTERNAL_ERROR, "what became of this request is not kept any more"))
        elif kept.cancelled:
            await exchange.end(failure(place.request, CANCELLED, "Request cancelled"))
        elif kept.answer:
            await exchange.end(kept.answer)
        else:
            exchange.tool = self._calls.tool(caller.principal, request.tool)
            exchange.key, exchange.question, exchange.allowed = exchange.own_key, kept.question, kept.allowed
            exchange.begin()
            params = {"name": request.tool, "arguments": request.arguments}
            await self._serve(exchange, caller, _Message("2.0", place.request, "tools/call", params))


def _within(middleware: ServerMiddleware[Any], inner: CallNext) -> CallNext:
    async def run(context: ServerRequestContext[Any, Any]) -> HandlerResult:
        return await middleware(context, inner)

    return run


@lru_cache(maxsize=_MOST_KNOWN)
def _digest_of(name: str, user: str, id: str) -> str:
    """Return what stands for a session: only the one who has begun it finds it, by an id that cannot be guessed."""
    return session_digest(msgspec.json.encode((name, user)).decode(), id)


def _list_digest(definitions: list[dict[str, Any]]) -> str:
    return hashlib.blake2b(msgspec.json.encode(definitions), digest_size=16).hexdigest()


def _wanted(params: Mapping[str, Any]) -> McpRequest | None:
    """Return the call that a request's parameters name; None when they are wrong."""
    meta, arguments = params.get("_meta"), params.get("arguments")
    if not isinstance(meta, dict | None):
        return None
    given = {"tool": params.get("name"), "arguments": {} if arguments is None else arguments, "token": (meta or {}).get("progressToken")}
    try:
        return msgspec.convert(given, McpRequest)
    except msgspec.ValidationError:
        return None


@lru_cache(maxsize=256)
def _takes(accept: bytes, kind: str) -> bool:
    """Return whether a client with this header takes a media type."""
    kinds = {each.partition(";")[0].strip().lower() for each in accept[:_MOST_ID].decode("latin-1").split(",")}
    return not kinds.isdisjoint({kind, "*/*", f"{kind.partition('/')[0]}/*"})


@contextlib.asynccontextmanager
async def _reached() -> Any:
    """Refuse a request for which the server is needed while it is away.

    Raises:
        RefusalError: it is.
    """
    try:
        async with asyncio.timeout(PATIENCE):
            yield
    except (BrokerError, TimeoutError) as error:
        raise RefusalError(503, f"the server can't be reached now: {error}", INTERNAL_ERROR) from None


async def _write(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _send_error(send: Send, error: RefusalError, *headers: tuple[bytes, bytes]) -> None:
    await send_json(send, failure(None, error.code, str(error)), *headers, status=error.status)


async def _send_empty(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})
