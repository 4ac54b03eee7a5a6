"""Print for commands: text that can't command a terminal, tables, and JSON."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click
import msgspec

from toolbus.bus.support.display import harmless, one_line, visible, visible_lines


def print_line(text: object = "", *, err: bool = False, nl: bool = True, fg: str | None = None, dim: bool = False) -> None:
    """Print a text, without anything in it that could command the terminal or reorder text.

    Args:
        text: what to print.
        err: to standard error.
        nl: end the line.
        fg: its colour.
        dim: whether it is less important.
    """
    click.secho(harmless(str(text)), err=err, nl=nl, fg=fg, dim=dim or None)


def warn(text: str) -> None:
    """Print a warning to standard error."""
    print_line(text, fg="yellow", err=True)


def complain(text: str) -> None:
    """Print what is wrong to standard error."""
    print_line(text, fg="red", err=True)


def print_content(text: str, *, nl: bool = True) -> None:
    """Print what a person or program asked for: as it is into a file or pipe, like ``print_line`` on a terminal."""
    # Told that colours are wanted, click leaves the text as it is.
    click.echo(harmless(text) if sys.stdout.isatty() else text, nl=nl, color=True)


def ask(question: str) -> bool:
    """Ask on the terminal, apart from the output; return whether the answer is yes."""
    try:
        return click.confirm(harmless(question), err=True)
    except click.Abort:
        # The input has ended, or Ctrl-C was pressed, within the line of the question.
        print_line(err=True)
        return False


def print_json(value: Any) -> None:
    """Print one JSON document to standard output."""
    # Characters that could command a terminal or hide text become JSON escapes, which JSON reads as the same value.
    click.echo(visible_lines(msgspec.json.format(msgspec.json.encode(value)).decode()))


def print_json_line(value: Any) -> None:
    """Print one JSON document in one line."""
    print_line(visible(msgspec.json.encode(value).decode()))


def emit(output: str, document: object, *lines: object) -> bool:
    """Print a document as JSON, or lines for people; return whether it was the lines.

    Args:
        output: ``json``, or another form, which is that of the lines.
        document: for programs.
        *lines: for people.
    """
    if output == "json":
        print_json(document)
        return False
    for line in lines:
        print_line(line)
    return True


Columns = Mapping[str, str | Callable[[Any], object]]
"""By title, the attribute or the key that makes the cell of a row, or what makes it."""


def titled(*names: str) -> Columns:
    """Return columns whose titles are the names of attributes or keys."""
    return {name.upper(): name for name in names}


def show(output: str, found: Iterable[Any], columns: Columns, *, empty: str, document: object = None) -> bool:
    """Print what was found, as a table or as JSON; return whether it was a table.

    Args:
        output: ``text`` or ``json``.
        found: an object, or a mapping, for each row.
        columns: of the table.
        empty: the message for no rows.
        document: what is printed as JSON, if it is not what was found.
    """
    found = list(found)
    is_text = emit(output, found if document is None else document)
    if is_text:
        print_table([*columns], [[_cell(each, cell) for cell in columns.values()] for each in found], empty=empty)
    return is_text


def _cell(each: Any, cell: str | Callable[[Any], object]) -> object:
    if not isinstance(cell, str):
        return cell(each)
    return each.get(cell, "") if isinstance(each, dict) else getattr(each, cell)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print a table on a terminal and aligned text elsewhere; ``empty`` is the message for no rows."""
    cells = [[visible(str(cell)) for cell in row] for row in rows]
    if not cells:
        print_line(empty, err=True)
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
        print_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def stored_of(counts: Mapping[str, int]) -> str:
    """Return in words how many documents were new, changed and unchanged when they were stored."""
    found = ", ".join(f"{counts[word]} {word}" for word in ("new", "changed", "unchanged") if counts.get(word))
    return f"{sum(counts.values())} stored: {found}" if found else "nothing was stored"


def names_of(names: Iterable[str], most: int = 300) -> str:
    """Return names in one line of at most so many characters."""
    return one_line(", ".join(map(visible, names)), most)


def moment(seconds: float, form: str = "%Y-%m-%d %H:%M:%S", *, unknown: str = "unknown") -> str:
    """Return a time (UTC) as text; one that no calendar has is unknown."""
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return unknown
