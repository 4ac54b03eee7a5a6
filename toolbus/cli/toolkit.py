"""``toolkit``: the graph of actions and tools, and its scores."""

from __future__ import annotations

import click

from toolbus.cli import graph, learning


@click.group("toolkit", no_args_is_help=True)
def toolkit_command() -> None:
    """The graph of actions and tools: which tools a model is shown, and what their scores learn from use.

    \b
    Example:
      toolbus toolkit load analysis.yaml
      toolbus toolkit recommend "count the orders of March"
      toolbus toolkit learn --scores scores.json --log executions.jsonl
    """


for command in (*graph.COMMANDS, *learning.COMMANDS):
    toolkit_command.add_command(command)
