"""``BusProvider``: the tools of the bus in somebody's own FastMCP server."""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from fastmcp.server.context import Context
from fastmcp.server.dependencies import get_context
from fastmcp.server.providers import Provider
from fastmcp.tools.base import Tool, ToolResult
from mcp_types import AudioContent, BlobResourceContents, EmbeddedResource, ImageContent, TextContent, ToolAnnotations
from pydantic import PrivateAttr

from toolbus.bus.client.bus import ToolBus
from toolbus.bus.client.tools.view import ToolView
from toolbus.bus.support.environment import harmless
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values import results
from toolbus.bus.values.events import Text
from toolbus.bus.values.results import Blob, ConfigurationError, Progress
from toolbus.bus.values.secrets import Secret
from toolbus.bus.values.settings import Settings

_MOST_TEXT = 1_000


class BusProvider(Provider):
    """Lists the tools that can be called now: ``FastMCP("mine", providers=[BusProvider()])``.

    A tool's text and progress are told as progress while it runs. It is called for the user that ``user`` says, never for one that a
    client names.

    Args:
        bus: an open bus; the provider opens one of its own when left out.
        user: whom calls are for: a name, or a function of FastMCP's ``Context``.
        groups: only tools of these groups.
        categories: only tools of these categories.
        settings: of the provider's own bus.
    """

    def __init__(
        self,
        bus: ToolBus | None = None,
        *,
        user: str | Callable[[Context], str] = "",
        groups: Collection[str] | None = None,
        categories: Collection[str] | None = None,
        settings: Settings | None = None,
    ) -> None:
        super().__init__()
        self._bus = bus
        self._user = user
        self._groups = groups
        self._categories = categories
        self._settings = settings

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Keep a bus open while the server runs, unless it was given one."""
        if self._bus is not None:
            yield
            return
        async with ToolBus(settings=self._settings) as bus:
            self._bus = bus
            try:
                yield
            finally:
                self._bus = None

    async def _list_tools(self) -> Sequence[Tool]:
        if self._bus is None:
            return []
        user = self._caller()
        view = self._bus.tools.filter(groups=self._groups, categories=self._categories, user=user)
        return [_tool(each, self._bus, view, user) for each in view.definitions("mcp")]

    def _caller(self) -> str:
        return self._user if isinstance(self._user, str) else self._user(get_context())


def _tool(definition: dict[str, Any], bus: ToolBus, view: ToolView, user: str) -> Tool:
    made = _BusTool(
        name=definition["name"],
        description=definition.get("description", ""),
        parameters=definition["inputSchema"],
        annotations=ToolAnnotations.model_validate(definition["annotations"]) if "annotations" in definition else None,
    )
    known = view.by_wire_name(made.name)
    made._call = _Call(bus, made.name if known is None else known.name, user)
    return made


class _Call:
    """The way in which a tool is called."""

    def __init__(self, bus: ToolBus, name: str, user: str) -> None:
        self._bus = bus
        self._name = name
        self._options: dict[str, Any] = {"user": user} if user else {}

    async def __call__(self, arguments: dict[str, Any]) -> results.ToolResult:
        context, pieces, counted = get_context(), 0, False
        async with self._bus.stream(self._name, arguments, **self._options) as call:
            async for event in call.events():
                if isinstance(event, Progress):
                    counted = True
                    await context.report_progress(event.done, event.total, event.message or None)
                elif isinstance(event, Text) and not counted:
                    pieces += 1
                    await context.report_progress(pieces, message=event.text[:_MOST_TEXT])
            return await call.result()


class _BusTool(Tool):
    _call: Any = PrivateAttr(default=None)

    async def run(self, arguments: dict[str, Any]) -> ToolResult:
        """Call the tool on the bus."""
        result: results.ToolResult = await self._call(arguments)
        content: list[Any] = [TextContent(type="text", text=result.observation), *map(_content, result.content)]
        data = result.data
        return ToolResult(content, data if data is None or isinstance(data, dict) else {"result": data}, is_error=not result.success)


def _content(blob: Blob) -> Any:
    data, kind = base64.b64encode(blob.data).decode(), blob.media_type.partition("/")[0]
    if kind == "image":
        return ImageContent(type="image", data=data, mime_type=blob.media_type)
    if kind == "audio":
        return AudioContent(type="audio", data=data, mime_type=blob.media_type)
    contents = BlobResourceContents(uri="blob://result", blob=data, mime_type=blob.media_type)
    return EmbeddedResource(type="resource", resource=contents)


Transport = Literal["http", "sse"]


class Command(msgspec.Struct, frozen=True):
    """A server that is started as a child process and spoken to over its standard input and output.

    Attributes:
        words: the program and its arguments.
        environment: all variables that the child gets.
        folder: where it runs; the current one when empty.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str] = {}
    folder: str = ""

    @property
    def shown(self) -> str:
        """The command for people: the program without its arguments, which may hold secrets."""
        return Path(self.words[0]).name


class Address(msgspec.Struct, frozen=True):
    """A server at an address.

    Attributes:
        url: its MCP endpoint.
        headers: header values by name, or where secret ones are, see ``secret``.
        transport: ``http`` (streamable HTTP), or ``sse`` for servers of before 2025.
    """

    url: str
    headers: Mapping[str, Secret | str] = {}
    transport: Transport = "http"

    @property
    def shown(self) -> str:
        """The address for people, without what may be secret: user, password and query."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class InProcess(msgspec.Struct, frozen=True):
    """A server object of this process: a FastMCP, or an ``MCPServer`` of the official SDK."""

    server: Any

    @property
    def shown(self) -> str:
        """The object's name for people."""
        return f"{type_name(self.server)} {getattr(self.server, 'name', '')!r}"


Target = Command | Address | InProcess


def environment_for(names: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the environment of a child: a few harmless variables of ours, and those that are named.

    Raises:
        ConfigurationError: one that is named is not set.
    """
    for name in names:
        if "=" in name:
            raise ConfigurationError(f"--env takes the name of a variable, which is passed on: --env {name.partition('=')[0]}")
        if name not in os.environ:
            raise ConfigurationError(f"the variable {name!r} is not set, so it can't be passed on")
    return harmless() | {name: os.environ[name] for name in names}


def check_address(url: str) -> str:
    """Return the address of a server.

    Raises:
        ConfigurationError: it is no http or https address, or has a password, which belongs into a header.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        raise ConfigurationError("that is no address: give https://host/path") from None
    if parts.scheme not in {"http", "https"} or not host:
        raise ConfigurationError("that is no address: give https://host/path")
    if parts.username or parts.password:
        raise ConfigurationError("the address has a password: give it in a header, --header Authorization=env:VARIABLE")
    return url
