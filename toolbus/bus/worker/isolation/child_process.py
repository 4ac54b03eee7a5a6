"""The worker's end of the channel to one child process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from toolbus.bus.values.results import ToolError
from toolbus.bus.worker.isolation import messages
from toolbus.bus.worker.isolation.messages import MESSAGE_HEADER, SLACK, Job, Message, Report

# Messages of the call before that are passed over.
_MOST_LATE = 64
# Bytes that are read from a child at once.
_AT_ONCE = 262_144

T = TypeVar("T")


class ChildLost(Exception):
    """A child ended."""


class ChildDeviated(Exception):
    """A child sent what is not of its call, or what can't be decoded; the text says which."""


class ChildProcess:
    """One process that runs one call at a time.

    Its messages carry the token of their call and a number. Nothing is read ahead of a call's end, so that what is left is seen.

    Attributes:
        late: messages of an earlier call that came during a later one; such a child gets no further call.
    """

    def __init__(self, number: int, connection: socket.socket, died: asyncio.Future[Report]) -> None:
        self.number = number
        self.died = died
        self.calls = 0
        self.used = 0.0
        self._connection = connection
        self._received = bytearray()
        self._token = self._before = b""
        self._heard = self.late = 0

    async def send(self, job: Job) -> None:
        """Send it a call.

        Raises:
            ChildLost: it has ended.
        """
        self.calls += 1
        self._before, self._token, self._heard = self._token, job.token, 0
        try:
            await asyncio.get_running_loop().sock_sendall(self._connection, messages.framed_job(job))
        except OSError as error:
            raise ChildLost from error

    async def hear(self, most: int) -> Message:
        """Receive its next message.

        Args:
            most: bytes that a message may have.

        Raises:
            ToolError: that is more than ``most`` bytes.
            ChildLost: it has ended.
            ChildDeviated: that is not of its call, or can't be read.
        """
        size, token, number = MESSAGE_HEADER.unpack(await self._take(MESSAGE_HEADER.size))
        while token == self._before and size <= most and self.late < _MOST_LATE:
            # The call before this one went on after its end; this call's own answer follows.
            self.late += 1
            await self._take(size)
            size, token, number = MESSAGE_HEADER.unpack(await self._take(MESSAGE_HEADER.size))
        if token != self._token:
            raise ChildDeviated("something that is not of its call")
        if number != self._heard:
            raise ChildDeviated(f"message {number} instead of {self._heard}")
        self._heard += 1
        if size > most:
            raise ToolError(f"the output is over the limit of {most - SLACK} bytes (TOOLBUS_MAX_OUTPUT)", code="output_limit")
        try:
            return messages.decode_message(await self._take(size))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ChildDeviated("something that can't be read") from error

    def is_quiet(self) -> bool:
        """Return whether it sends nothing, as it should between two calls; what it sent before is in the channel by now."""
        if self._received:
            return False
        try:
            self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def no_more(self) -> None:
        """Receive nothing more than it has sent, even if something of it still holds its end open."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Close the channel, on which nothing may be receiving or sending."""
        self._connection.close()

    async def _take(self, size: int) -> bytes:
        received, loop = self._received, asyncio.get_running_loop()
        while len(received) < size:
            try:
                part = await loop.sock_recv(self._connection, _AT_ONCE)
            except OSError as error:
                raise ChildLost from error
            if not part:
                raise ChildLost
            received += part
        taken = bytes(received[:size])
        del received[:size]
        return taken


def item_of(said: Message) -> Any:
    """Return what a handler yielded, or its result.

    Raises:
        ChildDeviated: the message does not carry what its kind says.
    """
    if said.kind == "text" and said.text is not None:
        return said.text
    if said.kind == "progress" and said.progress is not None:
        return said.progress
    if said.kind == "blob" and said.blobs:
        return said.blobs[0]
    if said.kind != "result":
        raise ChildDeviated(f"a {said.kind} without any")
    return read(messages.result_of, said)


def read(of: Callable[[Message], T], said: Message) -> T:
    """Decode what a message carries as JSON.

    Raises:
        ChildDeviated: it can't be decoded.
    """
    try:
        return of(said)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ChildDeviated("something that can't be read") from error
