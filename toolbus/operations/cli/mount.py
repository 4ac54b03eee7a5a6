"""``mount``: serve the tools of an MCP server, or the operations of an API."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolbus.bus.support.display import one_line
from toolbus.bus.values.results import ConfigurationError, ToolbusError
from toolbus.bus.worker.process.autoscaler import Bounds
from toolbus.operations.cli.common import output_option, print_table, say, settings_of, settings_with_server
from toolbus.operations.cli.doctor import ProbePlace, health_options, run_worker
from toolbus.operations.cli.worker import refusals, supervise

if TYPE_CHECKING:
    from toolbus.bus.values.settings import Settings
    from toolbus.edges.mounts.mount import Mount
    from toolbus.edges.mounts.options import Options

_LIBRARIES = ("mcp", "client", "httpx2", "httpcore2", "fastmcp", "FastMCP")


@click.command("mount")
@click.argument("name")
@click.argument("target", nargs=-1, metavar="[-- COMMAND... | URL]")
@click.option("--openapi", metavar="URL|FILE", help="Serve the operations of this OpenAPI document.")
@click.option("--list", "listing", is_flag=True, help="Show what would be served, and serve nothing.")
@click.option(
    "--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Worker processes, each with a server of its own."
)
@click.option("--concurrency", type=click.IntRange(1), help="Calls that run at once in each process (TOOLBUS_CONCURRENCY; 100).")
@click.option("--include", multiple=True, metavar="PATTERN", help="Serve only these tools, such as 'get_*' (may be repeated).")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Serve all but these tools (may be repeated).")
@click.option("--prefix", default="", help="Begin the names of its tools with this.")
@click.option("--group", "groups", multiple=True, help="Put its tools into this group (may be repeated).")
@click.option("--category", default="", help="Put its tools into this category.")
@click.option("--timeout", type=click.FloatRange(0), default=0.0, help="Seconds that a call may take, unless the caller says otherwise.")
@click.option("--output-limit", type=click.IntRange(0), default=0, help="Characters of an observation.")
@click.option("--most-tools", type=click.IntRange(1), default=1000, show_default=True, help="Tools to serve at most.")
@click.option("--no-resources", is_flag=True, help="Serve no tools for its resources and prompts.")
@click.option("--env", "variables", multiple=True, metavar="NAME", help="Pass this variable on to the command (may be repeated).")
@click.option("--header", "headers", multiple=True, metavar="NAME=SOURCE", help="Send a header; SOURCE is env:VARIABLE or file:PATH.")
@click.option("--query", multiple=True, metavar="NAME=SOURCE", help="Send a parameter with each request of --openapi, as --header does.")
@click.option("--bearer", metavar="SOURCE", help="Send a bearer token; SOURCE is env:VARIABLE or file:PATH.")
@click.option("--sse", is_flag=True, help="The URL is of a server of before 2025, which speaks server-sent events.")
@click.option("--base-url", metavar="URL", help="Where the API of --openapi is, if not where its document says.")
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="HOST", help="Reach this host of --openapi, public or not, and send it headers."
)
@click.option("--start", type=click.FloatRange(0.1), default=30.0, show_default=True, help="Seconds that the server may take to start.")
@click.option("--pin", is_flag=True, help="Approve tools that were never decided about, as they are now; see `toolbus pins`.")
@health_options()
@output_option
@click.option("--lifeline", type=int, hidden=True)
@click.pass_context
def mount_command(
    ctx: click.Context,
    /,
    name: str,
    target: tuple[str, ...],
    openapi: str | None,
    listing: bool,
    processes: int,
    concurrency: int | None,
    lifeline: int | None,
    health_host: str,
    health_port: int | None,
    output: str,
    pin: bool,
    **given: Any,
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
    from toolbus.bus import telemetry
    from toolbus.bus.worker.process.event_loop import run_loop

    settings = settings_of(ctx) if listing else settings_with_server(ctx, serves=True, concurrency=concurrency)
    # Its lines stand among those of others.
    process = 0 if lifeline is None else os.getpid()
    telemetry.configure_logging("warning" if listing else settings.log_level, settings.log_format, process=process)
    telemetry.configure_export("toolbus-mount")
    for library in _LIBRARIES:
        # They log tracebacks of what a server does wrong, which is told by events of ours.
        logging.getLogger(library).setLevel(logging.CRITICAL)
    place = ProbePlace(health_host, health_port)
    with refusals(lifeline):
        options = _options(given)
        if processes > 1 and not listing:
            words = _words(ctx)
            after = ["--", name, *target]
            code = run_loop(
                lambda: supervise(settings, words, processes=Bounds(processes, processes), lifeline=lifeline, after=after, place=place)
            )
        else:
            service = _service(name, target, openapi, options, given)
            code = run_loop(lambda: _list(service, output) if listing else _serve(service, settings, place, lifeline, pin=pin))
    sys.exit(code)


def _options(given: dict[str, Any]) -> Options:
    from toolbus.edges.mounts.options import Options

    same = ("include", "exclude", "prefix", "groups", "category", "timeout", "output_limit", "most_tools", "start")
    return Options(**{field: given[field] for field in same}, resources=not given["no_resources"])


def _service(name: str, target: tuple[str, ...], openapi: str | None, options: Options, given: dict[str, Any]) -> Mount:
    from toolbus.bus.values.secrets import Secret, secret
    from toolbus.edges.mounts.options import Address, Command, check_address, environment_for

    headers: dict[str, Secret] = {field: secret(source) for field, source in _sources(given["headers"], "--header").items()}
    if given["bearer"]:
        headers["Authorization"] = secret(given["bearer"], "Bearer ")
    if openapi is not None:
        try:
            from toolbus.edges.mounts.openapi.service import MountedApi
        except ModuleNotFoundError as error:
            raise ConfigurationError(f"mounting APIs needs {error.name}: pip install 'toolbus[mcp]'") from None

        if target:
            raise click.UsageError("give a command, a URL, or --openapi: one of them")
        query = {field: secret(source) for field, source in _sources(given["query"], "--query").items()}
        base = given["base_url"] or ""
        return MountedApi(name, openapi, options, headers=headers, query=query, base_url=base, hosts=given["hosts"])
    if not target:
        raise click.UsageError(f"say what to mount: toolbus mount {name} -- COMMAND, or a URL, or --openapi; --help has examples")
    try:
        from toolbus.edges.mounts.service import MountedServer
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"mounting MCP servers needs {error.name}: pip install 'toolbus[mcp]'") from None

    if len(target) == 1 and "://" in target[0]:
        address = Address(check_address(target[0]), headers, "sse" if given["sse"] else "http")
        return MountedServer(name, address, options)
    if headers:
        raise click.UsageError("--header and --bearer are for a URL; --env passes a variable on to a command")
    return MountedServer(name, Command(target, environment_for(given["variables"])), options)


def _sources(given: tuple[str, ...], option: str) -> dict[str, str]:
    """Return sources by name, of words such as ``X-Key=env:KEY``."""
    found: dict[str, str] = {}
    for each in given:
        field, equals, source = each.partition("=")
        if not equals or not field.strip():
            raise click.UsageError(f"{option} takes NAME=env:VARIABLE or NAME=file:PATH")
        found[field.strip()] = source
    return found


async def _serve(service: Mount, settings: Settings, place: ProbePlace, lifeline: int | None, *, pin: bool) -> int:
    from toolbus.bus.worker.process.lifeline import end_process, watch_lifeline
    from toolbus.bus.worker.worker import Worker
    from toolbus.edges.mounts.mount import mounted

    if lifeline is not None:
        watch_lifeline(lifeline, end_process, settings.grace)
    async with mounted([service]) as serve_with:
        worker = Worker(service, settings=settings)
        serve_with(worker)
        serving = asyncio.Event()
        pinning = asyncio.create_task(_pin(settings, service.id, serving)) if pin else None
        try:
            await run_worker(worker, place, lifeline, on_open=serving.set)
        finally:
            if pinning is not None:
                pinning.cancel()
                await asyncio.wait({pinning})
    return 0


async def _pin(settings: Settings, mount: str, serving: asyncio.Event) -> None:
    """Approve what is served, once it is; a failure is told, and what is served goes on."""
    from toolbus.bus import telemetry
    from toolbus.edges.mounts.options import pin_new

    await serving.wait()
    try:
        names = await pin_new(settings, mount)
    except ToolbusError as error:
        telemetry.log.error("mount.not_pinned", mount=mount, error=str(error))
    else:
        telemetry.log.info("mount.pinned", mount=mount, tools=names)


async def _list(service: Mount, output: str) -> int:
    import msgspec

    async with service:
        names = service.names()
        rows = [{**tool, "tool": names[tool["name"]]} for tool in service.tools]
        left_out = service.left_out
    if output == "json":
        say(msgspec.json.format(msgspec.json.encode({"tools": rows, "left_out": left_out})).decode())
        return 0
    shown = [(row["name"], row["effect"], one_line(row["description"], 80)) for row in rows]
    print_table(("TOOL", "EFFECT", "DESCRIPTION"), shown, empty="no tools")
    for name, reason in left_out.items():
        say(f"left out: {one_line(name, 80)}: {one_line(reason, 200)}", err=True)
    return 0


def _absolute(place: str) -> str:
    return str(Path(place).absolute()) if Path(place).is_file() else place


def _words(ctx: click.Context) -> list[str]:
    """Return the options of this command as words, for a child that runs it alone."""
    words = ["mount"]
    for param in ctx.command.params:
        value = ctx.params.get(param.name or "")
        if (
            not isinstance(param, click.Option)
            or not param.expose_value
            or param.name in {"processes", "concurrency", "lifeline", "output", "health_host", "health_port"}
        ):
            continue
        for each in value if param.multiple and value else [value]:
            if each is True:
                words.append(param.opts[0])
            elif each not in {None, False, ()}:
                words += [param.opts[0], _absolute(each) if param.name == "openapi" else str(each)]
    return words
