"""``McpEndpoint``: streamable HTTP for clients of every revision."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.requests import HTTPConnection, Request
from starlette.types import Message, Receive, Scope, Send

from toolbus import telemetry
from toolbus.client.bus import ToolBus
from toolbus.mcp.caller import SCOPE_KEY, Caller, caller_of_request
from toolbus.mcp.quick import QuickCalls
from toolbus.mcp.server import BusServer

MOST_BODY = 1_048_576
"""Bytes of a request's body."""

_LOOPBACK = ["127.0.0.1", "localhost", "[::1]"]

Admit = Callable[[HTTPConnection], Awaitable[Caller]]
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
        self._manager = StreamableHTTPSessionManager(self._server, security_settings=self._open.settings, max_request_body_size=MOST_BODY)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Serve requests; leaving it ends every stream."""
        async with self._manager.run():
            try:
                yield
            finally:
                self._server.close_streams()

    def close_streams(self) -> None:
        """End the subscriptions in order, which would otherwise keep their connections open."""
        self._server.close_streams()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request.

        Raises:
            Exception: what ``admit`` raises, which the application around answers.
        """
        caller = await self._admit(HTTPConnection(scope))
        post = scope["method"] == "POST"
        security = self._security if _came_to_this_machine(scope) else self._open
        refused = await security.validate_request(Request(scope), is_post=post)
        if refused is not None:
            await refused(scope, receive, send)
            return
        if post:
            read = await self._quick.answer(caller, scope, receive, send)
            if read is None:
                return
            if read:
                receive = _replayed(read, receive)
        # The SDK lets only the one who has begun a session of the older revisions use it.
        token = AccessToken(token="", client_id=caller.name, scopes=[], subject=caller.user)
        # A header's value has no blanks around it, and not every server has taken them away.
        headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        inner = {**scope, "headers": headers, SCOPE_KEY: caller, "user": AuthenticatedUser(token)}
        await self._manager.handle_request(inner, receive, send)


def _came_to_this_machine(scope: Scope) -> bool:
    """Return whether a request was sent to an address that only programs of this machine reach."""
    try:
        return ipaddress.ip_address(scope["server"][0]).is_loopback
    except (TypeError, ValueError):
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


async def serve_stdio(bus: ToolBus, caller: Caller) -> None:
    """Serve until standard input ends."""
    server = BusServer(bus, lambda _: caller)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())
