"""Helpers of all commands: settings from options, one-line errors."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from toolbus.bus.support.safe_text import reason_of
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.values.settings import PREFIX, Settings, misspelt
from toolbus.operations.cli.output import is_confirmed, say

if TYPE_CHECKING:
    from toolbus import ToolBus
    from toolbus.bus.broker.admin import Admin

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
