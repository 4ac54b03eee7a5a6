"""Tools for the tests of executors, and calls as models write them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from toolbus import (
    ToolService,
    invocation,
    tool,
)

ran: list[str] = []


@tool(service="turns", effect="read")
async def repeat(text: str, times: int = 1) -> str:
    """Repeat a text."""
    ran.append(text)
    return text * times


@tool(service="turns", effect="read")
async def pieces(count: int) -> AsyncIterator[str]:
    """Say numbers."""
    for number in range(count):
        yield f"{number} "


@tool(service="turns", effect="read")
async def crash() -> str:
    """Raise."""
    raise RuntimeError("it broke")


@tool(service="turns", effect="read")
async def wait_a_bit(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "waited"


@tool(service="turns", effect="read", output_limit=200)
async def long() -> str:
    """Say much."""
    return "x" * 5000


@tool(service="turns", effect="read", name="find.docs", groups=["docs"])
async def find_docs(query: str) -> dict[str, Any]:
    """Find documents."""
    return {"results": [{"id": f"{query}-1"}, {"id": f"{query}-2"}]}


@tool(service="turns", effect="read", groups=["docs"])
async def info(ids: list[str]) -> str:
    """Tell about documents."""
    return f"{ids} for {invocation().user}"


@tool(service="turns", effect="once", confirm=True, timeout=5)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


class TwoTier(ToolService):
    """A tool whose argument types are for the model only."""

    id = "two-tier"
    effect = "read"
    tools = [  # noqa: RUF012 - as users write it
        {
            "name": "count-to",
            "description": "Count",
            "arguments": [
                {"name": "limit", "type": "integer", "description": "how far", "required": True},
                {"name": "note", "type": "string", "description": "what for"},
            ],
        }
    ]

    async def invoke(self, user: str, config: Any, arguments: Any) -> Any:
        """Say what came."""
        return json.dumps(arguments)


def chat(id: str, name: str, arguments: Any) -> dict[str, Any]:
    """Return a call of chat completions."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}
