"""MCP servers as programs, for tests to mount."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.contract import Place
from toolbus import ToolBus
from toolbus.edges.mounts import Command, MountedServer, Options, serve
from toolbus.edges.mounts.options import environment_for

_START = """
import asyncio, json, os, signal, sys, time
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
mcp = MCPServer("demo")
"""

USUAL = '''
import base64
from mcp_types import AudioContent, CallToolResult, EmbeddedResource, ImageContent, ResourceLink, TextContent, TextResourceContents

@mcp.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

@mcp.tool(annotations=ToolAnnotations(idempotent_hint=True))
def put(key: str) -> str:
    """Put a key."""
    return f"put {key}"

@mcp.tool()
async def count(steps: int, ctx: Context) -> str:
    """Count, and tell how far it is."""
    for step in range(steps):
        await ctx.report_progress(step, steps, f"step {step}")
    return "counted"

@mcp.tool(structured_output=False)
def parts() -> CallToolResult:
    """Answer with parts of every kind."""
    return CallToolResult(content=[
        TextContent(type="text", text="first"),
        ImageContent(type="image", data=base64.b64encode(b"picture").decode(), mime_type="image/png"),
        AudioContent(type="audio", data="no base64", mime_type="audio/wav"),
        EmbeddedResource(type="resource", resource=TextResourceContents(uri="note://a", text="a note")),
        ResourceLink(type="resource_link", uri="note://b", name="b"),
    ], structured_content={"n": 1})

@mcp.tool(structured_output=False)
def show(size: int) -> CallToolResult:
    """Answer with a picture, and repeat it as data, as the official filesystem server does."""
    shown = ImageContent(type="image", data=base64.b64encode(b"x" * size).decode(), mime_type="image/png")
    return CallToolResult(content=[shown], structured_content={"content": [shown.model_dump(by_alias=True, exclude_none=True)]})

@mcp.tool(structured_output=False)
def refuse() -> str:
    """Fail."""
    raise ToolError("not today")

@mcp.tool(structured_output=False)
def environment() -> str:
    """Show the environment."""
    return json.dumps(sorted(os.environ))

@mcp.tool(structured_output=False)
def process() -> str:
    """Show the process."""
    return str(os.getpid())

@mcp.tool(structured_output=False)
async def wait_for_cancel(file: str) -> str:
    """Wait until it is cancelled, and write that to a file."""
    open(file, "w").write("started")
    try:
        await asyncio.sleep(600)
    except BaseException:
        open(file, "w").write("cancelled")
        raise
    return "never"

@mcp.resource("note://hello")
def note() -> str:
    """A note."""
    return "hello"

@mcp.resource("note://by/{who}")
def note_by(who: str) -> str:
    """A note by someone."""
    return f"by {who}"

@mcp.prompt()
def greet(who: str) -> str:
    """Greet someone."""
    return f"greet {who}"
'''


def program(folder: Path, body: str, name: str = "server.py", run: str = "mcp.run()") -> Path:
    """Write a server with the official SDK, and return its file."""
    file = folder / name
    file.write_text(f"{_START}\n{body}\n{run}\n")
    return file


def raw(folder: Path, body: str, name: str = "raw.py") -> Path:
    """Write a server that speaks line by line itself: ``body`` sees ``say`` and each ``message``."""
    file = folder / name
    lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    file.write_text(f"""
import json, os, sys, time
def say(**fields):
    sys.stdout.write(json.dumps({{"jsonrpc": "2.0", **fields}}) + "\\n")
    sys.stdout.flush()
def welcome(message, **capabilities):
    say(id=message["id"], result={{"protocolVersion": "2025-06-18", "capabilities": {{"tools": {{"listChanged": True}}, **capabilities}},
        "serverInfo": {{"name": "raw", "version": "1"}}}})
def tool(name, **fields):
    return {{"name": name, "description": name, "inputSchema": {{"type": "object"}}, **fields}}
state = {{}}
for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if method == "server/discover":
        say(id=message["id"], error={{"code": -32601, "message": "unknown"}})
        continue
{lines}
""")
    return file


def command(file: Path, *names: str) -> Command:
    """Return how to start a program."""
    return Command((sys.executable, str(file)), environment_for(names))


@asynccontextmanager
async def mounting(place: Place, file: Path, name: str = "demo", **options: Any) -> AsyncIterator[tuple[ToolBus, MountedServer]]:
    """A worker that serves a mounted program, and an open bus."""
    quick = {"first_delay": 0.05, "longest_delay": 0.2, "quiet": 0.02, "between": 0.1, **options}
    server = MountedServer(name, command(file), Options(**quick))
    async with serve(server, settings=place.settings), place.bus() as bus:
        yield bus, server
