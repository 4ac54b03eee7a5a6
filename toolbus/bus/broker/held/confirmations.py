"""Ask for confirmations, which any process of the namespace can give."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.held.document import News, read_listed
from toolbus.bus.broker.lease.clock import ServerClock
from toolbus.bus.broker.protocols import Note
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.server.reading import document, identifier, integer, moment, skipping
from toolbus.bus.broker.step import WorkerStep
from toolbus.bus.broker.take.requests import Delivery
from toolbus.bus.broker.transport.command import Reply
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.support.waiting import at_most
from toolbus.bus.values.confirmations import MARK, MOST_OPEN, ConfirmationAnswer, ConfirmationRequest
from toolbus.bus.values.envelope import encode, is_ident, new_run, share_digest
from toolbus.bus.values.results import BrokerError, ConfirmationClosed, EnvelopeError, ToolError

# A request outlives its asker by this many seconds at least, as a reply stream does its agent.
_LEAST_HOLD = 10.0
# Seconds that an asker whose time is up waits to learn whether it was answered in the last moment.
_WITHDRAWING = 1.0


class Confirmations:
    """The requests that wait for a confirmation, which any process of a namespace can give."""

    def __init__(self, link: Link, keys: Keys, lease: float, address: str = "") -> None:
        self._link = link
        self._keys = keys
        self._address = address
        self._hold = max(_LEAST_HOLD, 2 * lease)
        self._again = lease / 3
        self._asking: dict[str, asyncio.Event] = {}
        self.news = News(link, keys.confirmed)

    # -- asking -----------------------------------------------------------------------------------

    async def ask(
        self, request: ConfirmationRequest, seconds: float, *, address: str = "", opened: Callable[[], None] | None = None
    ) -> ConfirmationAnswer | None:
        """Open a request and wait for its answer; None when there is no answer within ``seconds``. Cancelling it withdraws the request.

        ``opened`` is called when it can be answered.

        Raises:
            ToolError: ``overloaded``, because too many requests wait.
            BrokerError: the server refuses.
        """
        until = time.monotonic() + seconds
        request = request.bounded()
        said = encode(msgspec.structs.replace(request, whole="")), request.whole
        answered = self._asking[request.id] = asyncio.Event()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while True:
                        answered.clear()
                        answer = await self._put(request.id, said, until, address or self._address)
                        if answer is not None:
                            return answer.to(request)
                        if opened is not None:
                            opened()
                            opened = None
                        await at_most(self._again, answered.wait())
            answer = await self._withdrawn(request.id)
            return None if answer is None else answer.to(request)
        except BaseException:
            self._link.run(scripts.ASK, self._keys_of(request.id), self._asked(request.id), repeatable=True)
            raise
        finally:
            del self._asking[request.id]

    async def supersede(self, call: str) -> None:
        """Withdraw what an earlier run of a call asked: it is dead, and the next one asks itself.

        Raises:
            BrokerError: the server could not be asked.
        """
        for request in await self.pending():
            if request.asker == "worker" and request.call == call and request.id not in self._asking:
                await self._withdrawn(request.id)

    def answered(self, id: str) -> None:
        """Take note that a request was answered."""
        if id in self._asking:
            self._asking[id].set()

    def nudge(self) -> None:
        """Ask and look again: what was told meanwhile may not have arrived."""
        for answered in self._asking.values():
            answered.set()
        self.news.nudge()

    async def _put(self, id: str, said: tuple[bytes, str], until: float, address: str) -> ConfirmationAnswer | None:
        left = max(1, int((until - time.monotonic()) * 1000))
        args = self._asked(id, said, address, left)
        word, *rest = await self._link.execute_script(scripts.ASK, self._keys_of(id), args, repeatable=True)
        if word == b"full":
            message = f"{rest[0]} confirmation requests wait for an answer and there is room for no more"
            raise ToolError(message, type="overloaded", code="confirmations", retryable=True)
        return _answer(rest[0]) if word == b"answered" else None

    async def _withdrawn(self, id: str) -> ConfirmationAnswer | None:
        try:
            async with asyncio.timeout(_WITHDRAWING):
                word, *rest = await self._link.execute_script(scripts.ASK, self._keys_of(id), self._asked(id), repeatable=True)
        except (TimeoutError, BrokerError):
            return None
        return _answer(rest[0]) if word == b"answered" else None

    def _asked(self, id: str, said: tuple[bytes, str] = (b"", ""), address: str = "", left: int = 0) -> tuple[Any, ...]:
        """Return the arguments that keep a request open for ``left`` milliseconds, or take it back when none are left."""
        return id, said[0], address, left, int(self._hold * 1000), MOST_OPEN, self._keys.confirmed, said[1]

    # -- answering --------------------------------------------------------------------------------

    async def pending(self) -> list[ConfirmationRequest]:
        """Return the open requests, the oldest first, without the ``whole`` of their arguments.

        Raises:
            BrokerError: the server could not be asked.
        """
        ids = await self._link.execute("ZRANGE", self._keys.confirmations, 0, MOST_OPEN - 1, repeatable=True)
        found = await read_listed(self._keys.confirmations, ids, lambda each: self._read(identifier(each)))
        return sorted(found, key=lambda request: (request.asked_at, request.id))

    async def get(self, id: str) -> ConfirmationRequest:
        """Return one open request.

        Raises:
            ConfirmationClosed: it is not open.
            BrokerError: the server could not be asked.
        """
        request = await self._read(id) if is_ident(id) else None
        if request is None:
            answer = await self._field(id, "answer") if is_ident(id) else None
            raise closed(id, None if answer is None else _answer(answer))
        whole = await self._field(id, "whole") if request.shortened else None
        return request if whole is None else msgspec.structs.replace(request, whole=whole.decode("utf-8", "replace"))

    async def answer(self, id: str, answer: ConfirmationAnswer) -> None:
        """Answer a request; of several answers exactly one wins.

        Raises:
            ConfirmationClosed: it is not open, or another answer won.
            BrokerError: the server could not be asked.
        """
        if not is_ident(id):
            raise closed(id)
        args = (id, encode(answer.bounded()), new_run(), self._keys.prefix, int(MARK * 1000), self._keys.confirmed)
        word, *rest = await self._link.execute_script(scripts.ANSWER, self._keys_of(id), args, repeatable=True)
        if word != b"done":
            raise closed(id, _answer(rest[0]) if rest else None)

    async def watch(self) -> AsyncIterator[ConfirmationRequest]:
        """Yield each request once: those that are open, and then new ones as they come."""
        self.news.follow()
        told: set[str] = set()
        while not self.news.ended:
            since = self.news.count
            open_now = await self.pending()
            # Forget requests that are not open any more.
            told &= {request.id for request in open_now}
            for request in open_now:
                if request.id not in told:
                    told.add(request.id)
                    yield request
            await self.news.wait(since)

    # -- inside -----------------------------------------------------------------------------------

    def _keys_of(self, id: str) -> tuple[str, str]:
        return self._keys.confirmation(id), self._keys.confirmations

    async def _field(self, id: str, name: str) -> bytes | None:
        found: bytes | None = await self._link.execute("HGET", self._keys.confirmation(id), name, repeatable=True)
        return found

    async def _read(self, id: str) -> ConfirmationRequest | None:
        reply = await self._link.execute("HMGET", self._keys.confirmation(id), "doc", "asked", "expires", repeatable=True)
        said, asked, expires = reply
        if said is None:
            return None
        try:
            request = document(said, ConfirmationRequest).bounded()
            return msgspec.structs.replace(request, id=id, asked_at=moment(asked), expires_at=moment(expires))
        except EnvelopeError as error:
            telemetry.log.error("confirmation.unreadable", id=id, error=str(error))
            return None


def closed(id: str, answer: ConfirmationAnswer | None = None) -> ConfirmationClosed:
    """Return the reason why a request can't be answered."""
    if answer is not None:
        return ConfirmationClosed(f"confirmation {id!r} was already {answer}", answered=True)
    return ConfirmationClosed(f"no confirmation {id!r} is open: it was answered, expired or withdrawn, or there never was one")


def _answer(said: Reply) -> ConfirmationAnswer:
    try:
        return document(said, ConfirmationAnswer).bounded()
    except EnvelopeError:
        # Whatever it is, it is no permission.
        return ConfirmationAnswer(allowed=False, reason="the answer can't be read")


NOTE_TTL = 60_000
"""Milliseconds for which a note outlives its call's deadline."""

# The place of the number of excused attempts, behind the times.
_EXCUSED = len(Note._fields)


class DeadlineNotes(WorkerStep, eq=False):
    """The notes of one worker's deliveries, from which a later run learns their deadlines."""

    async def write(self, delivery: Delivery, note: Note) -> None:
        """Note the later deadline of a delivery, and keep what must outlive it.

        Raises:
            BrokerError: the server could not be told.
        """
        request, keys = delivery.request, self.keys
        delivery.noted = True
        left = int(max(0.0, note.deadline + note.until - note.since - self.clock.monotonic()) * 1000)
        kept = [keys.started(request.id)]
        if request.shared:
            kept += [keys.call(request.id), keys.shared(share_digest(request))]
        # Milliseconds of the server's clock, 0 for a time that is not set.
        words = [int((when + self.clock.offset) * 1000) if when else 0 for when in note]
        text = " ".join(map(str, [*words, *([delivery.excused_attempts] if delivery.excused_attempts else [])]))
        args = (text, left + NOTE_TTL, left + int(self.settings.retention * 1000))
        await self.link.execute_script(scripts.EXTEND, (delivery.queue.pause_key(delivery.entry), *kept), args, repeatable=True)

    def apply(self, delivery: Delivery, text: bytes) -> None:
        """Give a delivery what a note states; one that can't be read changes nothing."""
        with skipping(delivery.queue.pause_key(delivery.entry)):
            note = read_note(text, self.clock)
            delivery.noted = True
            delivery.excused_attempts = excused_attempts(text)
            delivery.deadline = max(delivery.deadline, note.effective(self.clock.monotonic()))

    def drop(self, delivery: Delivery) -> None:
        """Delete the note of a delivery that has ended. Returns at once."""
        self.link.send(("DEL", delivery.queue.pause_key(delivery.entry)), repeatable=True)


def read_note(text: bytes, clock: ServerClock) -> Note:
    """Return the times of a note, as local ones.

    Raises:
        EnvelopeError: it can't be read.
    """
    words, most = text.split(maxsplit=_EXCUSED + 1), _EXCUSED + 1
    if len(words) not in {_EXCUSED, most}:
        raise EnvelopeError(f"a note is {_EXCUSED} or {most} numbers, not {len(words)}")
    times = [integer(word) / 1000 for word in words[:_EXCUSED]]
    return Note(*(when and when - clock.offset for when in times))


def excused_attempts(text: bytes) -> int:
    """Return how many attempts of a call count against nobody, as its note states; 0 when that can't be read."""
    words = text.split(maxsplit=_EXCUSED + 1)
    try:
        return integer(words[_EXCUSED]) if len(words) > _EXCUSED else 0
    except EnvelopeError:
        return 0
