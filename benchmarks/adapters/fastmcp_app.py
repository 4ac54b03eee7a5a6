"""FastMCP: the tools as an MCP server, which is also what its proxy and ContextForge stand before."""

from __future__ import annotations

import asyncio

from fastmcp import FastMCP

mcp = FastMCP("bench")


@mcp.tool
async def echo(text: str) -> str:
    """Return the argument."""
    return text


@mcp.tool
async def nap(seconds: float) -> str:
    """Sleep, like a tool that waits for a network."""
    await asyncio.sleep(seconds)
    return "slept"
