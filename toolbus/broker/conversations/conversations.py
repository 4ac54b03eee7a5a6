"""The conversations of a namespace on a server."""

from __future__ import annotations

import asyncio

import msgspec

from toolbus.broker import scripts
from toolbus.broker.conversations.held import MOST_BYTES, MOST_LISTED, MOST_RECORDS, Begun, Elsewhere, Held, busy
from toolbus.broker.conversations.names import Name, name_of, name_to_hold
from toolbus.broker.keys import Keys, session_digest
from toolbus.broker.protocols.conversations import ConversationInfo, StoredRecord
from toolbus.broker.reading import document, identifier, integer, skip, text
from toolbus.broker.transport.command import ReplyError
from toolbus.broker.transport.transport import Transport
from toolbus.results import ConversationError, EnvelopeError
from toolbus.settings import Settings

# A process that has died holds its conversations no longer than this many seconds.
_LONGEST_LEASE = 10.0
_PAGE = 32
# A record has its time before its document; those of one question may go beyond the bound a little.
_MOST_RECORD = MOST_BYTES + 1024
_MOST_MS = 253_402_300_799_999
_names = msgspec.json.Decoder(tuple[str, str])


class RedisConversations:
    """``Conversations`` on a server."""

    def __init__(self, link: Transport, keys: Keys, settings: Settings) -> None:
        self._link = link
        self._keys = keys
        self._ttl = int(settings.conversation_ttl * 1000)
        self.lease = min(settings.lease, _LONGEST_LEASE)
        self.patience = settings.timeout + self.lease

    def hold(self, user: str, id: str) -> Held:
        """Return a user's conversation, to be held by ``async with``."""
        return Held(self, name_to_hold(user, id))

    async def newest(self, limit: int) -> list[ConversationInfo]:
        """Return the conversations, those that are used latest first."""
        listed = await self._link.execute("ZREVRANGE", self._keys.conversations, 0, limit - 1, repeatable=True)
        seconds, micros = await self._link.execute("TIME", repeatable=True)
        now = integer(seconds) * 1000 + integer(micros) // 1000
        found = await asyncio.gather(*(self._info(member, now) for member in listed))
        return sorted((each for each in found if each is not None), key=lambda each: (-each.used_at, each.user, each.id))

    async def read(self, user: str, id: str) -> list[StoredRecord]:
        """Return the records of a conversation without holding it."""
        name = name_of(user, id)
        seen: object = None
        while True:
            bounds = await self._link.execute("HMGET", self._key(name), "first", "next", repeatable=True)
            if bounds == [None, None]:
                return []
            try:
                first, following = map(integer, bounds)
                return await self.records(name, first, following)
            except EnvelopeError as error:
                raise damaged(name, str(error)) from None
            except ConversationError:
                # Its holder may have dropped the oldest records meanwhile.
                if bounds == seen:
                    raise
                seen = bounds

    async def remove(self, user: str, id: str, *, force: bool = False) -> bool:
        """Delete a conversation; False when there was none."""
        name = name_of(user, id)
        word, *left = await self._link.execute_script(
            scripts.REMOVE, (self._key(name), self._keys.conversations), (_digest(name), int(force)), repeatable=True
        )
        if word == b"held":
            raise busy(name, integer(left[0]) / 1000)
        return bool(word == b"removed")

    # -- ConversationSteps ------------------------------------------------------------------------

    async def begin(self, name: Name, token: str) -> Begun | Elsewhere:
        """Hold a conversation, unless another token does."""
        args = (token, *self._times(), _document(name), _digest(name), MOST_LISTED)
        word, *rest = await self._link.execute_script(scripts.HOLD, (self._key(name), self._keys.conversations), args, repeatable=True)
        if word == b"held":
            return Elsewhere(text(rest[0]), integer(rest[1]) / 1000)
        if word == b"damaged":
            raise damaged(name, "nothing of toolbus writes what stands there")
        try:
            return Begun(identifier(rest[0]), integer(rest[1]), integer(rest[2]), integer(rest[3]) / 1000)
        except EnvelopeError as error:
            raise damaged(name, str(error)) from None

    async def records(self, name: Name, first: int, following: int) -> list[StoredRecord]:
        """Return the records with these numbers."""
        if following - first > 2 * MOST_RECORDS:
            raise damaged(name, f"it claims {following - first} records")
        found: list[StoredRecord] = []
        for start in range(first, following, _PAGE):
            numbers = range(start, min(start + _PAGE, following))
            values = await self._link.execute("HMGET", self._key(name), *(f"m:{number}" for number in numbers), repeatable=True)
            try:
                found += [_record(number, value) for number, value in zip(numbers, values, strict=True)]
            except EnvelopeError as error:
                raise damaged(name, str(error)) from None
            if sum(len(each.document) for each in found) > 2 * MOST_BYTES:
                raise damaged(name, f"it has more than {2 * MOST_BYTES:,} bytes")
        return found

    async def append(self, name: Name, token: str, number: int, documents: list[bytes], keep: int) -> int | None:
        """Append documents whose first has this number."""
        args = (token, *self._times(), _digest(name), number, keep, MOST_RECORDS, *documents)
        word, *rest = await self._link.execute_script(scripts.APPEND, (self._key(name), self._keys.conversations), args, repeatable=True)
        if word == b"lost":
            return None
        return integer(rest[0]) if rest else number + len(documents)

    async def renew(self, name: Name, token: str) -> bool:
        """Extend the lease; False when the token does not hold it."""
        args = (token, *self._times(), _digest(name))
        return bool(await self._link.execute_script(scripts.RENEW_HOLD, (self._key(name), self._keys.conversations), args, repeatable=True))

    def release(self, name: Name, token: str) -> None:
        """End the lease; if that fails, it ends by itself."""
        args = (token, 0, self._ttl, _digest(name))
        self._link.run(scripts.RENEW_HOLD, (self._key(name), self._keys.conversations), args, repeatable=True)

    # -- inside -----------------------------------------------------------------------------------

    def _key(self, name: Name) -> str:
        return self._keys.conversation(_digest(name))

    def _times(self) -> tuple[int, int]:
        return int(self.lease * 1000), self._ttl

    async def _info(self, member: bytes, now: int) -> ConversationInfo | None:
        """Return one of the listed conversations; None when nothing that can be read stands there: others are asked about, too."""
        try:
            digest = identifier(member)
            key = self._keys.conversation(digest)
            reply = await self._link.execute("HMGET", key, "name", "first", "next", "used", "until", "lease", repeatable=True)
            if reply[0] is None:
                return None
            expires = await self._link.execute("PTTL", key, repeatable=True)
            user, ident = document(reply[0], _names)
            first, following, used, until, lease = (integer(value, most=_MOST_MS) for value in reply[1:])
            ends = now + integer(expires, least=-2, most=_MOST_MS)
            return ConversationInfo(
                text(user), text(ident), max(0, following - first), used / 1000, ends / 1000, now < until <= now + lease
            )
        except (EnvelopeError, ReplyError) as error:
            skip(self._keys.conversations, str(error), field=member)
            return None


def damaged(name: Name, reason: str) -> ConversationError:
    """Return the error for a conversation that can't be read."""
    return ConversationError(f"the conversation {name.id!r} can't be read ({reason}); `toolbus conversations rm` deletes it")


def _document(name: Name) -> str:
    return msgspec.json.encode((name.user, name.id)).decode()


def _digest(name: Name) -> str:
    return session_digest(name.user, name.id)


def _record(number: int, value: object) -> StoredRecord:
    if not isinstance(value, bytes):
        raise EnvelopeError(f"its record {number} is missing")
    if len(value) > _MOST_RECORD:
        raise EnvelopeError(f"its record {number} has {len(value)} bytes")
    at, _, said = value.partition(b" ")
    return StoredRecord(number, integer(at, most=_MOST_MS) / 1000, said)
