"""``MountedServer``: an MCP server's tools as a service of the bus."""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self

from mcp.shared.dispatcher import ProgressFnT
from mcp_types import Tool

from toolbus.bus.support.display import harmless
from toolbus.bus.values.results import ConfigurationError, ToolError, ToolResult
from toolbus.bus.worker.invocation import Invocation
from toolbus.bus.worker.service import Retry
from toolbus.edges.mounts.answers import contents_of, messages_of, result_of
from toolbus.edges.mounts.connection import Listing, ServerConnection, pages
from toolbus.edges.mounts.mount import Described, Mount, Run, is_server
from toolbus.edges.mounts.options import InProcess, Options, Target, words_of

# Progress that is passed on at once, and per second after that.
_BURST = 100
_RATE = 20.0
_MOST_TEXT = 1_000


def effect_of(tool: Tool) -> str:
    """Return what a second execution would do, as far as a tool's annotations say."""
    hints = tool.annotations
    if hints is not None and hints.read_only_hint:
        return "read"
    return "idempotent" if hints is not None and hints.idempotent_hint else "once"


def _progress(call: Invocation) -> ProgressFnT:
    """Return what passes progress on, but no flood of it."""
    allowance, filled = float(_BURST), time.monotonic()

    async def report(progress: float, total: float | None, message: str | None) -> None:
        nonlocal allowance, filled
        now = time.monotonic()
        allowance, filled = min(_BURST, allowance + (now - filled) * _RATE), now
        if allowance >= 1 and math.isfinite(progress):
            allowance -= 1
            known = total if total is not None and math.isfinite(total) else None
            call.progress(progress, known, harmless(message or "")[:_MOST_TEXT])

    return report


_MOST_LISTED = 1_000
_NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_URI: dict[str, Any] = {
    "type": "object",
    "properties": {"uri": {"type": "string", "description": "the resource's URI, or a template's with its parts filled in"}},
    "required": ["uri"],
}
_PROMPT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "the prompt's name"},
        "arguments": {"type": "object", "additionalProperties": {"type": "string"}, "description": "the prompt's arguments"},
    },
    "required": ["name"],
}


class Extras:
    """The part that a mount serves of its server's resources and prompts.

    Args:
        mount: the name of the mount, with which the tools' names begin.
    """

    def __init__(self, mount: str, connection: ServerConnection) -> None:
        self._mount = mount
        self._connection = connection

    def describe(self, listing: Listing, into: Described) -> None:
        """Add the tools that the server's kinds of content need."""
        start = words_of(self._mount)
        about = {"mount": self._mount}
        if listing.resources:
            into.add(f"{start}_list_resources", f"List the resources of {self._mount}.", _NOTHING, "read", self.list_resources, about)
            into.add(f"{start}_read_resource", f"Read a resource of {self._mount}.", _URI, "read", self.read_resource, about)
        if listing.prompts:
            into.add(f"{start}_list_prompts", f"List the prompts of {self._mount}.", _NOTHING, "read", self.list_prompts, about)
            into.add(f"{start}_get_prompt", f"Get the messages of a prompt of {self._mount}.", _PROMPT, "read", self.get_prompt, about)

    async def list_resources(self, _: dict[str, Any], call: Invocation) -> ToolResult:
        """List resources and templates."""
        async with self._connection.calling(call, "read") as client:
            found = [_named(each, uri=each.uri, mime_type=each.mime_type) async for each in _listed(client.list_resources, "resources")]
            found += [
                _named(each, uri_template=each.uri_template, mime_type=each.mime_type)
                async for each in _listed(client.list_resource_templates, "resource_templates")
            ]
        return ToolResult.ok({"resources": found})

    async def read_resource(self, arguments: dict[str, Any], call: Invocation) -> ToolResult:
        """Read one resource."""
        async with self._connection.calling(call, "read") as client:
            return contents_of(await client.read_resource(arguments["uri"], cache_mode="bypass"))

    async def list_prompts(self, _: dict[str, Any], call: Invocation) -> ToolResult:
        """List prompts with their arguments."""
        async with self._connection.calling(call, "read") as client:
            found = [
                _named(each, arguments=[_argument(one) for one in each.arguments or ()])
                async for each in _listed(client.list_prompts, "prompts")
            ]
        return ToolResult.ok({"prompts": found})

    async def get_prompt(self, arguments: dict[str, Any], call: Invocation) -> ToolResult:
        """Return the messages of one prompt."""
        given = arguments.get("arguments") or {}
        if not isinstance(given, dict):
            raise ToolError("arguments is an object of texts", type="invalid_arguments")
        texts = {name: value if isinstance(value, str) else str(value) for name, value in given.items()}
        async with self._connection.calling(call, "read") as client:
            return messages_of(await client.get_prompt(arguments["name"], texts))


async def _listed(ask: Callable[..., Awaitable[Any]], field: str) -> AsyncIterator[Any]:
    """Yield what is in a field of the pages of a list, which are read until there is enough."""
    count = 0
    async for page in pages(lambda cursor: ask(cursor=cursor, cache_mode="bypass")):
        for each in getattr(page, field):
            yield each
        count += len(getattr(page, field))
        if count >= _MOST_LISTED:
            return


def _named(each: Any, **more: Any) -> dict[str, Any]:
    fields = {"name": each.name, "title": each.title, "description": each.description, **more}
    return {name: value for name, value in fields.items() if value}


def _argument(each: Any) -> dict[str, Any]:
    return {"name": each.name, "description": each.description or "", "required": bool(each.required)}


class MountedServer(Mount):
    """An MCP server, of which all calls share one connection.

    Args:
        name: the name of the mount, which is the service's id.
        target: where the server is.
        options: which of its tools are served, and how.
    """

    # Calls that read may run again when the server has ended meanwhile.
    retry = Retry(attempts=3, delay=0.2)

    def __init__(self, name: str, target: Target, options: Options | None = None) -> None:
        super().__init__(name, target.shown, options)
        self._home: asyncio.Task[None] | None = None
        self._listed = asyncio.Event()
        self.connection = ServerConnection(name, target, self.options, self._take_in)
        self._extras = Extras(name, self.connection)

    async def __aenter__(self) -> Self:
        """Start the server and list its tools.

        Raises:
            ConfigurationError: it can't be started, or does not answer; says why.
        """
        home = self._home = asyncio.create_task(self.connection.run(), name=f"mount {self.id}")
        listed = asyncio.create_task(self._listed.wait())
        try:
            await asyncio.wait({home, listed}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.__aexit__()
            raise
        finally:
            listed.cancel()
        if home.done():
            await home
        return self

    async def __aexit__(self, *error: object) -> None:
        """End the server."""
        home, self._home = self._home, None
        if home is not None:
            home.cancel()
            await asyncio.wait({home})
            if not home.cancelled():
                home.exception()

    async def _take_in(self, listing: Listing) -> None:
        described = Described(self.id, self.options, self.left_out)
        for name, reason in listing.left_out.items():
            described.leave_out(name, reason)
        for count, tool in enumerate(listing.tools):
            described.add(*self._described(tool))
            if count % 50 == 49:
                await asyncio.sleep(0)
        if self.options.resources:
            self._extras.describe(listing, described)
        await self.publish(described)
        self._listed.set()

    def _described(self, tool: Tool) -> tuple[str, str, dict[str, Any], str, Run, dict[str, Any]]:
        hints = tool.annotations
        about: dict[str, Any] = {"mount": self.id, "tool": tool.name}
        title = tool.title or (hints.title if hints is not None else None)
        if title:
            about["title"] = title
        if tool.output_schema is not None:
            about["output_schema"] = tool.output_schema
        description = tool.description or title or tool.name.replace("_", " ")
        return tool.name, description, tool.input_schema, effect_of(tool), functools.partial(self._call, tool), about

    async def _call(self, tool: Tool, arguments: dict[str, Any], call: Invocation) -> ToolResult:
        """Call a tool; what it says of its progress is passed on, and its cancellation too."""
        async with self.connection.calling(call, effect_of(tool)) as client:
            return result_of(await client.call_tool(tool.name, arguments, progress_callback=_progress(call)))


def mount_of(server: Any, name: str = "", options: Options | None = None) -> MountedServer:
    """Return a server object's tools as a service, for ``serve``.

    Its functions run in this process, so its tools are not external.

    Args:
        server: a FastMCP, or an ``MCPServer`` of the official SDK.
        name: the service's id; the server's own name when left out.
        options: which of its tools are served, and how.

    Raises:
        ConfigurationError: it is none.
    """
    if not is_server(server):
        raise ConfigurationError(f"a {type(server).__qualname__} is no FastMCP and no MCPServer")
    found = name or words_of(str(getattr(server, "name", "")))[:64] or "mcp"
    return MountedServer(found, InProcess(server), options or Options(external=False, resources=False))
