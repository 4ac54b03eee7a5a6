"""``platform``: look after recorded tools, serve them as a host, and talk about them: on a terminal, or in a messenger's windows."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import secrets
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import click

from toolbus.bus.support.display import one_line, visible
from toolbus.bus.support.waiting import either
from toolbus.bus.values.results import ToolbusError, ToolResult
from toolbus.bus.worker.process.event_loop import run_loop
from toolbus.bus.worker.process.lifeline import ChildState, ended_by, report_state, watch_lifeline
from toolbus.operations.cli.command import Folder, Grace, Lifeline, Output, ProcessOptions, Seconds, argument, command, option, setting
from toolbus.operations.cli.common import namespace_of, read_text, serving_settings, settings_with_server, with_admin
from toolbus.operations.cli.failing import fail, fail_if, needing, wrong_if
from toolbus.operations.cli.output import Columns, complain, emit, print_json, print_json_line, print_line, show, stored_of, titled
from toolbus.operations.cli.worker import announced, end_with, probed_worker, refusals

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.broker.protocols import OutputLine
    from toolbus.platform.records import RecordedTool
    from toolbus.platform.store import Snapshot
    from toolbus.sync import ToolBus

Directory = Annotated[Folder, argument(metavar="DIR")]


@command("list")
def list_command(output: Output) -> None:
    """List the recorded tools, those that wait for approval, and records that can't be used."""
    _show(output, everything=True)


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
    _show(output, category, runtime, group, " ".join(words))


def _show(output: str, *wanted: str, everything: bool = False) -> None:
    from toolbus.platform.search import Search
    from toolbus.platform.store import Records

    records = with_admin(lambda admin: Records(admin).all())
    found = [(tool, tool.meta.status) for tool in Search(*wanted).found(records.tools, records.groups)]
    if everything:
        found += [(tool, "pending") for tool in records.pending.values()]
    refused = records.refused if everything else ()
    documents = [_document(tool, status, records) for tool, status in found]
    columns: Columns = {
        "TOOL": "tool_id",
        **titled("status", "category"),
        "RUNTIME": "backend_runtime",
        "SOURCES": lambda each: ", ".join(each["sources"]),
        "GROUPS": lambda each: ", ".join(each["group_ids"]),
        "ABOUT": lambda each: one_line(each["description"] or each["name"], 60),
    }
    left_out = [{"key": each.key, "refused": each.reason} for each in refused]
    if not show(output, documents, columns, empty=f"no such tools are recorded{namespace_of()}", document=[*documents, *left_out]):
        return
    for each in refused:
        complain(f"can't be used: {visible(each.reason)}")
    if everything and records.pending:
        print_line("`toolbus secure approve TOOL` shows one that is pending, and lets hosts run it", err=True)


def _document(tool: RecordedTool, status: str, records: Snapshot) -> dict[str, Any]:
    from toolbus.platform.search import groups_of, runtime_of

    meta = tool.meta
    return {
        **{name: getattr(meta, name) for name in ("tool_id", "name", "description", "category")},
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
    document = {
        "stored": stored,
        "wrong": [each._asdict() for each in found.wrong],
        "ignored": [{"file": each.file, "id": each.id, "field": each.reason} for each in found.ignored],
    }
    if emit(output, document, stored_of(Counter(stored.values()))):
        for each in found.ignored:
            print_line(f"{each.file}: {visible(each.id)}: {visible(each.reason)} is no field that is kept", err=True)
        for each in found.wrong:
            complain(f"{each.file}: {visible(each.id)}: {visible(each.reason)}" if each.id else visible(each.reason))
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
    counts = {"tools": len(records.tools), "groups": len(records.groups)}
    emit(output, {"files": files, **counts}, f"{', '.join(files)}: tools {counts['tools']}, groups {counts['groups']}")
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
    from toolbus.platform.catalogue import configured, synchronise
    from toolbus.platform.store import Records

    try:
        catalogue = configured(os.environ)
        report = None if catalogue is None else await synchronise(Records(admin), catalogue)
    except ToolbusError as error:
        complain(f"the catalogue was not synchronised: {visible(str(error))}; `toolbus platform sync` does it again")
        return
    for each in [] if report is None else report.changes:
        print_line(f"connected {visible(each.id)} with {visible(each.slug)} of the catalogue: {visible(each.why)}", err=True)


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
        **titled("kind", "id"),
        "CHANGED": lambda each: " and ".join(each.changed) or "nothing",
        "WHY": "why",
    }
    if show(output, report.matches, columns, empty="no item of the catalogue is a tool or a group here", document=report):
        for line in report.wrong:
            complain(visible(line))
    fail_if(report.wrong, f"{len(report.wrong)} could not be connected")


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
    columns: Columns = {
        "TOOL": "tool_id",
        "STATE": "state",
        "FOR": lambda each: f"{max(0.0, now - each.since):.0f} s" if each.since else "",
        **titled("host", "source"),
        "PID": lambda each: each.pid or "",
        "PORT": lambda each: each.port or "",
        **titled("instances", "restarts"),
        "ERROR": lambda each: one_line(each.last_error, 60),
    }
    shown = [each for each in states if tools_only or each.state != "stopped"]
    nothing = "all tools are stopped" if states else f"no tools are recorded{namespace_of()}"
    show(output, shown, columns, empty=nothing, document=states)
    if not tools_only:
        _summary(await get_system_status(admin, records))


def _summary(status: dict[str, Any]) -> None:
    tools, coding, service = status["tools"], status["coding_agent"], status["service_agent"]
    print_line(f"tools: {tools['total']} recorded, {tools['active']} active")
    print_line(f"coding agent: {coding['running_count']} tasks run, {coding['queued_count']} wait")
    for task in coding["recent_tasks"]:
        print_line(f"  {visible(task['task_id'])}  {task['status']}  {visible(one_line(task['task_spec'], 80))}")
    messenger = "connected" if service["im_connected"] else "not connected"
    print_line(f"service agent: {service['total_windows']} chats; the messenger is {messenger}")


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
        print_line("its programs have printed nothing in the last day", err=True)
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
    print_line(f"{at:%H:%M:%S}{place} {visible(line.text)}")


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
    print_line(f"{visible(task)} {words.get(status, f'has ended before: it is {status}')}")


# -- the host ------------------------------------------------------------------------------------------

# Calls wait here, at no cost, until a program has started; those of one tool must not keep others from running.
_CONCURRENCY = 1_000


@command("host")
def host_command(
    labels: Annotated[tuple[str, ...], option("Also run sources that name this label (may be repeated).", "--label", metavar="LABEL")],
    name: Annotated[str, option("Begins the id of the host, instead of the machine's name.", default="")],
    folders: Annotated[
        tuple[Path, ...],
        option(
            "Look for relative folders of sources here (may be repeated; the working directory).",
            "--folder",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
        ),
    ],
    concurrency: Annotated[int | None, option(f"Calls that run or wait here at once ({_CONCURRENCY:,}).", type=click.IntRange(1))],
    grace: Grace,
    lease: Annotated[float | None, setting("lease", "Seconds after which another host takes over from a dead one")],
    allowed: Annotated[tuple[str, ...], option("Let APIs be at this host although it is not public.", "--allow-host", metavar="HOST")],
    process: ProcessOptions,
) -> None:
    """Serve the recorded tools that this machine may run.

    Programs and containers are started when a tool is first called, watched, and stopped when nobody calls it. Tools come and go as
    records do (`toolbus platform`). A source that names hosts runs at those with one of its labels, any other source at every host.

    SIGTERM and Ctrl-C take the host's tools out of the registry, let running calls finish, stop the programs, and exit with 0.

    \b
    Examples:
      toolbus platform host
      toolbus platform host --label gpu --label eu
      toolbus platform host --name workshop --allow-host localhost:8080
    """
    settings = serving_settings("host", concurrency=concurrency or _CONCURRENCY, grace=grace, lease=lease)

    async def serve() -> None:
        from toolbus.platform.host.host import Host

        host = Host(settings, labels=labels, name=name, allowed=allowed, folders=folders)
        end_with(process, settings)

        def connected() -> None:
            report_state(process.lifeline, ChildState(instance=host.worker.instance, host=host.id))

        async with announced(lambda: probed_worker(host.worker), process, quiet=process.lifeline is not None) as (serving, stopping):
            await host.run(serving, stopping, on_connect=connected)

    with refusals(process):
        run_loop(serve)
    sys.exit(0)


# -- chat ----------------------------------------------------------------------------------------------


@command("chat")
def chat_command(
    message: str | None,
    chat_id: Annotated[str, option("Go on with this chat, or begin one with this id.", default="")],
    user: Annotated[str, option("The tenant on whose behalf you talk; each has chats of their own.", default="")],
    tool: Annotated[str, option("Tool that answers.", default="chat")],
    timeout: Annotated[float | None, option("Seconds for an answer (the tool's own, 600).", type=Seconds())],
    output: Output,
) -> None:
    """Talk with the service agent.

    With MESSAGE (- reads it from standard input) it is answered, and the command ends. Without, each line that you type is a message,
    until Ctrl-D. Ctrl-C stops an answer, and ends the command where none is being given. The service agent is `toolbus worker
    service-agent`; it remembers a chat by its id, for a week.

    \b
    Examples:
      toolbus platform chat "which tools work with images?"
      toolbus platform chat --chat-id images
      toolbus platform chat --chat-id images "make me one that rotates them" --output json
    """
    settings = settings_with_server()
    wrong_if(message is None and output == "json", "--output json answers one message; give MESSAGE, or - to read it from standard input")
    text = read_text("-") if message == "-" else message
    wrong_if(text is not None and not text.strip(), "MESSAGE is empty")
    from toolbus.sync import ToolBus

    chat = chat_id or f"chat-{secrets.token_hex(4)}"
    options: dict[str, Any] = {"user": user, "session": chat} | ({} if timeout is None else {"timeout": timeout})
    with ToolBus(settings=settings) as bus:

        def send(message: str) -> ToolResult:
            return _send(bus, tool, {"message": message, "chat_id": chat}, options, quiet=output == "json")

        if text is None:
            _go_on(send, tool, chat, prompting=sys.stdin.isatty())
            return
        result = send(text)
    fail_if(result.error is not None, _failure(result, tool))
    if output == "json":
        print_json(result.data if isinstance(result.data, dict) else {"response": result.output or "", "chat_id": chat})
    elif not chat_id and sys.stderr.isatty():
        print_line(f"go on: toolbus platform chat --chat-id {chat}", dim=True, err=True)


def _go_on(send: Callable[[str], ToolResult], tool: str, chat: str, *, prompting: bool) -> None:
    """Answer each line of the input until its end."""
    if prompting:
        with contextlib.suppress(ImportError):
            # Arrow keys edit lines, and bring earlier ones back: input() uses it once it is imported.
            import readline  # noqa: F401
        print_line(f"chat {visible(chat)}; Ctrl-D ends it, and `toolbus platform chat --chat-id {visible(chat)}` goes on", err=True)
    while (line := _line(prompting)) is not None:
        if not line.strip():
            continue
        try:
            result = send(line.rstrip("\n"))
        except KeyboardInterrupt:
            if not prompting:
                raise
            print_line("\nstopped", dim=True, err=True)
            continue
        if result.error is not None:
            (complain if prompting else fail)(_failure(result, tool))


def _send(bus: ToolBus, tool: str, arguments: dict[str, Any], options: dict[str, Any], *, quiet: bool) -> ToolResult:
    """Send a message, and print the answer as it arrives unless ``quiet``."""
    from toolbus import Progress
    from toolbus.bus.values.events import Finished, Reset, Text

    unfinished = ""
    with bus.stream(tool, arguments, **options) as call:
        for event in call.events():
            if quiet:
                continue
            if isinstance(event, Text):
                print_line(event.text, nl=False)
                sys.stdout.flush()
                unfinished = event.text
            elif isinstance(event, Progress) and event.message and sys.stderr.isatty():
                print_line(f"  {event.message}", dim=True, err=True)
            elif isinstance(event, Reset):
                print_line("\n-- the answer begins again --", dim=True, err=True)
            elif isinstance(event, Finished) and not unfinished and event.result.success:
                unfinished = _response(event.result)
                print_line(unfinished, nl=False)
        if unfinished and not unfinished.endswith("\n"):
            print_line()
        return call.result()


def _response(result: ToolResult) -> str:
    said = result.data.get("response") if isinstance(result.data, dict) else None
    return said if isinstance(said, str) else result.output or ""


def _failure(result: ToolResult, tool: str) -> str:
    error = result.error
    if error is None:
        return ""
    if error.type in {"not_found", "unavailable"} and error.origin == "bus" and not result.output:
        return f"{error.message or error.type}; the service agent is `toolbus worker service-agent` (asked for the tool {tool!r})"
    return f"{error.type}: {error.message or error.code}"


def _line(prompting: bool) -> str | None:
    """Return the next line, or None at the end of the input."""
    try:
        if prompting:
            return input("> ")
        line = sys.stdin.readline()
    except EOFError:
        print_line(err=True)
        return None
    return line or None


_ENV = "TOOLBUS_IM_"


@command("im", env=_ENV)
def im_command(
    server: Annotated[str, option("Address of the messenger, ws:// or wss://.", required=True)],
    contact: Annotated[str, option("Name of this contact in the messenger.", required=True)],
    tool: Annotated[str, option("Tool that answers.", default="chat")],
    user: Annotated[str, option("The tenant on whose behalf messages are answered, and who has their chats.", default="im")],
    shared: Annotated[tuple[str, ...], option("A window that all senders share, with its memory (repeatable).", metavar="WINDOW")],
    state: Annotated[Folder | None, option("Folder of the windows (toolbus/im/CONTACT in ~/.local/state).")],
    lifeline: Lifeline,
) -> None:
    """Connect a messenger's windows with the service agent.

    One socket carries the messages of many windows. Each is kept on the disk before its sender is told so, answered once by the tool
    `chat`, and its answer goes to the sender's window, also when this process is killed in between. A token in TOOLBUS_IM_TOKEN is sent
    as a bearer token.

    \b
    Examples:
      toolbus platform im --server ws://localhost:8765 --contact tool_agent
    """
    wrong_if(not _is_address(server), "--server is an address such as ws://localhost:8765")
    wrong_if(not contact.strip() or len(contact) > 255, "--contact is a name of 1 to 255 characters")
    folder = state or _usual(contact)
    settings = serving_settings("im")

    async def connect() -> None:
        from toolbus import ToolBus

        with needing("im", "the messenger"):
            from toolbus.agent.im.connector import Connector
        from toolbus.agent.im.window import Windows

        stop = asyncio.Event()
        if lifeline is not None:
            watch_lifeline(lifeline, stop.set, settings.grace)
        with ended_by(stop.set, stop.set), Windows(folder, shared) as windows:
            async with ToolBus(settings=settings) as bus:
                connector = Connector(server, contact, windows, bus, tool, user=user, token=os.environ.get(f"{_ENV}TOKEN", "").strip())
                report_state(lifeline, ChildState(serving=True))
                try:
                    running, _ = await either(connector.run(), stop.wait())
                    if not running.cancelled():
                        running.result()
                finally:
                    await connector.leave()

    run_loop(connect)


def _is_address(server: str) -> bool:
    try:
        address = urlsplit(server)
        return address.scheme in {"ws", "wss"} and bool(address.hostname) and address.port != 0
    except ValueError:
        return False


def _usual(contact: str) -> Path:
    from toolbus.agent.im.window import folder_of

    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".local/state") / "toolbus/im" / folder_of(contact)
