"""Turn what an MCP server answers into results."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any

from mcp import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    REQUEST_TIMEOUT,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    ReadResourceResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from toolbus.encoding import encode_data
from toolbus.mounts.codes import TOO_LONG, is_over, is_unreadable
from toolbus.results import Blob, ErrorInfo, ErrorType, ToolError, ToolResult, deadline_exceeded

_MOST_MESSAGE = 2_000
_TYPES: dict[int, ErrorType] = {
    INVALID_PARAMS: "invalid_arguments",
    METHOD_NOT_FOUND: "not_found",
}


def result_of(answer: CallToolResult) -> ToolResult:
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


def contents_of(answer: ReadResourceResult) -> ToolResult:
    """Return what a resource holds."""
    texts, blobs = _contents(answer.contents)
    return ToolResult(output="\n".join(texts), content=tuple(blobs))


def messages_of(answer: GetPromptResult) -> ToolResult:
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
    if error.code == CONNECTION_CLOSED:
        if effect == "once":
            message = "the mounted server ended while it ran the call, so it is unknown whether the call had its effect"
            return ToolError(message, type="outcome_unknown", code="mount_ended")
        return ToolError("the mounted server ended while it ran the call", type="unavailable", code="mount_ended", retryable=True)
    if is_over(error):
        message = "the mounted server has forgotten its session, and did not run the call"
        return ToolError(message, type="unavailable", code="mount_down", retryable=True)
    if is_unreadable(error):
        return bad_answer(error.message)
    message = str(error.message)[:_MOST_MESSAGE]
    if error.code == REQUEST_TIMEOUT:
        return ToolError(deadline_exceeded(message, f"mcp_{error.code}"))
    return ToolError(message, type=_TYPES.get(error.code, "tool_error"), code="too_long" if error.code == TOO_LONG else f"mcp_{error.code}")


def bad_answer(reason: str) -> ToolError:
    """Return the failure that an answer is which no MCP server may give."""
    text = reason.partition("\n")[0][:300]
    return ToolError(f"the mounted server gave an answer that can't be read: {text}", code="bad_answer")


def _parts(content: Iterable[Any]) -> tuple[list[str], list[Blob]]:
    texts: list[str] = []
    blobs: list[Blob] = []
    for part in content:
        if isinstance(part, TextContent):
            texts.append(part.text)
        elif isinstance(part, (ImageContent, AudioContent)):
            _add_blob(part.data, part.mime_type, texts, blobs)
        elif isinstance(part, EmbeddedResource):
            found = _contents([part.resource])
            texts += found[0]
            blobs += found[1]
        elif isinstance(part, ResourceLink):
            texts.append(f"[{part.title or part.name}]({part.uri}){': ' + part.description if part.description else ''}")
        else:
            texts.append(f"[content of the kind {getattr(part, 'type', '?')!r}, which is not understood]")
    return texts, blobs


def _contents(contents: Iterable[Any]) -> tuple[list[str], list[Blob]]:
    texts: list[str] = []
    blobs: list[Blob] = []
    for each in contents:
        if isinstance(each, TextResourceContents):
            texts.append(each.text)
        elif isinstance(each, BlobResourceContents):
            _add_blob(each.blob, each.mime_type or "application/octet-stream", texts, blobs)
    return texts, blobs


def _add_blob(data: str, media_type: str, texts: list[str], blobs: list[Blob]) -> None:
    try:
        blobs.append(Blob(media_type, base64.b64decode(data, validate=True)))
    except (binascii.Error, ValueError, TypeError):
        texts.append(f"[{media_type}: not base64, so it can't be read]")
