"""What the commands share: settings from options, errors as one line, tables for people and JSON for programs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

import click
import msgspec

from toolbus.results import ToolbusError
from toolbus.settings import Settings

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Failure(click.ClickException):
    """An error in one line, exit code 1."""

    def show(self, file: Any = None) -> None:
        click.secho(f"toolbus: {self.message}", fg="red", err=True, file=file)


def settings_of(context: click.Context, **overrides: Any) -> Settings:
    """Settings from the global options, the environment and the command's own options."""
    given = {**(context.find_root().obj or {}), **{name: value for name, value in overrides.items() if value is not None}}
    try:
        return Settings.load(**given)
    except ToolbusError as error:
        raise Failure(str(error)) from None


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine; our errors become one line, Ctrl-C exits with 130."""
    try:
        return asyncio.run(main)
    except ToolbusError as error:
        raise Failure(str(error)) from None
    except KeyboardInterrupt:
        sys.exit(130)


def output_option(function: F) -> F:
    """``--output text|json``."""
    return click.option(
        "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Text for people, JSON for programs."
    )(function)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """A table on a terminal, aligned text otherwise; ``empty`` says what it means that there is nothing."""
    cells = [[str(cell) for cell in row] for row in rows]
    if not cells:
        click.echo(empty, err=True)
        return
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(*columns, box=None, header_style="bold", pad_edge=False)
        for row in cells:
            table.add_row(*row)
        Console().print(table)
        return
    widths = [max(len(row[index]) for row in [list(columns), *cells]) for index in range(len(columns))]
    for row in [list(columns), *cells]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def fail(message: str) -> NoReturn:
    """End the command with one line and exit code 1."""
    raise Failure(message)
