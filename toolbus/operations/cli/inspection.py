"""``tools``, ``services``, ``describe``, ``settings``: inspect without changing anything."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import click

from toolbus.bus.client.tools.definitions import FORMATS, Format
from toolbus.bus.support.display import one_line, visible
from toolbus.bus.values.settings import PREFIX, Settings
from toolbus.operations.cli.common import (
    fail,
    json_option,
    namespace_of,
    output_option,
    print_json,
    print_table,
    say,
    settings_of,
    with_admin,
)

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin, ServiceOverview
    from toolbus.bus.broker.protocols import RefusedTool
    from toolbus.bus.client.tools.catalogue import Catalogue
    from toolbus.bus.client.tools.tool import Tool


_START = "start a worker: toolbus worker FILE.py"


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
    from toolbus.bus.client.tools.view import ToolView
    from toolbus.operations.cli.pins import refused as refused_of
    from toolbus.operations.cli.pins import title

    if strict and wanted is None:
        raise click.UsageError("--strict needs --format; give both")

    catalogue = _catalogue(ctx)
    view = ToolView(catalogue).filter(groups=groups or None, categories=categories or None)
    if wanted is not None:
        print_json(view.definitions(wanted, strict=strict))
        return
    found = [tool for tool in view.values() if tool.available or everything]
    refused = refused_of(catalogue)
    if output == "json":
        others = [{"name": tool.name, "service": tool.service, "available": False, "refused": tool.reason} for tool in refused]
        print_json([*map(_tool, found), *(others if everything else ())])
        return
    rows = [(t.name, t.service, "yes" if t.available else "no", one_line(t.description.partition("\n")[0], 70)) for t in found]
    if everything:
        rows += [(tool.name, tool.service, "refused", one_line(tool.reason, 200)) for tool in refused]
    where = namespace_of(ctx)
    nothing = f"no tools of these groups and categories{where}" if groups or categories else f"no tools{where}; {_START}"
    print_table(("TOOL", "SERVICE", "LIVE", "DESCRIPTION"), rows, empty=nothing)
    if refused and not everything:
        say(f"{len(refused)} cannot be used: {one_line(', '.join(map(title, refused)), 200)}; `toolbus tools --all` says why", err=True)


@click.command("services")
@output_option
@click.pass_context
def services_command(ctx: click.Context, output: str) -> None:
    """List the services, their workers and their backlog.

    \b
    Example:
      toolbus services --output json
    """
    from toolbus.bus.client.tools.review import catalogue_of
    from toolbus.operations.cli.pins import refused as refused_of
    from toolbus.operations.cli.pins import title

    required = settings_of(ctx).require_approval

    async def main(admin: Admin) -> tuple[list[ServiceOverview], list[RefusedTool]]:
        return await admin.services(), refused_of(catalogue_of(await admin.snapshot(), require_approval=required))

    found, refused = with_admin(ctx, main)
    known = {each.publication.service.id for each in found}
    others = sorted({tool.service for tool in refused if tool.service} - known)
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
                    "refused": _reasons(refused, each.publication.service.id),
                }
                for each in found
            ]
            + [{"id": service, "live": False, "tools": [], "refused": _reasons(refused, service)} for service in others]
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
    print_table(columns, rows, empty=f"no services{namespace_of(ctx)}; {_START}")
    for tool in refused:
        say(f"{visible(title(tool))} can't be used: {one_line(visible(tool.reason), 300)}", err=True)


@click.command("describe")
@click.argument("name")
@json_option
@click.pass_context
def describe_command(ctx: click.Context, name: str) -> None:
    """Show everything known about a tool or a service, as JSON.

    \b
    Example:
      toolbus describe calculator
    """
    from toolbus.bus.client.tools.review import unusable

    catalogue = _catalogue(ctx)
    if name in catalogue.tools:
        print_json(_tool(catalogue.tools[name]))
        return
    service = _service(name, catalogue)
    if service is not None:
        print_json({**service, "refused": _reasons(unusable(catalogue), name)})
        return
    for refused in unusable(catalogue):
        if name in {refused.name, refused.service}:
            fail(f"{refused.name} of {refused.service} can't be used: {one_line(refused.reason, 300)}")
    near = difflib.get_close_matches(name, {*catalogue.names(), *catalogue.services, *catalogue.static_services}, n=3, cutoff=0.5)
    fail(f"there is no tool or service {name!r}{namespace_of(ctx)}" + (f"; did you mean {', '.join(near)}?" if near else ""))


@click.command("settings")
@output_option
@click.pass_context
def settings_command(ctx: click.Context, output: str) -> None:
    """Show each setting, its value, and the source of the value."""
    from toolbus.bus.values.urls import redact

    found = {
        name: (redact(str(value)) if name == "url" else value, source)
        for name, (value, source) in Settings.sources(**(ctx.find_root().obj or {})).items()
    }
    if output == "json":
        print_json({name: {"value": value, "source": source} for name, (value, source) in found.items()})
        return
    rows = [(name, value, source, PREFIX + name.upper()) for name, (value, source) in found.items()]
    print_table(("SETTING", "VALUE", "SOURCE", "VARIABLE"), rows, empty="")


def _catalogue(ctx: click.Context) -> Catalogue:
    """Return the tools as an agent has them, by reading the registry alone: whoever watches may not open a reply stream."""
    from toolbus.bus.client.tools.review import catalogue_of

    required = settings_of(ctx).require_approval

    async def main(admin: Admin) -> Catalogue:
        return catalogue_of(await admin.snapshot(), require_approval=required)

    return with_admin(ctx, main)


def _reasons(refused: list[RefusedTool], service: str) -> list[dict[str, str]]:
    return [{"name": tool.name, "reason": tool.reason} for tool in refused if tool.service == service]


def _tool(tool: Tool) -> dict[str, Any]:
    from toolbus.bus.values.descriptors import tool_document

    served = {} if tool.service_descriptor is None else {"served_by": tool.service_descriptor.id}
    return {**tool_document(tool.descriptor), "available": tool.available, "owner": tool.owner, "digest": tool.digest, **served}


def _service(name: str, catalogue: Catalogue) -> dict[str, Any] | None:
    """Return what its workers publish of a service, what an operator says of it, and who serves it; None if it is unknown."""
    import msgspec

    record, static = catalogue.services.get(name), catalogue.static_services.get(name)
    descriptor, available = catalogue.service(name)
    added = [tool.name for tool in catalogue.tools.values() if tool.service == name and tool.owner == "operator"]
    if record is None and static is None and not added:
        return None
    described: dict[str, Any] = {} if record is None else msgspec.to_builtins(record)
    if static is not None:
        described["static"] = msgspec.to_builtins(static)
    if descriptor is not None and descriptor.id != name:
        described["served_by"] = descriptor.id
    return {"id": name, "available": available, **described, "static_tools": sorted(added)}
