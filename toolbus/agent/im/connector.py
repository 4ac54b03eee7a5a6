"""``Connector``: one socket to the messenger, and a task for each window."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from toolbus.agent.im.window import MOST_FRAME, BadFrame, Pending, Window, Windows, complaint, frame, read_frame
from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import Messenger
from toolbus.bus.client.bus import ToolBus
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.support.waiting import at_most
from toolbus.bus.values.results import OF_ATTEMPTS, BrokerError, ConfigurationError, ToolbusError
from toolbus.bus.values.urls import redact

# Seconds before something is tried again, at first and at most.
_FIRST, _MOST = 0.5, 30.0


T = TypeVar("T")

# A connection that has lasted so many seconds has worked: the next one is tried at once.
_SETTLED = 10.0
# A larger frame than this ends the connection; one between the two bounds is skipped.
_READ = 4 * MOST_FRAME
# The connector tells of itself so often, and lives for so many seconds without.
_BEAT, _LIVES = 10.0, 30.0
# Seconds for telling the server that it is gone.
_LEAVING = 3.0
_SHOWN = 1_000


class Connector:
    """Connects the windows of a contact with the messenger; runs until it is cancelled.

    Args:
        server: address of the WebSocket.
        contact: the name of this contact.
        windows: its windows, for this process alone.
        bus: is open.
        tool: name of the tool that answers.
        user: on whose behalf.
        token: is sent as a bearer token, if there is one.
    """

    def __init__(self, server: str, contact: str, windows: Windows, bus: ToolBus, tool: str, *, user: str = "", token: str = "") -> None:
        self._server = server
        self._contact = contact
        self._windows = windows
        self._bus = bus
        self._tool = tool
        self._user = user
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._id = secrets.token_hex(8)
        self._socket: ClientConnection | None = None
        self._open = asyncio.Event()
        self._changed = asyncio.Event()
        self._served: dict[str, _Served] = {}

    async def run(self) -> None:
        """Keep the socket open, and answer messages; those of an earlier process first.

        Raises:
            ToolbusError: an option is wrong.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                for window in self._windows.all():
                    self._serve(window)
                tasks.create_task(self._tell())
                tasks.create_task(self._keep_connected())
        except* ToolbusError as group:
            raise group.exceptions[0] from None

    async def leave(self) -> None:
        """Tell that this connector is gone."""
        # A server that is gone does not answer; what was told last ends by itself.
        with contextlib.suppress(BrokerError):
            await at_most(_LEAVING, self._bus.chats.tell(Messenger(self._id), 0.001))

    # -- the socket -------------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        pause = _FIRST
        while True:
            began = time.monotonic()
            reason = "the server closed the connection"
            try:
                async with connect(self._server, additional_headers=self._headers, max_size=_READ) as socket:
                    await socket.send(frame({"type": "register", "contact": self._contact, "windows": self._windows.names}))
                    self._connected(socket)
                    async for data in socket:
                        await self._hear(socket, data)
            except (OSError, WebSocketException) as error:
                # TimeoutError is an OSError.
                reason = str(error) or type_name(error)
            finally:
                self._connected(None)
            pause = _FIRST if time.monotonic() - began > _SETTLED else min(2 * pause, _MOST)
            wait = pause * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
            telemetry.log.warning("im.disconnected", server=redact(self._server), error=reason, retry_in=round(wait, 2))
            await asyncio.sleep(wait)

    def _connected(self, socket: ClientConnection | None) -> None:
        self._socket = socket
        if socket is None:
            self._open.clear()
        else:
            self._open.set()
            telemetry.log.info("im.connected", server=redact(self._server), contact=self._contact, windows=len(self._windows.ids))
        self._changed.set()

    async def _hear(self, socket: ClientConnection, data: str | bytes) -> None:
        """Keep a message, and tell its sender so; tell what is wrong with a frame that is none."""
        try:
            message = read_frame(data)
            if message is None:
                return
            known = set(self._windows.ids)
            for window in await asyncio.to_thread(self._windows.of, message):
                served = self._serve(window)
                if await served.do(partial(window.take, message)):
                    served.waiting.set()
            if set(self._windows.ids) != known:
                self._changed.set()
        except BadFrame as error:
            telemetry.log.warning("im.bad_frame", error=str(error))
            await socket.send(complaint(error))
        except (OSError, ConfigurationError) as error:
            # It is not acknowledged, so the server sends it again.
            telemetry.log.error("im.not_kept", error=str(error))
            await socket.send(complaint(BadFrame("the message can't be kept at the moment; send it again later", message_id(data))))
        else:
            # It is kept, and need not be sent again.
            await socket.send(frame({"type": "ack", "id": message.id}))

    # -- the windows ------------------------------------------------------------------------------

    def _serve(self, window: Window) -> _Served:
        served = self._served.get(window.chat_id)
        if served is None:
            served = self._served[window.chat_id] = _Served()
            self._tasks.create_task(self._answer_all(window, served))
        return served

    async def _answer_all(self, window: Window, served: _Served) -> None:
        """Answer the messages of a window, the oldest first."""
        while True:
            while window.pending:
                await self._answer(window, served, window.pending[0])
            served.waiting.clear()
            await served.waiting.wait()

    async def _answer(self, window: Window, served: _Served, entry: Pending) -> None:
        if entry.answer is None:
            text = await self._answered(window, entry)
            await served.surely(lambda: window.answer(entry, text))
        await self._send(frame(window.reply(entry, self._contact)))
        await served.surely(lambda: window.sent(entry, self._contact))

    async def _answered(self, window: Window, entry: Pending) -> str:
        """Return the answer of a message; while nobody can answer, it waits and asks again."""
        message = entry.message
        pause = _FIRST
        while True:
            result = await self._bus.call(
                self._tool,
                {"message": message.content, "chat_id": window.chat_id},
                session=window.chat_id,
                user=self._user,
                idempotency_key=window.reply(entry, self._contact).id,
            )
            error = result.error
            if error is None:
                said = result.data.get("response") if isinstance(result.data, dict) else None
                text = said if isinstance(said, str) else result.output or ""
                return text if text.strip() else "I have no answer to this."
            nobody_there = error.type == "not_found" and error.origin == "bus"
            if not (nobody_there or error.type in OF_ATTEMPTS or error.retryable):
                return f"I can't answer this: {error.message or error.code or error.type}"
            telemetry.log.warning("im.unanswered", chat=window.chat_id, error=str(error), retry_in=pause)
            jitter = random.uniform(0.5, 1.0)  # noqa: S311 - jitter
            await asyncio.sleep(max(pause * jitter, min(error.retry_after or 0.0, _MOST)))
            pause = min(2 * pause, _MOST)

    async def _send(self, text: str) -> None:
        """Send a frame; returns when the other end has it, over how many connections ever."""
        while True:
            await self._open.wait()
            socket = self._socket
            if socket is None:
                continue
            try:
                await socket.send(text)
                # Frames arrive in order, so the answer to a ping tells that those before it have arrived.
                await (await socket.ping())
            except ConnectionClosed:
                if socket is self._socket:
                    self._connected(None)
                continue
            return

    async def _tell(self) -> None:
        """Tell of this connector while it lives, and at each change."""
        while True:
            self._changed.clear()
            shown = tuple(self._windows.ids[-_SHOWN:])
            try:
                await self._bus.chats.tell(Messenger(self._id, connected=self._open.is_set(), windows=shown), _LIVES)
            except BrokerError as error:
                telemetry.log.warning("im.not_told", error=str(error))
            await at_most(_BEAT, self._changed.wait())


class _Served:
    """A window while it is served: its file work is done by one thread at a time, in order."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self._lock = asyncio.Lock()

    async def do(self, work: Callable[[], T]) -> T:
        """Do file work of the window in a thread."""
        async with self._lock:
            return await asyncio.shield(asyncio.to_thread(work))

    async def surely(self, work: Callable[[], None]) -> None:
        """Do file work of the window, again and again while the disk refuses."""
        pause = _FIRST
        while True:
            try:
                await self.do(work)
            except OSError as error:
                telemetry.log.error("im.not_kept", error=str(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MOST)
            else:
                return


def message_id(data: str | bytes) -> str:
    """Return the id of a message, for a complaint; empty when it has none."""
    try:
        message = read_frame(data)
    except BadFrame as error:
        return error.id
    return "" if message is None else message.id
