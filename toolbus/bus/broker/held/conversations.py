"""Keep the conversations of agents, each continued by one process at a time; chats are those with the service agent."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self, TypedDict

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.held.document import Change, HeldDocuments, Listing, Shape
from toolbus.bus.broker.protocols import CHAT, ChatWindow, ConversationInfo, Messenger, StoredRecord
from toolbus.bus.broker.server.keys import Keys, session_digest
from toolbus.bus.broker.server.reading import MOST_TEXT, document, identifier, integer, skip, text
from toolbus.bus.broker.transport.command import ReplyError
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.support.display import visible
from toolbus.bus.values.encoding import whole_text
from toolbus.bus.values.envelope import encode, new_id
from toolbus.bus.values.results import (
    BrokerError,
    BrokerUnavailable,
    ConfigurationError,
    ConversationBusy,
    ConversationError,
    EnvelopeError,
)
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


def name_to_hold(user: str, id: str) -> Name:
    """Return the name of a user's conversation that is begun or continued.

    Raises:
        ConfigurationError: it is none, see ``name_of``, or the id has characters that are invisible, that turn text, or that command a
            terminal.
    """
    name = name_of(user, id)
    if visible(id) != id:
        raise ConfigurationError(f"the id of a conversation has invisible or imitating characters: '{visible(id)}'")
    return name


MOST_RECORDS = 1_000
MOST_BYTES = 4 * 1024 * 1024
"""Most records of a conversation, and most bytes of their documents."""

MOST_LISTED = 10_000
"""Most conversations that are listed; older ones beyond are kept, too."""

# The lease is renewed, and one of another process looked at, so often.
_RENEWALS = 3
_LOOKS = 10
_LEAST_PAUSE = 0.01


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


class HeldConversation:
    """A conversation that this process alone continues, for ``async with``.

    Entering waits while the lease of a process that may be dead goes on, at most one lease, and raises ``ConversationBusy`` when that
    process turns out to live, or ``ConversationError`` when the conversation can't be read. Leaving lets go of it. When another process
    takes it over meanwhile, the body is cancelled and ``ConversationError`` raised.

    Attributes:
        born: a token that no other conversation has, also of the same name before it or after it.
        records: those that are kept, in order.
        now: seconds since 1970 by the server's clock, when it was entered.
    """

    def __init__(self, steps: Conversations, name: Name) -> None:
        self._steps = steps
        self._name = name
        self._token = new_id()
        self._next = 0
        self._group = asyncio.TaskGroup()
        self._stack = AsyncExitStack()
        self._scope = asyncio.timeout(None)
        self._keeper: asyncio.Task[None] | None = None
        self.born = ""
        self.records: list[StoredRecord] = []
        self.now = 0.0

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.timeout(self._steps.patience):
                begun = await self._begin()
                self.records = await self._steps.records(self._name, begun.first, begun.next)
        except TimeoutError:
            self._steps.release(self._name, self._token)
            raise self._silent() from None
        except BaseException:
            self._steps.release(self._name, self._token)
            raise
        self.born, self.now, self._next = begun.born, begun.now, begun.next
        await self._stack.enter_async_context(self._group)
        await self._scope.__aenter__()
        self._keeper = self._group.create_task(self._keep())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
        self._steps.release(self._name, self._token)
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError:
            raise self._lost() from None
        finally:
            await self._stack.aclose()

    async def append(self, document: bytes, *, keep: int) -> None:
        """Keep one more record, and drop those before the number ``keep``.

        Raises:
            ConversationError: another process holds the conversation, or it was deleted; nothing was written.
            BrokerError: the server refuses.
        """
        self.records = [*(each for each in self.records if each.number >= keep), StoredRecord(self._next, self.now, document)]
        try:
            async with asyncio.timeout(self._steps.patience):
                await self._append(keep)
        except TimeoutError:
            raise self._silent() from None

    async def _append(self, keep: int) -> None:
        number = self._next
        while True:
            documents = [each.document for each in self.records if each.number >= number]
            reached = await self._steps.append(self._name, self._token, number, documents, keep)
            if reached is None:
                raise self._lost()
            if reached > self._next:
                self._next += 1
                return
            if reached >= number or reached < self.records[0].number:
                raise self._lost()
            telemetry.log.warning("conversation.behind", missing=number - reached)
            number = reached

    async def _begin(self) -> Begun:
        seen = ""
        while True:
            found = await self._steps.begin(self._name, self._token)
            if isinstance(found, Begun):
                return found
            if seen not in {"", found.ends}:
                raise ConversationBusy(f"another process continues the conversation {self._name.id!r}; it lives, for it renewed its lease")
            seen = found.ends
            await asyncio.sleep(max(_LEAST_PAUSE, min(found.left, self._steps.lease / _LOOKS)))

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._steps.lease / _RENEWALS)
            try:
                if await self._steps.renew(self._name, self._token):
                    continue
            except BrokerError as error:
                telemetry.log.warning("conversation.not_renewed", error=str(error))
                continue
            self._scope.reschedule(asyncio.get_running_loop().time())
            return

    def _silent(self) -> BrokerUnavailable:
        return BrokerUnavailable(f"the server has said nothing of the conversation {self._name.id!r} for {self._steps.patience:g} s")

    def _lost(self) -> ConversationError:
        return ConversationError(
            f"the conversation {self._name.id!r} is not this process's any more: another one continues it, or it was deleted"
        )


def busy(name: Name, left: float) -> ConversationBusy:
    """Return the error for a conversation that a process continues."""
    return ConversationBusy(f"a process continues the conversation {name.id!r}, or has died within the last {left:.0f} s")


# A process that has died holds its conversations no longer than this many seconds.
_LONGEST_LEASE = 10.0
_PAGE = 32
# A record has its time before its document; those of one question may go beyond the bound a little.
_MOST_RECORD = MOST_BYTES + 1024
_MOST_MS = 253_402_300_799_999
_names = msgspec.json.Decoder(tuple[str, str])
_SHAPE = Shape("holder", "next", "m:", MOST_RECORDS, timed=True)


class _Use(TypedDict):
    lease: int
    ttl: int
    stamps: tuple[str, ...]
    listings: tuple[Listing, ...]


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

    def hold(self, user: str, id: str) -> HeldConversation:
        """Return a user's conversation, to be held by ``async with``; it begins when there is none.

        Raises:
            ConfigurationError: the id is empty, too long, or has invisible or imitating characters.
        """
        return HeldConversation(self, name_to_hold(user, id))

    async def newest(self, limit: int) -> list[ConversationInfo]:
        """Return the conversations, those that are used latest first.

        Raises:
            BrokerError: the server could not be asked.
        """
        listed = await self._link.execute("ZREVRANGE", self._keys.conversations, 0, limit - 1, repeatable=True)
        seconds, micros = await self._link.execute("TIME", repeatable=True)
        now = integer(seconds) * 1000 + integer(micros) // 1000
        found = await asyncio.gather(*(self._info(member, now) for member in listed))
        return sorted((each for each in found if each is not None), key=lambda each: (-each.used_at, each.user, each.id))

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
            raise busy(name, (found.first - found.now) / 1000)
        return found.kept

    # -- the steps of a held one ------------------------------------------------------------------

    async def begin(self, name: Name, token: str) -> Begun | Elsewhere:
        """Hold a conversation, unless another token does.

        Raises:
            ConversationError: it can't be read.
            BrokerError: the server refuses, as for the other steps.
        """
        ident = _document(name)
        change = Change(
            token=token,
            by="next",
            expected={"name": ident},
            begins={"name": ident, "born": token, "first": 0, "next": 0},
            told=("born",),
            **self._used(),
        )
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
        change = Change(token=token, records=documents, number=number, keep=keep, **self._used())
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

    def _used(self) -> _Use:
        listing = Listing(self._keys.conversations, self._ttl, most=MOST_LISTED)
        return {"lease": self._lease_ms, "ttl": self._ttl, "stamps": ("used",), "listings": (listing,)}

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
    return ConversationError(f"the conversation {name.id!r} can't be read ({reason}); `toolbus operate conversations rm` deletes it")


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


_messengers = msgspec.json.Decoder(Messenger)


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
        said = await self._link.execute("GET", self._key, repeatable=True)
        if said is None:
            return None
        try:
            return document(said, _messengers)
        except EnvelopeError as error:
            skip(self._key, str(error))
            return None

    async def tell(self, messenger: Messenger, seconds: float) -> None:
        """Tell of a messenger's connector, which lives for so many seconds from now.

        Raises:
            BrokerError: the server refuses.
        """
        await self._link.execute("SET", self._key, encode(messenger), "PX", max(1, int(seconds * 1000)), repeatable=True)
