"""``McpConnection``: a connection to an MCP server, with the package ``mcp`` and the transports of ``toolbus mount``."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urljoin

from toolbus.bus.support.safe_text import text_of
from toolbus.compat.chat2graph.toolkit import McpConfig, McpTransportConfig, McpTransportType, ToolConnection
from toolbus.edges.mounts.options import Address, Command, Options, environment_for

try:
    from mcp.client.session import ClientSession
    from mcp.client.stdio import StdioServerParameters
except ModuleNotFoundError:
    raise ModuleNotFoundError("connections to MCP servers need the package: pip install mcp", name="mcp") from None
try:
    from mcp.client.websocket import websocket_client  # type: ignore[import-not-found]
except ModuleNotFoundError:  # it needs a further package, and not every version has it
    websocket_client = None


def stdio_client(server: Any) -> Any:
    """Return what starts a server and opens the streams to it, bounded as those of ``toolbus mount``."""
    from toolbus.edges.mounts.stdio import StderrLog, stdio  # noqa: PLC0415 - only some need it

    command = Command((server.command, *server.args), {**environment_for(), **(server.env or {})}, str(server.cwd or ""))
    return stdio(command, Options().most_bytes, StderrLog(command.shown), lambda _: None)


def sse_client(url: str, headers: dict[str, Any] | None = None, **_: Any) -> Any:
    """Return what opens the streams to a server that speaks server-sent events."""
    from toolbus.edges.mounts.http import http  # noqa: PLC0415 - as above

    return http(Address(url, headers or {}, "sse"), Options().most_bytes)


def streamablehttp_client(url: str, headers: dict[str, Any] | None = None) -> Any:
    """Return what opens the streams to a server at an address."""
    from toolbus.edges.mounts.http import http  # noqa: PLC0415 - as above

    return http(Address(url, headers or {}), Options().most_bytes)


class McpConnection(ToolConnection):
    """A connection that is made by ``connect``, and by ``list_tools`` for as long as listing takes.

    One task connects, calls and closes: the package does not allow that another one closes.

    Args:
        tool_group_config: how the server is reached.
    """

    def __init__(self, tool_group_config: McpConfig) -> None:
        super().__init__()
        self._mcp_config = tool_group_config
        self._session: Any = None
        self._cached_tools: list[Any] = []
        self._exit_stack = AsyncExitStack()

    @property
    def transport_config(self) -> McpTransportConfig:
        """The way to the server."""
        return self._mcp_config.transport_config

    async def connect(self) -> None:
        """Connect, unless it is connected.

        Raises:
            ValueError: there is no such transport, or the installed version of ``mcp`` does not have it.
            RuntimeError: the server can't be reached; says which and why.
        """
        if self._session is not None:
            return
        transport = self._transport()
        try:
            streams = await self._exit_stack.enter_async_context(transport())
            session = await self._exit_stack.enter_async_context(ClientSession(*streams[:2]))
            await session.initialize()
        except asyncio.CancelledError:
            await self._exit_stack.aclose()
            raise
        except Exception as error:
            await self._exit_stack.aclose()
            raise RuntimeError(f"the MCP server {self._mcp_config.name!r} can't be reached: {text_of(error)}") from error
        self._session = session

    async def call(self, tool_name: str, **kwargs: Any) -> list[Any]:
        """Call a tool and return the content of its result.

        Raises:
            RuntimeError: it is not connected.
        """
        if self._session is None:
            raise RuntimeError(f"the connection to the MCP server {self._mcp_config.name!r} is not open: call connect() first")
        result = await self._session.call_tool(tool_name, kwargs)
        content: list[Any] = result.content
        return content

    async def list_tools(self) -> list[Any]:
        """Return the server's tools; they are asked for once."""
        if not self._cached_tools:
            await self.connect()
            self._cached_tools = (await self._session.list_tools()).tools
            await self.close()
        return self._cached_tools

    async def close(self) -> None:
        """Close the connection, if it is open."""
        if self._session is not None:
            self._session = None
            await self._exit_stack.aclose()

    def _transport(self) -> Any:
        """Return what opens the streams to the server."""
        config, kind = self.transport_config, self.transport_config.transport_type
        if kind is McpTransportType.STDIO:
            # A server without an environment of its own gets the package's default one.
            started = StdioServerParameters(command=config.command, args=config.args or [], env=config.env or None)
            return lambda: stdio_client(started)
        if kind is McpTransportType.SSE:
            url, timeouts = urljoin(config.url, "sse"), {"timeout": config.timeout, "sse_read_timeout": config.sse_read_timeout}
            return lambda: sse_client(url=url, headers=config.headers, **timeouts)
        if kind is McpTransportType.STREAMABLE_HTTP:
            return lambda: streamablehttp_client(
                urljoin(config.url, "streamable"), **({"headers": config.headers} if config.headers else {})
            )
        if kind is McpTransportType.WEBSOCKET and websocket_client is not None:
            url = config.url.replace("http", "ws", 1) if config.url.startswith("http") else config.url
            return lambda: websocket_client(urljoin(url, "ws"))
        missing = ": the installed version of mcp does not have it" if isinstance(kind, McpTransportType) else ""
        raise ValueError(f"Unsupported transport type: {getattr(kind, 'value', kind)!r}{missing}")
