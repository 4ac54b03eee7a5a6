"""``McpService``: an MCP server as a group of tools, with the package ``mcp`` and the transports of ``toolbus mount``."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urljoin

from toolbus.bus.support.safe_text import text_of
from toolbus.compat.chat2graph.toolkit import McpConfig, McpTransportConfig, McpTransportType, ToolConnection, ToolGroup


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
            ModuleNotFoundError: the package ``mcp`` is not installed.
            ValueError: there is no such transport, or the installed version of ``mcp`` does not have it.
            RuntimeError: the server can't be reached; says which and why.
        """
        if self._session is not None:
            return
        try:
            from mcp.client.session import ClientSession  # noqa: PLC0415 - the package is optional
        except ModuleNotFoundError:
            raise ModuleNotFoundError("connections to MCP servers need the package: pip install mcp", name="mcp") from None
        transport = self._transport()
        try:
            streams = await self._exit_stack.enter_async_context(transport())
            session = await self._exit_stack.enter_async_context(ClientSession(*streams[:2]))
            await session.initialize()
        except BaseException as error:
            await self._exit_stack.aclose()
            if not isinstance(error, Exception):
                raise
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
        from toolbus.edges.mounts.http import http  # noqa: PLC0415 - it needs the package
        from toolbus.edges.mounts.options import Address, Command, Options, environment_for  # noqa: PLC0415 - as above
        from toolbus.edges.mounts.stdio import StderrLog, stdio  # noqa: PLC0415 - as above

        config, kind, most = self.transport_config, self.transport_config.transport_type, Options().most_bytes
        if kind is McpTransportType.STDIO:
            command = Command((config.command, *(config.args or [])), {**environment_for(), **(config.env or {})})
            return lambda: stdio(command, most, StderrLog(command.shown), lambda _: None)
        if kind is McpTransportType.SSE:
            return lambda: http(Address(urljoin(config.url, "sse"), config.headers, "sse"), most)
        if kind is McpTransportType.STREAMABLE_HTTP:
            return lambda: http(Address(urljoin(config.url, "streamable"), config.headers), most)
        if kind is McpTransportType.WEBSOCKET and (websocket_client := _websocket_client()) is not None:
            url = config.url.replace("http", "ws", 1) if config.url.startswith("http") else config.url
            return lambda: websocket_client(urljoin(url, "ws"))
        missing = ": the installed version of mcp does not have it" if isinstance(kind, McpTransportType) else ""
        raise ValueError(f"Unsupported transport type: {getattr(kind, 'value', kind)!r}{missing}")


def _websocket_client() -> Any:
    """Return the package's client for WebSockets, or None: it needs a further package, and not every version has it."""
    try:
        from mcp.client.websocket import websocket_client  # type: ignore[import-not-found]  # noqa: PLC0415 - few use it
    except ModuleNotFoundError:
        return None
    return websocket_client


class McpService(ToolGroup):
    """The tools of an MCP server. A subclass may make the connection, or list the tools, itself."""

    def __init__(self, mcp_config: McpConfig) -> None:
        super().__init__(mcp_config)
        self._mcp_config = mcp_config

    async def create_connection(self, tool_call_ctx: Any = None) -> ToolConnection:
        """Return a new open connection; whoever asked for it closes it.

        Raises:
            ModuleNotFoundError: the package ``mcp`` is not installed.
            RuntimeError: the server can't be reached.
        """
        connection = McpConnection(self._mcp_config)
        await connection.connect()
        return connection

    async def list_tools(self) -> list[Any]:
        """Return the tools that the server lists, over a separate connection."""
        connection = await self.create_connection()
        try:
            return await connection.list_tools()
        finally:
            await connection.close()
