"""The connection through which one Sentinel is followed."""

from __future__ import annotations

import asyncio
from typing import Any

from toolbus.broker.transport import clients
from toolbus.broker.transport.connection import Connector
from toolbus.broker.transport.discovery import Node
from toolbus.broker.transport.sentinels import BySentinel, SentinelReport, read_report
from toolbus.broker.transport.wire import SUBSCRIBING, Wire, pack

_ANSWER = 1.0
_CHANNELS = ("+switch-master", "+try-failover", "+promoted-slave", "+sdown", "-sdown")


class Observer(Wire):
    """A connection to one Sentinel, which is asked and tells of events."""

    def __init__(self, connector: Connector, discovery: BySentinel, node: Node) -> None:
        self._events = asyncio.Event()
        super().__init__(connector, on_push=self._take)
        self._discovery = discovery
        self._node = node

    async def open(self) -> None:
        """Connect and subscribe; raises whatever goes wrong."""
        connection = clients.connection(self._discovery.asking_options(self._node))
        try:
            async with asyncio.timeout(_ANSWER):
                await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self._take_over(connection)
        for channel in _CHANNELS:
            self._unanswered.append(SUBSCRIBING)
            if self._transport is not None:
                self._transport.write(pack(("SUBSCRIBE", channel)))

    async def ask(self) -> SentinelReport:
        """Ask the Sentinel for its report.

        Raises:
            ValueError: it does not know the master.
            BrokerError: it does not answer as it should.
            TimeoutError: it does not answer.
        """
        self._events.clear()
        async with asyncio.timeout(_ANSWER):
            return read_report(*await asyncio.gather(*(self.execute(*question) for question in self._discovery.questions())))

    async def event(self, seconds: float) -> None:
        """Wait for an event of our master's, at most so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._events.wait()
        except TimeoutError:
            return

    def close(self) -> None:
        """Close the connection."""
        self._closing = True
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who waits."""
        self._transport = None
        self._closing = True
        lost = [command for command in (*self._unanswered, *self._unsent) if command is not SUBSCRIBING]
        self._unanswered.clear()
        self._unsent.clear()
        self._answer_lost(lost, str(exc or "closed by the server"))
        self._events.set()

    def _take(self, message: list[Any]) -> None:
        payload = message[2] if len(message) == 3 else None
        if isinstance(payload, bytes) and self._discovery.name.encode() in payload.split(b" "):
            self._events.set()
