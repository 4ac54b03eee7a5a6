"""``secure approve`` and ``pins``: decide which form of a tool may be used, and which recorded tools hosts may run."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import click
import msgspec

from toolbus.bus.client.tools.catalogue import unusable
from toolbus.bus.support.display import one_line, visible
from toolbus.operations.cli.command import JSON, Output, command, digest, group, option
from toolbus.operations.cli.common import namespace_of, with_admin
from toolbus.operations.cli.output import ask_first, fail, moment, print_json, print_table, say, warn

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.broker.pins import PinnedTool
    from toolbus.bus.broker.protocols import RefusedTool
    from toolbus.bus.client.tools.catalogue import Catalogue
    from toolbus.bus.client.tools.tool import Tool
    from toolbus.platform.records import RecordedTool
    from toolbus.platform.review import Review

_MOST_VALUE = 300
_MOST_FILES = 100

Reason = Annotated[str, option("Why, for those who list the decisions.", default="")]
Digest = Annotated[
    str, digest("Approve only the form with this digest, or its first 16 digits or more, which `toolbus secure pins show` tells.")
]


@group("pins")
def pins_command() -> None:
    """Decide which form of a tool may be used.

    A tool that was approved is withheld from every agent when its description, its parameters or what it may do change, until it is
    approved again. A tool that was rejected is withheld in every form. With TOOLBUS_REQUIRE_APPROVAL=1 agents see approved tools alone.

    \b
    Examples:
      toolbus secure pins list
      toolbus secure pins show search
      toolbus secure approve search
      toolbus secure pins reject search --reason "asks for passwords"
    """


@command("list", into=pins_command)
def list_command(
    states: Annotated[tuple[str, ...], option("Only tools in this state, such as changed or unpinned (may be repeated).", "--state")],
    output: Output,
) -> None:
    """List the tools with the decision about each: approved, changed, rejected, unpinned, unreadable or gone.

    Recorded tools, and new revisions of them, that wait for approval are pending.
    """
    found = [each for each in with_admin(lambda admin: admin.pins.all()) if not states or each.state in states]
    waiting = with_admin(_waiting) if not states or "pending" in states else []
    if output == "json":
        print_json([*found, *waiting])
        return
    rows = [
        (*_heading(each.name, each.service, each.state, each.digest), ", ".join(each.changes) or one_line(each.reason, 60), each.by, at)
        for each in found
        for at in (moment(each.at, "%Y-%m-%d %H:%M") if each.at else "",)
    ]
    rows += [
        (*_heading(each["name"], each["service"], each["state"], each["digest"]), ", ".join(each["changes"]), each["by"], "")
        for each in waiting
    ]
    columns = ("TOOL", "SERVICE", "STATE", "DIGEST", "ABOUT", "BY", "AT")
    print_table(columns, rows, empty=f"no tools and no decisions{namespace_of()}")


def _heading(name: str, service: str, state: str, digest: str) -> tuple[str, str, str, str]:
    return name, service, state, digest[:16]


@command("show", JSON, into=pins_command)
def show_command(name: str) -> None:
    """Show a tool as it is now, with the decision about it and what has changed, as JSON; and what waits for approval."""
    waiting = _review_of(name)

    async def main(admin: Admin) -> dict[str, Any]:
        from toolbus.bus.values.descriptors import tool_document

        found = next((each for each in await admin.pins.all() if each.name == name), None)
        if found is None and waiting is None:
            fail(_nothing(name))
        tool = (await admin.pins.offered()).get(name)
        shown: dict[str, Any] = {"pin": found, "tool": None if tool is None else tool_document(tool)}
        if warning := await _unpinned(admin, name):
            shown["unpinned"] = warning
        return shown if waiting is None else {**shown, "pending": waiting}

    print_json(with_admin(main))


@command("approve", into=pins_command)
def approve_tools_command(
    names: tuple[str, ...],
    everything: Annotated[bool, option("Approve every tool that is offered now and was not rejected.", "--all")],
    yes: Annotated[bool, option("With --all: do not ask.")],
    digest: Digest,
    reason: Reason,
    output: Output,
) -> None:
    """Approve tools as they are now. Agents see it at once."""
    if everything == bool(names):
        raise click.UsageError("name the tools, or give --all")
    if digest and len(names) != 1:
        raise click.UsageError("--digest is of one tool")
    if everything:
        listed = with_admin(lambda admin: admin.pins.all())
        names = tuple(each.name for each in listed if each.digest and each.state not in {"approved", "rejected"})
        if names and not yes:
            ask_first(f"Approve {len(names)} tools: {one_line(visible(', '.join(names)), 500)}?")
    _approve(names, digest, reason, output)


@command("reject", into=pins_command)
def reject_command(name: str, reason: Reason) -> None:
    """Withhold a tool from every agent, in every form, until it is approved. Calls that run go on.

    Of a recorded tool that waits for approval, what waits is removed; what is served stays.
    """
    from toolbus.platform.store import Records

    if with_admin(lambda admin: Records(admin).remove(f"pending/{name}")):
        say(f"rejected what waited for approval as {visible(name)}; what is served stays")
        return
    with_admin(lambda admin: admin.pins.reject(name, by=_who(), reason=reason))
    say(f"rejected {name}")


@command("rm", into=pins_command)
def rm_command(name: str) -> None:
    """Forget the decision about a tool, which is unpinned then."""
    if not with_admin(lambda admin: admin.pins.remove(name)):
        fail(_nothing(name))
    say(f"{name} is unpinned")


@command("approve")
def approve_command(
    name: str,
    yes: Annotated[bool, option("Do not ask before a recorded tool is approved.")],
    digest: Digest,
    reason: Reason,
    output: Output,
) -> None:
    """Approve a tool as it is now, so that agents may use this form of it.

    A recorded tool that waits for approval is shown first: what it changes, and the files of its code where they are on this
    machine. With --digest exactly that form is approved, and nothing is asked.

    \b
    Examples:
      toolbus secure pins show search
      toolbus secure approve search --digest 3f2a915c07d8e64b
    """
    review = _review_of(name)
    if review is not None:
        _approve_recorded(review, digest=digest, yes=yes, reason=reason, output=output)
    else:
        _approve((name,), digest, reason, output)


def _approve(names: tuple[str, ...], digest: str, reason: str, output: str) -> None:
    by = _who()

    async def main(admin: Admin) -> tuple[list[PinnedTool], dict[str, str]]:
        approved = [await admin.pins.approve(name, by=by, reason=reason, digest=digest) for name in names]
        return approved, {name: warning for name in names if (warning := await _unpinned(admin, name))}

    found, warnings = with_admin(main)
    if output == "json":
        print_json(found)
        return
    for each in found:
        say(f"approved {visible(each.name)} of {visible(each.service)} ({each.digest[:16]})")
    for name, warning in warnings.items():
        warn(f"{visible(name)}: {visible(warning)}")
    if not found:
        say("every tool is approved or rejected", err=True)


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        # A user of a container may have no name.
        return ""


def _nothing(name: str) -> str:
    return f"there is no tool {name!r} and no decision about it{namespace_of()}; `toolbus secure pins list` shows them"


# -- recorded tools that wait for approval -----------------------------------------------------------


def _review_of(name: str) -> Review | None:
    """Return the tool of this name that waits for approval, with the files of its code that are here; None when none waits."""
    from toolbus.platform.review import reviewed, with_files
    from toolbus.platform.store import Records

    found = with_admin(lambda admin: Records(admin).all())
    # Records that can't be read are no reason to treat it as a tool of a worker.
    wrong = next((each.reason for each in found.refused if each.key == f"pending/{name}"), "")
    if wrong:
        fail(f"it waits for approval and can't be used: {visible(wrong)}; `toolbus secure pins reject` removes it")
    waiting = found.pending.get(name)
    return None if waiting is None else with_files(reviewed(waiting, found.tools.get(name)), waiting)


async def _waiting(admin: Admin) -> list[dict[str, Any]]:
    """Return the tools that wait for approval, as entries of ``pins list``."""
    from toolbus.platform.review import reviewed
    from toolbus.platform.store import Records

    found = await Records(admin).all()
    return [
        {
            "name": each.tool_id,
            "state": "pending",
            "service": each.tool_id,
            "digest": each.digest,
            "changes": ["new tool"] if each.is_new else [change.field for change in each.changes],
            "by": each.made_by,
        }
        for each in (reviewed(tool, found.tools.get(name)) for name, tool in found.pending.items())
    ]


async def _unpinned(admin: Admin, name: str) -> str:
    """Return a warning when the code of a recorded tool that is served is not part of what was approved; else an empty text."""
    from toolbus.platform.review import unpinned_code
    from toolbus.platform.store import Records

    tool = (await Records(admin).all()).tools.get(name)
    return "" if tool is None else unpinned_code(tool)


def _approve_recorded(review: Review, *, digest: str, yes: bool, reason: str, output: str) -> None:
    """Approve a tool by its digest, or after a person has seen it and says so."""
    if not digest:
        if output == "json" and not yes:
            print_json(review)
            fail(f"not approved; `toolbus secure approve {visible(review.tool_id)} --digest {review.digest}` approves this form")
        if output != "json":
            _show(review)
        if not yes:
            ask_first(f"Approve {visible(review.tool_id)} ({review.digest[:16]})?")

    async def main(admin: Admin) -> RecordedTool:
        from toolbus.operations.cli.platform import sync_after
        from toolbus.platform.store import Records

        approved = await Records(admin).approve(review.tool_id, digest=digest or review.digest, by=_who(), reason=reason)
        await sync_after(admin)
        return approved

    tool = with_admin(main)
    if output == "json":
        print_json({"tool_id": tool.tool_id, "state": "approved", "revision": tool.revision, "digest": review.digest})
        return
    say(f"approved {visible(tool.tool_id)}, revision {tool.revision} ({review.digest[:16]}); hosts serve it from now on")
    say("its descriptor is pinned: a record that changes it without approval is withheld until it is approved")
    if digest and review.unpinned:
        # Nothing was shown before.
        warn(visible(review.unpinned))


def _show(review: Review) -> None:
    """Print a review for a person."""
    kind = "a new tool" if review.is_new else f"revision {review.revision} of a tool that is served"
    by = f", made by {visible(review.made_by)}" if review.made_by else ""
    say(f"{visible(review.tool_id)} waits for approval: {kind}{by}")
    say(f"digest {review.digest}")
    for change in review.changes:
        before = "" if change.before is None else f"{_value(change.before)} → "
        say(f"  {visible(change.field)}: {before}{'(gone)' if change.after is None else _value(change.after)}")
    if review.rights:
        say(visible(review.rights))
    if review.files:
        say(f"files of its code ({len(review.files)}):")
        for file in review.files[:_MOST_FILES]:
            say(f"  {visible(file.path)} ({file.bytes:,} bytes)")
        if len(review.files) > _MOST_FILES:
            say(f"  and {len(review.files) - _MOST_FILES} more")
    if review.unpinned:
        warn(visible(review.unpinned))
    if review.note:
        say(visible(review.note), fg="red", err=True)


def _value(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return visible(one_line(text, _MOST_VALUE))


# -- tools that agents leave out ---------------------------------------------------------------------


def refused(catalogue: Catalogue) -> list[RefusedTool]:
    """Return the tools and the presets that agents leave out, each with its reason; a preset belongs to no service."""
    return [*unusable(catalogue), *_refused_presets(catalogue.presets)]


def pending(catalogue: Catalogue) -> list[Tool]:
    """Return the static tools whose service no worker has served yet, by name."""

    def waits(tool: Tool) -> bool:
        return tool.service_descriptor is None or tool.service_descriptor is catalogue.static_services.get(tool.service)

    return [tool for _, tool in sorted(catalogue.tools.items()) if tool.owner == "operator" and waits(tool)]


def title(tool: RefusedTool) -> str:
    """Return the name of what is refused, with that of its service if it has one."""
    return f"{tool.name} of {tool.service}" if tool.service else tool.name


def _refused_presets(presets: Mapping[str, bytes]) -> list[RefusedTool]:
    from toolbus.bus.broker.protocols import RefusedTool

    try:
        from toolbus.toolkit.live import unreadable
    except ModuleNotFoundError:
        # Without the packages of the toolkit, nobody here uses presets.
        return []
    return [RefusedTool(f"toolkit/{name}", "", reason) for name, reason in unreadable(presets).items()]
