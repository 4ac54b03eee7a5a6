"""``tools``, ``services``, ``describe``, ``settings``: inspect without changing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from toolbus.cli.common import fail, one_line, output_option, with_admin, with_bus
from toolbus.cli.output import print_json, print_table, say
from toolbus.client.tools.formats import FORMATS, Format
from toolbus.settings import PREFIX, Settings

if TYPE_CHECKING:
    from toolbus import ToolBus
    from toolbus.broker.admin import Admin, ServiceOverview
    from toolbus.broker.protocols import RefusedTool


@click.command("tools")
@click.option("--group", "groups", multiple=True, help="Only tools in this group (may be repeated).")
@click.option("--category", "categories", multiple=True, help="Only tools of this category (may be repeated).")
@click.option("--all", "everything", is_flag=True, help="Also tools that no live worker serves.")
@click.option("--format", "wanted", type=click.Choice([*FORMATS]), help="Print their definitions for a model instead, as JSON.")
@click.option("--strict", is_flag=True, help="With --format: definitions that a provider can enforce, where possible.")
@output_option
@click.pass_context
def tools_command(
    ctx: click.Context,
    groups: tuple[str, ...],
    categories: tuple[str, ...],
    everything: bool,
    wanted: Format | None,
    strict: bool,
    output: str,
) -> None:
    """List the tools that can be called now.

    \b
    Examples:
      toolbus tools --category text
      toolbus tools --format openai --strict
    """
    if strict and wanted is None:
        raise click.UsageError("--strict needs --format; give both")

    async def main(bus: ToolBus) -> tuple[list[Any], list[RefusedTool]]:
        view = bus.tools.filter(groups=groups or None, categories=categories or None)
        if wanted is not None:
            return view.definitions(wanted, strict=strict), []
        return [tool for tool in view.values() if tool.available or everything], bus.refused

    found, refused = with_bus(ctx, main)
    if wanted is not None:
        print_json(found)
        return
    if output == "json":
        unusable = [{"name": tool.name, "service": tool.service, "available": False, "refused": tool.reason} for tool in refused]
        print_json([*map(_tool, found), *(unusable if everything else ())])
        return
    rows = [(t.name, t.service, "yes" if t.available else "no", one_line(t.description.partition("\n")[0], 70)) for t in found]
    if everything:
        rows += [(tool.name, tool.service, "refused", one_line(tool.reason, 200)) for tool in refused]
    nothing = "no tools of these groups and categories" if groups or categories else "no tools; start a worker: toolbus worker FILE.py"
    print_table(("TOOL", "SERVICE", "LIVE", "DESCRIPTION"), rows, empty=nothing)
    if refused and not everything:
        say(f"{len(refused)} cannot be used: {_list_of(refused)}; `toolbus tools --all` says why", err=True)


@click.command("services")
@output_option
@click.pass_context
def services_command(ctx: click.Context, output: str) -> None:
    """List the services, their workers and their backlog.

    \b
    Example:
      toolbus services --output json
    """

    async def main(admin: Admin) -> list[ServiceOverview]:
        return await admin.services()

    found = with_admin(ctx, main)
    if output == "json":
        print_json(
            [
                {
                    "id": each.publication.service.id,
                    "owner": each.publication.owner,
                    "digest": each.publication.digest,
                    "live": each.live,
                    "workers": each.workers,
                    "queued": each.queued,
                    "running": each.running,
                    "dead": each.dead,
                    "paused": each.paused,
                    "tools": [tool.name for tool in each.publication.tools],
                }
                for each in found
            ]
        )
        return
    rows = [
        (
            each.publication.service.id,
            each.publication.owner,
            each.publication.digest[:8],
            each.workers,
            each.queued,
            each.running,
            each.dead,
            "paused" if each.paused else "live" if each.live else "down",
        )
        for each in found
    ]
    columns = ("SERVICE", "OWNER", "DIGEST", "WORKERS", "QUEUED", "RUNNING", "DEAD", "STATE")
    print_table(columns, rows, empty="no services; start a worker: toolbus worker FILE.py")


@click.command("describe")
@click.argument("name")
@click.pass_context
def describe_command(ctx: click.Context, name: str) -> None:
    """Show everything known about a tool or a service, as JSON.

    \b
    Example:
      toolbus describe calculator
    """
    import msgspec

    async def main(bus: ToolBus) -> dict[str, Any]:
        if name in bus.tools:
            return _tool(bus.tools[name])
        record = bus.services.get(name)
        if record is not None:
            described: dict[str, Any] = msgspec.to_builtins(record)
            return described
        near = bus.near(name)
        return fail(f"there is no tool or service {name!r}" + (f"; did you mean {', '.join(near)}?" if near else ""))

    print_json(with_bus(ctx, main))


@click.command("settings")
@output_option
@click.pass_context
def settings_command(ctx: click.Context, output: str) -> None:
    """Show each setting, its value, and the source of the value."""
    from toolbus.broker.transport.connection import redact

    found = {
        name: (redact(str(value)) if name == "url" else value, source)
        for name, (value, source) in Settings.sources(**(ctx.find_root().obj or {})).items()
    }
    if output == "json":
        print_json({name: {"value": value, "source": source} for name, (value, source) in found.items()})
        return
    rows = [(name, value, source, PREFIX + name.upper()) for name, (value, source) in found.items()]
    print_table(("SETTING", "VALUE", "SOURCE", "VARIABLE"), rows, empty="")


def _list_of(refused: list[RefusedTool]) -> str:
    return one_line(", ".join(f"{tool.name} of {tool.service}" for tool in refused), 200)


def _tool(tool: Any) -> dict[str, Any]:
    from toolbus.descriptors import tool_document

    return {**tool_document(tool.descriptor), "available": tool.available, "owner": tool.owner, "digest": tool.digest}
