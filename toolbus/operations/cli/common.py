"""Helpers of all commands: settings from options, one-line errors."""

from __future__ import annotations

import asyncio
import difflib
import math
import os
import select
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import click
import msgspec

from toolbus.bus.broker.access import is_forbidden, with_roles
from toolbus.bus.broker.admin import Admin
from toolbus.bus.support.display import harmless, visible, visible_lines
from toolbus.bus.support.safe_text import reason_of
from toolbus.bus.values.results import ConfigurationError, ToolbusError
from toolbus.bus.values.settings import PREFIX, Settings, misspelt

if TYPE_CHECKING:
    from toolbus import ToolBus


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


T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


GATEWAY_PORT = 8001
"""The port at which gateways listen unless told otherwise."""


def needs_gateway(error: ImportError) -> str:
    """Return the message for packages of the gateway that are not installed."""
    return f"the gateway needs more packages ({error}): pip install 'toolbus[gateway]'"


class Seconds(click.FloatRange):
    """A number of seconds, above 0 and at most ``most``; not infinite and not NaN.

    Args:
        most: the longest time.
    """

    name = "seconds"

    def __init__(self, most: float = 1e9) -> None:
        super().__init__(min=0, min_open=True, max=most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or fail with a usage error."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isnan(number):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return super().convert(number, param, ctx)


def no_command(ctx: click.Context, name: str, names: Iterable[str]) -> click.UsageError:
    """Return the error for a command that there is not in a group, with the names that look like it."""
    near = difflib.get_close_matches(name, list(names))
    advice = f"did you mean {', '.join(near)}?" if near else f"`{ctx.command_path} --help` lists them"
    return click.UsageError(f"there is no command {name!r}; {advice}", ctx)


class NotMendable(ConfigurationError):
    """A start would be refused in the same way whatever the served files say."""


class Failure(click.ClickException):
    """An error in one line, exit code 1."""

    def show(self, file: Any = None) -> None:
        """Print the error to standard error."""
        say(f"toolbus: {self.message}", fg="red", err=True)


def settings_of(context: click.Context, **overrides: Any) -> Settings:
    """Return settings from the global options, the environment and the command's own options.

    Raises:
        ConfigurationError: an option or variable is wrong; the message names it.
    """
    given = {**(context.find_root().obj or {}), **{name: value for name, value in overrides.items() if value is not None}}
    return Settings.load(**given)


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the environment of a child process that has these settings, without the misspelt names that this process has told of."""
    known = {name: value for name, value in os.environ.items() if name not in misspelt(os.environ)}
    given = {name: getattr(settings, name) for name in Settings.__struct_fields__}
    return {**known, **{PREFIX + name.upper(): str(value) for name, value in given.items() if value is not None}}


RESTART = 30.0
"""Seconds for which a command that goes on until it is stopped waits for its server at the start: servers and workers restart together."""


def settings_with_server(context: click.Context, *, serves: bool = False, **overrides: Any) -> Settings:
    """Return the settings of a command that works with other processes.

    Args:
        context: the command's.
        serves: whether it goes on until it is stopped, so that it waits for a server that is being restarted.
        overrides: settings by name; None leaves one as it is.

    Raises:
        ConfigurationError: an option or variable is wrong, or the URL names no server.
    """
    settings = settings_of(context, **overrides)
    if serves and settings.connect_timeout is None:
        settings = Settings.load({}, base=settings, connect_timeout=RESTART)
    if settings.url.startswith("memory:"):
        raise ConfigurationError("memory:// exists in one process only, but this command needs several; unset TOOLBUS_URL or drop --url")
    return settings


def namespace_of(context: click.Context) -> str:
    """Return the namespace in brackets, for messages about what is not there; an empty text for the default one."""
    settings = settings_of(context)
    return "" if settings.namespace == Settings().namespace else f" (namespace {settings.namespace!r})"


def with_admin(context: click.Context, main: Callable[[Admin], Awaitable[T]]) -> T:
    """Run ``main`` with an operator's connection.

    Raises:
        ToolbusError: a setting is wrong, or the server can't be reached.
    """
    import asyncio

    from toolbus.bus.broker.admin import Admin

    settings = settings_with_server(context)

    async def connected() -> T:
        async with Admin(settings) as admin:
            return await main(admin)

    return asyncio.run(connected())


def with_bus(context: click.Context, main: Callable[[ToolBus], Awaitable[T]]) -> T:
    """Run ``main`` with a bus, as an agent.

    Raises:
        ToolbusError: a setting is wrong, or the server can't be reached.
    """
    import asyncio

    from toolbus import ToolBus

    settings = settings_with_server(context)

    async def connected() -> T:
        async with ToolBus(settings=settings) as bus:
            return await main(bus)

    return asyncio.run(connected())


def output_option(function: F) -> F:
    """Add the option ``--output text|json``."""
    return click.option(
        "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Text for people, JSON for programs."
    )(function)


def digest_option(means: str) -> Callable[[F], F]:
    """Return the option ``--digest``, which is empty when it is not given; an empty one, as of an unset variable, is refused."""

    def given(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
        if value == "":
            raise click.BadParameter("it is empty, which names no form", ctx, param)
        return value or ""

    return click.option("--digest", callback=given, help=means)


def json_option(function: F) -> F:
    """Add ``--output json``, which changes nothing, to a command that prints JSON in any case."""
    means = "This command always prints JSON."
    return click.option("--output", type=click.Choice(["json"]), default="json", expose_value=False, help=means)(function)


def reason(error: OSError) -> str:
    """Return the system's message for an error, with the file's name if there is one."""
    message = error.strerror or reason_of(error)
    return f"{error.filename}: {message}" if error.filename else message


def ask_first(question: str) -> None:
    """Ask on the terminal; end the command unless the answer is yes."""
    if not is_confirmed(question):
        fail("not confirmed, so nothing was done; --yes answers in advance")


def fail(message: str) -> NoReturn:
    """End the command with one line and exit code 1."""
    raise Failure(message)


_MODES = ("r", "w", "w")
_NAMES = ("stdin", "stdout", "stderr")


def open_closed() -> None:
    """Open standard streams that are closed: input ends at once, and output goes nowhere.

    Otherwise the next file or connection would get the stream's number, and be written to by whatever prints.
    """
    for number, (name, mode) in enumerate(zip(_NAMES, _MODES, strict=True)):
        try:
            os.fstat(number)
        except OSError:
            # The system gives the lowest free number, and those before are open.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - open until the end


def drop_unwritable_output() -> bool:
    """Discard output that can't be written, since Python would try again at exit and report exit code 120; return whether there is any."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


# As much as a stored document may have.
_MOST_READ = 4 * 1024 * 1024
_MOST_SIGNALS = 512


def read_bytes(place: str, most: int = _MOST_READ) -> bytes:
    """Return the content of a file of at most ``most`` bytes; ``-`` is standard input.

    Raises:
        UsageError: it can't be read, or is too long; the message names it.
    """
    try:
        if place == "-":
            found = _read_input(most)
        else:
            # A device may have no end.
            with Path(place).open("rb") as file:
                found = file.read(most + 1)
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise click.UsageError(f"can't read {_named(place)}: {why.removeprefix(f'{place}: ')}") from None
    if len(found) > most:
        raise click.UsageError(f"can't read {_named(place)}: it is over the limit of {most:,} bytes")
    return found


def read_text(place: str) -> str:
    """Return the text of a file; ``-`` is standard input.

    Raises:
        UsageError: it can't be read, or is not UTF-8; the message names it.
    """
    try:
        return read_bytes(place).decode("utf-8")
    except UnicodeDecodeError:
        raise click.UsageError(f"can't read {_named(place)}: its text is not UTF-8") from None


def read_json(text: str | bytes, kind: type[T], what: str) -> T:
    """Return a JSON value of a known type; ``what`` names it in messages.

    Raises:
        UsageError: it is not JSON, has another type, or has a key twice in one object.
    """
    from toolbus.bus.schema.documents import read_document

    try:
        return read_document(text, kind)
    except ValueError as error:
        raise click.UsageError(f"{what} can't be read as JSON: {error}") from None


def _read_input(most: int) -> bytes:
    # One read that gathers everything runs on when Ctrl-C comes between two of its parts, and then waits for the next part.
    source, found = cast("BufferedIOBase", sys.stdin.buffer), bytearray()
    with _waiting_for(source) as wait:
        while len(found) <= most:
            wait()
            if not (part := source.read1(most + 1 - len(found))):
                break
            found += part
    return bytes(found)


@contextmanager
def _waiting_for(source: BufferedIOBase) -> Iterator[Callable[[], None]]:
    """Yield what waits until a read of a stream does not have to; a signal ends the wait at any moment."""
    try:
        number = source.fileno()
    except OSError:
        yield lambda: None
        return
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    # A signal just before a read begins is heeded only after it; what the signal writes here ends the wait in any case.
    before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def wait() -> None:
        while number not in (ready := select.select([number, woken], [], [])[0]):
            os.read(ready[0], _MOST_SIGNALS)

    try:
        yield wait
    finally:
        signal.set_wakeup_fd(before)
        os.close(woken)
        os.close(wake)


def _named(place: str) -> str:
    return "standard input" if place == "-" else repr(place)


# Seconds to ask for the roles.
_PATIENCE = 5.0


def explained(ctx: click.Context, error: ToolbusError) -> str:
    """Return the message of an error, with the roles that the user has if the server refused it a right."""
    text = str(error)
    if not is_forbidden(error):
        return text
    try:
        settings = settings_with_server(ctx)
        roles = asyncio.run(_roles(settings))
    except (ToolbusError, TimeoutError):
        # The refusal is what counts.
        return text
    return text if roles is None else with_roles(text, roles, settings.namespace)


async def _roles(settings: Settings) -> list[str] | None:
    async with asyncio.timeout(_PATIENCE), Admin(settings) as admin:
        return await admin.roles()


class TerminalPrompt:
    """Asks one question at a time at the terminal; without a terminal the answer is no.

    Args:
        show: prints a question.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._turn = asyncio.Lock()

    async def ask(self, question: object) -> bool:
        """Print ``str(question)`` and return whether the answer is yes."""
        if not sys.stdin.isatty():
            return False
        async with self._turn:
            self._show(str(question))
            loop = asyncio.get_running_loop()
            answer: asyncio.Future[str] = loop.create_future()

            def read() -> None:
                if not answer.done():
                    answer.set_result(sys.stdin.readline())

            # Not in a thread, because a thread that waits for a line can't be cancelled.
            loop.add_reader(sys.stdin, read)
            try:
                return (await answer).strip().lower() in {"y", "yes"}
            finally:
                loop.remove_reader(sys.stdin)
