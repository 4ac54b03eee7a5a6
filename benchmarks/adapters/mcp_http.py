"""MCP over streamable HTTP, with the official SDK on both sides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from mcp import Client
from mcp.server.mcpserver import MCPServer

from benchmarks.adapters.contract import Peer, Setup, listening, main, ready

server = MCPServer("bench")


@server.tool()
async def echo(text: str) -> str:
    """Return the argument."""
    return text


@server.tool()
async def nap(seconds: float) -> str:
    """Sleep, like a tool that waits for a network."""
    await asyncio.sleep(seconds)
    return "slept"


app = server.streamable_http_app(json_response=True, stateless_http=True)


class Caller:
    """Calls of one client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def echo(self, text: str) -> str:
        """Have the worker return ``text``."""
        result = await self._client.call_tool("echo", {"text": text})
        return str(getattr(result.content[0], "text", ""))

    async def nap(self, seconds: float) -> None:
        """Have the worker sleep."""
        await self._client.call_tool("nap", {"seconds": seconds})


async def serve(setup: Setup) -> None:
    """Serve without any log."""
    ready()
    await uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=setup.port, log_config=None, access_log=False)).serve()


@asynccontextmanager
async def connect(setup: Setup) -> AsyncIterator[Caller]:
    """Open a client."""
    await listening(setup)
    async with Client(f"{setup.url}/mcp") as client:
        yield Caller(client)


if __name__ == "__main__":
    main(Peer(serve, connect))
