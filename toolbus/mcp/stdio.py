"""Serve one client over standard input and output."""

from __future__ import annotations

from mcp.server.stdio import stdio_server

from toolbus.client.bus import ToolBus
from toolbus.mcp.caller import Caller
from toolbus.mcp.server import BusServer


async def serve_stdio(bus: ToolBus, caller: Caller) -> None:
    """Serve until standard input ends."""
    server = BusServer(bus, lambda _: caller)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())
