"""Keep the conversations of agents, each continued by one process at a time; chats are those with the service agent."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from toolbus.bus.broker.held.document import Change, HeldDocuments, Listing, Shape, Value, read_listed
from toolbus.bus.broker.protocols import CHAT, ChatWindow, ConversationInfo, Messenger, StoredRecord
from toolbus.bus.broker.server.keys import Keys, session_digest
from toolbus.bus.broker.server.reading import LAST_MS, MOST_TEXT, document, identifier, integer, moment, stored, text
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.links import server_ms
from toolbus.bus.values.encoding import whole_text
from toolbus.bus.values.envelope import encode
from toolbus.bus.values.results import ConfigurationError, ConversationBusy, ConversationError, EnvelopeError
from toolbus.bus.values.settings import Settings


class Name(msgspec.Struct, frozen=True):
    """The name of a conversation: each user has their own."""

    user: str
    id: str


def name_of(user: str, id: str) -> Name:
    """Return the name of a user's conversation that there may be.

    Raises:
        ConfigurationError: a part is no text, the id is empty, or one is too long.
    """
    for part in (user, id):
        if not isinstance(part, str) or len(part) > MOST_TEXT or whole_text(part) != part:
            raise ConfigurationError(f"the id of a conversation is a text of 1 to {MOST_TEXT} characters, and so is its user's name")
    if not id:
        raise ConfigurationError("the id of a conversation is empty")
    return Name(user, id)


MOST_RECORDS = 1_000
MOST_BYTES = 4 * 1024 * 1024
"""Most records of a conversation, and most bytes of their documents."""

MOST_LISTED = 10_000
"""Most conversations that are listed; older ones beyond are kept, too."""


class Begun(msgspec.Struct, frozen=True):
    """A conversation is held now; its records have the numbers from ``first`` to before ``next``, ``now`` is in seconds."""

    born: str
    first: int
    next: int
    now: float


class Elsewhere(msgspec.Struct, frozen=True):
    """Another process holds it for ``left`` seconds, unless it renews its lease; then ``ends`` changes."""

    ends: str
    left: float


# A process that has died holds its conversations no longer than this many seconds.
_LONGEST_LEASE = 10.0
_PAGE = 32
# A record has its time before its document; those of one question may go beyond the bound a little.
_MOST_RECORD = MOST_BYTES + 1024
_SHAPE = Shape("holder", "next", "m:", MOST_RECORDS, timed=True)


class Conversations:
    """The conversations of a namespace.

    Attributes:
        lease: seconds for which a process holds a conversation without a renewal.
        patience: seconds for which a process waits for a conversation in all, also for the server.
    """

    def __init__(self, link: Link, keys: Keys, settings: Settings) -> None:
        self._link = link
        self._keys = keys
        self._documents = HeldDocuments(link, _SHAPE)
        self.lease = min(settings.lease, _LONGEST_LEASE)
        self._lease_ms = int(self.lease * 1000)
        self._ttl = max(int(settings.conversation_ttl * 1000), 2 * self._lease_ms)
        self.patience = settings.timeout + self.lease
        listing = Listing(keys.conversations, self._ttl, most=MOST_LISTED)
        self._use = Change(lease=self._lease_ms, ttl=self._ttl, stamps=("used",), listings=(listing,))

    async def newest(self, limit: int) -> list[ConversationInfo]:
        """Return the conversations, those that are used latest first.

        Raises:
            BrokerError: the server could not be asked.
        """
        listed = await self._link.execute("ZREVRANGE", self._keys.conversations, 0, limit - 1, repeatable=True)
        now = await server_ms(self._link)
        found = await read_listed(self._keys.conversations, listed, lambda member: self._info(member, now))
        return sorted(found, key=lambda each: (-each.used_at, each.user, each.id))

    async def read(self, user: str, id: str) -> list[StoredRecord]:
        """Return the records of a conversation without holding it; none when there is no such conversation.

        Raises:
            ConversationError: it can't be read.
            BrokerError: the server could not be asked.
        """
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
        """Delete a conversation; False when there was none.

        Raises:
            ConversationBusy: a process continues it, and ``force`` is not given.
            BrokerError: the server could not be asked.
        """
        name = name_of(user, id)
        change = Change(by="anyone" if force else "next", ttl=0, listings=(Listing(self._keys.conversations),))
        found = await self._documents.settle(self._key(name), _digest(name), change)
        if found.word == "held":
            left = (found.first - found.now) / 1000
            raise ConversationBusy(f"a process continues the conversation {id!r}, or has died within the last {left:.0f} s")
        return found.kept

    # -- the steps of a held one ------------------------------------------------------------------

    async def begin(self, name: Name, token: str) -> Begun | Elsewhere:
        """Hold a conversation, unless another token does.

        Raises:
            ConversationError: it can't be read.
            BrokerError: the server refuses, as for the other steps.
        """
        ident = msgspec.json.encode((name.user, name.id)).decode()
        begins: dict[str, Value] = {"name": ident, "born": token, "first": 0, "next": 0}
        change = replace(self._use, token=token, by="next", expected={"name": ident}, begins=begins, told=("born",))
        found = await self._documents.write(self._key(name), _digest(name), change)
        if found.word == "held":
            return Elsewhere(str(found.first), (found.first - found.now) / 1000)
        if not found.kept:
            raise damaged(name, "nothing of toolbus writes what stands there")
        try:
            return Begun(identifier(found.told[0]), found.first, found.next, found.now / 1000)
        except EnvelopeError as error:
            raise damaged(name, str(error)) from None

    async def records(self, name: Name, first: int, following: int) -> list[StoredRecord]:
        """Return the records with these numbers; raises ConversationError when they can't be read."""
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
        """Append documents whose first has this number; None when the token does not hold it, else the number of the next record."""
        change = replace(self._use, token=token, records=documents, number=number, keep=keep)
        found = await self._documents.write(self._key(name), _digest(name), change)
        if found.word == "behind":
            return found.next
        return number + len(documents) if found.kept else None

    async def renew(self, name: Name, token: str) -> bool:
        """Extend the lease; False when the token does not hold it."""
        change = Change(token=token, lease=self._lease_ms, ttl=self._ttl)
        return (await self._documents.settle(self._key(name), _digest(name), change)).kept

    def release(self, name: Name, token: str) -> None:
        """End the lease; if that fails, it ends by itself. One to which nothing was written goes. Returns at once."""
        listing = Listing(self._keys.conversations)
        for change in (
            Change(token=token, ttl=0, expected={"next": 0}, listings=(listing,)),
            Change(token=token, lease=0, ttl=self._ttl),
        ):
            self._documents.settle_soon(self._key(name), _digest(name), change)

    # -- inside -----------------------------------------------------------------------------------

    def _key(self, name: Name) -> str:
        return self._keys.conversation(_digest(name))

    async def _info(self, member: bytes, now: float) -> ConversationInfo | None:
        """Return one of the listed conversations; None when it is gone."""
        key = self._keys.conversation(identifier(member))
        reply = await self._link.execute("HMGET", key, "name", "first", "next", "used", "until", "lease", repeatable=True)
        if reply[0] is None:
            return None
        expires = await self._link.execute("PTTL", key, repeatable=True)
        user, ident = document(reply[0], tuple[str, str])
        first, following, used, until, lease = (integer(value, most=LAST_MS) for value in reply[1:])
        ends = now + integer(expires, least=-2, most=LAST_MS)
        return ConversationInfo(text(user), text(ident), max(0, following - first), used / 1000, ends / 1000, now < until <= now + lease)


def damaged(name: Name, reason: str) -> ConversationError:
    """Return the error for a conversation that can't be read."""
    return ConversationError(f"the conversation {name.id!r} can't be read ({reason}); `toolbus operate conversations rm` deletes it")


def _digest(name: Name) -> str:
    return session_digest(name.user, name.id)


def _record(number: int, value: object) -> StoredRecord:
    if not isinstance(value, bytes):
        raise EnvelopeError(f"its record {number} is missing")
    if len(value) > _MOST_RECORD:
        raise EnvelopeError(f"its record {number} has {len(value)} bytes")
    at, _, said = value.partition(b" ")
    return StoredRecord(number, moment(at), said)


class Chats:
    """The chats of a namespace."""

    def __init__(self, link: Link, keys: Keys, conversations: Conversations) -> None:
        self._link = link
        self._key = keys.messenger
        self._conversations = conversations

    async def windows(self, limit: int) -> list[ChatWindow]:
        """Return the chats, those that are used latest first, of the latest so many conversations.

        Raises:
            BrokerError: the server could not be asked.
        """
        messenger = await self.messenger()
        shown = frozenset() if messenger is None else frozenset(messenger.windows)
        return [
            ChatWindow(chat_id, each.user, each.id, each.used_at, chat_id in shown)
            for each in await self._conversations.newest(limit)
            if each.id.startswith(CHAT) and (chat_id := each.id.removeprefix(CHAT))
        ]

    async def messenger(self) -> Messenger | None:
        """Return the messenger's connector that told of itself last; None when none lives.

        Raises:
            BrokerError: the server could not be asked.
        """
        return stored(self._key, await self._link.execute("GET", self._key, repeatable=True), Messenger)

    async def tell(self, messenger: Messenger, seconds: float) -> None:
        """Tell of a messenger's connector, which lives for so many seconds from now.

        Raises:
            BrokerError: the server refuses.
        """
        await self._link.execute("SET", self._key, encode(messenger), "PX", max(1, int(seconds * 1000)), repeatable=True)
