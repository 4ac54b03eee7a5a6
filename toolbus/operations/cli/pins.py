"""``pins`` and ``approve``: decide which form of a tool may be used."""

from __future__ import annotations

import datetime
import getpass
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from toolbus.bus.broker.protocols import RefusedTool
from toolbus.bus.client.tools.catalogue import Catalogue
from toolbus.bus.client.tools.review import unusable
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.support.display import one_line, visible
from toolbus.operations.cli.common import (
    ask_first,
    digest_option,
    fail,
    json_option,
    namespace_of,
    output_option,
    print_json,
    print_table,
    say,
    with_admin,
)

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.broker.pins import PinnedTool

_reason_option = click.option("--reason", default="", help="Why, for those who list the decisions.")
_approve_options = (
    digest_option("Approve only the form with this digest, or its first 16 digits or more, which `toolbus pins show` tells."),
    _reason_option,
    output_option,
)


@click.group("pins", no_args_is_help=True)
def pins_command() -> None:
    """Decide which form of a tool may be used.

    A tool that was approved is withheld from every agent when its description, its parameters or what it may do change, until it is
    approved again. A tool that was rejected is withheld in every form. With TOOLBUS_REQUIRE_APPROVAL=1 agents see approved tools alone.

    \b
    Examples:
      toolbus pins list
      toolbus pins show search
      toolbus approve search
      toolbus pins reject search --reason "asks for passwords"
    """


@pins_command.command("list")
@click.option("--state", "states", multiple=True, help="Only tools in this state, such as changed or unpinned (may be repeated).")
@output_option
@click.pass_context
def list_command(ctx: click.Context, states: tuple[str, ...], output: str) -> None:
    """List the tools with the decision about each: approved, changed, rejected, unpinned, unreadable or gone.

    Recorded tools, and new revisions of them, that wait for approval are pending.
    """
    from toolbus.operations.cli import pending

    found = [each for each in with_admin(ctx, lambda admin: admin.pins.all()) if not states or each.state in states]
    waiting = pending.rows(ctx) if not states or "pending" in states else []
    if output == "json":
        print_json([*found, *waiting])
        return
    rows = [
        (
            each.name,
            each.service,
            each.state,
            each.digest[:16],
            ", ".join(each.changes) or one_line(each.reason, 60),
            each.by,
            _when(each.at),
        )
        for each in found
    ]
    rows += [
        (each["name"], each["service"], each["state"], each["digest"][:16], ", ".join(each["changes"]), each["by"], "") for each in waiting
    ]
    columns = ("TOOL", "SERVICE", "STATE", "DIGEST", "ABOUT", "BY", "AT")
    print_table(columns, rows, empty=f"no tools and no decisions{namespace_of(ctx)}")


@pins_command.command("show")
@click.argument("name")
@json_option
@click.pass_context
def show_command(ctx: click.Context, name: str) -> None:
    """Show a tool as it is now, with the decision about it and what has changed, as JSON; and what waits for approval."""
    from toolbus.operations.cli import pending

    waiting = pending.review_of(ctx, name)

    async def main(admin: Admin) -> dict[str, Any]:
        from toolbus.bus.values.descriptors import tool_document

        found = next((each for each in await admin.pins.all() if each.name == name), None)
        if found is None and waiting is None:
            fail(_nothing(ctx, name))
        tool = (await admin.pins.offered()).get(name)
        said: dict[str, Any] = {"pin": found, "tool": None if tool is None else tool_document(tool)}
        if warning := await pending.unpinned(admin, name):
            said["unpinned"] = warning
        return said if waiting is None else {**said, "pending": waiting}

    print_json(with_admin(ctx, main))


@pins_command.command("approve")
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Approve every tool that is offered now and was not rejected.")
@click.option("--yes", is_flag=True, help="With --all: do not ask.")
@_approve_options[0]
@_approve_options[1]
@_approve_options[2]
@click.pass_context
def approve_tools_command(
    ctx: click.Context, names: tuple[str, ...], everything: bool, yes: bool, digest: str, reason: str, output: str
) -> None:
    """Approve tools as they are now. Agents see it at once."""
    if everything == bool(names):
        raise click.UsageError("name the tools, or give --all")
    if digest and len(names) != 1:
        raise click.UsageError("--digest is of one tool")
    if everything:
        listed = with_admin(ctx, lambda admin: admin.pins.all())
        names = tuple(each.name for each in listed if each.digest and each.state not in {"approved", "rejected"})
        if names and not yes:
            ask_first(f"Approve {len(names)} tools: {one_line(visible(', '.join(names)), 500)}?")
    _approve(ctx, names, digest, reason, output)


@pins_command.command("reject")
@click.argument("name")
@_reason_option
@click.pass_context
def reject_command(ctx: click.Context, name: str, reason: str) -> None:
    """Withhold a tool from every agent, in every form, until it is approved. Calls that run go on.

    Of a recorded tool that waits for approval, what waits is removed; what is served stays.
    """
    from toolbus.operations.cli import pending

    if pending.reject(ctx, name):
        return
    by = _who()
    with_admin(ctx, lambda admin: admin.pins.reject(name, by=by, reason=reason))
    say(f"rejected {name}")


@pins_command.command("rm")
@click.argument("name")
@click.pass_context
def rm_command(ctx: click.Context, name: str) -> None:
    """Forget the decision about a tool, which is unpinned then."""
    if not with_admin(ctx, lambda admin: admin.pins.remove(name)):
        fail(_nothing(ctx, name))
    say(f"{name} is unpinned")


@click.command("approve")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask before a recorded tool is approved.")
@_approve_options[0]
@_approve_options[1]
@_approve_options[2]
@click.pass_context
def approve_command(ctx: click.Context, name: str, yes: bool, digest: str, reason: str, output: str) -> None:
    """Approve a tool as it is now, so that agents may use this form of it.

    A recorded tool that waits for approval is shown first: what it changes, and the files of its code where they are on this
    machine. With --digest exactly that form is approved, and nothing is asked.

    \b
    Examples:
      toolbus pins show search
      toolbus approve search --digest 3f2a915c07d8e64b
    """
    from toolbus.operations.cli import pending

    review = pending.review_of(ctx, name)
    if review is not None:
        pending.approve(ctx, review, digest=digest, yes=yes, by=_who(), reason=reason, output=output)
    else:
        _approve(ctx, (name,), digest, reason, output)


def _approve(ctx: click.Context, names: tuple[str, ...], digest: str, reason: str, output: str) -> None:
    from toolbus.operations.cli import pending

    by = _who()

    async def main(admin: Admin) -> tuple[list[PinnedTool], dict[str, str]]:
        approved = [await admin.pins.approve(name, by=by, reason=reason, digest=digest) for name in names]
        return approved, {name: warning for name in names if (warning := await pending.unpinned(admin, name))}

    found, warnings = with_admin(ctx, main)
    if output == "json":
        print_json(found)
        return
    for each in found:
        say(f"approved {visible(each.name)} of {visible(each.service)} ({each.digest[:16]})")
    for name, warning in warnings.items():
        say(f"{visible(name)}: {visible(warning)}", fg="yellow", err=True)
    if not found:
        say("every tool is approved or rejected", err=True)


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        # A user of a container may have no name.
        return ""


def _nothing(ctx: click.Context, name: str) -> str:
    return f"there is no tool {name!r} and no decision about it{namespace_of(ctx)}; `toolbus pins list` shows them"


def _when(seconds: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M") if seconds else ""
    except (ValueError, OverflowError, OSError):
        return "unknown"


def refused(catalogue: Catalogue) -> list[RefusedTool]:
    """Return the tools and the presets that agents leave out, each with its reason; a preset belongs to no service."""
    return [*unusable(catalogue), *_refused_presets(catalogue.presets)]


def pending(catalogue: Catalogue) -> list[Tool]:
    """Return the static tools whose service no worker has served yet, by name."""
    return [tool for _, tool in sorted(catalogue.tools.items()) if tool.owner == "operator" and _waits(tool, catalogue)]


def title(tool: RefusedTool) -> str:
    """Return the name of what is refused, with that of its service if it has one."""
    return f"{tool.name} of {tool.service}" if tool.service else tool.name


def _waits(tool: Tool, catalogue: Catalogue) -> bool:
    return tool.service_descriptor is None or tool.service_descriptor is catalogue.static_services.get(tool.service)


def _refused_presets(presets: Mapping[str, bytes]) -> list[RefusedTool]:
    try:
        from toolbus.toolkit.live import unreadable
    except ModuleNotFoundError:
        # Without the packages of the toolkit, nobody here uses presets.
        return []
    return [RefusedTool(f"toolkit/{name}", "", reason) for name, reason in unreadable(presets).items()]
