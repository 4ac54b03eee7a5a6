"""``toolkit``: the graph of actions and tools, and its scores."""

from __future__ import annotations

import click

from toolbus.cli.learning import COMMANDS


@click.group("toolkit", no_args_is_help=True)
def toolkit_command() -> None:
    """The graph of actions and tools: which tools a model is shown, and what their scores learn from use.

    \b
    Example:
      toolbus toolkit learn --scores scores.json --log executions.jsonl
      toolbus toolkit diff
    """


for command in COMMANDS:
    toolkit_command.add_command(command)
