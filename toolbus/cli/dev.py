"""``dev``: start a server and the example workers, and show how to use them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import click

from toolbus.cli.common import environment_of, fail, settings_with_server
from toolbus.cli.output import print_table, say
from toolbus.settings import Settings

_DEFAULT_PORT = 6379


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
        _find_server(settings, stack)
        environment = environment_of(ctx.find_root().obj or {})
        command = [sys.executable, "-m", "toolbus", "worker", "--examples", *(["--reload"] if reload else []), *targets]
        # When this process dies in whatever way, the pair closes and the worker stops.
        ours, theirs = socket.socketpair()
        stack.enter_context(ours)
        with theirs:
            lifeline = theirs.fileno()
            child = subprocess.Popen(  # noqa: S603 - our own command
                [*command, "--lifeline", str(lifeline)], env=environment, start_new_session=True, pass_fds=(lifeline,)
            )
        stack.callback(_stop, child)
        try:
            _introduce(settings, child)
            code = child.wait()
        except KeyboardInterrupt:
            # Nobody reads this after a hang-up.
            with contextlib.suppress(OSError):
                say("\nstopping")
            return
        fail(f"the worker ended with exit code {code}")


@contextlib.contextmanager
def _embedded(port: int) -> Iterator[None]:
    from toolbus.broker.embedded import EmbeddedServer

    server = EmbeddedServer(port)
    server.start()
    try:
        yield
    finally:
        server.stop()


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    # Under nohup a hang-up is to be ignored.
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _introduce(settings: Settings, worker: subprocess.Popen[bytes]) -> None:
    """Print the tools and how to use them as soon as they are registered; nothing when the worker ends before."""
    from toolbus import ToolBus

    async def main() -> list[tuple[str, str]]:
        async with ToolBus(settings=settings) as bus:
            with bus.tools.subscribe() as changes:
                while worker.poll() is None:
                    with contextlib.suppress(TimeoutError):
                        await bus.wait_for_tool("calculator", timeout=0.5)
                        break
                # The worker registers one service after the other; after half a second without a change, all are there.
                with contextlib.suppress(TimeoutError):
                    while True:
                        async with asyncio.timeout(0.5):
                            await anext(aiter(changes))
            return [(tool.name, tool.description.partition("\n")[0]) for tool in bus.tools.values() if tool.available]

    rows = asyncio.run(main())
    if worker.poll() is not None:
        return
    print_table(("TOOL", "DESCRIPTION"), rows, empty="no tools")
    say(
        "\nTry in another terminal:\n"
        "  toolbus call calculator expression='2**64'\n"
        "  toolbus call tell-pun topic=cats --user alice\n"
        "  toolbus new weather && toolbus worker weather.py     # and it is there, without a restart\n"
        "Ctrl-C stops everything."
    )


def _find_server(settings: Settings, stack: contextlib.ExitStack) -> None:
    """Use the server that the URL names, or start one there."""
    from toolbus.broker.transport.connection import redact

    if not settings.url.startswith(("redis://", "rediss://")):
        say(f"using the server of {redact(settings.url)}")
        return
    address = urlsplit(settings.url)
    host, port = address.hostname or "127.0.0.1", address.port or _DEFAULT_PORT
    if _answers(host, port):
        say(f"using the server at {host}:{port}")
    elif host not in {"127.0.0.1", "localhost", "::1"}:
        fail(f"no server answers at {host}:{port}, and a server can only be started on this machine; unset TOOLBUS_URL or leave --url out")
    elif address.scheme == "rediss":
        fail(f"no server answers at {host}:{port}, and a server started here has no TLS; write redis:// instead of rediss://")
    else:
        stack.enter_context(_embedded(port))
        say(f"started a server on 127.0.0.1:{port}; it keeps its data in memory only")


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
