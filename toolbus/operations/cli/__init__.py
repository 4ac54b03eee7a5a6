"""The ``toolbus`` command: one module per group of commands, imported when the command is used."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Mapping
from typing import Any

import click

from toolbus.bus.support.display import harmless
from toolbus.bus.values.results import ToolbusError
from toolbus.bus.values.settings import misspelt
from toolbus.operations.cli.command import Place, Tree, common_options, tree
from toolbus.operations.cli.common import drop_unwritable_output, explained, open_closed, reason
from toolbus.operations.cli.failing import Failure
from toolbus.operations.cli.output import print_line


@tree("see", "services, calls, counts", see="services workers describe calls top stats usage settings")
def _see() -> None:
    """See what runs: services, workers, calls, statistics and settings. Nothing is changed.

    \b
    Examples:
      toolbus see services                who serves what, and what waits
      toolbus see top                     all of it live, in the terminal
      toolbus see calls --failed --follow
      toolbus see describe calculator     everything known about a tool
    """


@tree("secure", "forms of tools, tokens of gateways, rights on the server", secure="approve pins tokens acl")
def _secure() -> None:
    """Decide who may do what: forms of tools, tokens of gateways, and rights on the server.

    \b
    Examples:
      toolbus secure pins list            which form of each tool may be used
      toolbus secure approve search       the form that it has now
      toolbus secure tokens add ci --user acme --expires 90d
      toolbus secure acl worker           the least rights of a worker's user
    """


@tree(
    "operate",
    "queues, dead letters, conversations, documents",
    operate="pause resume purge dead conversations items",
    history="history",
    serve="exporter",
    protocol="migrate",
)
def _operate() -> None:
    """Operate services and what the server keeps: queues, dead letters, conversations, documents.

    \b
    Examples:
      toolbus operate pause search        its requests wait from now on
      toolbus operate dead list           requests that could not be answered
      toolbus operate items get --all > items.json
      toolbus operate history calls.db    keep what happens to calls
      toolbus operate migrate --dry-run   after an upgrade
    """


@tree("platform", "recorded tools", dev="up", platform="host im chat import export list search status logs sync cancel")
def _platform() -> None:
    """Look after recorded tools: programs, containers and APIs that hosts run.

    \b
    Examples:
      toolbus platform up                 gateway, host, agents and messenger in one process tree
      toolbus platform host --label gpu   run recorded tools on this machine
      toolbus platform import tools/
      toolbus platform search --category media stitch
      toolbus platform chat "which tools work with images?"
      toolbus platform status
    """


TASKS: dict[str, dict[str, Place | Tree]] = {
    "Try": {
        "dev": Place("all you need to try toolbus", "dev"),
        "demo": Place("check the main features", "dev"),
    },
    "Write": {
        "new": Place("a tool", "dev"),
        "toolkit": Place("tools for a task", "toolkit"),
        "protocol": Place("other languages", "protocol"),
    },
    "Serve": {
        "worker": Place("tools", "worker"),
        "serve": Place("HTTP", "serve"),
        "mcp": Place("an MCP client on stdio", "serve"),
        "mount": Place("MCP servers and APIs", "mount"),
        "platform": _platform,
    },
    "Call": {
        "call": Place("a tool", "calls"),
        "agent": Place("a model with tools", "agent"),
        "confirm": Place("open questions", "calls"),
    },
    "See": {
        "tools": Place("callable now", "see"),
        "see": _see,
        "doctor": Place("faults", "see"),
    },
    "Secure": {"secure": _secure},
    "Operate": {"operate": _operate},
}
"""The commands of the first level by task: a few words of each, and its module, so that their list loads none of them."""

MOVED = {
    "learning": "toolkit learning",
    "conformance": "protocol conformance",
    **{name: f"operate items {name}" for name in ("get", "list", "put", "rm")},
    **{name: f"operate {name}" for name in ("conversations", "dead", "migrate", "pause", "purge", "resume")},
    **{name: f"platform {name}" for name in ("chat", "host", "im")},
    **{name: f"secure {name}" for name in ("acl", "approve", "pins", "tokens")},
    **{name: f"see {name}" for name in ("calls", "describe", "services", "settings", "stats", "top", "usage", "workers")},
}
"""The places of commands that stood at the first level: using an old name says so."""


class _Commands(Tree):
    """Reports errors in one line, says where commands are that have moved, and has a help of one screen.

    Args:
        tasks: the commands by what people want to do.
        **more: what click is told of it.
    """

    def __init__(self, *words: Any, tasks: Mapping[str, Mapping[str, Place | Tree]], **more: Any) -> None:
        super().__init__(*words, places={name: place for found in tasks.values() for name, place in found.items()}, **more)
        self._tasks = tasks

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line for each task, and then the options, which are those of every command."""
        with formatter.section("Commands (toolbus COMMAND --help explains one)"):
            formatter.write_dl(
                [(task, "; ".join(f"{name}: {place.about}" for name, place in found.items())) for task, found in self._tasks.items()]
            )
        with formatter.section("Options (also after COMMAND, or as TOOLBUS_URL, TOOLBUS_LOG_LEVEL, ...)"):
            formatter.write_dl([record for param in self.get_params(ctx) if (record := param.get_help_record(ctx))])

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command line; help that can't be written ends it with exit code 1."""
        open_closed()
        try:
            return super().main(*args, **extra)
        except OSError as error:
            _unwritable(error).show()
            sys.exit(1)

    def moved(self, name: str) -> str:
        """Return where a command is that stood here."""
        return MOVED.get(name, "")

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. A ToolbusError or an error of the system ends it with exit code 1, Ctrl-C with 130."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader of the output has gone; click ends the command quietly.
            raise
        except ToolbusError as error:
            raise Failure(explained(error)) from None
        except OSError as error:
            raise _unwritable(error) from None
        except KeyboardInterrupt:
            ctx.exit(130)
        except click.UsageError as error:
            # Click prints it, with parts of what was given.
            text = error.format_message()
            if harmless(text) == text:
                raise
            raise click.UsageError(harmless(text), error.ctx) from None


def _unwritable(error: OSError) -> Failure:
    """Return the failure that an error of the system is, and drop output that it keeps from being written."""
    # In some locales Python keeps what it could not write, in others it does not.
    left = drop_unwritable_output()
    output = left or (error.filename is None and error.errno in _FULL)
    return Failure(f"can't write to standard output: {reason(error)}" if output else reason(error))


_HELP = """Tools for LLM agents, run by workers over Redis Streams. Try `toolbus dev`;
`toolbus new weather` writes a tool, `toolbus worker weather.py` serves it."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@click.group(
    cls=_Commands,
    tasks=TASKS,
    help=_HELP,
    params=common_options(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="toolbus", prog_name="toolbus")
@click.pass_context
def main(ctx: click.Context, /, **arguments: Any) -> None:
    """Run a command, with the options before its name."""
    # A command's own modules are loaded from here on, and last: rare looks for garbage save a tenth of its start.
    gc.set_threshold(20_000, 20, 20)
    ctx.obj = {name: value for name, value in arguments.items() if value is not None}
    for variable, meant in misspelt(os.environ).items():
        print_line(f"{variable} is no setting; did you mean {meant}?", err=True)
