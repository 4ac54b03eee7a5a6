"""The hot path: one connection that packs a tick's commands into one write and calls back in order.

redis-py opens the connection (TLS, AUTH, HELLO); this module takes its transport
over and writes and reads by itself, which is several times faster (docs/performance.md).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import hiredis

from toolbus import telemetry
from toolbus.broker.command import Command, OnReply, Reply, ReplyError, answer
from toolbus.broker.connection import BLOCK, Connector, ServerInfo
from toolbus.broker.discovery import Node
from toolbus.broker.scripts import Script
from toolbus.results import BrokerError, BrokerUnavailable

# Its stub says "a tuple of one"; it takes a tuple of any length.
_pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command

_ASKING = Command(_pack(("ASKING",)), None, True)
_SUBSCRIBING = Command(b"", None, False)
_NOTHING = object()
_STALLED = BLOCK + 5.0
# Error replies to commands that were certainly not carried out. The server is not the one that serves us any more, or not yet:
_ELSEWHERE = frozenset({"READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "MOVED", "UNBLOCKED"})
# or it is, in a moment.
_SOON = frozenset({"TRYAGAIN", "NOREPLICAS"})
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


class Link(asyncio.Protocol):
    """One connection to the server, reconnecting with jittered backoff.

    ``send`` never waits: commands of one event-loop tick leave in one write, and
    their answers come back through callbacks in the same order. An error reply or a
    lost connection is passed to the callback as an exception value. A command that was
    sent with ``repeatable=True`` is written again after a reconnect, in order; one that
    was not is answered with ``BrokerUnavailable``, because it may have been carried out. With
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
        self._connector = connector
        self._on_push = on_push
        self._on_up = on_up
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._going: asyncio.Transport | None = None
        self._disconnected = asyncio.Event()
        self._opened_by: object = None
        self._reader = hiredis.Reader()
        self._unsent: list[Command] = []
        self._unsent_bytes = 0
        self._unanswered: deque[Command] = deque()
        self._channels: set[str] = set()
        self._flushing = False
        self._paused = False
        self._closing = False
        self._lost = asyncio.Event()
        self._closed = asyncio.Event()
        self._heard = 0.0
        self._refused: list[Command] = []
        self._leaving = self._maintained = False
        self._connected_at = 0.0
        self._delay = _BACKOFF_FIRST
        self._sides: dict[Node, Side] = {}
        self._connects = self._commands = self._writes = 0
        self.server: ServerInfo | None = None

    @property
    def connected(self) -> bool:
        """Whether commands go out now rather than after a reconnect."""
        return self._transport is not None

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
        self._maintained = True
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
        self._answer_lost(waiting, "the connection was closed")

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

    def send(self, args: tuple[Any, ...], on_reply: OnReply | None = None, *, repeatable: bool = False, same_server: bool = False) -> None:
        """Queue a command for the end of this tick. Never waits, never raises for the server's sake."""
        packed = _pack(args)
        self._unsent_bytes += len(packed)
        if self._closing or self._unsent_bytes > self._limit:
            self._unsent_bytes -= len(packed)
            reason = "the connection was closed" if self._closing else "the connection does not take more and its buffer is full"
            self._answer_lost([Command(packed, on_reply, False)], reason)
            return
        self._unsent.append(Command(packed, on_reply, repeatable, same_server))
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def run(
        self,
        script: Script,
        keys: tuple[Any, ...],
        args: tuple[Any, ...],
        on_reply: OnReply | None = None,
        *,
        repeatable: bool = False,
        same_server: bool = False,
    ) -> None:
        """Queue a script; a server that forgot it gets it again."""

        def check(reply: Reply) -> None:
            if isinstance(reply, ReplyError) and str(reply).startswith("NOSCRIPT"):
                self.send(("EVAL", script.source, len(keys), *keys, *args), on_reply, repeatable=repeatable, same_server=same_server)
            elif on_reply is not None:
                on_reply(reply)

        self.send(("EVALSHA", script.sha, len(keys), *keys, *args), check, repeatable=repeatable, same_server=same_server)

    def flush(self) -> None:
        """Write what is queued now, and not only at the end of this tick, for those who have gathered a tick's commands already."""
        self._flush()

    async def execute(self, *args: Any, repeatable: bool = False) -> Reply:
        """Send a command and wait for its answer.

        :raises ReplyError: the server answered with an error.
        :raises BrokerUnavailable: the connection was lost before it answered.
        """
        future: asyncio.Future[Reply] = self._loop.create_future()
        self.send(args, lambda reply: _settle(future, reply), repeatable=repeatable)
        return await future

    async def execute_script(self, script: Script, keys: tuple[Any, ...], args: tuple[Any, ...], *, repeatable: bool = False) -> Reply:
        """Run a script and wait for its answer; raises as ``execute`` does."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        self.run(script, keys, args, lambda reply: _settle(future, reply), repeatable=repeatable)
        return await future

    def subscribe(self, channel: str) -> None:
        """Receive a channel's messages through ``on_push``, also after reconnects. RESP3 carries them on this same connection."""
        self._channels.add(channel)
        self._flush()
        self._subscribe(channel)

    # -- asyncio.Protocol -------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        reader = self._reader
        reader.feed(data)
        gets, unanswered = reader.gets, self._unanswered
        while True:
            try:
                reply = gets()
            except hiredis.ProtocolError as error:
                telemetry.log.error("link.protocol_error", server=self._connector.display, error=str(error))
                self.abort()
                return
            if reply is _NOTHING:
                return
            if type(reply) is hiredis.PushNotification:
                if unanswered and unanswered[0] is _SUBSCRIBING and reply[0] == b"subscribe":
                    unanswered.popleft()
                elif self._on_push is not None:
                    self._on_push(reply)
                continue
            if not unanswered:
                telemetry.log.error("link.protocol_error", server=self._connector.display, error="an answer to nothing")
                self.abort()
                return
            command = unanswered.popleft()
            if command is _SUBSCRIBING:
                telemetry.log.error("link.subscribe_refused", server=self._connector.display, error=str(reply))
                continue
            if type(reply) is ReplyError and self._put_off(command, reply):
                continue
            if command.on_reply is not None:
                answer(command, reply)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
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

    def _take_over(self, connection: Any) -> None:
        transport, early = connection._writer.transport, connection._reader._buffer
        if transport.is_closing():
            # Lost during the greeting: a protocol that is set only now would never hear of it.
            raise BrokerUnavailable(f"{self._connector.display}: the connection was lost while it was opened")
        # A StreamWriter that is collected closes its transport, so it lives as long as the link uses it.
        self._opened_by = connection._writer
        # redis-py must not close what is ours now, nor warn about it.
        connection._reader = connection._writer = None
        self._reader = hiredis.Reader(replyError=ReplyError, notEnoughData=_NOTHING)
        self._paused = False
        self._heard = self._loop.time()
        self._lost.clear()
        self._disconnected.clear()
        self._transport = transport
        transport.set_protocol(self)
        transport.resume_reading()
        if early:
            self.data_received(bytes(early))

    def _flush(self) -> None:
        self._flushing = False
        if self._transport is None or self._paused or not self._unsent:
            return
        unsent = self._unsent
        if not self._unanswered:
            self._heard = self._loop.time()
        self._commands += len(unsent)
        self._writes += 1
        self._unanswered.extend(unsent)
        data = unsent[0].packed if len(unsent) == 1 else b"".join([command.packed for command in unsent])
        self._unsent = []
        self._unsent_bytes = 0
        self._transport.write(data)

    def _subscribe(self, channel: str) -> None:
        """Written at once, ahead of what waits; a refusal comes as an answer, a success as a push in its place."""
        if self._transport is not None:
            self._unanswered.append(_SUBSCRIBING)
            self._transport.write(_pack(("SUBSCRIBE", channel)))

    def _put_off(self, command: Command, error: ReplyError) -> bool:
        """Keep a command that was refused for a reason that passes; False when the error is its answer."""
        code, _, rest = str(error).partition(" ")
        if code in _ELSEWHERE:
            if not self._maintained:
                # Nobody would make another connection.
                return False
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
        if code in _SOON:
            self.send_again(command)
            return True
        return False

    def send_again(self, command: Command) -> None:
        """Send a command that was not carried out once more, in a moment."""
        self._loop.call_later(_SOON_AFTER * random.uniform(0.5, 1.5), self._put_in, command)  # noqa: S311 - jitter, not a secret

    def _put_in(self, *commands: Command) -> None:
        if self._closing:
            self._answer_lost(list(commands), "the connection was closed")
            return
        self._unsent.extend(commands)
        self._flush()

    def _forward(self, node: Node, command: Command) -> None:
        side = self._sides.get(node)
        if side is None:
            side = self._sides[node] = Side(self._connector.at(node), self, lambda: self._sides.pop(node, None))
        side.carry_out(command)

    def abort(self) -> None:
        """Give the connection up; there will be another."""
        if self._transport is not None:
            self._transport.abort()

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

    def _answer_lost(self, commands: list[Command], reason: str) -> None:
        for command in commands:
            answer(command, BrokerUnavailable(f"{self._connector.display}: {reason}"))


class Side(Link):
    """A connection to the cluster node that a slot is moving to, for the commands that were answered with ASK.

    What it can't carry out goes back to its link.
    """

    def __init__(self, connector: Connector, link: Link, gone: Callable[[], object]) -> None:
        super().__init__(connector)
        self._link = link
        self._gone = gone
        self._opening = self._loop.create_task(self._open())

    def carry_out(self, command: Command) -> None:
        """Send a command with the permission to be carried out before the slot has moved."""
        self._put_in(_ASKING, command)

    def close(self) -> None:
        """Close it; what waits is given back."""
        self._closing = True
        self._opening.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._give_back([*self._unanswered, *self._unsent])
        self._unanswered.clear()
        self._unsent.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        written = list(self._unanswered)
        self._unanswered.clear()
        self._answer_lost([command for command in written if not command.repeatable], "the connection was lost")
        self._give_back([*(command for command in written if command.repeatable), *self._unsent])
        self._unsent.clear()

    def _put_off(self, command: Command, error: ReplyError) -> bool:
        if str(error).partition(" ")[0] not in {"ASK", *_ELSEWHERE, *_SOON}:
            return False
        self._link.send_again(command)
        return True

    async def _open(self) -> None:
        try:
            await self.connect()
        except BrokerError as error:
            telemetry.log.warning("link.side_failed", server=self._connector.display, error=str(error))
            self._give_back(self._unsent)
            self._unsent = []

    def _give_back(self, commands: list[Command]) -> None:
        self._gone()
        for command in commands:
            if command is not _ASKING:
                self._link.send_again(command)


def _is_script(command: Command) -> bool:
    return b"\r\nEVAL" in command.packed[:16]


def _settle(future: asyncio.Future[Reply], reply: Reply) -> None:
    if future.done():
        return
    if isinstance(reply, BrokerError):
        future.set_exception(reply)
    else:
        future.set_result(reply)
