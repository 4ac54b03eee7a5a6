"""Answer the requests of providers' SDKs in this process, as a model that follows a player's script."""

from __future__ import annotations

import importlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.episodes.player import Player
from benchmarks.episodes.script import Call

DONE = "That is all."


def client(default: type, answer: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]) -> Any:
    """Return an HTTP client that gets its answers from a function of the request's document.

    Args:
        default: the SDK's own class of clients, whose package differs between SDKs and their versions.
        answer: returns the document that answers another one.
    """
    package = importlib.import_module(default.__mro__[1].__module__.partition(".")[0])

    async def handle(request: Any) -> Any:
        return package.Response(200, json=await answer(json.loads(request.content)))

    return package.AsyncClient(transport=package.MockTransport(handle))


def chat_call(call: Call) -> dict[str, Any]:
    """Return a call in the form of chat completions."""
    return {"id": call.id, "type": "function", "function": {"name": call.tool, "arguments": json.dumps(call.arguments)}}


async def responses(player: Player, body: dict[str, Any]) -> dict[str, Any]:
    """Answer a request for a response."""
    said = {item["call_id"]: text_of(item["output"]) for item in body["input"] if item.get("type") == "function_call_output"}
    output: list[dict[str, Any]] = [
        {"type": "function_call", "id": f"f{call.id}", "call_id": call.id, "name": call.tool, "arguments": json.dumps(call.arguments)}
        for call in await player.answer(said)
    ]
    if not output:
        words = {"type": "output_text", "text": DONE, "annotations": []}
        output = [{"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [words]}]
    fixed = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {"id": "r", "object": "response", "created_at": 1, "model": "scripted", "output": output, **fixed}


def text_of(content: Any) -> str:
    """Return the text of a content that is a text or a list of parts."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)
