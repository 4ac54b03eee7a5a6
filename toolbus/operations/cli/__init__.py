"""The ``toolbus`` command: one module per group of commands, imported when the command is used."""

from __future__ import annotations

import errno
import gc
import importlib
import os
import sys
from typing import Any

import click

from toolbus.bus.support.display import harmless
from toolbus.bus.values.results import ToolbusError
from toolbus.bus.values.settings import misspelt
from toolbus.operations.cli.common import Failure, drop_unwritable_output, no_command, open_closed, reason, say
from toolbus.operations.cli.everywhere import accepting, options

_COMMANDS = {
    "acl": ("tokens", "Print the least rights on the server that a user with a ROLE needs, for ACL SETUSER or an ACL file."),
    "agent": ("agent", "Let a model answer QUESTION with tools."),
    "approve": ("pins", "Approve a tool as it is now, so that agents may use this form of it."),
    "call": ("calls", "Call a tool."),
    "calls": ("recent", "Show the attempts of recent calls, and what runs."),
    "chat": ("chat", "Talk with the service agent."),
    "confirm": ("confirm", "Show and answer confirmation requests."),
    "conformance": ("protocol", "Try whether a worker or an agent in another language keeps the protocol."),
    "conversations": ("conversations", "Look after the conversations that agents keep."),
    "dead": ("dead", "Handle dead letters."),
    "demo": ("dev", "Run and check the main features."),
    "describe": ("inspection", "Show everything known about a tool or a service, as JSON."),
    "dev": ("dev", "Start all you need to try toolbus."),
    "doctor": ("doctor", "Check the server and say what to fix."),
    "get": ("items", "Print a static descriptor as JSON."),
    "host": ("platform_up", "Serve the recorded tools that this machine may run."),
    "im": ("chat", "Connect a messenger's windows with the service agent."),
    "learning": ("learning", "Learn the scores of the toolkit's graph from what agents recorded, publish them, and roll them back."),
    "list": ("items", "List static descriptors whose key starts with PREFIX."),
    "mcp": ("serve", "Serve the tools to an MCP client on stdio."),
    "migrate": ("protocol", "Bring a namespace to the version of the protocol that this release writes."),
    "mount": ("mount", "Serve the tools of an MCP server, or the operations of an API."),
    "new": ("dev", "Write NAME.py, a tool to start from, and test_NAME.py, its test."),
    "pause": ("operate", "Make a service's workers stop taking requests."),
    "pins": ("pins", "Decide which form of a tool may be used."),
    "platform": ("platform", "Look after recorded tools: programs, containers and APIs that hosts run."),
    "protocol": ("protocol", "Write the scripts and numbers that a worker or an agent in another language needs."),
    "purge": ("operate", "Remove the requests that wait for a service."),
    "put": ("items", "Store a static descriptor."),
    "resume": ("operate", "Let a paused service's workers take requests again."),
    "rm": ("items", "Delete a static descriptor."),
    "serve": ("serve", "Offer the tools of the bus over HTTP."),
    "services": ("inspection", "List the services, their workers and their backlog."),
    "settings": ("inspection", "Show each setting, its value, and the source of the value."),
    "stats": ("statistics", "Ask the workers for their statistics."),
    "tokens": ("tokens", "Look after the bearer tokens of gateways."),
    "toolkit": ("toolkit", "Manage the graph of actions and tools."),
    "tools": ("inspection", "List the tools that can be called now."),
    "top": ("top", "Watch services, workers, tools and calls in the terminal."),
    "usage": ("statistics", "Show the usage of tools by user."),
    "worker": ("worker", "Serve the tools of each TARGET."),
    "workers": ("operate", "List the installed tool services."),
}
"""The module of each command, and the first sentence of its help, so that the list of commands loads none of them."""


class _Commands(click.Group):
    """Imports a command's module only when the command is used, so that --help is quick, and reports errors in one line."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command line; help that can't be written ends it with exit code 1."""
        open_closed()
        try:
            return super().main(*args, **extra)
        except OSError as error:
            _unwritable(error).show()
            sys.exit(1)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or fail with the names that look like it."""
        if args[0] not in _COMMANDS and not args[0].startswith("-"):
            raise no_command(ctx, args[0], _COMMANDS)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. A ToolbusError or an error of the system ends it with exit code 1, Ctrl-C with 130."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader of the output has gone; click ends the command quietly.
            raise
        except ToolbusError as error:
            raise Failure(_explained(ctx, error)) from None
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

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"toolbus.operations.cli.{_COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return accepting(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without loading them."""
        width = formatter.width - 6 - max(map(len, _COMMANDS))
        rows = [(name, click.Command(name, help=about).get_short_help_str(width)) for name, (_, about) in sorted(_COMMANDS.items())]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _explained(ctx: click.Context, error: ToolbusError) -> str:
    """Return the message of an error; that of a right that is missing says which roles the user has."""
    text = str(error)
    if not text.startswith(("NOPERM", "ERR ")):
        return text
    from toolbus.operations.cli.common import explained

    return explained(ctx, error)


def _unwritable(error: OSError) -> Failure:
    """Return the failure that an error of the system is, and drop output that it keeps from being written."""
    # In some locales Python keeps what it could not write, in others it does not.
    left = drop_unwritable_output()
    output = left or (error.filename is None and error.errno in _FULL)
    return Failure(f"can't write to standard output: {reason(error)}" if output else reason(error))


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@click.command(cls=_Commands, params=options(), context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="toolbus", prog_name="toolbus")
@click.pass_context
def main(ctx: click.Context, /, **given: Any) -> None:
    """Tools for LLM agents, run by a pool of workers over Redis Streams.

    \b
    Start here:
      toolbus dev                            a server, example workers, and how to use them
      toolbus new weather                    write a tool file and its test
      toolbus worker weather.py              serve it (as many times as you like)
      toolbus call weather text=hello times=3   call it

    The options below may also stand after the command's name.
    """
    # A command's own modules are loaded from here on, and last: rare looks for garbage save a tenth of its start.
    gc.set_threshold(20_000, 20, 20)
    ctx.obj = {name: value for name, value in given.items() if value is not None}
    for variable, meant in misspelt(os.environ).items():
        say(f"{variable} is no setting; did you mean {meant}?", err=True)
