"""Share between commands: settings from options, connections, and input of people."""

from __future__ import annotations

import getpass
import os
import select
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from toolbus.bus.support.safe_text import reason_of
from toolbus.bus.values.results import ConfigurationError, ToolbusError
from toolbus.bus.values.settings import Settings
from toolbus.operations.cli.failing import WrongUsage, fail

if TYPE_CHECKING:
    from toolbus import ToolBus
    from toolbus.bus.broker.admin import Admin


T = TypeVar("T")
C = TypeVar("C")


GATEWAY_PORT, EXPORTER_PORT = 8001, 9464
"""The ports at which gateways and exporters listen unless told otherwise."""


RESTART = 30.0
"""Seconds for which a command that goes on until it is stopped waits for its server at the start: servers and workers restart together."""


class NotMendable(ConfigurationError):
    """A start would be refused in the same way whatever the served files say."""


def settings_of(**overrides: Any) -> Settings:
    """Return settings from the global options, the environment and the command's own options.

    Raises:
        WrongUsage: an option or variable is wrong; the message names it.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings.load(**{**(click.get_current_context().find_root().obj or {}), **given})
    except ConfigurationError as error:
        raise WrongUsage(str(error)) from None


def settings_with_server(*, serves: bool = False, **overrides: Any) -> Settings:
    """Return the settings of a command that works with other processes.

    Args:
        serves: whether it goes on until it is stopped, so that it waits for a server that is being restarted.
        overrides: settings by name; None leaves one as it is.

    Raises:
        ConfigurationError: the URL names no server.
        WrongUsage: an option or variable is wrong.
    """
    settings = settings_of(**overrides)
    if serves and settings.connect_timeout is None:
        settings = Settings.load({}, base=settings, connect_timeout=RESTART)
    if settings.url.startswith("memory:"):
        raise ConfigurationError("memory:// exists in one process only, but this command needs several; unset TOOLBUS_URL or drop --url")
    return settings


def serving_settings(program: str, *, lifeline: int | None = None, **overrides: Any) -> Settings:
    """Return the settings of a process that serves, whose log and telemetry are set up.

    Args:
        program: its name in telemetry.
        lifeline: that of a child whose lines stand among those of others, so that they have its number.
        overrides: settings by name; None leaves one as it is.
    """
    from toolbus.bus import telemetry

    settings = settings_with_server(serves=True, **overrides)
    _load_structlog()
    telemetry.configure_logging(settings.log_level, settings.log_format, process=0 if lifeline is None else os.getpid())
    telemetry.configure_export(f"toolbus-{program}")
    return settings


def _load_structlog() -> None:
    # Its renderer for terminals, which we don't use, would load rich: 25 ms of 35, in every process that serves.
    if "structlog" not in sys.modules and "rich" not in sys.modules:
        sys.modules["rich"] = None  # type: ignore[assignment]
        import structlog  # noqa: F401 - it is loaded here

        del sys.modules["rich"]


def namespace_of() -> str:
    """Return the namespace in brackets, for messages about what is not there; an empty text for the default one."""
    settings = settings_of()
    return "" if settings.namespace == Settings().namespace else f" (namespace {settings.namespace!r})"


def login_name() -> str:
    """Return the name of the person who runs the command; empty for one without a name, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""


def with_admin(main: Callable[[Admin], Awaitable[T]]) -> T:
    """Run ``main`` with an operator's connection.

    Raises:
        ToolbusError: a setting is wrong, or the server can't be reached.
    """
    from toolbus.bus.broker.admin import Admin

    return _connected(Admin, main)


def with_bus(main: Callable[[ToolBus], Awaitable[T]], *, timeout: float | None = None) -> T:
    """Run ``main`` with a bus, as an agent, which waits for its server no longer than for a call of ``timeout`` seconds.

    Raises:
        ToolbusError: a setting is wrong, or the server can't be reached.
    """
    from toolbus import ToolBus

    def connect(settings: Settings) -> ToolBus:
        if timeout is not None and settings.connect_timeout is not None:
            settings = Settings.load({}, base=settings, connect_timeout=min(timeout, settings.connect_timeout))
        return ToolBus(settings=settings)

    return _connected(connect, main, timeout=timeout)


def _connected(connect: Callable[[Settings], AbstractAsyncContextManager[C]], main: Callable[[C], Awaitable[T]], **overrides: Any) -> T:
    import asyncio

    settings = settings_with_server(**overrides)

    async def connected() -> T:
        async with connect(settings) as found:
            return await main(found)

    return asyncio.run(connected())


def reason(error: OSError) -> str:
    """Return the system's message for an error, with the file's name if there is one."""
    message = error.strerror or reason_of(error)
    return f"{error.filename}: {message}" if error.filename else message


_STREAMS = {"stdin": "r", "stdout": "w", "stderr": "w"}


def open_closed() -> None:
    """Open standard streams that are closed: input ends at once, and output goes nowhere.

    Otherwise the next file or connection would get the stream's number, and be written to by whatever prints.
    """
    for number, (name, mode) in enumerate(_STREAMS.items()):
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


def explained(error: ToolbusError) -> str:
    """Return the message of an error, with the roles that the user has if the server refused it a right."""
    text = str(error)
    if not text.startswith(("NOPERM", "ERR ")):
        return text
    import asyncio

    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.broker.server.access import is_forbidden, with_roles

    if not is_forbidden(error):
        return text

    async def roles() -> list[str] | None:
        async with asyncio.timeout(_PATIENCE), Admin(settings_with_server()) as admin:
            return await admin.roles()

    try:
        found = asyncio.run(roles())
    except (ToolbusError, TimeoutError):
        # The refusal is what counts.
        return text
    return text if found is None else with_roles(text, found, settings_of().namespace)


async def must_be_known(admin: Admin, service: str, missing: str = "there is no service {!r}") -> None:
    """Fail when a service is not in the registry; ``missing`` says so."""
    if service not in {each.publication.service.id for each in await admin.services()}:
        fail(f"{missing.format(service)}; `toolbus see services` lists them")
