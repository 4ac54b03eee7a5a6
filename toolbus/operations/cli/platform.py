"""``platform``: recorded tools, which hosts run; each command is in a module of its own, imported when it is used."""

from __future__ import annotations

import importlib

import click

_COMMANDS = {
    "cancel": "platform_tasks",
    "export": "platform_files",
    "import": "platform_files",
    "list": "platform_listing",
    "logs": "platform_logs",
    "search": "platform_listing",
    "status": "platform_status",
    "sync": "platform_sync",
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
