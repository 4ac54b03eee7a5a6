"""``dev``: start a server and the example workers, and show how to use them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from toolbus.cli.common import environment_of, fail, settings_with_server
from toolbus.cli.output import print_table, say
from toolbus.settings import Settings
from toolbus.worker.process.lifeline import Lifeline

if TYPE_CHECKING:
    from toolbus.broker.embedded import EmbeddedServer

_DEFAULT_PORT = 6379
_POLL = 0.05


@click.command("dev")
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@click.option("--reload", is_flag=True, help="Restart the workers when a Python file beside the targets changes.")
@click.pass_context
def dev_command(ctx: click.Context, targets: tuple[str, ...], reload: bool) -> None:
    """Start all you need to try toolbus.

    This is a server, unless one is running, with the example workers and yours. The server keeps its data in memory only.
    Ctrl-C stops everything.

    \b
    Example:
      toolbus dev jokes.py
    """
    if reload and not targets:
        raise click.UsageError("--reload watches the files of your targets; name one (jokes.py)")
    settings = settings_with_server(ctx)
    with _signals(), contextlib.ExitStack() as stack:
        server = _find_server(settings, stack)
        environment = environment_of(ctx.find_root().obj or {})
        command = [sys.executable, "-m", "toolbus", "worker", "--examples", *(["--reload"] if reload else []), *targets]
        # When this process dies in whatever way, the lifeline closes and the worker stops.
        line = stack.enter_context(Lifeline())
        child = subprocess.Popen([*command, *line.words], env=environment, start_new_session=True, pass_fds=(line.theirs,))  # noqa: S603 - our own command
        line.started()
        stack.callback(_stop, child)
        try:
            if _wait(child, server, lambda: bool(line.read().instance)):
                _introduce(settings)
                _wait(child, server, lambda: False)
        except KeyboardInterrupt:
            # Nobody reads this after a hang-up.
            with contextlib.suppress(OSError):
                say("\nstopping")
            return
        fail(line.read().refused or f"the worker ended with exit code {child.wait()}")


def _wait(worker: subprocess.Popen[bytes], server: EmbeddedServer | None, condition: Callable[[], bool]) -> bool:
    """Wait until the condition holds; return false if the worker ends before, and fail when the server does."""
    while worker.poll() is None:
        if condition():
            return True
        if server is not None and not server.running:
            fail("the server that this command had started has ended, and its data with it; start `toolbus dev` again")
        time.sleep(_POLL)
    return False


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    # Under nohup a hang-up is to be ignored. A script that starts this with & makes it ignore Ctrl-C, which must work.
    hang_up = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    numbers = (signal.SIGINT, signal.SIGTERM, *hang_up)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _introduce(settings: Settings) -> None:
    """Print the tools and how to use them."""
    from toolbus import ToolBus

    async def main() -> list[tuple[str, str]]:
        async with ToolBus(settings=settings) as bus:
            return [(tool.name, tool.description.partition("\n")[0]) for tool in bus.tools.values() if tool.available]

    rows = asyncio.run(main())
    print_table(("TOOL", "DESCRIPTION"), rows, empty="no tools")
    say(
        "\nTry in another terminal:\n"
        "  toolbus call calculator expression='2**64'\n"
        "  toolbus call tell-pun topic=cats --user alice\n"
        "  toolbus new weather && toolbus worker weather.py     # and it is there, without a restart\n"
        "Ctrl-C stops everything."
    )


def _find_server(settings: Settings, stack: contextlib.ExitStack) -> EmbeddedServer | None:
    """Use the server that the URL names, or start one there and return it."""
    from toolbus.broker.embedded import EmbeddedServer
    from toolbus.urls import redact

    if not settings.url.startswith(("redis://", "rediss://")):
        say(f"using the server of {redact(settings.url)}")
        return None
    address = urlsplit(settings.url)
    host, port = address.hostname or "127.0.0.1", address.port or _DEFAULT_PORT
    if _answers(host, port):
        say(f"using the server at {host}:{port}")
    elif host not in {"127.0.0.1", "localhost", "::1"}:
        fail(f"no server answers at {host}:{port}, and a server can only be started on this machine; unset TOOLBUS_URL or leave --url out")
    elif address.scheme == "rediss":
        fail(f"no server answers at {host}:{port}, and a server started here has no TLS; write redis:// instead of rediss://")
    else:
        server = stack.enter_context(EmbeddedServer(port))
        say(f"started a server on 127.0.0.1:{port}; it keeps its data in memory only")
        return server
    return None


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
