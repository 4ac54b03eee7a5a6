"""Turn the result of a call into the result of an MCP request."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from toolbus.client.executor.observations import observe
from toolbus.client.tools.declared import output_schema
from toolbus.client.tools.tool import Tool
from toolbus.results import Blob, DescriptorError, ErrorInfo, ToolError, ToolResult
from toolbus.schema import Validator

ERROR_KEY = "toolbus/error"
"""The key of a failure's type, code and details in a result's ``_meta``."""

# Clients cut what is too long for their model; a tool may say a limit of its own.
_WHOLE = 1_000_000_000
_TEXTS = ("text/", "application/json", "application/xml")


def content_of(result: ToolResult, tool: Tool | None, *, modern: bool) -> dict[str, Any]:
    """Return a ``CallToolResult`` as JSON.

    Args:
        result: the end of the call.
        tool: what was called; None when it is gone.
        modern: the client is of revision 2026-07-28 or later, where structured content may be any value.
    """
    result = _checked(result, tool)
    content = [*_texts(result, tool), *(_blob(each, at, result) for at, each in enumerate(result.content))]
    found: dict[str, Any] = {"resultType": "complete", "content": content}
    if result.error is not None:
        found["isError"] = True
        found["_meta"] = {ERROR_KEY: msgspec.to_builtins(result.error)}
        return found
    data = _structured(result, tool)
    if data is not None and (modern or isinstance(data, dict)):
        found["structuredContent"] = data
    return found


def failure_of(error: ErrorInfo, tool: Tool) -> dict[str, Any]:
    """Return a ``CallToolResult`` of a call that failed before it was published."""
    return content_of(ToolResult.fail(error), tool, modern=True)


def _texts(result: ToolResult, tool: Tool | None) -> list[dict[str, Any]]:
    if result.content and result.error is None and not result.observation:
        return []
    said = observe(msgspec.structs.replace(result, content=()), tool, limit=_WHOLE)
    return [{"type": "text", "text": said}]


def _blob(blob: Blob, at: int, result: ToolResult) -> dict[str, Any]:
    """Return an image, a sound or a file as a block of content."""
    kind = blob.media_type or "application/octet-stream"
    family = kind.partition("/")[0]
    if family in {"image", "audio"}:
        return {"type": family, "data": base64.b64encode(blob.data).decode(), "mimeType": kind}
    resource: dict[str, Any] = {"uri": f"toolbus:///results/{result.meta.id or 'call'}/{at}", "mimeType": kind}
    text = _text_of(blob) if kind.startswith(_TEXTS) else None
    if text is None:
        resource["blob"] = base64.b64encode(blob.data).decode()
    else:
        resource["text"] = text
    return {"type": "resource", "resource": resource}


def _text_of(blob: Blob) -> str | None:
    try:
        return blob.data.decode()
    except UnicodeDecodeError:
        return None


# -- structured content -----------------------------------------------------------------------------

_MOST_VALIDATORS = 5_000
_validators: dict[str, tuple[Tool, Validator | None]] = {}


def _structured(result: ToolResult, tool: Tool | None) -> Any:
    if tool is not None and result.data is None and output_schema(tool.descriptor) is not None:
        # The schema may be that of a text.
        return result.output
    return result.data


def _checked(result: ToolResult, tool: Tool | None) -> ToolResult:
    """Return the result, or the failure that data of another form than the tool promises is."""
    validator = _validator(tool) if tool is not None and result.error is None else None
    if tool is None or validator is None:
        return result
    try:
        validator.check({"data": _structured(result, tool)})
    except ToolError as error:
        message = f"what {tool.name!r} returned does not fit its output schema: {error.error.message}"
        return msgspec.structs.replace(result, success=False, data=None, error=ErrorInfo("tool_error", "bad_data", message))
    return result


def _validator(tool: Tool) -> Validator | None:
    """Return what checks the tool's data, made when it is first needed, or None."""
    schema = output_schema(tool.descriptor)
    if schema is None:
        return None
    known = _validators.get(tool.name)
    if known is None or known[0] is not tool:
        if len(_validators) >= _MOST_VALIDATORS:
            _validators.clear()
        known = _validators[tool.name] = (tool, _compiled(schema))
    return known[1]


def _compiled(schema: dict[str, Any]) -> Validator | None:
    # References begin at the root, and arguments are objects.
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    whole = {"type": "object", "properties": {"data": inner}, "required": ["data"], "$defs": schema.get("$defs", {})}
    try:
        return Validator(whole)
    except DescriptorError:
        return None
