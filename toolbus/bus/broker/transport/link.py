"""A connection to the server that comes back when it is lost."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from toolbus.bus import telemetry
from toolbus.bus.broker.server.access import is_forbidden, is_left_to_others, wanted
from toolbus.bus.broker.server.scripts import Script, with_source
from toolbus.bus.broker.transport.command import ELSEWHERE, SOON, Command, OnReply, Patience, Refused, Reply, ReplyError, node_in
from toolbus.bus.broker.transport.connection import BLOCK, Connector, explain
from toolbus.bus.broker.transport.discovery import Node
from toolbus.bus.broker.transport.wire import Wire, answer, pack, unheard
from toolbus.bus.support.waiting import at_most, either

_ASKING = Command(pack(("ASKING",)), unheard, True)
_NOT_HERE = frozenset({"ASK", *ELSEWHERE, *SOON})


class RedirectConnection(Wire):
    """A connection to the cluster node that a slot is moving to, for the commands that were answered with ASK.

    Args:
        again: takes back what it can't carry out.
        gone: called when it will carry out nothing more.
    """

    def __init__(self, connector: Connector, again: Callable[[Command], None], gone: Callable[[], object]) -> None:
        super().__init__(connector)
        self._again = again
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
        """Give back what may be repeated; the rest is told."""
        written = self._take_back()
        self._answer_lost([command for command in written if not command.repeatable], "the connection was lost")
        self._give_back([*(command._replace(lost=True) for command in written if command.repeatable), *self._unsent])
        self._unsent.clear()

    def _put_off(self, command: Command, error: ReplyError) -> bool:
        if error.code not in _NOT_HERE:
            return False
        self._again(command)
        return True

    async def _open(self) -> None:
        try:
            connection, self.server = await self._connector.connect()
            self._take_over(connection)
        except Exception as error:  # noqa: BLE001 - whatever it is, what waits must go back
            telemetry.log.warning("link.side_failed", server=self._connector.display, error=str(error) or type(error).__name__)
            self._give_back(self._unsent)
            self._unsent = []
        else:
            self.flush()

    def _give_back(self, commands: list[Command]) -> None:
        self._gone()
        for command in commands:
            if command is not _ASKING:
                self._again(command)


_STALLED = BLOCK + 5.0
_SOON_AFTER = 0.03
# A connection that ends within so many seconds of its opening is no progress.
_SETTLED = 5.0
# A slot moves from one node to one other.
_MOST_REDIRECTS = 2
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
    written again wherever it is carried out, and a script that the server has forgotten is sent with its source.

    Commands are carried out in the order in which they were sent. After a refusal nothing is written until all that is in flight was
    answered; then what was refused is sent again one by one, and then the rest. What is in flight behind a refused command may be
    carried out before it: a step that can't bear that has only one of such commands in flight.

    Args:
        connector: opens connections.
        on_push: called with each out-of-band message ``[kind, channel, payload]``.
        on_up: called after each connect, first one included, with ``restarted`` true when the server is another process; and after a
            subscription that was refused before.
        limit: most bytes that wait to be written; more are refused.

    Attributes:
        on_wrong_type: called when the server has refused a command because a key is not of the type that it should be.
        trouble: why the last attempt to connect failed; empty once one has succeeded.
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
        self.on_up = on_up
        self._going: asyncio.Transport | None = None
        self._disconnected = asyncio.Event()
        self._channels: set[str] = set()
        # Channels whose subscription was refused, each with the seconds until it is repeated after another refusal.
        self._unsubscribed: dict[str, float] = {}
        self._opening_command: Command | None = None
        self._lost = asyncio.Event()
        self._closed = asyncio.Event()
        self._relocated = asyncio.Event()
        self._refused: deque[Refused] = deque()
        # True while the refused commands are sent again, and while the first of them waits for its moment or another node.
        self._repeating = self._waiting = False
        self._refusals = 0
        self._patience = Patience(self._loop.time)
        self._leaving = False
        self._connected_at = 0.0
        self._delay = _BACKOFF_FIRST
        self.on_wrong_type: Callable[[], None] | None = None
        self.trouble = ""
        self._redirects: dict[Node, RedirectConnection] = {}
        self._connects = 0

    def statistics(self) -> LinkStatistics:
        """Return the counts of this link."""
        return LinkStatistics(self._connects, self._commands, self._writes, len(self._refused) + len(self._unsent), len(self._unanswered))

    @property
    def refusal(self) -> str:
        """The refusal that commands wait here for; empty when there is none."""
        return self._patience.refusal

    @property
    def certificate_ends(self) -> float | None:
        """When the server's certificate ends, in seconds since 1970; None without TLS, and when it was not checked."""
        encrypted = None if self._transport is None else self._transport.get_extra_info("ssl_object")
        ends = None if encrypted is None else (encrypted.getpeercert() or {}).get("notAfter")
        return None if ends is None else float(ssl.cert_time_to_seconds(ends))

    async def connect(self) -> None:
        """Open the first connection.

        Raises:
            BrokerUnavailable: the server can't be reached.
            BrokerError: it refuses us.
        """
        connection, server = await self._connector.connect()
        restarted = self.server is not None and self.server.run_id != server.run_id
        self.server = server
        self._lost.clear()
        self._disconnected.clear()
        self._take_over(connection)
        self.trouble = ""
        self._connects += 1
        self._leaving = False
        self._connected_at = self._loop.time()
        # Repeatable commands of the old connection go first, then those that never left.
        again = list(self._unanswered)
        self._unanswered.clear()
        for channel in sorted(self._channels):
            self._subscribe(channel)
        if self._opening_command is not None:
            self._write_now(self._opening_command)
        self._write_again([command for command in again if not (restarted and command.same_server)])
        if restarted:
            self._answer_lost([command for command in again if command.same_server], "the server is another process now")
        if self.on_up is not None:
            self.on_up(restarted)

    async def maintain(self) -> None:
        """Reconnect whenever the connection is lost; runs until ``close``."""
        while not self._closing:
            await at_most(_STALLED / 2, self._lost.wait())
            if self._lost.is_set():
                await self._unless(self._closed, self._reconnect())
            else:
                for wire in (self, *self._redirects.values()):
                    wire.abort_if_stalled(_STALLED)

    async def _unless(self, event: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
        """Do something that an event cuts short: connecting may take seconds. Return whether it was done; raises what it raises."""
        working, _ = await either(work, event.wait())
        if working.cancelled():
            return False
        working.result()
        return True

    async def settled(self) -> None:
        """Wait until everything that was sent so far has been answered, refused commands included.

        Raises:
            BrokerUnavailable: the link was closed.
        """
        refusals = -1
        while refusals != self._refusals:
            refusals = self._refusals
            # A server that can't write to its disk refuses PING.
            await self.execute("TIME", repeatable=True)

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
            self.connected = False
        for redirect in list(self._redirects.values()):
            redirect.close()
        refused = [each.command for each in self._refused]
        waiting = [*self._unanswered, *refused, *self._unsent] if self._repeating else [*refused, *self._unanswered, *self._unsent]
        self._refused.clear()
        self._unanswered.clear()
        self._unsent.clear()
        self._unsent_bytes = 0
        self._answer_lost(waiting, reason)

    async def wait_closed(self) -> None:
        """After ``close``: wait until what was written has left and TLS has ended in order, or cut it off after a second."""
        if self._going is not None:
            await at_most(_CLOSING, self._disconnected.wait())
            if not self._disconnected.is_set():
                self._going.abort()
                await self._disconnected.wait()
        self._connector.leave()

    def relocate(self) -> None:
        """Give up this connection, or the opening of one, and look afresh for the server: it is another one now."""
        self._relocated.set()
        self.abort()

    def subscribe(self, channel: str) -> None:
        """Receive a channel's messages through ``on_push``, also after reconnects. RESP3 carries them on this same connection."""
        self._channels.add(channel)
        self.flush()
        self._subscribe(channel)

    def unsubscribe(self, channel: str) -> None:
        """Receive a channel's messages no more; the latest may still come."""
        self._channels.discard(channel)
        self._unsubscribed.pop(channel, None)
        self.flush()
        self._subscribe(channel, "UNSUBSCRIBE")

    def begin_with(self, script: Script, keys: tuple[Any, ...], args: tuple[Any, ...], on_reply: OnReply) -> None:
        """Begin every later connection with a script, before anything is repeated; it changes nothing when it runs again."""
        # With its source: what is written behind it would overtake it at a server that does not know the script.
        packed = pack(("EVAL", script.source, len(keys), *keys, *args))
        self._opening_command = Command(packed, on_reply, repeatable=False, form=script.form)

    def connection_lost(self, exc: Exception | None) -> None:
        """Keep what may be repeated for the next connection; the rest is told."""
        written = self._take_back()
        self._disconnected.set()
        self._paused = False
        self._unanswered.extend(command._replace(lost=True) for command in written if command.repeatable and not self._closing)
        self._lost.set()
        if not self._closing:
            reason = str(exc or "closed by the server")
            telemetry.log.warning("link.lost", server=self._connector.display, error=explain(reason) or reason)
        self._answer_lost([command for command in written if not command.repeatable], "the connection was lost")

    # -- inside -----------------------------------------------------------------------------------

    def _subscribed(self, channel: str, reply: Reply) -> None:
        if reply is None:
            if self._unsubscribed.pop(channel, None) is not None and self.on_up is not None:
                # As after a lost connection, there were messages meanwhile.
                self.on_up(False)
        elif isinstance(reply, ReplyError) and channel in self._channels:
            delay = self._unsubscribed.get(channel, _BACKOFF_FIRST)
            if channel not in self._unsubscribed:
                super()._subscribed(channel, reply)
            self._unsubscribed[channel] = min(delay * 2, _BACKOFF_MOST)
            if reply.code in ELSEWHERE:
                self._leave(reply)
            else:
                self._loop.call_later(delay, self._subscribe_again, channel, self._transport)

    def _subscribe_again(self, channel: str, transport: asyncio.Transport | None) -> None:
        if channel in self._channels and self._transport is transport:
            self._subscribe(channel)

    def _write_now(self, command: Command) -> None:
        if self._transport is not None:
            self._commands += 1
            self._writes += 1
            self._unanswered.append(command)
            self._transport.write(command.packed)

    def _put_off(self, command: Command, error: ReplyError) -> bool:
        """Keep a command that was refused for a reason that passes; False when the error is its answer."""
        code, _, rest = str(error).partition(" ")
        if code == "NOSCRIPT":
            packed = with_source(command.packed)
            if packed is None:
                return False
            self._hold(Refused(command._replace(packed=packed)))
        elif code in ELSEWHERE:
            self._hold(Refused(command))
            self._patience.refusal = str(error)
            self._leave(error)
        elif (code in SOON or (code == "ASK" and node_in(rest) is not None)) and self._patience.holds(self._connector.display, error):
            # The next node takes a key that has not arrived for one that is gone. Scripts look at several, so they wait.
            node = None if code in SOON or b"\r\nEVAL" in command.packed[:16] else node_in(rest)
            self._hold(Refused(command, soon=node is None, node=node))
        else:
            if code == "WRONGTYPE" and self.on_wrong_type is not None:
                self.on_wrong_type()
            elif is_forbidden(error) and not is_left_to_others(command.packed):
                # The server names neither the script nor the key that its user may not use.
                error.args = (f"{error}; {wanted(command.packed)}; `toolbus secure acl` prints what each role needs",)
                telemetry.log.error("server.no_permission", server=self._connector.display, error=str(error))
            return False
        return True

    def _leave(self, error: ReplyError) -> None:
        """Give the connection up after a refusal that says that the server is another one."""
        if self._leaving:
            return
        self._leaving = True
        telemetry.log.warning("link.refused", server=self._connector.display, error=str(error))
        code, _, rest = str(error).partition(" ")
        if code == "MOVED" and (node := node_in(rest)) is not None:
            self._connector.redirected(node)
        self._loop.call_soon(self.abort)

    def _hold(self, refused: Refused) -> None:
        self._refusals += 1
        self._held_up = True
        if self._repeating:
            # Only the first one was in flight.
            self._refused.appendleft(refused)
        else:
            self._refused.append(refused)

    def _write_again(self, again: list[Command]) -> None:
        """On a new connection: what was in flight on the old one, what that one refused, and then what waits."""
        if not self._refused:
            self._held_up = self._repeating = False
            self._unsent[:0] = again
            self._flush_late()
            return
        commands = [Refused(command) for command in again]
        if self._repeating:
            self._refused.extendleft(reversed(commands))
        else:
            # Refused commands were sent before those that were not answered.
            self._refused.extend(commands)
        self._all_answered()

    def _all_answered(self) -> None:
        """Send the next refused command again, or, when there is none, go on with what waits."""
        if self._transport is None or self._leaving or self._waiting or self._unanswered:
            return
        if not self._refused:
            self._held_up = self._repeating = False
            self._patience.end()
            self._flush_late()
            return
        self._repeating = True
        first = self._refused[0]
        if first.node is not None:
            self._waiting = True
            self._forward(first.node, first.command)
        elif first.soon:
            self._waiting = True
            self._loop.call_later(_SOON_AFTER * random.uniform(0.5, 1.5), self._write_first)  # noqa: S311 - jitter, not a secret
        else:
            self._write_first()

    def _write_first(self) -> None:
        self._waiting = False
        if self._transport is None or self._leaving or not self._refused:
            return
        self._heard = self._loop.time()
        self._write_now(self._refused.popleft().command.renewed())

    def _forward(self, node: Node, command: Command) -> None:
        redirect = self._redirects.get(node) or self._redirect_to(node)

        def carried_out(reply: Reply) -> None:
            self._waiting = False
            self._refused.popleft()
            answer(command, reply)
            self._all_answered()

        redirect.carry_out(command._replace(on_reply=carried_out))

    def _redirect_to(self, node: Node) -> RedirectConnection:
        def gone() -> None:
            if self._redirects.get(node) is made:
                del self._redirects[node]

        # Nothing waits in the others: one refused command is sent at a time.
        for other in list(self._redirects.values())[: 1 - _MOST_REDIRECTS]:
            other.close()
        made = self._redirects[node] = RedirectConnection(self._connector.at(node), self._not_forwarded, gone)
        return made

    def _not_forwarded(self, command: Command) -> None:
        """Ask this node again: the other one did not carry the first refused command out."""
        self._waiting = False
        if self._refused:
            again = self._refused[0].command._replace(misanswered=command.misanswered)
            self._refused[0] = Refused(again, soon=True)
            self._all_answered()

    async def _pause(self, seconds: float) -> None:
        """Wait about so long, or until another server is known to be the master."""
        await at_most(seconds * random.uniform(0.5, 1.0), self._relocated.wait())  # noqa: S311 - jitter, not a secret

    async def _reconnect(self) -> None:
        if self._loop.time() - self._connected_at < _SETTLED:
            # It opens and ends at once: without a pause this would go round as fast as it can, also where it is told to look for another
            # server and finds the same one.
            self._relocated.clear()
            await self._pause(self._delay)
            self._delay = min(self._delay * 2, _BACKOFF_MOST)
        else:
            self._delay = _BACKOFF_FIRST
        delay = _BACKOFF_FIRST
        while not self._closing:
            self._relocated.clear()
            try:
                connected = await self._unless(self._relocated, self.connect())
            except Exception as error:  # noqa: BLE001 - whatever went wrong, the link must come back
                self.trouble = str(error) or type(error).__name__
                telemetry.log.warning("link.reconnect_failed", server=self._connector.display, error=self.trouble, retry_in=round(delay, 2))
                await self._pause(delay)
                delay = min(delay * 2, _BACKOFF_MOST)
                continue
            if self._transport is not None:
                telemetry.count("toolbus.reconnects")
                telemetry.log.info("link.restored", server=self._connector.display)
            if connected:
                # It may be lost already, and then the next one is opened after a pause.
                return
