"""The tools that the conformance suite of the Model Context Protocol calls; served by a worker."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

from toolbus import Blob, Progress, ToolError, invocation, tool

_PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
_SOUND = b"RIFF$\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00@\x1f\x00\x00\x80>\x00\x00\x02\x00\x10\x00data\x00\x00\x00\x00"
_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {"$anchor": "addressDef", "type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
_HEADERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "priority": {"type": "integer", "x-mcp-header": "Priority"},
        "verbose": {"type": "boolean", "x-mcp-header": "Verbose"},
        "query": {"type": "string"},
    },
    "required": ["region"],
}


@tool(effect="read")
def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@tool(effect="read")
def test_image_content() -> Blob:
    """Return an image."""
    return Blob("image/png", _PIXEL)


@tool(effect="read")
def test_audio_content() -> Blob:
    """Return a sound."""
    return Blob("audio/wav", _SOUND)


@tool(effect="read")
def test_embedded_resource() -> Blob:
    """Return a file."""
    return Blob("text/plain", b"This is an embedded resource content.")


@tool(effect="read")
async def test_multiple_content_types() -> AsyncIterator[Any]:
    """Return a text, an image and a file."""
    yield "Multiple content types test:"
    yield Blob("image/png", _PIXEL)
    yield Blob("application/json", b'{"test": "data", "value": 123}')


@tool(effect="read")
async def test_tool_with_progress() -> AsyncIterator[Any]:
    """Report progress."""
    for done in (0, 50, 100):
        yield Progress(done, 100, f"Completed step {done} of 100")
        await asyncio.sleep(0.05)
    yield "Done."


@tool(effect="read")
def test_error_handling() -> str:
    """Fail."""
    raise ToolError("This tool intentionally returns an error for testing")


@tool(parameters=_SCHEMA, effect="read")
def json_schema_2020_12_tool(**arguments: Any) -> str:
    """Tool with JSON Schema 2020-12 features."""
    return str(arguments)


@tool(parameters=_HEADERS, effect="read")
def test_custom_headers(**arguments: Any) -> str:
    """Take arguments that headers repeat."""
    return str(arguments)


@tool(task="never")
async def test_input_required_result_elicitation() -> str:
    """Ask the user."""
    await invocation().confirm("Is your name right?")
    return "Hello."


@tool(task="never")
async def test_input_required_result_multi_round() -> str:
    """Ask the user twice."""
    await invocation().confirm("The first question?")
    await invocation().confirm("The second question?")
    return "Asked twice."


@tool(task="never")
async def test_elicitation(message: str) -> str:
    """Ask the user, during the call."""
    await invocation().confirm(message)
    return "User response: allowed"


@tool(task="never")
async def test_streaming_elicitation() -> str:
    """Ask the user while an answer is streamed."""
    await invocation().confirm("May the stream go on?")
    return "It went on."


@tool(effect="read", task="never")
def test_logging_tool() -> str:
    """Return a text, without a message to the client's log."""
    return "Nothing was logged."


@tool(effect="read", task="never")
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}!"


@tool(effect="read", task="always", timeout=120)
async def slow_compute(seconds: float, label: str = "") -> str:
    """Take some seconds."""
    await asyncio.sleep(seconds)
    return f"Computed {label} in {seconds} s"


@tool(effect="read", task="always")
async def failing_job() -> str:
    """Fail, as a task."""
    await asyncio.sleep(0.1)
    raise ToolError("the job failed")


@tool(effect="once", task="always")
async def confirm_delete(filename: str) -> str:
    """Ask before something is deleted, as a task."""
    await invocation().confirm(f"Delete {filename}?")
    return f"Deleted {filename}"
