"""``mcp``: serve the tools of the bus to a client of the Model Context Protocol."""

from __future__ import annotations

from importlib.util import find_spec

import click

from toolbus.operations.cli.common import fail, settings_with_server


@click.command("mcp")
@click.option("--user", default="", help="The tenant that tools run for.")
@click.option("--group", "groups", multiple=True, help="Only tools in this group (may be repeated).")
@click.option("--tool", "names", multiple=True, help="Only this tool (may be repeated).")
@click.pass_context
def mcp_command(ctx: click.Context, user: str, groups: tuple[str, ...], names: tuple[str, ...]) -> None:
    """Serve the tools to an MCP client on stdio.

    The client starts this command by itself; standard input and output carry the protocol. It ends with standard input.

    \b
    Example, as a client's configuration has it:
      {"mcpServers": {"toolbus": {"command": "toolbus", "args": ["mcp"]}}}
    """
    settings = settings_with_server(ctx, serves=True)
    if find_spec("mcp") is None:
        fail("MCP needs its SDK: pip install 'toolbus[mcp]'")
    import asyncio

    from toolbus import ToolBus
    from toolbus.edges.mcp.client import LocalCaller
    from toolbus.edges.mcp.http import serve_stdio

    caller = LocalCaller(user=user, groups=frozenset(groups) or None, tools=frozenset(names) or None)

    async def main() -> None:
        async with ToolBus(settings=settings) as bus:
            await serve_stdio(bus, caller)

    asyncio.run(main())
