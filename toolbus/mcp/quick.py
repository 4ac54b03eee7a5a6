"""Answer plain calls of the latest revision without the SDK, which takes most of a millisecond for each request.

Only a call that needs nothing but its result is answered here: no progress, no questions, no task, no repeated headers. Whatever else
comes, and whatever is not as it should be, is the SDK's to answer, so that there is one opinion on what is wrong with a request.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY, SERVER_INFO_META_KEY
from starlette.types import Message, Receive, Scope, Send

from toolbus import telemetry
from toolbus.client.calls.call import Call
from toolbus.client.tools.tool import Tool
from toolbus.encoding import encode_data, encode_json
from toolbus.mcp.caller import Caller
from toolbus.mcp.calls import ToolCalls
from toolbus.mcp.content import content_of, failure_of
from toolbus.results import BrokerError, ConfigurationError, ToolError

_VERSION = "2026-07-28"
# Seconds of silence after which a connection is shown to live, as the SDK does.
_PING = 15.0

_JSON = [(b"content-type", b"application/json")]
_STREAM = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache, no-transform"), (b"x-accel-buffering", b"no")]
_WANTED = {b"content-type": b"application/json", b"mcp-protocol-version": _VERSION.encode(), b"mcp-method": b"tools/call"}
_META_KEYS = frozenset({PROTOCOL_VERSION_META_KEY, CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY})
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
        self._meta = {SERVER_INFO_META_KEY: info}
        self._limit = limit
        self._with_headers: dict[str, tuple[Tool, bool]] = {}

    async def answer(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> list[Message] | None:
        """Answer a request, or return what of it was read so that somebody else does; None when it was answered."""
        name = _name_of(scope)
        if name is None or telemetry.active():
            return []
        read: list[Message] = []
        request = await self._read(receive, read)
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

    async def _read(self, receive: Receive, read: list[Message]) -> _Call | None:
        size = 0
        while True:
            message = await receive()
            read.append(message)
            if message["type"] != "http.request":
                return None
            size += len(message.get("body", b""))
            if size > self._limit:
                return None
            if not message.get("more_body", False):
                break
        body = read[0]["body"] if len(read) == 1 else b"".join(each.get("body", b"") for each in read)
        try:
            return _decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    async def _run(self, call: Call, tool: Tool, request: _Call, receive: Receive, send: Send) -> None:
        """Wait for the result while the client does, and send it."""
        leaving = asyncio.ensure_future(_gone(receive))
        waiting = asyncio.ensure_future(call.result())
        streaming = False
        try:
            while not waiting.done():
                done, _ = await asyncio.wait((leaving, waiting), timeout=_PING, return_when=asyncio.FIRST_COMPLETED)
                if leaving in done and not waiting.done():
                    return
                if not done:
                    if not streaming:
                        await send({"type": "http.response.start", "status": 200, "headers": _STREAM})
                    streaming = True
                    await send({"type": "http.response.body", "body": b": ping\r\n\r\n", "more_body": True})
            await self._send(send, request, content_of(waiting.result(), tool, modern=True), streaming=streaming)
        finally:
            leaving.cancel()
            # Cancelling the wait cancels the call.
            waiting.cancel()

    async def _send(self, send: Send, request: _Call, result: dict[str, Any], *, streaming: bool = False) -> None:
        result["_meta"] = {**result.get("_meta", {}), **self._meta}
        body = encode_data({"jsonrpc": "2.0", "id": request.id, "result": result})
        if streaming:
            body = b"event: message\r\ndata: " + body + b"\r\n\r\n"
        else:
            headers = [*_JSON, (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _has_headers(self, tool: Tool) -> bool:
        """Return whether headers must repeat some of the tool's arguments."""
        known = self._with_headers.get(tool.name)
        if known is None or known[0] is not tool:
            if len(self._with_headers) > 10_000:
                self._with_headers.clear()
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
    capabilities = meta.get(CLIENT_CAPABILITIES_META_KEY)
    if request.jsonrpc != "2.0" or meta.get(PROTOCOL_VERSION_META_KEY) != _VERSION or not _META_KEYS.issuperset(meta):
        return False
    if (
        not isinstance(capabilities, dict)
        or not _CAPABILITIES.issuperset(capabilities)
        or any(each != {} for each in capabilities.values())
    ):
        return False
    info = meta.get(CLIENT_INFO_META_KEY)
    if info is None:
        return CLIENT_INFO_META_KEY not in meta
    return isinstance(info, dict) and {"name", "version"} <= info.keys() and all(isinstance(value, str) for value in info.values())


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
