"""``platform``: recorded tools, which hosts run; each command is in a module of its own, imported when it is used."""

from __future__ import annotations

import asyncio
import datetime
import importlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolbus.bus.support.display import one_line, visible
from toolbus.operations.cli.common import Failure, fail, namespace_of, output_option, print_json, print_table, say, with_admin

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.broker.protocols import OutputLine
    from toolbus.platform.catalogue.synchronise import Report
    from toolbus.platform.records import RecordedTool
    from toolbus.platform.search import Search
    from toolbus.platform.states import ToolState
    from toolbus.platform.store import Snapshot

_COMMANDS = {
    "cancel": "platform",
    "export": "platform",
    "import": "platform",
    "list": "platform",
    "logs": "platform",
    "search": "platform",
    "status": "platform",
    "sync": "platform",
    "up": "platform_up",
}
"""The module of each command, which has it as ``<name>_command``."""


class _Platform(click.Group):
    """Imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        found: click.Command = getattr(importlib.import_module(f"toolbus.operations.cli.{_COMMANDS[cmd_name]}"), f"{cmd_name}_command")
        return found


@click.group("platform", cls=_Platform, no_args_is_help=True)
def platform_command() -> None:
    """Look after recorded tools: programs, containers and APIs that hosts run.

    \b
    Examples:
      toolbus platform import tools/
      toolbus platform search --category media stitch
      toolbus platform status
    """


_COLUMNS = ("TOOL", "STATUS", "CATEGORY", "RUNTIME", "SOURCES", "GROUPS", "ABOUT")


@click.command("list")
@output_option
@click.pass_context
def list_command(ctx: click.Context, output: str) -> None:
    """List the recorded tools, those that wait for approval, and records that can't be used."""
    from toolbus.platform.search import Search

    _show(ctx, Search(), output, everything=True)


@click.command("search")
@click.argument("words", nargs=-1)
@click.option("--category", default="", help="Only tools of this category.")
@click.option("--runtime", default="", help="Only tools of this backend runtime; local, docker or remote when a record names none.")
@click.option("--group", default="", help="Only tools in this group.")
@output_option
@click.pass_context
def search_command(ctx: click.Context, words: tuple[str, ...], category: str, runtime: str, group: str, output: str) -> None:
    """Find recorded tools by category, backend runtime, group, and WORDS in id, title, description or category.

    \b
    Example:
      toolbus platform search --runtime docker video
    """
    from toolbus.platform.search import Search

    _show(ctx, Search(category, runtime, group, " ".join(words)), output, everything=False)


def _show(ctx: click.Context, wanted: Search, output: str, *, everything: bool) -> None:
    from toolbus.platform.store import Records

    async def main(admin: Admin) -> Snapshot:
        return await Records(admin).all()

    records = with_admin(ctx, main)
    found = [(tool, tool.meta.status) for tool in wanted.found(records.tools, records.groups)]
    if everything:
        found += [(tool, "pending") for tool in records.pending.values()]
    if output == "json":
        rows = [_document(tool, status, records) for tool, status in found]
        print_json([*rows, *({"key": each.key, "refused": each.reason} for each in records.refused)] if everything else rows)
        return
    print_table(_COLUMNS, [_row(tool, status, records) for tool, status in found], empty=f"no such tools are recorded{namespace_of(ctx)}")
    if everything:
        for each in records.refused:
            say(f"can't be used: {visible(each.reason)}", fg="red", err=True)
        if records.pending:
            say("`toolbus approve TOOL` shows one that is pending, and lets hosts run it", err=True)


def _document(tool: RecordedTool, status: str, records: Snapshot) -> dict[str, Any]:
    from toolbus.platform.search import groups_of, runtime_of

    meta = tool.meta
    return {
        "tool_id": meta.tool_id,
        "name": meta.name,
        "description": meta.description,
        "category": meta.category,
        "backend_runtime": runtime_of(tool),
        "group_ids": groups_of(tool, records.groups),
        "sources": [each.type for each in tool.sources],
        "status": status,
        "revision": tool.revision,
    }


def _row(tool: RecordedTool, status: str, records: Snapshot) -> tuple[object, ...]:
    said = _document(tool, status, records)
    about = one_line(tool.meta.description or tool.meta.name, 60)
    return (
        tool.tool_id,
        status,
        said["category"],
        said["backend_runtime"],
        ", ".join(said["sources"]),
        ", ".join(said["group_ids"]),
        about,
    )


_FOLDER = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))


@click.command("import")
@_FOLDER
@output_option
@click.pass_context
def import_command(ctx: click.Context, folder: Path, output: str) -> None:
    """Record the tools and groups of registry.json, sources.json and groups.json in DIR.

    Each entry that is wrong is told with its reason and left out; the exit code is 1 then. Tools that the files do not name
    stay as they are. The catalogue that TOOLBUS_CATALOGUE names is synchronised afterwards.
    """
    from toolbus.platform.files import read_folder
    from toolbus.platform.store import Records

    found = read_folder(folder)

    async def main(admin: Admin) -> dict[str, str]:
        stored = await Records(admin).put_all(found.records)
        await sync_after(admin)
        return stored

    stored = with_admin(ctx, main) if found.records else {}
    if output == "json":
        print_json(
            {
                "stored": stored,
                "wrong": [each._asdict() for each in found.wrong],
                "ignored": [{"file": each.file, "id": each.id, "field": each.reason} for each in found.ignored],
            }
        )
    else:
        counts = Counter(stored.values())
        said = ", ".join(f"{counts[word]} {word}" for word in ("new", "changed", "unchanged") if counts[word])
        say(f"{len(stored)} stored: {said}" if stored else "nothing was stored")
        for each in found.ignored:
            say(f"{each.file}: {visible(each.id)}: {visible(each.reason)} is no field that is kept", err=True)
        for each in found.wrong:
            say(f"{each.file}: {visible(each.id)}: {visible(each.reason)}" if each.id else visible(each.reason), fg="red", err=True)
    if found.wrong:
        entries = "1 entry was" if len(found.wrong) == 1 else f"{len(found.wrong)} entries were"
        fail(f"{entries} left out; mend the files and import them again")


@click.command("export")
@_FOLDER
@output_option
@click.pass_context
def export_command(ctx: click.Context, folder: Path, output: str) -> None:
    """Write the recorded tools and groups to registry.json, sources.json and groups.json in DIR.

    Files that are there are replaced, and keep their form: a list, or an object of entries by id.
    """
    from toolbus.platform.files import write_folder
    from toolbus.platform.store import Records

    async def main(admin: Admin) -> Snapshot:
        return await Records(admin).all()

    records = with_admin(ctx, main)
    files = write_folder(folder, records)
    if output == "json":
        print_json({"files": files, "tools": len(records.tools), "groups": len(records.groups)})
    else:
        say(f"{', '.join(files)}: tools {len(records.tools)}, groups {len(records.groups)}")
    unusable = [each for each in records.refused if not each.key.startswith("pending/")]
    for refused in unusable:
        say(f"not exported: {visible(refused.reason)}", fg="red", err=True)
    if unusable:
        fail("not everything could be exported; `toolbus get KEY` shows what is stored, `toolbus put` replaces it")


async def sync_after(admin: Admin) -> None:
    """Synchronise the catalogue that the environment names, if it names one, and tell what was changed or why it could not be."""
    import os

    from toolbus.bus.values.results import ToolbusError
    from toolbus.platform.catalogue.configured import configured
    from toolbus.platform.catalogue.synchronise import synchronise
    from toolbus.platform.store import Records

    try:
        catalogue = configured(os.environ)
        report = None if catalogue is None else await synchronise(Records(admin), catalogue)
    except ToolbusError as error:
        say(f"the catalogue was not synchronised: {visible(str(error))}; `toolbus platform sync` does it again", fg="red", err=True)
        return
    for each in [] if report is None else report.changes:
        say(f"connected {visible(each.id)} with {visible(each.slug)} of the catalogue: {visible(each.why)}", err=True)


@click.command("sync")
@click.argument("place", metavar="CATALOGUE", envvar="TOOLBUS_CATALOGUE")
@click.option("--token", envvar="TOOLBUS_CATALOGUE_TOKEN", default="", help="Where the API's bearer token is: env:VARIABLE or file:PATH.")
@output_option
@click.pass_context
def sync_command(ctx: click.Context, place: str, token: str, output: str) -> None:
    """Connect the items of CATALOGUE with the recorded tools and groups that they are.

    CATALOGUE is a JSON file or the URL of an API (also TOOLBUS_CATALOGUE). An item matches by its slug or title in a name or id,
    or by keywords of the description and the category. Doing it again changes nothing.

    \b
    Example:
      toolbus platform sync https://toolhub.example/api
    """
    from toolbus.platform.catalogue.configured import catalogue_at
    from toolbus.platform.catalogue.synchronise import synchronise
    from toolbus.platform.store import Records

    catalogue = catalogue_at(place, token)

    async def main(admin: Admin) -> Report:
        return await synchronise(Records(admin), catalogue)

    report = with_admin(ctx, main)
    if output == "json":
        print_json(report)
    else:
        rows = [(each.slug, each.kind, each.id, " and ".join(each.changed) or "nothing", each.why) for each in report.matches]
        print_table(("ITEM", "KIND", "ID", "CHANGED", "WHY"), rows, empty="no item of the catalogue is a tool or a group here")
        for line in report.wrong:
            say(visible(line), fg="red", err=True)
    if report.wrong:
        fail(f"{len(report.wrong)} could not be connected")


_PLATFORM_STATUS_COLUMNS = ("TOOL", "STATE", "FOR", "HOST", "SOURCE", "PID", "PORT", "INSTANCES", "RESTARTS", "ERROR")


@click.command("status")
@click.option("--tools", "tools_only", is_flag=True, help="The state of each recorded tool, also of those that are stopped.")
@output_option
@click.pass_context
def status_command(ctx: click.Context, tools_only: bool, output: str) -> None:
    """Show which recorded tools run and where, the tasks of the coding agent, and the chats of the service agent.

    As JSON, --tools lists the states of tools; without it, everything is counted.
    """
    if output == "json" and not tools_only:
        print_json(with_admin(ctx, _status))
        return
    states, now = with_admin(ctx, _states)
    if output == "json":
        print_json(list(states.values()))
        return
    shown = [each for each in states.values() if tools_only or each.state != "stopped"]
    empty = f"no tools are recorded{namespace_of(ctx)}" if not states else "all tools are stopped"
    print_table(_PLATFORM_STATUS_COLUMNS, [_platform_status_row(each, now) for each in shown], empty=empty)
    if not tools_only:
        _summary(with_admin(ctx, _status))


async def _states(admin: Admin) -> tuple[dict[str, ToolState], float]:
    from toolbus.platform.states import states_of
    from toolbus.platform.store import Records

    return await states_of(admin, (await Records(admin).all()).tools), await admin.now()


async def _status(admin: Admin) -> dict[str, Any]:
    from toolbus.platform.states import get_system_status
    from toolbus.platform.store import Records

    return await get_system_status(admin, await Records(admin).all())


def _platform_status_row(state: ToolState, now: float) -> tuple[object, ...]:
    since = f"{max(0.0, now - state.since):.0f} s" if state.since else ""
    place = (state.host, state.source, state.pid or "", state.port or "")
    return (state.tool_id, state.state, since, *place, state.instances, state.restarts, one_line(state.last_error, 60))


def _summary(status: dict[str, Any]) -> None:
    tools, coding, service = status["tools"], status["coding_agent"], status["service_agent"]
    say(f"tools: {tools['total']} recorded, {tools['active']} active")
    say(f"coding agent: {coding['running_count']} tasks run, {coding['queued_count']} wait")
    for task in coding["recent_tasks"]:
        say(f"  {visible(task['task_id'])}  {task['status']}  {visible(one_line(task['task_spec'], 80))}")
    messenger = "connected" if service["im_connected"] else "not connected"
    say(f"service agent: {service['total_windows']} chats; the messenger is {messenger}")


# Seconds between two looks for new lines.
_LOOK_AGAIN = 0.3


@click.command("logs")
@click.argument("tool")
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines as they come, until Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(1, 1_000), default=50, show_default=True, help="Show this many of the latest lines.")
@output_option
@click.pass_context
def logs_command(ctx: click.Context, tool: str, follow: bool, lines: int, output: str) -> None:
    """Show what the programs of TOOL print, at all hosts, and what became of them.

    \b
    Example:
      toolbus platform logs image_stitcher -f
    """

    async def main(admin: Admin) -> None:
        found = await admin.routes.output(tool, lines)
        if not found and not follow:
            if await admin.item(f"recorded/{tool}") is None:
                raise Failure(f"no tool {tool!r} is recorded{namespace_of(ctx)}; `toolbus platform list` shows those that are")
            say("its programs have printed nothing in the last day", err=True)
        hosts: set[str] = set()
        after = ""
        while True:
            for line in found:
                _print(line, output, hosts)
                after = line.entry
            if not follow:
                return
            if len(found) < lines:
                await asyncio.sleep(_LOOK_AGAIN)
            found = await admin.routes.output_after(tool, after)

    with_admin(ctx, main)


def _print(line: OutputLine, output: str, hosts: set[str]) -> None:
    seconds = int(line.entry.partition("-")[0]) / 1000
    if output == "json":
        import msgspec

        say(visible(msgspec.json.encode({"at": seconds, "host": line.host, "line": line.text}).decode()))
        return
    hosts.add(line.host)
    at = datetime.datetime.fromtimestamp(seconds).astimezone()
    # One host is the usual case, and its name would take half of each line.
    place = f" {visible(line.host)}" if len(hosts) > 1 else ""
    say(f"{at:%H:%M:%S}{place} {visible(line.text)}")


@click.command("cancel")
@click.argument("task")
@click.pass_context
def cancel_command(ctx: click.Context, task: str) -> None:
    """End TASK, a task of the coding agent: one that waits at once, one that runs within a moment.

    Users end their own tasks with the tool cancel_task; this command is for operators.

    \b
    Example:
      toolbus platform cancel create_1a2b3c4d
    """
    status = with_admin(ctx, lambda admin: admin.creations.cancel(task))
    if status is None:
        fail(f"there is no task {task!r}{namespace_of(ctx)}; `toolbus platform status` shows the latest")
    words = {"running": "is told to end", "cancelled": "is cancelled"}
    say(f"{visible(task)} {words.get(status, f'has ended before: it is {status}')}")
