"""``toolkit``: work with the graph of actions and tools."""

from __future__ import annotations

from typing import Any

import click

from toolbus.operations.cli import graph
from toolbus.operations.cli.common import fail


class ToolkitGroup(click.Group):
    """A group of commands that need the packages of an extra."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; say what to install when a package is missing."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            fail(f"the toolkit needs {error.name}: pip install 'toolbus[toolkit]'")


@click.group("toolkit", cls=ToolkitGroup, no_args_is_help=True)
def toolkit_command() -> None:
    """Manage the graph of actions and tools. It decides which tools a model is shown, by scores.

    `toolbus learning` learns the scores from use.

    \b
    Example:
      toolbus toolkit load analysis.yaml
      toolbus toolkit recommend "count the orders of March"
    """


for command in graph.COMMANDS:
    toolkit_command.add_command(command)
