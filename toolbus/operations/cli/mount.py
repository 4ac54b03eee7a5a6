"""``mount``: serve the tools of an MCP server, or the operations of an API."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from typing import TYPE_CHECKING, Annotated, NamedTuple

import click

from toolbus.bus import telemetry
from toolbus.bus.support.display import one_line
from toolbus.bus.support.waiting import beside
from toolbus.bus.values.results import ToolbusError
from toolbus.bus.worker.process.lifeline import Bounds
from toolbus.operations.cli.command import Concurrency, Number, Output, ProcessOptions, argument, command, option
from toolbus.operations.cli.common import serving_settings, settings_of
from toolbus.operations.cli.failing import needing, wrong_if
from toolbus.operations.cli.output import Columns, print_line, show
from toolbus.operations.cli.worker import child_words, end_with, refusals, run_worker, supervise

if TYPE_CHECKING:
    from toolbus.bus.values.settings import Settings
    from toolbus.edges.mounts.mount import Mount
    from toolbus.edges.mounts.options import Options

_LIBRARIES = ("mcp", "client", "httpx2", "httpcore2", "fastmcp", "FastMCP")


class MountOptions(NamedTuple):
    """The options of what is served of a server or API, and how it is reached."""

    include: Annotated[tuple[str, ...], option("Serve only these tools, such as 'get_*' (may be repeated).", metavar="PATTERN")]
    exclude: Annotated[tuple[str, ...], option("Serve all but these tools (may be repeated).", metavar="PATTERN")]
    prefix: Annotated[str, option("Begin the names of its tools with this.", default="")]
    groups: Annotated[tuple[str, ...], option("Put its tools into this group (may be repeated).", "--group")]
    category: Annotated[str, option("Put its tools into this category.", default="")]
    timeout: Annotated[float, option("Seconds that a call may take, unless the caller says otherwise.", type=Number(0), default=0.0)]
    output_limit: Annotated[int, option("Characters of an observation.", type=click.IntRange(0), default=0)]
    most_tools: Annotated[int, option("Tools to serve at most.", type=click.IntRange(1), default=1000)]
    no_resources: Annotated[bool, option("Serve no tools for its resources and prompts.")]
    variables: Annotated[tuple[str, ...], option("Pass this variable on to the command (may be repeated).", "--env", metavar="NAME")]
    headers: Annotated[tuple[str, ...], option("Send a header; SOURCE is env:VARIABLE or file:PATH.", "--header", metavar="NAME=SOURCE")]
    query: Annotated[
        tuple[str, ...],
        option("Send a parameter with each request of --openapi, as --header does.", metavar="NAME=SOURCE", needs=("openapi",)),
    ]
    bearer: Annotated[str | None, option("Send a bearer token; SOURCE is env:VARIABLE or file:PATH.", metavar="SOURCE")]
    sse: Annotated[bool, option("The URL is of a server of before 2025, which speaks server-sent events.")]
    base_url: Annotated[
        str | None, option("Where the API of --openapi is, if not where its document says.", metavar="URL", needs=("openapi",))
    ]
    hosts: Annotated[
        tuple[str, ...],
        option("Reach this host of --openapi, public or not, and send it headers.", "--allow-host", metavar="HOST", needs=("openapi",)),
    ]
    start: Annotated[float, option("Seconds that the server may take to start.", type=Number(0.1), default=30.0)]


@command("mount")
def mount_command(
    name: str,
    target: Annotated[tuple[str, ...], argument(metavar="[-- COMMAND... | URL]")],
    openapi: Annotated[str | None, option("Serve the operations of this OpenAPI document.", metavar="URL|FILE")],
    listing: Annotated[bool, option("Show what would be served, and serve nothing.", "--list")],
    processes: Annotated[
        int, option("Worker processes, each with a server of its own.", kept=True, type=click.IntRange(1, 256), default=1)
    ],
    concurrency: Concurrency,
    mounting: MountOptions,
    pin: Annotated[bool, option("Approve tools that were never decided about, as they are now; see `toolbus secure pins`.")],
    process: ProcessOptions,
    output: Output,
) -> None:
    """Serve the tools of an MCP server, or the operations of an API.

    NAME becomes the name of the service. The server is a COMMAND, which is started as a child process, a URL, or with --openapi an API.
    Its tools are marked as external. A tool that says nothing of its effect counts as one that may run once only.

    The command gets a few harmless variables only; --env NAME passes further ones on. A server that ends or hangs is started anew.
    Run the command several times, also on other machines, to have more of it.

    \b
    Examples:
      toolbus mount time -- uvx mcp-server-time
      toolbus mount github --env GITHUB_TOKEN --include 'get_*' -- npx -y @modelcontextprotocol/server-github
      toolbus mount docs https://example.com/mcp --bearer env:DOCS_TOKEN --processes 2
      toolbus mount pets --openapi https://example.com/openapi.json --prefix pets_
      toolbus mount time --list -- uvx mcp-server-time
    """
    from toolbus.bus.worker.process.event_loop import run_loop

    if listing:
        settings = settings_of()
        telemetry.configure_logging("warning", settings.log_format)
        telemetry.configure_export("toolbus-mount")
    else:
        settings = serving_settings("mount", lifeline=process.lifeline, concurrency=concurrency)
    for library in _LIBRARIES:
        # They log tracebacks of what a server does wrong, which is told by events of ours.
        logging.getLogger(library).setLevel(logging.CRITICAL)
    with refusals(process):
        options = _options(mounting)
        if processes > 1 and not listing:
            words, bounds = child_words(), Bounds(processes, processes)
            code = run_loop(lambda: supervise(settings, "mount", words, bounds, process))
        else:
            service = _service(name, target, openapi, options, mounting)
            code = run_loop(lambda: _list(service, output) if listing else _serve(service, settings, process, pin=pin))
    sys.exit(code)


def _options(mounting: MountOptions) -> Options:
    from toolbus.edges.mounts.options import Options

    same = ("include", "exclude", "prefix", "groups", "category", "timeout", "output_limit", "most_tools", "start")
    return Options(**{field: getattr(mounting, field) for field in same}, resources=not mounting.no_resources)


def _service(name: str, target: tuple[str, ...], openapi: str | None, options: Options, mounting: MountOptions) -> Mount:
    from toolbus.bus.values.secrets import Secret, secret
    from toolbus.edges.mounts.options import Address, Command, check_address, environment_for

    headers: dict[str, Secret] = {field: secret(source) for field, source in _sources(mounting.headers, "--header").items()}
    if mounting.bearer:
        headers["Authorization"] = secret(mounting.bearer, "Bearer ")
    if openapi is not None:
        with needing("mcp", "mounting APIs"):
            from toolbus.edges.mounts.openapi.service import MountedApi
        wrong_if(target, "give a command, a URL, or --openapi: one of them")
        query = {field: secret(source) for field, source in _sources(mounting.query, "--query").items()}
        base = mounting.base_url or ""
        return MountedApi(name, openapi, options, headers=headers, query=query, base_url=base, hosts=mounting.hosts)
    wrong_if(not target, f"say what to mount: toolbus mount {name} -- COMMAND, or a URL, or --openapi; --help has examples")
    with needing("mcp", "mounting MCP servers"):
        from toolbus.edges.mounts.service import MountedServer
    if len(target) == 1 and "://" in target[0]:
        address = Address(check_address(target[0]), headers, "sse" if mounting.sse else "http")
        return MountedServer(name, address, options)
    wrong_if(headers, "--header and --bearer are for a URL; --env passes a variable on to a command")
    return MountedServer(name, Command(target, environment_for(mounting.variables)), options)


def _sources(words: tuple[str, ...], option: str) -> dict[str, str]:
    """Return sources by name, of words such as ``X-Key=env:KEY``."""
    found: dict[str, str] = {}
    for each in words:
        field, equals, source = each.partition("=")
        wrong_if(not equals or not field.strip(), f"{option} takes NAME=env:VARIABLE or NAME=file:PATH")
        found[field.strip()] = source
    return found


async def _serve(service: Mount, settings: Settings, process: ProcessOptions, *, pin: bool) -> int:
    from toolbus.bus.worker.worker import Worker
    from toolbus.edges.mounts.mount import mounted

    end_with(process, settings)
    async with mounted([service]) as serve_with:
        worker = Worker(service, settings=settings)
        serve_with(worker)
        serving = asyncio.Event()
        async with beside(_pin(settings, service.id, serving)) if pin else contextlib.nullcontext():
            await run_worker(worker, process, on_open=serving.set)
    return 0


async def _pin(settings: Settings, mount: str, serving: asyncio.Event) -> None:
    """Approve what is served, once it is; a failure is told, and what is served goes on."""
    from toolbus.edges.mounts.options import pin_new

    await serving.wait()
    try:
        names = await pin_new(settings, mount)
    except ToolbusError as error:
        telemetry.log.error("mount.not_pinned", mount=mount, error=str(error))
    else:
        telemetry.log.info("mount.pinned", mount=mount, tools=names)


async def _list(service: Mount, output: str) -> int:
    async with service:
        names = service.names()
        rows = [{**tool, "tool": names[tool["name"]]} for tool in service.tools]
        left_out = service.left_out
    columns: Columns = {"TOOL": "name", "EFFECT": "effect", "DESCRIPTION": lambda row: one_line(row["description"], 80)}
    if show(output, rows, columns, empty="no tools", document={"tools": rows, "left_out": left_out}):
        for name, reason in left_out.items():
            print_line(f"left out: {one_line(name, 80)}: {one_line(reason, 200)}", err=True)
    return 0
