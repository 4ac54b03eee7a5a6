"""Set requests aside that can't be run, and list, redrive and drop them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.server.reading import LAST_SECOND, integer, shown, skipping, text
from toolbus.bus.broker.take.requests import Fence, RequestStream
from toolbus.bus.broker.transport.command import Reply, fields_of
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.links import pages, scan
from toolbus.bus.values.envelope import Request, decode_request, encode_request, new_id
from toolbus.bus.values.results import BrokerError, ConfigurationError, EnvelopeError
from toolbus.bus.values.settings import Settings

DEAD_LETTER_LIMIT = 10_000
DEAD_LETTER_TTL = 7 * 86_400
_MOST_ERROR = 2_000


class FreedKey(NamedTuple):
    """An idempotency key to be freed: its ``record``, if it stands for ``call``, unless ``mark`` is of another run than ``run``."""

    record: str
    call: str
    mark: str
    run: str


def bury(
    link: Link,
    stream: RequestStream,
    entry: bytes,
    fence: Fence,
    reason: str,
    attempts: int,
    error: str,
    document: bytes,
    replies: str,
    frames: bytes,
    frees: FreedKey | None = None,
    written: Callable[[], None] = lambda: None,
) -> None:
    """Move an entry to the dead letters and answer its caller, in one step. Returns at once.

    Args:
        link: the connection that writes.
        stream: the stream of the request to set aside.
        entry: its id there.
        fence: the state under which it is known to be this worker's.
        reason: ``max_deliveries``, ``retries_exhausted``, ``failed`` or ``malformed``.
        attempts: how often it was delivered.
        error: the last failure, in words.
        document: the request as it was published.
        replies: the reply stream of its caller; empty when it is unknown.
        frames: the frames that end the call, joined.
        frees: its idempotency key, if later callers may use it again.
        written: called when that is done, unless the entry is another worker's by then.
    """
    keys = (stream.key, stream.fence, stream.dead_letters, *((frees.record, frees.mark) if frees else ()))
    said: tuple[Any, ...] = (reason, attempts, error[:_MOST_ERROR], document)
    limits = (DEAD_LETTER_LIMIT, DEAD_LETTER_TTL * 1000, replies, frames, *((frees.call, frees.run) if frees else ()))

    def done(reply: Reply) -> None:
        delivery = stream.held.get(entry)
        if delivery is not None:
            stream.let_go(delivery, ended=reply == 1)
        if isinstance(reply, BrokerError):
            telemetry.log.error("bury.refused", service=stream.service, entry=entry.decode(), error=str(reply))
        else:
            telemetry.count("toolbus.dead_letters", messaging__destination__name=stream.service)
            if reply == 1:
                written()

    link.run(scripts.BURY, keys, (stream.consumer, *fence, entry, *said, *limits), done, repeatable=True)


_PAGE = 256
_DEAD_LETTERS_MOST_ERROR = 8_000

_LETTER_ID = re.compile("([0-9]{1,20})-([0-9]{1,20})")


class DeadLetter(NamedTuple):
    """One request that was set aside.

    Attributes:
        id: of the letter; its first part is the server's time in milliseconds when it was set aside.
        queue: the queue it came from.
        reason: ``max_deliveries``, ``retries_exhausted``, ``failed`` or ``malformed``.
        attempts: how often it had been delivered.
        error: the last failure, in words.
        document: the original request as it was published.
        request: the same, read; None when it can't be.
    """

    id: str
    queue: str
    reason: str
    attempts: int
    error: str
    document: bytes
    request: Request | None

    @property
    def at(self) -> float:
        """The time at which it was set aside: seconds since the epoch, by the server's clock."""
        # The id may have been chosen by a client, with a time that no date can show.
        return min(int(self.id.partition("-")[0]) / 1000, LAST_SECOND)


class DeadLetters:
    """The dead letters of a namespace."""

    def __init__(self, link: Link, keys: Keys, settings: Settings) -> None:
        self._link = link
        self._keys = keys
        self._settings = settings

    async def queues(self) -> list[str]:
        """Return the queues that have dead letters, served or not, by name."""
        prefix = self._keys.dead_letters("").encode()
        # Braces are literal in a pattern; the rest of a namespace has no special characters.
        found: set[str] = set()
        async for keys in scan(self._link, "SCAN", "", "MATCH", prefix + b"*", "COUNT", 1000):
            for key in keys:
                with skipping(shown(key)):
                    found.add(text(key.removeprefix(prefix)))
        return sorted(found - {""})

    async def newest(self, queue: str, limit: int) -> list[DeadLetter]:
        """Return the newest letters of a queue, newest first."""
        entries = await self._link.execute("XREVRANGE", self._keys.dead_letters(queue), "+", "-", "COUNT", limit)
        return [self._letter(queue, entry, flat) for entry, flat in entries]

    async def ids(self, queue: str) -> list[str]:
        """Return the ids of all letters of a queue, oldest first."""
        return [entry.decode() async for page in pages(self._link, self._keys.dead_letters(queue), _PAGE) for entry, _ in page]

    async def get(self, queue: str, letter: str) -> DeadLetter:
        """Return one letter.

        Raises:
            ConfigurationError: there is none of that id.
        """
        entries = await self._link.execute("XRANGE", self._keys.dead_letters(queue), _checked(letter), letter)
        if not entries:
            raise _no_such(queue, letter)
        return self._letter(queue, *entries[0])

    async def redrive(self, queue: str, letter: str, *, limit: int, timeout: float | None = None) -> str:
        """Publish a letter's request again and remove the letter, in one step; returns the new call's id.

        The call is a new one: a fresh id and deadline, and no reply address, since its caller has had its answer. Its
        idempotency key is the original's, or the original's id. When it fails again it becomes a dead letter again.

        Raises:
            ConfigurationError: there is no such letter, its request can't be read, or no worker serves the queue.
            BrokerError: the queue is full; the letter stays where it is.
        """
        found = await self.get(queue, letter)
        if found.request is None:
            raise ConfigurationError(f"the request of {letter} can't be read, so it can't be run again: {found.error}")
        original = found.request
        request = msgspec.structs.replace(
            original,
            id=new_id(),
            agent="",
            shared=False,
            events=False,
            traceparent="",
            timeout=timeout or original.timeout,
            idempotency_key=original.idempotency_key or original.id,
        )
        document = encode_request(request, limit=self._settings.max_request)
        keys = (self._keys.dead_letters(queue), self._keys.queue(queue))
        word, *rest = await self._link.execute_script(scripts.REDRIVE, keys, (letter, limit, int(request.timeout * 1000), document))
        if word == b"full":
            raise BrokerError(f"the queue {queue!r} holds {rest[0]} requests and takes no more; {letter} stays where it is")
        if word == b"absent":
            raise ConfigurationError(f"nobody serves the queue {queue!r}; start a worker first ({letter} stays where it is)")
        if word == b"gone":
            raise _no_such(queue, letter)
        return request.id

    async def drop(self, queue: str, letter: str) -> None:
        """Delete a letter.

        Raises:
            ConfigurationError: there is none of that id.
        """
        if not await self._link.execute("XDEL", self._keys.dead_letters(queue), _checked(letter)):
            raise _no_such(queue, letter)

    def _letter(self, queue: str, entry: bytes, flat: list[bytes]) -> DeadLetter:
        fields = fields_of(flat)
        document = fields.get(b"r", b"")
        try:
            request: Request | None = decode_request(document, limit=self._settings.max_request + 1024)
        except EnvelopeError:
            request = None
        try:
            attempts = integer(fields.get(b"attempts"))
        except EnvelopeError:
            attempts = 0
        return DeadLetter(
            id=entry.decode(),
            queue=queue,
            reason=shown(fields.get(b"reason", b"")),
            attempts=attempts,
            error=fields.get(b"error", b"")[:_DEAD_LETTERS_MOST_ERROR].decode("utf-8", "replace"),
            document=document,
            request=request,
        )


def is_letter_id(value: str) -> bool:
    """Return whether a text can be the id of a dead letter: two numbers of 64 bits each."""
    found = _LETTER_ID.fullmatch(value)
    return found is not None and all(int(part) < 2**64 for part in found.groups())


def _checked(letter: str) -> str:
    if not is_letter_id(letter):
        raise ConfigurationError(f"{letter!r} is no id of a dead letter; they look like 1790000000000-0")
    return letter


def _no_such(queue: str, letter: str) -> ConfigurationError:
    return ConfigurationError(f"there is no dead letter {letter} of {queue!r}; `toolbus operate dead list {queue}` lists them")
