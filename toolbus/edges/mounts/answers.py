"""Turn what an MCP server answers into results."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import mcp_types
from anyio.abc import ObjectReceiveStream
from mcp import MCPError
from mcp.shared.message import SessionMessage
from mcp_types.methods import parse_server_result
from pydantic import ValidationError

from toolbus.bus.support.display import harmless
from toolbus.bus.values.encoding import encode_data
from toolbus.bus.values.results import Blob, ErrorInfo, ErrorType, ToolError, ToolResult, deadline_exceeded

_INVALID_REQUEST = -32_600
TOO_LONG = -32_099
"""The code of the error that stands for an answer that was too long to be read."""
UNREADABLE = -32_098
"""The code of the error that stands for an answer that no MCP server may give."""

_MOST_MESSAGE = 2_000
_TYPES: dict[int, ErrorType] = {
    mcp_types.INVALID_PARAMS: "invalid_arguments",
    mcp_types.METHOD_NOT_FOUND: "not_found",
}


def result_of(answer: mcp_types.CallToolResult) -> ToolResult:
    """Return the answer of a tool: texts as output, images, sounds and files as blobs, structured content as data."""
    texts, blobs = _parts(answer.content)
    output = "\n".join(texts)
    if blobs and not texts and answer.structured_content is not None:
        # Models read the data where there is no output, and some servers repeat their pictures in it.
        output = encode_data(_without(answer.structured_content, blobs)).decode()
    if not answer.is_error:
        return ToolResult(output=output or None, data=answer.structured_content, content=tuple(blobs))
    message = output if len(output) <= _MOST_MESSAGE else f"{output[: _MOST_MESSAGE - 1]}…"
    error = ErrorInfo("tool_error", code="mcp_tool_error", message=message or "the tool failed and did not say why")
    whole = output if len(output) > _MOST_MESSAGE else None
    return ToolResult(success=False, output=whole, data=answer.structured_content, error=error, content=tuple(blobs))


def _without(data: Any, blobs: Iterable[Blob]) -> Any:
    """Return data with a note in the place of each text that repeats a blob."""
    notes = {
        base64.b64encode(blob.data).decode(): f"[{blob.media_type}, {len(blob.data):,} bytes, is part of the answer]" for blob in blobs
    }

    def noted(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: noted(each) for name, each in value.items()}
        if isinstance(value, list):
            return [noted(each) for each in value]
        return notes.get(value, value) if isinstance(value, str) else value

    return noted(data)


def contents_of(answer: mcp_types.ReadResourceResult) -> ToolResult:
    """Return what a resource holds."""
    texts, blobs = _parts(answer.contents)
    return ToolResult(output="\n".join(texts), content=tuple(blobs))


def messages_of(answer: mcp_types.GetPromptResult) -> ToolResult:
    """Return the messages of a prompt."""
    messages, lines, blobs = [], [], []
    for each in answer.messages:
        texts, found = _parts([each.content])
        blobs += found
        messages.append({"role": each.role, "text": "\n".join(texts)})
        lines.append(f"{each.role}: {messages[-1]['text']}")
    return ToolResult(output="\n".join(lines), data={"description": answer.description, "messages": messages}, content=tuple(blobs))


def error_of(error: MCPError, effect: str) -> ToolError:
    """Return what a server or the connection to it refused a call with.

    Args:
        error: what was answered.
        effect: the tool's; whether a call of one that may run once only has run is unknown when its server ended.
    """
    if error.code == mcp_types.CONNECTION_CLOSED:
        if effect == "once":
            message = "the mounted server ended while it ran the call, so it is unknown whether the call had its effect"
            return ToolError(message, type="outcome_unknown", code="mount_ended")
        return ToolError("the mounted server ended while it ran the call", type="unavailable", code="mount_ended", retryable=True)
    if is_over(error):
        message = "the mounted server has forgotten its session, and did not run the call"
        return ToolError(message, type="unavailable", code="mount_down", retryable=True)
    if error.code == UNREADABLE or (error.code == mcp_types.PARSE_ERROR and error.message.startswith("Failed to parse ")):
        return bad_answer(error.message)
    message = str(error.message)[:_MOST_MESSAGE]
    if error.code == mcp_types.REQUEST_TIMEOUT:
        return ToolError(deadline_exceeded(message, f"mcp_{error.code}"))
    return ToolError(message, type=_TYPES.get(error.code, "tool_error"), code="too_long" if error.code == TOO_LONG else f"mcp_{error.code}")


def bad_answer(reason: str) -> ToolError:
    """Return the failure that an answer is which no MCP server may give."""
    text = reason.partition("\n")[0][:300]
    return ToolError(f"the mounted server gave an answer that can't be read: {text}", code="bad_answer")


def _parts(content: Iterable[Any]) -> tuple[list[str], list[Blob]]:
    texts: list[str] = []
    blobs: list[Blob] = []
    for each in content:
        part = each.resource if isinstance(each, mcp_types.EmbeddedResource) else each
        if isinstance(part, (mcp_types.TextContent, mcp_types.TextResourceContents)):
            texts.append(part.text)
        elif isinstance(part, (mcp_types.ImageContent, mcp_types.AudioContent, mcp_types.BlobResourceContents)):
            media_type = part.mime_type or "application/octet-stream"
            try:
                data = part.blob if isinstance(part, mcp_types.BlobResourceContents) else part.data
                blobs.append(Blob(media_type, base64.b64decode(data, validate=True)))
            except (binascii.Error, ValueError, TypeError):
                texts.append(f"[{media_type}: not base64, so it can't be read]")
        elif isinstance(part, mcp_types.ResourceLink):
            texts.append(f"[{part.title or part.name}]({part.uri}){': ' + part.description if part.description else ''}")
        else:
            texts.append(f"[content of the kind {getattr(part, 'type', '?')!r}, which is not understood]")
    return texts, blobs


_LEFT_OUT = "toolbus/left_out"
_MOST_TEXT = 200


@asynccontextmanager
async def sifted(transport: AbstractAsyncContextManager[Any], version: Callable[[], str]) -> AsyncIterator[tuple[Any, Any]]:
    """Provide the streams of a transport, in whose lists of tools are only those that can be read.

    Args:
        transport: a connection to a server.
        version: returns the version of the protocol that is spoken over it.
    """
    async with transport as (incoming, outgoing):
        yield _Sifted(incoming, version), outgoing


def left_out_of(page: Any) -> Mapping[str, str]:
    """Return the tools that were left out of a page of a server's list, with the reasons."""
    found: Mapping[str, str] = (page.meta or {}).get(_LEFT_OUT, {})
    return found


class _Sifted(ObjectReceiveStream[Any]):
    """A stream of messages as the SDK reads it."""

    def __init__(self, stream: Any, version: Callable[[], str]) -> None:
        self._stream = stream
        self._version = version

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        item = await self._stream.receive()
        if isinstance(item, SessionMessage) and isinstance(item.message, mcp_types.JSONRPCResponse):
            result = item.message.result
            # Of all results only lists of tools have such a field and no content.
            if isinstance(result.get("tools"), list) and "content" not in result:
                item.message.result = _sift_page(result, self._version())
        return item

    async def aclose(self) -> None:
        await self._stream.aclose()


def _sift_page(page: dict[str, Any], version: str) -> dict[str, Any]:
    meta = page.get("_meta")
    if isinstance(meta, dict) and _LEFT_OUT in meta:
        # It is ours alone.
        page = {**page, "_meta": {key: value for key, value in meta.items() if key != _LEFT_OUT}}
    if not _flaw(page, version) or _flaw({**page, "tools": []}, version):
        return page
    kept, left_out = [], dict[str, str]()
    for number, tool in enumerate(page["tools"]):
        flaw = _flaw({**page, "tools": [tool]}, version)
        if flaw:
            name = tool.get("name") if isinstance(tool, dict) else None
            left_out[harmless(name) if isinstance(name, str) and name else f"number {number + 1} of the list"] = flaw
        else:
            kept.append(tool)
    return {**page, "tools": kept, "_meta": {**(page.get("_meta") or {}), _LEFT_OUT: left_out}}


def _flaw(page: dict[str, Any], version: str) -> str:
    """Return why a page can't be read, or an empty text."""
    try:
        parse_server_result("tools/list", version, page)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        # The tool's place in the page comes first.
        path = ".".join(str(each) for each in first["loc"][2:]) or "the tool"
        return harmless(f"{path}: {first['msg']}")[:_MOST_TEXT]
    except RecursionError:
        return "it is nested too deeply"
    return ""


def is_over(error: Any) -> bool:
    """Return whether an ``MCPError`` says that a server at an address knows its session no more, and has not run the request."""
    return bool(error.code == _INVALID_REQUEST and error.message == "Session terminated")
