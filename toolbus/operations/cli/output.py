"""Print to the terminal: the one place, so that no text can command it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
import msgspec

from toolbus.bus.support.display import harmless, visible, visible_lines


def say(text: object = "", *, err: bool = False, nl: bool = True, fg: str | None = None, dim: bool = False) -> None:
    """Print a text, without anything in it that could command the terminal or reorder text.

    Args:
        text: what to print.
        err: to standard error.
        nl: end the line.
        fg: its colour.
        dim: whether it is less important.
    """
    click.secho(harmless(str(text)), err=err, nl=nl, fg=fg, dim=dim or None)


def say_content(text: str, *, nl: bool = True) -> None:
    """Print what a person or program asked for: as it is into a file or pipe, like ``say`` on a terminal."""
    # Told that colours are wanted, click leaves the text as it is.
    click.echo(harmless(text) if sys.stdout.isatty() else text, nl=nl, color=True)


def is_confirmed(question: str) -> bool:
    """Ask on the terminal, apart from the output, and return whether the answer is yes."""
    try:
        return click.confirm(harmless(question), err=True)
    except click.Abort:
        # The input has ended, or Ctrl-C was pressed, within the line of the question.
        say(err=True)
        return False


def print_json(value: Any) -> None:
    """Print one JSON document to standard output."""
    # Characters that could command a terminal or hide text become JSON escapes, which JSON reads as the same value.
    click.echo(visible_lines(msgspec.json.format(msgspec.json.encode(value)).decode()))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print a table on a terminal and aligned text elsewhere; ``empty`` is the message for no rows."""
    cells = [[visible(str(cell)) for cell in row] for row in rows]
    if not cells:
        say(empty, err=True)
        return
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*columns, box=None, header_style="bold", pad_edge=False)
        for row in cells:
            # As Text objects, because brackets in a plain string would be markup.
            table.add_row(*map(Text, row))
        Console().print(table)
        return
    widths = [max(len(row[index]) for row in [list(columns), *cells]) for index in range(len(columns))]
    for row in [list(columns), *cells]:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
