"""One table of values, given to a tool through every way in: each way answers the same."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters

from tests.client.executing import chat
from tests.forking import ForkServer
from tests.mcp.site import Raw, Site, text_of
from toolbus import Settings, ToolBus

pytestmark = pytest.mark.anyio

Way = Callable[[str, dict[str, Any]], Awaitable[str]]

TOOLS = """
from toolbus import ToolService, tool

SCHEMA = {
    "type": "object",
    "properties": {
        "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"}, "s": {"type": "string"},
        "l": {"type": "array", "items": {"type": "integer"}},
    },
    "additionalProperties": False,
}

@tool(effect="read")
async def annotated(*, i: int = 0, n: float = 0.5, b: bool = False, s: str = "", l: list[int] = ()) -> str:
    "Say what it was given, by its annotations."
    return repr((i, n, b, s, list(l)))

@tool(effect="read", parameters=SCHEMA)
async def given(*, i=0, n=0.5, b=False, s="", l=()) -> str:
    "Say what it was given, by a schema."
    return repr((i, float(n), b, s, list(l)))

class Invoked(ToolService):
    "A service with tools of its own."
    tools = [{"name": "invoked", "description": "Say what it was given.", "parameters": SCHEMA, "effect": "read"}]

    async def invoke(self, config, arguments):
        made = {"i": 0, "n": 0.5, "b": False, "s": "", "l": [], **arguments}
        return repr((made["i"], float(made["n"]), *(made[name] for name in "bsl")))
"""
NAMES = ("annotated", "given", "invoked")
REFUSED = "refused"
# What comes of each value: what the tool says that it got, or that it was refused.
VALUES: list[tuple[dict[str, Any], tuple[Any, ...] | str]] = [
    ({}, (0, 0.5, False, "", [])),
    ({"i": 5}, (5, 0.5, False, "", [])),
    ({"i": 5.0}, (5, 0.5, False, "", [])),
    ({"i": -0.0}, (0, 0.5, False, "", [])),
    ({"i": "3"}, (3, 0.5, False, "", [])),
    ({"i": "3.0"}, (3, 0.5, False, "", [])),
    ({"i": 2**53 + 1}, (2**53 + 1, 0.5, False, "", [])),
    ({"i": 5.5}, REFUSED),
    ({"i": float(2**53 + 1)}, REFUSED),
    ({"i": 1e300}, REFUSED),
    ({"i": "5.5"}, REFUSED),
    ({"i": "many"}, REFUSED),
    ({"i": True}, REFUSED),
    ({"i": None}, (0, 0.5, False, "", [])),
    ({"l": [1, 2.0, "3"]}, (0, 0.5, False, "", [1, 2, 3])),
    ({"l": "[4]"}, (0, 0.5, False, "", [4])),
    ({"l": [1.5]}, REFUSED),
    ({"n": 3}, (0, 3.0, False, "", [])),
    ({"n": "2.5"}, (0, 2.5, False, "", [])),
    ({"b": "true"}, (0, 0.5, True, "", [])),
    ({"b": 1}, REFUSED),
    ({"s": "3"}, (0, 0.5, False, "3", [])),
    ({"s": 3}, REFUSED),
    ({"x": 1}, REFUSED),
]


def said(ok: bool, text: str) -> str:
    """Return what a tool said that it got, or that the arguments were refused."""
    assert ok or "invalid_arguments" in text or "at `$" in text, text
    return text if ok else REFUSED


@asynccontextmanager
async def ways_in(site: Site, url: str, forks: ForkServer) -> AsyncIterator[dict[str, Way]]:
    """Provide every way to call a tool of a site."""
    from toolbus.adapters.langchain import structured_tools

    settings = Settings.load(site.environment)
    base = url.removesuffix("/mcp")
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        bus, http, raw = await enter(ToolBus(settings=settings)), await enter(httpx.AsyncClient(timeout=40)), await enter(Raw(url))
        words = StdioServerParameters(command=sys.executable, args=["-m", "toolbus", "mcp"], env=site.environment, cwd=site.folder)
        stdio = await enter(Client(words))
        for name in NAMES:
            await bus.wait_for_tool(name)
        adapted = {each.name: each for each in structured_tools(bus.executor())}

        async def call(name: str, arguments: dict[str, Any]) -> str:
            result = await bus.call(name, arguments)
            return said(result.success, str(result.output if result.success else result.error))

        async def execute(name: str, arguments: dict[str, Any]) -> str:
            [made] = await bus.process_tool_calls([chat("c1", name, arguments)])
            return said(made["content"].startswith("("), made["content"])

        async def adapter(name: str, arguments: dict[str, Any]) -> str:
            message = await adapted[name].ainvoke({"type": "tool_call", "id": "c1", "name": name, "args": arguments})
            return said(message.status == "success", str(message.content))

        async def invoke(name: str, arguments: dict[str, Any]) -> str:
            answer = await http.post(f"{base}/v1/tools/{name}/invoke", json=arguments)
            return said(answer.is_success, answer.json()["output"] if answer.is_success else answer.text)

        async def tool_calls(name: str, arguments: dict[str, Any]) -> str:
            answer = await http.post(f"{base}/v1/tool_calls", json={"tool_calls": [chat("c1", name, arguments)]})
            [made] = answer.json()["messages"]
            return said(made["content"].startswith("("), made["content"])

        async def over_http(name: str, arguments: dict[str, Any]) -> str:
            result = await raw.ask("tools/call", name=name, arguments=arguments)
            return said(not result.get("isError"), text_of(result))

        async def over_stdio(name: str, arguments: dict[str, Any]) -> str:
            result = await stdio.call_tool(name, arguments)
            return said(not result.is_error, result.content[0].text)  # type: ignore[union-attr]

        async def shell(name: str, arguments: dict[str, Any]) -> str:
            run = asyncio.to_thread(
                forks.run, "-m", "toolbus", "call", name, "--json", json.dumps(arguments), folder=site.folder, environment=site.environment
            )
            done = await run
            return said(done.returncode == 0, done.stdout.strip() or done.stderr)

        yield {
            "bus.call": call, "executor": execute, "adapter": adapter, "invoke": invoke, "/v1/tool_calls": tool_calls,
            "/mcp": over_http, "stdio": over_stdio, "command line": shell,
        }  # fmt: skip


@pytest.mark.usefixtures("slow")
async def test_every_way_in_casts_alike(site: Site, url: str, forks: ForkServer) -> None:
    """5.0 is an integer and 5.5 is none, a text is the number that it says, and a float that stands for several integers is refused."""
    (site.folder / "casting.py").write_text(TOOLS)
    worker = site.worker("casting.py")
    try:
        async with ways_in(site, url, forks) as ways:
            for arguments, wanted in VALUES:
                for name in NAMES:
                    # A process for each value is enough for the command line.
                    asked = {each: way for each, way in ways.items() if name == NAMES[0] or each != "command line"}
                    found = await asyncio.gather(*(way(name, arguments) for way in asked.values()))
                    assert dict(zip(asked, found, strict=True)) == dict.fromkeys(asked, str(wanted)), (name, arguments)
    finally:
        worker.terminate()
        worker.wait()
