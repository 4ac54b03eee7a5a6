"""``im``: connect a messenger's windows with the service agent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from toolbus.operations.cli.common import fail, settings_with_server

if TYPE_CHECKING:
    from toolbus.bus.values.settings import Settings

_ENV = "TOOLBUS_IM_"


@click.command("im")
@click.option("--server", required=True, envvar=f"{_ENV}SERVER", help="Address of the messenger, ws:// or wss://.")
@click.option("--contact", required=True, envvar=f"{_ENV}CONTACT", help="Name of this contact in the messenger.")
@click.option("--tool", default="chat", show_default=True, envvar=f"{_ENV}TOOL", help="Tool that answers.")
@click.option(
    "--user",
    default="im",
    show_default=True,
    envvar=f"{_ENV}USER",
    help="The tenant on whose behalf messages are answered, and who has their chats.",
)
@click.option(
    "--shared",
    multiple=True,
    envvar=f"{_ENV}SHARED",
    metavar="WINDOW",
    help="A window that all senders share, with its memory (repeatable).",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    envvar=f"{_ENV}STATE",
    help="Folder of the windows (toolbus/agent/im/CONTACT in ~/.local/state).",
)
@click.option("--lifeline", type=int, hidden=True)
@click.pass_context
def im_command(
    ctx: click.Context, server: str, contact: str, tool: str, user: str, shared: tuple[str, ...], state: Path | None, lifeline: int | None
) -> None:
    """Connect a messenger's windows with the service agent.

    One socket carries the messages of many windows. Each is kept on the disk before its sender is told so, answered once by the tool
    `chat`, and its answer goes to the sender's window, also when this process is killed in between. A token in TOOLBUS_IM_TOKEN is sent
    as a bearer token.

    \b
    Examples:
      toolbus im --server ws://localhost:8765 --contact tool_agent
    """
    from toolbus.bus import telemetry
    from toolbus.bus.worker.process.event_loop import run_loop

    settings = settings_with_server(ctx, serves=True)
    if not _is_address(server):
        raise click.UsageError("--server is an address such as ws://localhost:8765")
    if not contact.strip() or len(contact) > 255:
        raise click.UsageError("--contact is a name of 1 to 255 characters")
    folder = state or _usual(contact)
    telemetry.configure_logging(settings.log_level, settings.log_format)
    telemetry.configure_export("toolbus-im")
    run_loop(lambda: _connect(settings, server, contact, tool, user, shared, folder, lifeline))


def _is_address(server: str) -> bool:
    try:
        address = urlsplit(server)
        return address.scheme in {"ws", "wss"} and bool(address.hostname) and address.port != 0
    except ValueError:
        return False


def _usual(contact: str) -> Path:
    from toolbus.agent.im.window import folder_of

    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".local/state") / "toolbus/im" / folder_of(contact)


async def _connect(
    settings: Settings, server: str, contact: str, tool: str, user: str, shared: tuple[str, ...], folder: Path, lifeline: int | None
) -> None:
    from toolbus import ToolBus
    from toolbus.bus.worker.process.lifeline import Told, tell, watch_lifeline

    try:
        from toolbus.agent.im.connector import Connector
    except ImportError as error:
        fail(f"the messenger needs {error.name}: pip install 'toolbus[im]'")
    from toolbus.agent.im.connector import Answering
    from toolbus.agent.im.window import Windows

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if lifeline is not None:
        watch_lifeline(lifeline, stop.set, settings.grace)
    with Windows(folder, shared) as windows:
        async with ToolBus(settings=settings) as bus:
            connector = Connector(
                server, contact, windows, Answering(bus, tool, user, contact), bus, token=os.environ.get(f"{_ENV}TOKEN", "").strip()
            )
            running = asyncio.create_task(connector.run())
            stopping = asyncio.create_task(stop.wait())
            tell(lifeline, Told(serving=True))
            try:
                await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                running.cancel()
                stopping.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running
                await connector.leave()
