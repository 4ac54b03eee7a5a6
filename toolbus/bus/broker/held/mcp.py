"""Keep the sessions of MCP clients, and the requests in them that take long, so that any gateway goes on with either."""

from __future__ import annotations

from typing import Any

import msgspec

from toolbus.bus.broker.held.document import Change, HeldDocuments, Listing, Shape
from toolbus.bus.broker.server.keys import Keys, session_digest
from toolbus.bus.broker.server.reading import MOST_DOCUMENT, document, skip, skipping, stored, text
from toolbus.bus.broker.transport.command import ReplyError
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.values.envelope import Request, encode, share_digest
from toolbus.bus.values.results import BrokerError
from toolbus.bus.values.settings import Settings

SESSION_TTL = 1_800.0
"""Seconds for which a session is kept that is not used."""

MOST_SESSIONS = 10_000
"""Most sessions of one user."""

REQUEST_TTL = 120.0
"""Seconds for which a client may come back to a request that it has lost: after its answer, or after its gateway has died.

The retention is a bound, too: a request that outlives its idempotency key would run again.
"""

# Seconds for which a cancellation waits for the request that it is for.
_CANCELLATION = 5.0
_SHAPE = Shape("holder", "next", "m:", 0)


class McpSession(msgspec.Struct, frozen=True):
    """A session of a client.

    Attributes:
        version: the revision that was agreed on.
        forms: whether the client can show forms to its user.
    """

    version: str
    forms: bool


class McpRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that a client has asked for.

    Attributes:
        tool: as the client names it.
        arguments: as given.
        token: stands for the request in the notifications of its progress; None when the client wants none.
    """

    tool: str
    arguments: dict[str, Any]
    token: int | str | None = None


class KeptRequest(msgspec.Struct, frozen=True):
    """A request, and what became of it.

    Attributes:
        request: None when all that is known is that it was cancelled.
        question: id of the confirmation for which the client's user was asked last; empty without one.
        allowed: whether a person has allowed the call.
        cancelled: whether the client has cancelled it.
        answer: the answer; empty while there is none.
    """

    request: McpRequest | None
    question: str
    allowed: bool
    cancelled: bool
    answer: bytes


class McpSessions:
    """The sessions of a namespace; a session, and a request, is named by a digest that only its client's requests lead to."""

    def __init__(self, link: Link, keys: Keys, settings: Settings) -> None:
        self._link = link
        self._keys = keys
        self._documents = HeldDocuments(link, _SHAPE)
        self._request_ttl = int(min(REQUEST_TTL, settings.retention) * 1000)
        self._most = max(MOST_DOCUMENT, 2 * settings.max_request)

    async def begin(self, user: str, digest: str, session: McpSession) -> bool:
        """Keep a new session; False when its user has too many.

        Raises:
            BrokerError: the server refuses, as for the other methods.
        """
        change = Change(by="new", values={"session": encode(session)}, room=MOST_SESSIONS, **self._used(user))
        return (await self._documents.write(self._keys.mcp_session(digest), digest, change)).kept

    async def find(self, digest: str) -> McpSession | None:
        """Return a session, or None."""
        key = self._keys.mcp_session(digest)
        (said,) = await self._fields(key, "session")
        return stored(key, said, McpSession)

    async def use(self, user: str, digest: str) -> None:
        """Keep a session for its whole time from now on."""
        await self._documents.write(self._keys.mcp_session(digest), digest, Change(by="anyone", **self._used(user)))

    async def end(self, user: str, digest: str) -> None:
        """End a session."""
        change = Change(by="anyone", ttl=0, listings=(Listing(self._keys.mcp_sessions(session_digest(user, ""))),))
        await self._documents.settle(self._keys.mcp_session(digest), digest, change)

    # -- requests ---------------------------------------------------------------------------------

    async def keep(self, digest: str, request: McpRequest) -> bool:
        """Keep a request, in place of an earlier one of this name that was answered; False when it is cancelled already."""
        values: dict[str, str | bytes] = {"request": encode(request), "question": "", "allowed": "", "answer": ""}
        change = Change(by="next", values=values, ttl=self._request_ttl, told=("cancelled",))
        found = await self._documents.write(self._keys.mcp_request(digest), digest, change)
        if not found.kept:
            raise BrokerError(f"the request {digest} can't be kept: {found.word}")
        return found.told[0] is None

    async def drop(self, digest: str) -> None:
        """Keep a request no longer."""
        await self._documents.settle(self._keys.mcp_request(digest), digest, Change(by="anyone", ttl=0))

    async def ask(self, digest: str, question: str) -> None:
        """Take note that the client's user is asked for a confirmation."""
        await self._note(digest, {"question": question})

    async def permit(self, digest: str) -> None:
        """Take note that a person has allowed a request."""
        await self._note(digest, {"allowed": 1})

    async def answer(self, digest: str, answer: bytes) -> None:
        """Keep the answer to a request; one that is too long is not kept."""
        if len(answer) <= self._most:
            await self._note(digest, {"answer": answer})

    async def renew(self, digest: str) -> None:
        """Keep a request for its whole time from now on."""
        await self._note(digest, {})

    async def cancel(self, digest: str) -> None:
        """Take note that a request is cancelled, for the gateway that answers it, or will within seconds."""
        if not await self._note(digest, {"cancelled": 1}):
            change = Change(by="next", values={"cancelled": 1}, ttl=int(_CANCELLATION * 1000))
            await self._documents.write(self._keys.mcp_request(digest), digest, change)

    async def is_cancelled(self, digest: str) -> bool:
        """Return whether a request was cancelled."""
        (said,) = await self._fields(self._keys.mcp_request(digest), "cancelled")
        return said is not None

    async def request(self, digest: str) -> KeptRequest | None:
        """Return a request, or None when it is not kept."""
        key = self._keys.mcp_request(digest)
        said, question, allowed, cancelled, answer = await self._fields(key, "request", "question", "allowed", "cancelled", "answer")
        if said is None and cancelled is None:
            return None
        with skipping(key):
            request = None if said is None else document(said, McpRequest, most=self._most)
            return KeptRequest(request, text(question or b""), allowed == b"1", cancelled is not None, answer or b"")
        return None

    def release(self, user: str, key: str) -> None:
        """Let another call of a user have the idempotency key of one whose caller has its answer. Returns at once."""
        request = Request("", "", "", user=user, idempotency_key=key)
        self._link.send(("DEL", self._keys.shared(share_digest(request))))

    # -- inside -----------------------------------------------------------------------------------

    async def _fields(self, key: str, *names: str) -> list[bytes | None]:
        """Return these fields of a session or request; none of them where something else stands."""
        try:
            found: list[bytes | None] = await self._link.execute("HMGET", key, *names, repeatable=True)
        except ReplyError as error:
            skip(key, str(error))
            return [None] * len(names)
        return found

    def _used(self, user: str) -> dict[str, Any]:
        ttl = int(SESSION_TTL * 1000)
        return {"ttl": ttl, "listings": (Listing(self._keys.mcp_sessions(session_digest(user, "")), ttl, most=MOST_SESSIONS),)}

    async def _note(self, digest: str, values: dict[str, str | bytes | int]) -> bool:
        change = Change(by="anyone", values=values, ttl=self._request_ttl)
        return (await self._documents.write(self._keys.mcp_request(digest), digest, change)).kept
