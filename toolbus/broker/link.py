"""``Link``: a connection to the server that comes back when it is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from toolbus import telemetry
from toolbus.broker.command import ELSEWHERE, SOON, Command, ReplyError
from toolbus.broker.connection import BLOCK, Connector
from toolbus.broker.discovery import Node
from toolbus.broker.side import Side
from toolbus.broker.wire import SUBSCRIBING, Wire, pack

_STALLED = BLOCK + 5.0
_SOON_AFTER = 0.03
# A connection that refuses commands again within so many seconds of its opening is no progress.
_SETTLED = 5.0
_BACKOFF_FIRST, _BACKOFF_MOST = 0.05, 2.0
_CLOSING = 1.0


class LinkStatistics(NamedTuple):
    """Counts of one link since it was made; ``unsent`` and ``unanswered`` are current."""

    connects: int
    commands: int
    writes: int
    unsent: int
    unanswered: int


class Link(Wire):
    """One connection to the server, reconnecting with jittered backoff.

    A command that was sent with ``repeatable=True`` is written again after a reconnect,
    in order; one that was not is answered with ``BrokerUnavailable``, because it may have been carried out. With
    ``same_server=True`` as well it is written again only to the process it was written to before:
    another one (a restart, a failover) may have forgotten what the first one did. A command that the
    server refused to carry out because it is a replica, loading, or not in charge of the slot is
    written again wherever it is carried out.

    Args:
        connector: opens connections.
        on_push: called with each out-of-band message ``[kind, channel, payload]``.
        on_up: called after each connect, first one included, with ``restarted`` true when the server is another process.
        limit: most bytes that wait to be written; more are refused.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        on_push: Callable[[list[Any]], None] | None = None,
        on_up: Callable[[bool], None] | None = None,
        limit: int = 64 * 1024 * 1024,
    ) -> None:
        super().__init__(connector, on_push=on_push, limit=limit)
        self._on_up = on_up
        self._going: asyncio.Transport | None = None
        self._disconnected = asyncio.Event()
        self._channels: set[str] = set()
        self._lost = asyncio.Event()
        self._closed = asyncio.Event()
        self._refused: list[Command] = []
        self._leaving = False
        self._connected_at = 0.0
        self._delay = _BACKOFF_FIRST
        self._sides: dict[Node, Side] = {}
        self._connects = 0

    def statistics(self) -> LinkStatistics:
        """Counts of this link."""
        return LinkStatistics(self._connects, self._commands, self._writes, len(self._unsent), len(self._unanswered))

    async def connect(self) -> None:
        """Open the first connection.

        :raises BrokerUnavailable: the server can't be reached.
        :raises BrokerError: it refuses us.
        """
        connection, server = await self._connector.connect()
        restarted = self.server is not None and self.server.run_id != server.run_id
        self.server = server
        self._lost.clear()
        self._disconnected.clear()
        self._take_over(connection)
        self._connects += 1
        self._leaving = False
        self._connected_at = self._loop.time()
        # What was written to the old connection and may be repeated goes first, then what never left.
        again = list(self._unanswered)
        self._unanswered.clear()
        refused, self._refused = self._refused, []
        for channel in sorted(self._channels):
            self._subscribe(channel)
        # What was refused was sent before what was not answered.
        self._unsent[:0] = [*refused, *(command for command in again if not (restarted and command.same_server))]
        self._flush()
        if restarted:
            self._answer_lost([command for command in again if command.same_server], "the server is another process now")
        if self._on_up is not None:
            self._on_up(restarted)

    async def maintain(self) -> None:
        """Reconnect whenever the connection is lost; runs until ``close``."""
        while not self._closing:
            try:
                async with asyncio.timeout(_STALLED / 2):
                    await self._lost.wait()
            except TimeoutError:
                self._abort_if_stalled()
                continue
            await self._unless_closed(self._reconnect())

    async def _unless_closed(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that ``close`` cuts short: connecting may take seconds."""
        working, closed = self._loop.create_task(work), self._loop.create_task(self._closed.wait())
        try:
            await asyncio.wait([working, closed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working, closed):
                task.cancel()
            await asyncio.wait([working, closed])

    def close(self) -> None:
        """Close the connection and answer everything that still waits with ``BrokerUnavailable``."""
        self._end("the connection was closed")

    def _end(self, reason: str) -> None:
        self._closing = True
        self._closed.set()
        self._lost.set()
        if self._transport is not None:
            self._transport.close()
            self._transport, self._going = None, self._transport
        for side in list(self._sides.values()):
            side.close()
        waiting = [*self._refused, *self._unanswered, *self._unsent]
        self._refused.clear()
        self._unanswered.clear()
        self._unsent.clear()
        self._unsent_bytes = 0
        self._answer_lost(waiting, reason)

    async def wait_closed(self) -> None:
        """After ``close``: wait until what was written has left and TLS has ended in order, or cut it off after a second."""
        if self._going is None:
            return
        try:
            async with asyncio.timeout(_CLOSING):
                await self._disconnected.wait()
        except TimeoutError:
            self._going.abort()
            await self._disconnected.wait()

    def subscribe(self, channel: str) -> None:
        """Receive a channel's messages through ``on_push``, also after reconnects. RESP3 carries them on this same connection."""
        self._channels.add(channel)
        self._flush()
        self._subscribe(channel)

    def connection_lost(self, exc: Exception | None) -> None:
        """Keep what may be repeated for the next connection; the rest is told."""
        self._transport = None
        self._disconnected.set()
        self._paused = False
        written = list(self._unanswered)
        self._unanswered.clear()
        self._unanswered.extend(command for command in written if command.repeatable and not self._closing)
        self._lost.set()
        if not self._closing:
            telemetry.log.warning("link.lost", server=self._connector.display, error=str(exc or "closed by the server"))
        self._answer_lost([command for command in written if not command.repeatable], "the connection was lost")

    # -- inside -----------------------------------------------------------------------------------

    def _subscribe(self, channel: str) -> None:
        """Written at once, ahead of what waits; a refusal comes as an answer, a success as a push in its place."""
        if self._transport is not None:
            self._unanswered.append(SUBSCRIBING)
            self._transport.write(pack(("SUBSCRIBE", channel)))

    def _put_off(self, command: Command, error: ReplyError) -> bool:
        """Keep a command that was refused for a reason that passes; False when the error is its answer."""
        code, _, rest = str(error).partition(" ")
        if code in ELSEWHERE:
            self._refused.append(command)
            if not self._leaving:
                self._leaving = True
                telemetry.log.warning("link.refused", server=self._connector.display, error=str(error))
                if code == "MOVED":
                    self._connector.told(Node.parse(rest.partition(" ")[2]))
                self._loop.call_soon(self.abort)
            return True
        if code == "ASK":
            # The next node takes a key that has not arrived for one that is gone. Scripts look at several, so they wait.
            if _is_script(command):
                self.send_again(command)
            else:
                self._forward(Node.parse(rest.partition(" ")[2]), command)
            return True
        if code in SOON:
            self.send_again(command)
            return True
        return False

    def send_again(self, command: Command) -> None:
        """Send a command that was not carried out once more, in a moment."""
        self._loop.call_later(_SOON_AFTER * random.uniform(0.5, 1.5), self._put_in, command)  # noqa: S311 - jitter, not a secret

    def _forward(self, node: Node, command: Command) -> None:
        side = self._sides.get(node)
        if side is None:
            side = self._sides[node] = Side(self._connector.at(node), self.send_again, lambda: self._sides.pop(node, None))
        side.carry_out(command)

    def _abort_if_stalled(self) -> None:
        if self._unanswered and self._loop.time() - self._heard > _STALLED:
            telemetry.log.warning("link.stalled", server=self._connector.display, unanswered=len(self._unanswered))
            self.abort()

    async def _reconnect(self) -> None:
        if self._leaving and self._loop.time() - self._connected_at < _SETTLED:
            # It opens and then refuses: without a pause this would go round as fast as it can.
            await asyncio.sleep(self._delay * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
            self._delay = min(self._delay * 2, _BACKOFF_MOST)
        else:
            self._delay = _BACKOFF_FIRST
        delay = _BACKOFF_FIRST
        while not self._closing:
            try:
                await self.connect()
            except Exception as error:  # noqa: BLE001 - whatever went wrong, the link must come back
                telemetry.log.warning(
                    "link.reconnect_failed",
                    server=self._connector.display,
                    error=str(error) or type(error).__name__,
                    retry_in=round(delay, 2),
                )
                await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
                delay = min(delay * 2, _BACKOFF_MOST)
            else:
                telemetry.count("toolbus.reconnects")
                telemetry.log.info("link.restored", server=self._connector.display)
                return


class ShortLink(Link):
    """A link for a short while, which nobody maintains: when the connection is lost, whatever waits or comes is told."""

    def connection_lost(self, exc: Exception | None) -> None:
        """End it; what may be repeated is told, too."""
        super().connection_lost(exc)
        self._end("the connection was lost")

    def _put_off(self, command: Command, error: ReplyError) -> bool:
        # There will be no other connection, to carry it out elsewhere.
        return str(error).partition(" ")[0] not in ELSEWHERE and super()._put_off(command, error)


def _is_script(command: Command) -> bool:
    return b"\r\nEVAL" in command.packed[:16]
