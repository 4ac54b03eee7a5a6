"""``MountedServer``: an MCP server's tools as a service of the bus."""

from __future__ import annotations

import asyncio
import functools
from typing import Any, Self

from mcp_types import Tool

from toolbus.mounts.connection import ServerConnection
from toolbus.mounts.described import Described, Run
from toolbus.mounts.extras import Extras
from toolbus.mounts.listing import Listing
from toolbus.mounts.mount import Mount
from toolbus.mounts.options import Options
from toolbus.mounts.session import Session, effect_of
from toolbus.mounts.targets import Target
from toolbus.worker.definition.retry import Retry


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
        self.session = Session(self.connection)
        self._extras = Extras(name, self.session)

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
            await self._end()
            raise
        finally:
            listed.cancel()
        if home.done():
            await home
        return self

    async def __aexit__(self, *error: object) -> None:
        """End the server."""
        await self._end()

    async def _end(self) -> None:
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
        run = functools.partial(self.session.call_tool, tool)
        return tool.name, description, tool.input_schema, effect_of(tool), run, about
