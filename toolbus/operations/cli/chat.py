"""``chat``: talk with the service agent on a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import click

from toolbus.bus.support.display import visible
from toolbus.operations.cli.command import Folder, Lifeline, Output, Seconds, command, option
from toolbus.operations.cli.common import read_text, serving_settings, settings_with_server
from toolbus.operations.cli.output import fail, print_json, say

if TYPE_CHECKING:
    from toolbus.bus.values.results import ToolResult
    from toolbus.bus.values.settings import Settings
    from toolbus.sync import ToolBus


@command("chat")
def chat_command(
    message: str | None,
    chat_id: Annotated[str, option("Go on with this chat, or begin one with this id.", default="")],
    user: Annotated[str, option("The tenant on whose behalf you talk; each has chats of their own.", default="")],
    tool: Annotated[str, option("Tool that answers.", default="chat")],
    timeout: Annotated[float | None, option("Seconds for an answer (the tool's own, 600).", type=Seconds())],
    output: Output,
) -> None:
    """Talk with the service agent.

    With MESSAGE (- reads it from standard input) it is answered, and the command ends. Without, each line that you type is a message,
    until Ctrl-D. Ctrl-C stops an answer, and ends the command where none is being given. The service agent is `toolbus worker
    service-agent`; it remembers a chat by its id, for a week.

    \b
    Examples:
      toolbus platform chat "which tools work with images?"
      toolbus platform chat --chat-id images
      toolbus platform chat --chat-id images "make me one that rotates them" --output json
    """
    settings = settings_with_server()
    if message is None and output == "json":
        raise click.UsageError("--output json answers one message; give MESSAGE, or - to read it from standard input")
    text = read_text("-") if message == "-" else message
    if text is not None and not text.strip():
        raise click.UsageError("MESSAGE is empty")
    from toolbus.sync import ToolBus

    chat = chat_id or f"chat-{secrets.token_hex(4)}"
    options: dict[str, Any] = {"user": user, "session": chat} | ({} if timeout is None else {"timeout": timeout})
    with ToolBus(settings=settings) as bus:
        talk = _Talk(bus, tool, chat, options, quiet=output == "json")
        if text is None:
            talk.go_on(sys.stdin.isatty())
            return
        result = talk.say(text)
    if result.error is not None:
        fail(_failure(result, tool))
    if output == "json":
        print_json(result.data if isinstance(result.data, dict) else {"response": result.output or "", "chat_id": chat})
    elif not chat_id and sys.stderr.isatty():
        say(f"go on: toolbus platform chat --chat-id {chat}", dim=True, err=True)


class _Talk:
    """The messages of one chat, one after the other."""

    def __init__(self, bus: ToolBus, tool: str, chat_id: str, options: dict[str, Any], *, quiet: bool) -> None:
        self._bus = bus
        self._tool = tool
        self._chat_id = chat_id
        self._options = options
        self._quiet = quiet

    def go_on(self, prompting: bool) -> None:
        """Answer each line of the input until its end."""
        if prompting:
            _edit_lines()
            say(
                f"chat {visible(self._chat_id)}; Ctrl-D ends it, and `toolbus platform chat --chat-id {visible(self._chat_id)}` goes on",
                err=True,
            )
        while (line := _line(prompting)) is not None:
            if not line.strip():
                continue
            try:
                result = self.say(line.rstrip("\n"))
            except KeyboardInterrupt:
                if not prompting:
                    raise
                say("\nstopped", dim=True, err=True)
                continue
            if result.error is not None and not prompting:
                fail(_failure(result, self._tool))
            if result.error is not None:
                say(_failure(result, self._tool), fg="red", err=True)

    def say(self, message: str) -> ToolResult:
        """Send a message, and print the answer as it arrives."""
        from toolbus import Progress
        from toolbus.bus.values.events import Finished, Reset, Text

        unfinished = ""
        with self._bus.stream(self._tool, {"message": message, "chat_id": self._chat_id}, **self._options) as call:
            for event in call.events():
                if self._quiet:
                    continue
                if isinstance(event, Text):
                    say(event.text, nl=False)
                    sys.stdout.flush()
                    unfinished = event.text
                elif isinstance(event, Progress) and event.message and sys.stderr.isatty():
                    say(f"  {event.message}", dim=True, err=True)
                elif isinstance(event, Reset):
                    say("\n-- the answer begins again --", dim=True, err=True)
                elif isinstance(event, Finished) and not unfinished and event.result.success:
                    unfinished = _response(event.result)
                    say(unfinished, nl=False)
            if not self._quiet and unfinished and not unfinished.endswith("\n"):
                say()
            return call.result()


def _response(result: ToolResult) -> str:
    said = result.data.get("response") if isinstance(result.data, dict) else None
    return said if isinstance(said, str) else result.output or ""


def _failure(result: ToolResult, tool: str) -> str:
    error = result.error
    if error is None:
        return ""
    if error.type in {"not_found", "unavailable"} and error.origin == "bus" and not result.output:
        return f"{error.message or error.type}; the service agent is `toolbus worker service-agent` (asked for the tool {tool!r})"
    return f"{error.type}: {error.message or error.code}"


def _edit_lines() -> None:
    """Let arrow keys edit lines, and bring earlier ones back."""
    try:
        import readline  # noqa: F401 - input() uses it once it is imported
    except ImportError:
        return


def _line(prompting: bool) -> str | None:
    """Return the next line, or None at the end of the input."""
    try:
        if prompting:
            return input("> ")
        line = sys.stdin.readline()
    except EOFError:
        say(err=True)
        return None
    return line or None


_ENV = "TOOLBUS_IM_"


@command("im", env=_ENV)
def im_command(
    server: Annotated[str, option("Address of the messenger, ws:// or wss://.", required=True)],
    contact: Annotated[str, option("Name of this contact in the messenger.", required=True)],
    tool: Annotated[str, option("Tool that answers.", default="chat")],
    user: Annotated[str, option("The tenant on whose behalf messages are answered, and who has their chats.", default="im")],
    shared: Annotated[tuple[str, ...], option("A window that all senders share, with its memory (repeatable).", metavar="WINDOW")],
    state: Annotated[Path | None, option("Folder of the windows (toolbus/im/CONTACT in ~/.local/state).", type=Folder)],
    lifeline: Lifeline,
) -> None:
    """Connect a messenger's windows with the service agent.

    One socket carries the messages of many windows. Each is kept on the disk before its sender is told so, answered once by the tool
    `chat`, and its answer goes to the sender's window, also when this process is killed in between. A token in TOOLBUS_IM_TOKEN is sent
    as a bearer token.

    \b
    Examples:
      toolbus platform im --server ws://localhost:8765 --contact tool_agent
    """
    from toolbus.bus.worker.process.event_loop import run_loop

    if not _is_address(server):
        raise click.UsageError("--server is an address such as ws://localhost:8765")
    if not contact.strip() or len(contact) > 255:
        raise click.UsageError("--contact is a name of 1 to 255 characters")
    folder = state or _usual(contact)
    settings = serving_settings("im")
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
    from toolbus.agent.im.window import Windows

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if lifeline is not None:
        watch_lifeline(lifeline, stop.set, settings.grace)
    with Windows(folder, shared) as windows:
        async with ToolBus(settings=settings) as bus:
            connector = Connector(server, contact, windows, bus, tool, user=user, token=os.environ.get(f"{_ENV}TOKEN", "").strip())
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
