"""A messenger: a real WebSocket server that sends messages until they are acknowledged, and keeps the answers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed


class Messenger:
    """The server's state.

    Attributes:
        registered: the first frames of the connections.
        replies: the answers by their ids.
        heard: how often each answer came.
        complaints: frames that told of something wrong.
    """

    def __init__(self) -> None:
        self.registered: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.replies: dict[str, dict[str, Any]] = {}
        self.heard: Counter[str] = Counter()
        self.complaints: list[dict[str, Any]] = []
        self.acknowledged: set[str] = set()
        self._unacknowledged: dict[str, str] = {}
        self._connections: set[ServerConnection] = set()
        self._server: Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """The address."""
        return f"ws://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """The number of open connections that have told who they are."""
        return len(self._connections)

    async def start(self) -> None:
        """Listen, at the same port as before."""
        self._server = await serve(self._serve, "127.0.0.1", self.port)
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def stop(self) -> None:
        """Close every connection, and listen no more."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def drop(self) -> None:
        """Cut every connection without a closing frame."""
        for each in list(self._connections):
            each.transport.abort()

    async def send(self, id: str, content: str, sender_chat_id: str = "alice-1", **more: Any) -> None:
        """Send a message, now and at each new connection until it is acknowledged."""
        document = {"type": "message", "id": id, "sender": "alice", "sender_chat_id": sender_chat_id, "content": content, **more}
        self._unacknowledged[id] = json.dumps(document)
        await self.raw(self._unacknowledged[id])

    async def raw(self, data: str | bytes) -> None:
        """Send a frame to every connection."""
        for each in list(self._connections):
            try:
                await each.send(data)
            except ConnectionClosed:
                continue

    def answers(self) -> list[tuple[str, str, str]]:
        """Return receiver's window, message and text of each answer, sorted."""
        return sorted((each["receiver_chat_id"], each["reply_to"], each["content"]) for each in self.replies.values())

    async def _serve(self, connection: ServerConnection) -> None:
        if connection.request is not None:
            self.headers.append(dict(connection.request.headers))
        try:
            self.registered.append(json.loads(await connection.recv()))
            self._connections.add(connection)
            for each in list(self._unacknowledged.values()):
                await connection.send(each)
            async for data in connection:
                self._hear(json.loads(data))
        except ConnectionClosed:
            pass
        finally:
            self._connections.discard(connection)

    def _hear(self, frame: dict[str, Any]) -> None:
        if frame["type"] == "ack":
            self.acknowledged.add(frame["id"])
            self._unacknowledged.pop(frame["id"], None)
        elif frame["type"] == "error":
            self.complaints.append(frame)
            self._unacknowledged.pop(frame["id"], None)
        else:
            self.heard[frame["id"]] += 1
            known = self.replies.setdefault(frame["id"], frame)
            assert known == frame, (known, frame)


@asynccontextmanager
async def messenger() -> AsyncIterator[Messenger]:
    """A running messenger."""
    made = Messenger()
    await made.start()
    try:
        yield made
    finally:
        await asyncio.wait_for(made.stop(), 30)
