"""Confirmation requests that any process of the namespace can answer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from toolbus import telemetry
from toolbus.broker import scripts
from toolbus.broker.command import Reply
from toolbus.broker.keys import Keys
from toolbus.broker.link import Link
from toolbus.broker.watching import Watchers
from toolbus.confirmations import MARK, MOST_OPEN, ConfirmationAnswer, ConfirmationRequest
from toolbus.envelope import encode, is_ident, new_run
from toolbus.results import BrokerError, ConfirmationClosed, ToolError

# A request outlives its asker by this many seconds at least, as a reply stream does its agent.
_LEAST_HOLD = 10.0
# Seconds that an asker whose time is up waits to learn whether it was answered in the last moment.
_WITHDRAWING = 1.0


class Confirmations:
    """The confirmation requests of a namespace on a server.

    An asker keeps its request open by asking again three times a lease; ``heard`` and ``nudge`` make it ask at once.

    Args:
        address: who is told of answers, as ``ask.lua`` wants it; empty for those who never ask.
    """

    def __init__(self, link: Link, keys: Keys, lease: float, address: str = "") -> None:
        self._link = link
        self._keys = keys
        self._address = address
        self._hold = max(_LEAST_HOLD, 2 * lease)
        self._again = lease / 3
        self._asking: dict[str, asyncio.Event] = {}
        self._watchers = Watchers()

    # -- asking -----------------------------------------------------------------------------------

    async def ask(
        self, request: ConfirmationRequest, seconds: float, *, address: str = "", opened: Callable[[], None] | None = None
    ) -> ConfirmationAnswer | None:
        """Open a request and wait for its answer; None when nobody answers within ``seconds``. Cancelling it withdraws the request.

        ``opened`` is called when it can be answered.

        :raises ToolError: ``overloaded``, because too many requests wait.
        :raises BrokerError: the server refuses.
        """
        until = time.monotonic() + seconds
        document = encode(request.bounded())
        answered = self._asking[request.id] = asyncio.Event()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while True:
                        answered.clear()
                        answer = await self._put(request.id, document, until, address or self._address)
                        if answer is not None:
                            return answer
                        if opened is not None:
                            opened()
                            opened = None
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(self._again):
                                await answered.wait()
            return await self._withdrawn(request.id)
        except BaseException:
            self._link.run(scripts.WITHDRAW, self._keys_of(request.id), (request.id, self._keys.confirmed), repeatable=True)
            raise
        finally:
            del self._asking[request.id]

    def heard(self, id: str) -> None:
        """Take note that a request was answered."""
        if id in self._asking:
            self._asking[id].set()

    def nudge(self) -> None:
        """Ask and look again: what was told meanwhile may not have arrived."""
        for answered in self._asking.values():
            answered.set()
        self._watchers.look()

    async def _put(self, id: str, document: bytes, until: float, address: str) -> ConfirmationAnswer | None:
        left = max(1, int((until - time.monotonic()) * 1000))
        args = (id, document, address, left, int(self._hold * 1000), MOST_OPEN, self._keys.confirmed)
        word, *rest = await self._link.execute_script(scripts.ASK, self._keys_of(id), args, repeatable=True)
        if word == b"full":
            message = f"{rest[0]} confirmation requests wait for an answer and there is room for no more"
            raise ToolError(message, type="overloaded", code="confirmations", retryable=True)
        return _answer(rest[0]) if word == b"answered" else None

    async def _withdrawn(self, id: str) -> ConfirmationAnswer | None:
        args = (id, self._keys.confirmed)
        try:
            async with asyncio.timeout(_WITHDRAWING):
                answer = await self._link.execute_script(scripts.WITHDRAW, self._keys_of(id), args, repeatable=True)
        except (TimeoutError, BrokerError):
            return None
        return None if answer is None else _answer(answer)

    # -- answering --------------------------------------------------------------------------------

    async def pending(self) -> list[ConfirmationRequest]:
        """The open requests, the oldest first.

        :raises BrokerError: the server could not be asked.
        """
        ids = await self._link.execute("ZRANGE", self._keys.confirmations, 0, MOST_OPEN - 1, repeatable=True)
        found = await asyncio.gather(*(self._read(each.decode()) for each in ids))
        return sorted((request for request in found if request is not None), key=lambda request: (request.asked_at, request.id))

    async def get(self, id: str) -> ConfirmationRequest:
        """One open request.

        :raises ConfirmationClosed: it is not open.
        :raises BrokerError: the server could not be asked.
        """
        request = await self._read(id) if is_ident(id) else None
        if request is None:
            answer = await self._link.execute("HGET", self._keys.confirmation(id), "answer", repeatable=True) if is_ident(id) else None
            raise closed(id, None if answer is None else _answer(answer))
        return request

    async def answer(self, id: str, answer: ConfirmationAnswer) -> None:
        """Answer a request; of several answers exactly one wins.

        :raises ConfirmationClosed: it is not open, or another answer won.
        :raises BrokerError: the server could not be asked.
        """
        if not is_ident(id):
            raise closed(id)
        args = (id, encode(answer.bounded()), new_run(), self._keys.prefix, int(MARK * 1000), self._keys.confirmed)
        word, *rest = await self._link.execute_script(scripts.ANSWER, self._keys_of(id), args, repeatable=True)
        if word != b"done":
            raise closed(id, _answer(rest[0]) if rest else None)

    async def watch(self) -> AsyncIterator[ConfirmationRequest]:
        """Each request once: those that are open, and then new ones as they come."""
        self._link.subscribe(self._keys.confirmed)
        async for request in self._watchers.watch(self.pending):
            yield request

    def pushed(self, message: list[Any]) -> None:
        """Take in a message of the server's; others than about requests are ignored."""
        if len(message) == 3 and message[0] == b"message" and message[1] == self._keys.confirmed.encode():
            self._watchers.look()

    def close(self) -> None:
        """End the iterators."""
        self._watchers.close()

    # -- inside -----------------------------------------------------------------------------------

    def _keys_of(self, id: str) -> tuple[str, str]:
        return self._keys.confirmation(id), self._keys.confirmations

    async def _read(self, id: str) -> ConfirmationRequest | None:
        reply = await self._link.execute("HMGET", self._keys.confirmation(id), "doc", "asked", "expires", repeatable=True)
        document, asked, expires = reply
        if document is None:
            return None
        try:
            request = msgspec.json.decode(document, type=ConfirmationRequest)
            return msgspec.structs.replace(request, id=id, asked_at=int(asked) / 1000, expires_at=int(expires) / 1000)
        except (msgspec.DecodeError, ValueError, TypeError) as error:
            telemetry.log.error("confirmation.unreadable", id=id, error=str(error))
            return None


def closed(id: str, answer: ConfirmationAnswer | None = None) -> ConfirmationClosed:
    """Why a request can't be answered."""
    if answer is not None:
        return ConfirmationClosed(f"confirmation {id!r} was {answer} before", answered=True)
    return ConfirmationClosed(f"no confirmation {id!r} is open: it was answered, expired or withdrawn, or there never was one")


def _answer(document: Reply) -> ConfirmationAnswer:
    try:
        return msgspec.json.decode(document, type=ConfirmationAnswer)
    except msgspec.DecodeError:
        # Whatever it is, it is no permission.
        return ConfirmationAnswer(allowed=False, reason="the answer can't be read")
