"""``platform``: look after recorded tools, which hosts run."""

from __future__ import annotations

import asyncio
import datetime
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from toolbus.bus.support.display import one_line, visible
from toolbus.operations.cli.command import Folder, Output, argument, command, option
from toolbus.operations.cli.common import namespace_of, with_admin
from toolbus.operations.cli.output import Columns, complain, fail, print_json, print_json_line, print_table, say, show

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.broker.protocols import OutputLine
    from toolbus.platform.records import RecordedTool
    from toolbus.platform.search import Search
    from toolbus.platform.store import Snapshot

Directory = Annotated[Path, argument(metavar="DIR", type=Folder)]


@command("list")
def list_command(output: Output) -> None:
    """List the recorded tools, those that wait for approval, and records that can't be used."""
    from toolbus.platform.search import Search

    _show(Search(), output, everything=True)


@command("search")
def search_command(
    words: tuple[str, ...],
    category: Annotated[str, option("Only tools of this category.", default="")],
    runtime: Annotated[str, option("Only tools of this backend runtime; local, docker or remote when a record names none.", default="")],
    group: Annotated[str, option("Only tools in this group.", default="")],
    output: Output,
) -> None:
    """Find recorded tools by category, backend runtime, group, and WORDS in id, title, description or category.

    \b
    Example:
      toolbus platform search --runtime docker video
    """
    from toolbus.platform.search import Search

    _show(Search(category, runtime, group, " ".join(words)), output, everything=False)


def _show(wanted: Search, output: str, *, everything: bool) -> None:
    from toolbus.platform.store import Records

    records = with_admin(lambda admin: Records(admin).all())
    found = [(tool, tool.meta.status) for tool in wanted.found(records.tools, records.groups)]
    if everything:
        found += [(tool, "pending") for tool in records.pending.values()]
    refused = records.refused if everything else ()
    documents = [_document(tool, status, records) for tool, status in found]
    if output == "json":
        print_json([*documents, *({"key": each.key, "refused": each.reason} for each in refused)])
        return
    rows = [
        (
            each["tool_id"],
            each["status"],
            each["category"],
            each["backend_runtime"],
            ", ".join(each["sources"]),
            ", ".join(each["group_ids"]),
            one_line(each["description"] or each["name"], 60),
        )
        for each in documents
    ]
    columns = ("TOOL", "STATUS", "CATEGORY", "RUNTIME", "SOURCES", "GROUPS", "ABOUT")
    print_table(columns, rows, empty=f"no such tools are recorded{namespace_of()}")
    for each in refused:
        complain(f"can't be used: {visible(each.reason)}")
    if everything and records.pending:
        say("`toolbus secure approve TOOL` shows one that is pending, and lets hosts run it", err=True)


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


@command("import")
def import_command(folder: Directory, output: Output) -> None:
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

    stored = with_admin(main) if found.records else {}
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


@command("export")
def export_command(folder: Directory, output: Output) -> None:
    """Write the recorded tools and groups to registry.json, sources.json and groups.json in DIR.

    Files that are there are replaced, and keep their form: a list, or an object of entries by id.
    """
    from toolbus.platform.files import write_folder
    from toolbus.platform.store import Records

    records = with_admin(lambda admin: Records(admin).all())
    files = write_folder(folder, records)
    if output == "json":
        print_json({"files": files, "tools": len(records.tools), "groups": len(records.groups)})
    else:
        say(f"{', '.join(files)}: tools {len(records.tools)}, groups {len(records.groups)}")
    unusable = [each for each in records.refused if not each.key.startswith("pending/")]
    for refused in unusable:
        complain(f"not exported: {visible(refused.reason)}")
    if unusable:
        fail(
            "not everything could be exported; `toolbus operate items get KEY` shows what is stored, "
            "`toolbus operate items put` replaces it"
        )


async def sync_after(admin: Admin) -> None:
    """Synchronise the catalogue that the environment names, if it names one, and tell what was changed or why it could not be."""
    import os

    from toolbus.bus.values.results import ToolbusError
    from toolbus.platform.catalogue import configured, synchronise
    from toolbus.platform.store import Records

    try:
        catalogue = configured(os.environ)
        report = None if catalogue is None else await synchronise(Records(admin), catalogue)
    except ToolbusError as error:
        complain(f"the catalogue was not synchronised: {visible(str(error))}; `toolbus platform sync` does it again")
        return
    for each in [] if report is None else report.changes:
        say(f"connected {visible(each.id)} with {visible(each.slug)} of the catalogue: {visible(each.why)}", err=True)


@command("sync")
def sync_command(
    place: Annotated[str, argument(metavar="CATALOGUE", envvar="TOOLBUS_CATALOGUE")],
    token: Annotated[
        str, option("Where the API's bearer token is: env:VARIABLE or file:PATH.", envvar="TOOLBUS_CATALOGUE_TOKEN", default="")
    ],
    output: Output,
) -> None:
    """Connect the items of CATALOGUE with the recorded tools and groups that they are.

    CATALOGUE is a JSON file or the URL of an API (also TOOLBUS_CATALOGUE). An item matches by its slug or title in a name or id,
    or by keywords of the description and the category. Doing it again changes nothing.

    \b
    Example:
      toolbus platform sync https://toolhub.example/api
    """
    from toolbus.platform.catalogue import catalogue_at, synchronise
    from toolbus.platform.store import Records

    catalogue = catalogue_at(place, token)

    report = with_admin(lambda admin: synchronise(Records(admin), catalogue))
    columns: Columns = {
        "ITEM": "slug",
        "KIND": "kind",
        "ID": "id",
        "CHANGED": lambda each: " and ".join(each.changed) or "nothing",
        "WHY": "why",
    }
    if show(output, report.matches, columns, empty="no item of the catalogue is a tool or a group here", document=report):
        for line in report.wrong:
            say(visible(line), fg="red", err=True)
    if report.wrong:
        fail(f"{len(report.wrong)} could not be connected")


@command("status")
async def status_command(
    admin: Admin,
    tools_only: Annotated[bool, option("The state of each recorded tool, also of those that are stopped.", "--tools")],
    output: Output,
) -> None:
    """Show which recorded tools run and where, the tasks of the coding agent, and the chats of the service agent.

    As JSON, --tools lists the states of tools; without it, everything is counted.
    """
    from toolbus.platform.states import get_system_status, states_of
    from toolbus.platform.store import Records

    records = await Records(admin).all()
    if output == "json" and not tools_only:
        print_json(await get_system_status(admin, records))
        return
    states = [*(await states_of(admin, records.tools)).values()]
    now = await admin.now()
    show(
        output,
        states if output == "json" else [each for each in states if tools_only or each.state != "stopped"],
        {
            "TOOL": "tool_id",
            "STATE": "state",
            "FOR": lambda each: f"{max(0.0, now - each.since):.0f} s" if each.since else "",
            "HOST": "host",
            "SOURCE": "source",
            "PID": lambda each: each.pid or "",
            "PORT": lambda each: each.port or "",
            "INSTANCES": "instances",
            "RESTARTS": "restarts",
            "ERROR": lambda each: one_line(each.last_error, 60),
        },
        empty="all tools are stopped" if states else f"no tools are recorded{namespace_of()}",
    )
    if not tools_only:
        _summary(await get_system_status(admin, records))


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


@command("logs")
async def logs_command(
    admin: Admin,
    tool: str,
    follow: Annotated[bool, option("Go on with new lines as they come, until Ctrl-C.", "-f", "--follow")],
    lines: Annotated[int, option("Show this many of the latest lines.", "-n", "--lines", type=click.IntRange(1, 1_000), default=50)],
    output: Output,
) -> None:
    """Show what the programs of TOOL print, at all hosts, and what became of them.

    \b
    Example:
      toolbus platform logs image_stitcher -f
    """
    found = await admin.routes.output(tool, lines)
    if not found and not follow:
        if await admin.item(f"recorded/{tool}") is None:
            fail(f"no tool {tool!r} is recorded{namespace_of()}; `toolbus platform list` shows those that are")
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


def _print(line: OutputLine, output: str, hosts: set[str]) -> None:
    seconds = int(line.entry.partition("-")[0]) / 1000
    if output == "json":
        print_json_line({"at": seconds, "host": line.host, "line": line.text})
        return
    hosts.add(line.host)
    at = datetime.datetime.fromtimestamp(seconds).astimezone()
    # One host is the usual case, and its name would take half of each line.
    place = f" {visible(line.host)}" if len(hosts) > 1 else ""
    say(f"{at:%H:%M:%S}{place} {visible(line.text)}")


@command("cancel")
async def cancel_command(admin: Admin, task: str) -> None:
    """End TASK, a task of the coding agent: one that waits at once, one that runs within a moment.

    Users end their own tasks with the tool cancel_task; this command is for operators.

    \b
    Example:
      toolbus platform cancel create_1a2b3c4d
    """
    status = await admin.creations.cancel(task)
    if status is None:
        fail(f"there is no task {task!r}{namespace_of()}; `toolbus platform status` shows the latest")
    words = {"running": "is told to end", "cancelled": "is cancelled"}
    say(f"{visible(task)} {words.get(status, f'has ended before: it is {status}')}")
