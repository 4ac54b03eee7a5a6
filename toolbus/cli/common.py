"""What the commands share: settings from options, errors as one line, tables for people and JSON for programs."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
import msgspec

from toolbus.display import visible, visible_lines
from toolbus.results import ConfigurationError
from toolbus.settings import Settings

if TYPE_CHECKING:
    from toolbus import ToolBus
    from toolbus.broker.admin import Admin

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Seconds(click.FloatRange):
    """A number of seconds: above 0 and at most ``most``; infinity and NaN are none.

    Args:
        most: the longest time.
    """

    name = "seconds"

    def __init__(self, most: float = 1e9) -> None:
        super().__init__(min=0, min_open=True, max=most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; anything else is a mistake of usage."""
        number = super().convert(value, param, ctx)
        return self.fail(f"{value!r} is no number of seconds", param, ctx) if math.isnan(number) else number


class Failure(click.ClickException):
    """An error in one line, exit code 1."""

    def show(self, file: Any = None) -> None:
        click.secho(f"toolbus: {self.message}", fg="red", err=True, file=file)


def settings_of(context: click.Context, **overrides: Any) -> Settings:
    """Settings from the global options, the environment and the command's own options.

    Raises:
        ConfigurationError: naming the option or variable that is wrong.
    """
    given = {**(context.find_root().obj or {}), **{name: value for name, value in overrides.items() if value is not None}}
    return Settings.load(**given)


def settings_with_server(context: click.Context, **overrides: Any) -> Settings:
    """The same, for commands that meet other processes.

    Raises:
        ConfigurationError: as above, or the URL names no server.
    """
    settings = settings_of(context, **overrides)
    if settings.url.startswith("memory:"):
        raise ConfigurationError("memory:// ends at the border of a process, and this takes several; unset TOOLBUS_URL or leave --url out")
    return settings


def with_admin(context: click.Context, main: Callable[[Admin], Awaitable[T]]) -> T:
    """Do something over an operator's connection.

    Raises:
        ToolbusError: a setting is wrong, or the server can't be reached.
    """
    from toolbus.broker.admin import Admin

    settings = settings_with_server(context)

    async def connected() -> T:
        async with Admin(settings) as admin:
            return await main(admin)

    return asyncio.run(connected())


def with_bus(context: click.Context, main: Callable[[ToolBus], Awaitable[T]]) -> T:
    """Do something on the bus, as an agent.

    Raises:
        ToolbusError: a setting is wrong, or the server can't be reached.
    """
    from toolbus import ToolBus

    settings = settings_of(context)

    async def connected() -> T:
        async with ToolBus(settings=settings) as bus:
            return await main(bus)

    return asyncio.run(connected())


def output_option(function: F) -> F:
    """``--output text|json``."""
    return click.option(
        "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Text for people, JSON for programs."
    )(function)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    # What would command a terminal or hide on it is written as an escape, which JSON reads as the same.
    click.echo(visible_lines(msgspec.json.format(msgspec.json.encode(value)).decode()))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """A table on a terminal, aligned text otherwise; ``empty`` says what it means that there is nothing."""
    cells = [[visible(str(cell)) for cell in row] for row in rows]
    if not cells:
        click.echo(empty, err=True)
        return
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*columns, box=None, header_style="bold", pad_edge=False)
        for row in cells:
            # As text: in a plain string brackets would be markup.
            table.add_row(*map(Text, row))
        Console().print(table)
        return
    widths = [max(len(row[index]) for row in [list(columns), *cells]) for index in range(len(columns))]
    for row in [list(columns), *cells]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def one_line(text: str, most: int) -> str:
    """The text in one line of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def reason(error: OSError) -> str:
    """What the system says, with the name of the file if there is one."""
    told = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {told}" if error.filename else told


def fail(message: str) -> NoReturn:
    """End the command with one line and exit code 1."""
    raise Failure(message)
