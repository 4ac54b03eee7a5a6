"""The hot path: a connection that packs a tick's commands into one write and calls back in order.

redis-py opens the connection (TLS, AUTH, HELLO); this module takes its transport
over and writes and reads by itself, which is several times faster (docs/explanation/performance.md).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

import hiredis
from msgspec import ValidationError, convert

from toolbus.bus import telemetry
from toolbus.bus.broker.server.reading import shown
from toolbus.bus.broker.server.scripts import ANYTHING, COMMANDS, PUSHED, Form, Script, fits
from toolbus.bus.broker.transport.command import Command, OnReply, Reply, ReplyError, UnwrittenError, WrongAnswerError
from toolbus.bus.broker.transport.connection import Connector, ServerInfo
from toolbus.bus.values.results import BrokerError, BrokerUnavailable, ConfigurationError

# Its stub says "a tuple of one"; it takes a tuple of any length.
pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command
"""A command as it is written."""

_packed = attrgetter("packed")


def unheard(reply: Reply) -> None:
    """Drop an answer for which nobody waits."""


_SUBSCRIBED = ([b"subscribe"], [b"unsubscribe"])
_NOTHING = object()
# The server's own limit of one value. What is larger would fill the memory before it could be read.
_MOST_REPLY = 512 * 1024 * 1024
# A reply that comes more slowly than so many bytes a second is none.
_SLOWEST = 256 * 1024


class Wire(asyncio.Protocol):
    """One connection after another to a server: what is written, and who waits for which answer.

    ``send`` never waits: commands of one event-loop tick leave in one write, and their answers come back through callbacks in the
    same order. An error reply or a lost connection is passed to the callback as an exception value. What becomes of commands whose
    connection is lost, or that the server did not carry out, is for those that are built on it to say.

    Callbacks get answers of the command's form only. Any other answer may belong to another command, so the connection is given up: a
    repeatable command is written once more, and one that is answered wrongly again, or may not be repeated, ends as ``WrongAnswerError``.

    Args:
        connector: opens connections.
        on_push: called with each out-of-band message ``[kind, channel, payload]``.
        limit: most bytes that wait to be written; more are refused.

    Attributes:
        connected: True when commands go out now rather than after a reconnect.
        server: the server of the newest connection; None before the first.
    """

    def __init__(self, connector: Connector, *, on_push: Callable[[list[Any]], None] | None = None, limit: int = 64 * 1024 * 1024) -> None:
        self._connector = connector
        self.on_push = on_push
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._opened_by: object = None
        self._reader = hiredis.Reader()
        self._unsent: list[Command] = []
        self._unsent_bytes = 0
        self._unanswered: deque[Command] = deque()
        self._flushing = False
        self._paused = False
        # True while nothing is written because refused commands come first.
        self._held_up = False
        self._closing = False
        # When the last whole reply came, and how many bytes have come of the next one.
        self._heard = 0.0
        self._partial = 0
        self._commands = self._writes = 0
        self.connected = False
        self.server: ServerInfo | None = None

    @property
    def silence(self) -> float:
        """Seconds for which an answer has been owed and none has come."""
        return self._loop.time() - self._heard if self._unanswered else 0.0

    def send(
        self,
        args: tuple[Any, ...],
        on_reply: OnReply = unheard,
        *,
        repeatable: bool = False,
        same_server: bool = False,
        form: Form | None = None,
        renew: Callable[[], tuple[Any, ...]] | None = None,
    ) -> None:
        """Queue a command for the end of this tick. Never waits, never raises for the server's sake.

        Args:
            args: its words.
            on_reply: called with its answer.
            repeatable, same_server: what becomes of it when the connection is lost, see ``Link``.
            form: the form of its answer, if it is not that of the command.
            renew: returns its words as they are to be written after a wait, or once more; None for the same ones.

        Raises:
            ConfigurationError: a word has characters that UTF-8 can't express.
        """
        try:
            packed = pack(args)
        except UnicodeEncodeError as error:
            raise ConfigurationError(f"{shown(error.object)!r} can't be sent: its text is not UTF-8") from None
        self._unsent_bytes += len(packed)
        if self._closing or self._unsent_bytes > self._limit:
            self._unsent_bytes -= len(packed)
            reason = "the connection was closed" if self._closing else "the connection does not take more and its buffer is full"
            answer(Command(packed, on_reply, False), UnwrittenError(f"{self._connector.display}: {reason}"))
            return
        form = form or COMMANDS.get(args[0], ANYTHING)
        again = None if renew is None else lambda: pack(renew())
        self._unsent.append(Command(packed, on_reply, repeatable, same_server, form, renew=again))
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def run(
        self,
        script: Script,
        keys: tuple[Any, ...],
        args: tuple[Any, ...],
        on_reply: OnReply = unheard,
        *,
        repeatable: bool = False,
        same_server: bool = False,
        renew: Callable[[], tuple[Any, ...]] | None = None,
    ) -> None:
        """Queue a script for the end of this tick; ``renew`` returns its arguments as they are to be written after a wait."""
        words = ("EVALSHA", script.sha, len(keys), *keys)
        again = None if renew is None else lambda: (*words, *renew())
        self.send((*words, *args), on_reply, repeatable=repeatable, same_server=same_server, form=script.form, renew=again)

    def gather(self) -> None:
        """Schedule no write for the commands that follow; the caller writes them by ``flush``, in any case."""
        self._flushing = True

    def flush(self) -> None:
        """Write what is queued now, and not only at the end of this tick."""
        self._flushing = False
        if self._transport is None or self._paused or self._held_up or not self._unsent:
            return
        unsent = self._unsent
        if not self._unanswered:
            self._heard = self._loop.time()
        self._commands += len(unsent)
        self._writes += 1
        self._unanswered.extend(unsent)
        data = unsent[0].packed if len(unsent) == 1 else b"".join(map(_packed, unsent))
        self._unsent = []
        self._unsent_bytes = 0
        self._transport.write(data)

    def _flush_late(self) -> None:
        """Write what has waited."""
        self._unsent = [command.renewed() for command in self._unsent]
        self.flush()

    async def execute(self, *args: Any, repeatable: bool = False) -> Reply:
        """Send a command and wait for its answer.

        Raises:
            ReplyError: the server answered with an error.
            BrokerUnavailable: the connection was lost before it answered.
        """
        answered: asyncio.Future[Reply] = self._loop.create_future()
        self.send(args, partial(settle, answered), repeatable=repeatable)
        return await answered

    async def execute_script(self, script: Script, keys: tuple[Any, ...], args: tuple[Any, ...], *, repeatable: bool = False) -> Reply:
        """Run a script and wait for its answer; raises as ``execute`` does."""
        answered: asyncio.Future[Reply] = self._loop.create_future()
        self.run(script, keys, args, partial(settle, answered), repeatable=repeatable)
        return await answered

    def abort_if_stalled(self, seconds: float) -> None:
        """Give the connection up when it has owed an answer for so long, or for as long as a large one takes."""
        if self.silence > seconds + self._partial / _SLOWEST:
            telemetry.log.warning("link.stalled", server=self._connector.display, unanswered=len(self._unanswered))
            self.abort()

    def abort(self) -> None:
        """Give the connection up."""
        if self._transport is not None:
            self._transport.abort()

    def _subscribe(self, channel: str, word: str = "SUBSCRIBE") -> None:
        """Written at once, ahead of what waits; a refusal comes as an answer, a success as a push in its place."""
        if self._transport is not None:
            if not self._unanswered:
                self._heard = self._loop.time()
            self._unanswered.append(Command(b"", partial(self._subscribed, channel), False, form=PUSHED))
            self._transport.write(pack((word, channel)))

    def _subscribed(self, channel: str, reply: Reply) -> None:
        """Take in what became of a subscription or its end: None, or an error."""
        if isinstance(reply, ReplyError):
            telemetry.log.error("link.subscribe_refused", server=self._connector.display, channel=channel, error=shown(reply))

    # -- asyncio.Protocol -------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take in what the server says."""
        reader = self._reader
        reader.feed(data)
        gets, unanswered, answered = reader.gets, self._unanswered, False
        while True:
            try:
                reply = gets()
            except (hiredis.ProtocolError, MemoryError) as error:
                self._give_up(str(error) or "a reply that no memory can hold")
                return
            if reply is _NOTHING:
                if answered:
                    self._heard = self._loop.time()
                    self._partial = 0
                else:
                    self._wait_for_more(len(data))
                if self._held_up and not unanswered:
                    self._all_answered()
                return
            if type(reply) is hiredis.PushNotification:
                self._take_push(reply)
                continue
            if not unanswered:
                self._give_up("an answer to nothing")
                return
            command = unanswered.popleft()
            answered = True
            if type(reply) is ReplyError:
                self._take_error(command, reply)
                continue
            try:
                convert((reply,), command.form)
            except ValidationError:
                if self._is_wrong(command, reply):
                    return
            try:
                command.on_reply(reply)
            except Exception:  # noqa: BLE001 - one callback's bug must not take the other answers with it
                telemetry.log.exception("link.callback_failed")

    def pause_writing(self) -> None:
        """Wait: the system takes no more now."""
        self._paused = True

    def resume_writing(self) -> None:
        """Write what waited."""
        self._paused = False
        self._flush_late()

    def eof_received(self) -> bool:
        """End the connection, since the server has."""
        return False

    # -- inside -----------------------------------------------------------------------------------

    def _take_over(self, connection: Any) -> None:
        transport, early = connection._writer.transport, connection._reader._buffer
        # A StreamWriter that is collected closes its transport, so it lives as long as the link uses it.
        self._opened_by = connection._writer
        # redis-py must not close what is ours now, nor warn about it.
        connection._reader = connection._writer = None
        if self._closing or transport.is_closing():
            # Closed during the greeting, by us or by the server: nobody would close it later, or hear of its end.
            transport.abort()
            raise BrokerUnavailable(f"{self._connector.display}: the connection was lost while it was opened")
        self._reader = hiredis.Reader(replyError=ReplyError, notEnoughData=_NOTHING)
        self._paused = False
        self._heard = self._loop.time()
        self._partial = 0
        self._transport = transport
        self.connected = True
        transport.set_protocol(self)
        transport.resume_reading()
        if early:
            self.data_received(bytes(early))

    def _take_back(self) -> list[Command]:
        """Return what was written over a connection that is gone, and was not answered."""
        self._transport, self.connected = None, False
        written = list(self._unanswered)
        self._unanswered.clear()
        return written

    def _put_in(self, *commands: Command) -> None:
        if self._closing:
            self._answer_lost(list(commands), "the connection was closed")
            return
        self._unsent.extend(commands)
        self.flush()

    def _put_off(self, command: Command, error: ReplyError) -> bool:
        """Keep a command that was refused for a reason that passes; False when the error is its answer."""
        return False

    def _all_answered(self) -> None:
        """Go on after refusals: called when nothing is in flight any more while ``_held_up``."""

    def _give_up(self, problem: str) -> None:
        """End a connection whose next reply belongs to nobody."""
        if self._closing:
            # What was in flight has been answered already.
            return
        telemetry.log.error("link.protocol_error", server=self._connector.display, error=problem)
        self.abort()

    def _is_wrong(self, command: Command, reply: Reply) -> bool:
        """Return whether a reply is no answer to its command either way; it ends the connection then, since the next one may be."""
        if fits(reply, command.form):
            return False
        said = repr(shown(reply)) if isinstance(reply, (bytes, int, float)) else f"a {type(reply).__name__}"
        problem = f"{said} is no answer to {command.form.__name__}"
        if command.repeatable and not command.misanswered:
            self._unanswered.appendleft(command._replace(misanswered=True))
        else:
            answer(command, WrongAnswerError(f"{self._connector.display}: {problem}"))
        self._give_up(problem)
        return True

    def _take_error(self, command: Command, error: ReplyError) -> None:
        if command.form is PUSHED or not self._put_off(command, error):
            error.repeated = command.lost or command.misanswered
            answer(command, error)

    def _take_push(self, message: list[Any]) -> None:
        self._partial = 0
        if self._unanswered and self._unanswered[0].form is PUSHED and message[:1] in _SUBSCRIBED:
            answer(self._unanswered.popleft(), None)
        elif self.on_push is not None:
            try:
                self.on_push(message)
            except Exception:  # noqa: BLE001 - any client may publish anything
                telemetry.log.exception("listener.failed", what="message")

    def _wait_for_more(self, size: int) -> None:
        self._partial += size
        if self._partial > _MOST_REPLY:
            self._give_up(f"a reply of more than {_MOST_REPLY} bytes")

    def _answer_lost(self, commands: list[Command], reason: str) -> None:
        for command in commands:
            answer(command, BrokerUnavailable(f"{self._connector.display}: {reason}"))


def answer(command: Command, reply: Reply) -> None:
    """Pass an answer to the callback that waits for it."""
    try:
        command.on_reply(reply)
    except Exception:  # noqa: BLE001 - one callback's bug must not take the other answers with it
        telemetry.log.exception("link.callback_failed")


def settle(future: asyncio.Future[Any], reply: Reply) -> None:
    """Give an answer to who waits for it, if anybody does."""
    if future.done():
        return
    if isinstance(reply, BrokerError):
        future.set_exception(reply)
    else:
        future.set_result(reply)
