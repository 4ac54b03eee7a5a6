"""``McpEndpoint``: streamable HTTP for clients of every revision."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import mcp_types
import msgspec
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.requests import HTTPConnection, Request
from starlette.types import Message, Receive, Scope, Send

from toolbus.bus import telemetry
from toolbus.bus.client.bus import ToolBus
from toolbus.bus.client.calls.call import Call
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.support.latest import Latest
from toolbus.bus.values.encoding import DECODE_ERRORS, encode_data, encode_json
from toolbus.bus.values.results import BrokerError, ConfigurationError, ToolError
from toolbus.edges.gateway.calls import named_event
from toolbus.edges.gateway.guards import disconnected
from toolbus.edges.gateway.options import Principal
from toolbus.edges.mcp.calls import ToolCalls
from toolbus.edges.mcp.client import SCOPE_KEY, TASKS, CallerOf, Context, caller_of_request, content_of, failure_of
from toolbus.edges.mcp.exchange import COMMENT, PING, STREAM, read_body, send_json
from toolbus.edges.mcp.listing import ListChanges, Subscriptions, page_of
from toolbus.edges.mcp.sessions import Sessions
from toolbus.edges.mcp.tasks import TaskMethods, TaskParams, UpdateParams

_VERSION = "2026-07-28"
_WANTED = {b"content-type": b"application/json", b"mcp-protocol-version": _VERSION.encode(), b"mcp-method": b"tools/call"}
_META_KEYS = frozenset({mcp_types.PROTOCOL_VERSION_META_KEY, mcp_types.CLIENT_CAPABILITIES_META_KEY, mcp_types.CLIENT_INFO_META_KEY})
# What makes a client able to take more than a result is none of them.
_CAPABILITIES = frozenset({"roots", "sampling"})


class _Params(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    meta: dict[str, Any] = msgspec.field(name="_meta")
    arguments: dict[str, Any] | None = None


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    jsonrpc: str
    id: int | str
    method: str
    params: _Params


_decoder = msgspec.json.Decoder(_Call)


class QuickCalls:
    """Answers the calls that it can.

    Args:
        calls: how tools are called.
        info: the server's name and version, as each answer repeats them.
        limit: bytes of a request's body.
    """

    def __init__(self, calls: ToolCalls, info: dict[str, Any], limit: int) -> None:
        self._calls = calls
        self._meta = {mcp_types.SERVER_INFO_META_KEY: info}
        self._limit = limit
        self._with_headers: Latest[str, tuple[Tool, bool]] = Latest(10_000)

    async def answer(self, caller: Principal, scope: Scope, receive: Receive, send: Send) -> list[Message] | None:
        """Answer a request, or return what of it was read so that somebody else does; None when it was answered."""
        name = _name_of(scope)
        if name is None or telemetry.active():
            return []
        read: list[Message] = []
        body = await read_body(receive, self._limit, read)
        request = None
        with suppress(*DECODE_ERRORS):
            request = None if body is None else _decoder.decode(body)
        if request is None or request.method != "tools/call" or request.params.name != name or not _is_plain(request):
            return read
        tool = self._calls.tool(caller, name)
        if tool is None or tool.descriptor.confirm or self._has_headers(tool):
            return read
        try:
            call = self._calls.plain(caller, tool, request.params.arguments or {})
        except ToolError as error:
            await self._send(send, request, failure_of(error.error, tool))
            return None
        except (BrokerError, ConfigurationError):
            return read
        await self._run(call, tool, request, receive, send)
        return None

    async def _run(self, call: Call, tool: Tool, request: _Call, receive: Receive, send: Send) -> None:
        """Wait for the result while the client does, and send it."""
        leaving = asyncio.ensure_future(disconnected(receive))
        waiting = asyncio.ensure_future(call.result())
        streaming = False
        try:
            while not waiting.done():
                done, _ = await asyncio.wait((leaving, waiting), timeout=PING, return_when=asyncio.FIRST_COMPLETED)
                if leaving in done and not waiting.done():
                    return
                if not done:
                    if not streaming:
                        await send({"type": "http.response.start", "status": 200, "headers": STREAM})
                    streaming = True
                    await send({"type": "http.response.body", "body": COMMENT, "more_body": True})
            await self._send(send, request, content_of(waiting.result(), tool, modern=True), streaming=streaming)
        finally:
            leaving.cancel()
            # Cancelling the wait cancels the call.
            waiting.cancel()

    async def _send(self, send: Send, request: _Call, result: dict[str, Any], *, streaming: bool = False) -> None:
        result["_meta"] = {**result.get("_meta", {}), **self._meta}
        answer = {"jsonrpc": "2.0", "id": request.id, "result": result}
        if streaming:
            await send({"type": "http.response.body", "body": named_event(b"message", encode_data(answer))})
        else:
            await send_json(send, answer)

    def _has_headers(self, tool: Tool) -> bool:
        """Return whether headers must repeat some of the tool's arguments."""
        known = self._with_headers.get(tool.name)
        if known is None or known[0] is not tool:
            known = self._with_headers[tool.name] = (tool, b"x-mcp-header" in encode_json(tool.parameters))
        return known[1]


def _name_of(scope: Scope) -> str | None:
    """Return the name of the tool that the headers say is called; None when they are not those of a plain call."""
    if scope["method"] != "POST":
        return None
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in headers or name.startswith(b"mcp-param-"):
            return None
        headers[name] = value
    if any(headers.get(name) != value for name, value in _WANTED.items()):
        return None
    accept = headers.get(b"accept", b"")
    called = headers.get(b"mcp-name", b"")
    if b"application/json" not in accept or b"text/event-stream" not in accept or not called.isascii() or called.startswith(b"=?"):
        return None
    return called.decode()


def _is_plain(request: _Call) -> bool:
    """Return whether the client wants nothing but a result."""
    meta = request.params.meta
    capabilities = meta.get(mcp_types.CLIENT_CAPABILITIES_META_KEY)
    if request.jsonrpc != "2.0" or meta.get(mcp_types.PROTOCOL_VERSION_META_KEY) != _VERSION or not _META_KEYS.issuperset(meta):
        return False
    if (
        not isinstance(capabilities, dict)
        or not _CAPABILITIES.issuperset(capabilities)
        or any(each != {} for each in capabilities.values())
    ):
        return False
    info = meta.get(mcp_types.CLIENT_INFO_META_KEY)
    if info is None:
        return mcp_types.CLIENT_INFO_META_KEY not in meta
    return isinstance(info, dict) and {"name", "version"} <= info.keys() and all(isinstance(value, str) for value in info.values())


_SESSION = "toolbus.session"


class BusServer(Server[None]):
    """The tools of a bus, for clients of every revision.

    Args:
        bus: open while the server runs.
        caller_of: returns who sent a request.

    Attributes:
        calls: answers calls of tools.
        changes: tells of changes of the lists of tools.
    """

    def __init__(self, bus: ToolBus, caller_of: CallerOf) -> None:
        self._bus = bus
        self._caller_of = caller_of
        self.changes = ListChanges(bus)
        self._group: asyncio.TaskGroup | None = None
        self.calls = ToolCalls(bus, caller_of)
        tasks = TaskMethods(bus, caller_of)
        self.subscriptions = Subscriptions(bus, caller_of, self.changes, tasks)
        super().__init__(
            "toolbus",
            version=version("toolbus"),
            lifespan=self._running,
            get_tool_input_schema=self._input_schema,
            on_list_tools=self._list,
            on_call_tool=self.calls.call,  # type: ignore[arg-type] # results are JSON already
            on_subscriptions_listen=self.subscriptions.listen,  # type: ignore[arg-type]
        )
        self.extensions[TASKS] = {}
        self.add_request_handler("tasks/get", TaskParams, tasks.get)
        self.add_request_handler("tasks/update", UpdateParams, tasks.update)
        self.add_request_handler("tasks/cancel", TaskParams, tasks.cancel)
        self.add_notification_handler("notifications/initialized", mcp_types.NotificationParams, self._initialized)

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """Return what clients of the revisions with a handshake are told."""
        options = notification_options or NotificationOptions(tools_changed=True)
        # Tasks are of a later revision than these.
        return super().create_initialization_options(options, experimental_capabilities, extensions or {})

    @asynccontextmanager
    async def _running(self, server: Server[None]) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            self._group = group
            following = group.create_task(self.changes.run())
            try:
                yield
            finally:
                self._group = None
                self.subscriptions.close()
                following.cancel()

    async def _list(self, context: Context, params: mcp_types.PaginatedRequestParams | None) -> Any:
        modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        return page_of(self._caller_of(context).sees(self._bus), None if params is None else params.cursor, modern=modern)

    def _input_schema(self, name: str) -> dict[str, Any] | None:
        """Return the schema that says which arguments a request's headers repeat."""
        tool = self._bus.tools.by_wire_name(name)
        return None if tool is None else tool.parameters

    # -- clients with a handshake -----------------------------------------------------------------

    async def _initialized(self, context: Context, params: mcp_types.NotificationParams) -> None:
        """Tell a client that is connected of changes from now on."""
        # The SDK has no other way to what outlives a request.
        connection = context.session._connection
        if self._group is None or _SESSION in connection.state:
            return
        watch = self.changes.watch(self._caller_of(context).sees(self._bus))
        connection.state[_SESSION] = telling = self._group.create_task(watch.tell(lambda method, _: connection.notify(method, None)))
        connection.exit_stack.callback(self.changes.stop, watch)
        connection.exit_stack.callback(telling.cancel)


_WITH_SESSIONS = frozenset(each.encode() for each in HANDSHAKE_PROTOCOL_VERSIONS)

MOST_BODY = 1_048_576
"""Bytes of a request's body."""

_LOOPBACK = ["127.0.0.1", "localhost", "[::1]"]

Admit = Callable[[HTTPConnection], Awaitable[Principal]]
"""Returns who sent a request, or raises what the application answers."""


class McpEndpoint:
    """An ASGI application for one path; it answers while ``run`` is entered.

    Args:
        bus: open while it runs.
        admit: finds out who sent a request.
        loopback: of the requests that came to a loopback address, refuse those that a page of another site made a browser send, by
            their Host and Origin; for servers that take everybody on this machine for their user.
    """

    def __init__(self, bus: ToolBus, admit: Admit, *, loopback: bool) -> None:
        self._admit = admit
        self._server = BusServer(bus, caller_of_request)
        hosts = [name for host in _LOOPBACK for name in (host, f"{host}:*")]
        origins = [f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts]
        security = TransportSecuritySettings(enable_dns_rebinding_protection=loopback, allowed_hosts=hosts, allowed_origins=origins)
        self._security = TransportSecurityMiddleware(security)
        self._open = TransportSecurityMiddleware(TransportSecuritySettings(enable_dns_rebinding_protection=False))
        self._quick = QuickCalls(self._server.calls, self._server.server_info_stamp, MOST_BODY)
        self._sessions = Sessions(bus, self._server, self._server.calls, self._server.changes, MOST_BODY)
        self._manager = StreamableHTTPSessionManager(self._server, security_settings=self._open.settings, max_request_body_size=MOST_BODY)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Serve requests; leaving it ends every stream."""
        async with self._manager.run():
            try:
                yield
            finally:
                self.close_streams()

    def close_streams(self) -> None:
        """End the streams in order that would otherwise keep their connections open."""
        self._server.subscriptions.close()
        self._sessions.close_streams()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request.

        Raises:
            Exception: what ``admit`` raises, which the application around answers.
        """
        caller = await self._admit(HTTPConnection(scope))
        post, has_session = scope["method"] == "POST", _has_session(scope)
        security = self._security if scope["server"] is None or _is_of_this_machine(scope["server"][0]) else self._open
        refused = await security.validate_request(Request(scope), is_post=post)
        if refused is not None:
            await refused(scope, receive, send)
            return
        if has_session:
            await self._sessions.answer(caller, scope, receive, send)
            return
        if post:
            read = await self._quick.answer(caller, scope, receive, send)
            if read is None:
                return
            if read:
                receive = _replayed(read, receive)
        # A header's value has no blanks around it, and not every server has taken them away.
        headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        inner = {**scope, "headers": headers, SCOPE_KEY: caller}
        await self._manager.handle_request(inner, receive, send)


def _has_session(scope: Scope) -> bool:
    """Return whether a request is of a revision with sessions, whose first request names none."""
    version = next((value for name, value in scope["headers"] if name == b"mcp-protocol-version"), None)
    return version is None or version.strip(b" \t") in _WITH_SESSIONS


@lru_cache(maxsize=256)
def _is_of_this_machine(address: str) -> bool:
    """Return whether only programs of this machine reach an address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return True


def _replayed(read: list[Message], receive: Receive) -> Receive:
    """Return what receives again what was read, and then the rest."""
    waiting = iter(read)

    async def again() -> Message:
        for message in waiting:
            return message
        return await receive()

    return again


class LazyEndpoint:
    """An endpoint that begins with the first request, and runs until the event loop ends.

    Args:
        make: returns the endpoint.
        stopping: set when the streams are to end that would keep their connections open.
    """

    def __init__(self, make: Callable[[], McpEndpoint], stopping: asyncio.Event) -> None:
        self._make = make
        self._stopping = stopping
        self._ready: asyncio.Future[McpEndpoint] | None = None
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; the next one after a failed beginning begins anew."""
        if self._ready is None:
            ready = self._ready = asyncio.get_running_loop().create_future()
            self._running = asyncio.create_task(self._run(self._make(), ready), name="toolbus-mcp")
        endpoint = await asyncio.shield(self._ready)
        await endpoint(scope, receive, send)

    async def _run(self, endpoint: McpEndpoint, ready: asyncio.Future[McpEndpoint]) -> None:
        try:
            async with endpoint.run():
                ready.set_result(endpoint)
                await self._stopping.wait()
                endpoint.close_streams()
                # Sessions of the older revisions go on until what is being answered is answered.
                await asyncio.get_running_loop().create_future()
        except Exception as error:  # noqa: BLE001 - requests that wait are answered, and nobody awaits this task
            self._ready = None
            if ready.done():
                telemetry.log.error("gateway.bug", exc_info=error)
            else:
                ready.set_exception(error)


async def serve_stdio(bus: ToolBus, caller: Principal) -> None:
    """Serve until standard input ends."""
    server = BusServer(bus, lambda _: caller)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())
