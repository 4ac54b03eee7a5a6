"""List the tools of an MCP server, and whether it has resources and prompts, all of it bounded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from mcp import Client
from mcp_types import Tool

from toolbus import telemetry
from toolbus.mounts.sifting import left_out_of

_MOST_PAGES = 1_000


class Listing(msgspec.Struct, frozen=True):
    """The tools of a server, and whether it has more than tools.

    Attributes:
        tools: in its own order, each name once.
        resources, prompts: whether it has any.
        left_out: tools that can't be read, and why.
    """

    tools: tuple[Tool, ...] = ()
    resources: bool = False
    prompts: bool = False
    left_out: Mapping[str, str] = {}


async def list_server(client: Client, mount: str, most: int) -> Listing:
    """Ask a server what it has.

    Args:
        client: a connection to it.
        mount: the name of the mount, for the log.
        most: tools that are read; more are left out, which is logged.
    """
    capabilities = client.server_capabilities
    found: dict[str, Tool] = {}
    left_out: dict[str, str] = {}
    if capabilities.tools is not None:
        async for page in pages(lambda cursor: client.list_tools(cursor=cursor, cache_mode="refresh")):
            left_out.update(left_out_of(page))
            for tool in page.tools:
                if tool.name in found:
                    telemetry.log.warning("mount.tool_left_out", mount=mount, tool=tool.name, reason="the server lists that name twice")
                elif len(found) < most:
                    found[tool.name] = tool
                else:
                    telemetry.log.warning("mount.tools_cut", mount=mount, most=most, advice="serve some of them: --include, --most-tools")
                    return _listing(found, capabilities, left_out)
    return _listing(found, capabilities, left_out)


def _listing(found: dict[str, Tool], capabilities: Any, left_out: dict[str, str]) -> Listing:
    return Listing(tuple(found.values()), capabilities.resources is not None, capabilities.prompts is not None, left_out)


async def pages(ask: Callable[[str | None], Awaitable[Any]]) -> Any:
    """Yield the pages of a list; one that does not come to an end is given up."""
    cursor, seen = None, set[str]()
    for _ in range(_MOST_PAGES):
        page = await ask(cursor)
        yield page
        cursor = page.next_cursor
        if not cursor or cursor in seen:
            return
        seen.add(cursor)
