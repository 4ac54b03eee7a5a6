"""``Cache``: answers of tools that only read, or say that they may be kept, for a while in this process."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from toolbus.bus.middleware import Next, ToolCall
from toolbus.bus.values import rules
from toolbus.bus.values.results import UNSETTLED, Blob, ConfigurationError, ToolResult

# Of changes of different answers, more at once make the cache forget everything.
_MOST_CHANGED = 10_000

_SHORT = 32

Owner = str | tuple[str, ...]
"""Whose answers: what a cache's ``by`` returns."""

Part = tuple[str, str, bytes | None, bytes | None]
"""The service, tool, arguments and owner of some answers, the last two in short; empty and None stand for any."""


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a cache's answers: those that fit everything that is given.

    Attributes:
        service: the service's id; empty for any.
        tool: the tool's name; empty for any.
        arguments: exactly what the calls passed; None for any.
        by: whose answers, as the cache's ``by`` returns it; None for everybody's.
    """

    service: str = ""
    tool: str = ""
    arguments: Mapping[str, Any] | None = None
    by: Owner | None = None


class Invalidation:
    """Numbers the changes of answers: a cache keeps an answer under the numbers that hold when its call begins.

    So what was begun before a change is neither found after it nor joined, and nothing has to be searched.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._changed: dict[Part, int] = {}
        self._everything = 0
        # Until when what runs may still change answers (monotonic seconds), and all of them.
        self._unsettled: dict[Part, float] = {}
        self._all_unsettled = 0.0

    def forget(self, part: Part) -> None:
        """Find nothing any more that was kept of these answers, or is being computed."""
        if len(self._changed) >= _MOST_CHANGED:
            self._changed.clear()
            self._everything = next(self._numbers)
        self._changed[part] = next(self._numbers)

    def unsettle(self, part: Part, until: float) -> None:
        """Keep and find nothing of these answers until then: what changes them may go on."""
        if len(self._unsettled) >= _MOST_CHANGED:
            self._unsettled.clear()
            self._all_unsettled = until
        self._unsettled[part] = until

    def state(self, call: ToolCall, by: Owner, now: float) -> tuple[int, ...] | None:
        """Return the numbers under which a call's answer may be kept and found now; None while it may be changing.

        Raises:
            TypeError: JSON can't express the call's arguments.
        """
        if not (self._changed or self._unsettled or self._all_unsettled):
            return (self._everything,)
        if self._all_unsettled > now:
            return None
        parts = _parts_with(call, by)
        for part in parts if self._unsettled else ():
            if self._unsettled.get(part, 0.0) > now:
                return None
            self._unsettled.pop(part, None)
        # No two changes have one number, so those of the parts that never changed can be left out.
        return (self._everything, *(self._changed[part] for part in parts if part in self._changed))


def _parts_with(call: ToolCall, by: Owner) -> list[Part]:
    """Return all parts that a call's answer belongs to."""
    return list(itertools.product(("", call.service), ("", call.tool), (None, _text(call.arguments)), (None, _text(by))))


def _part(answers: Answers) -> Part:
    """Return the part that some answers are.

    Raises:
        TypeError: JSON can't express their arguments.
    """
    arguments = None if answers.arguments is None else _text(answers.arguments)
    return answers.service, answers.tool, arguments, None if answers.by is None else _text(answers.by)


def _text(value: Any) -> bytes:
    """Return the same bytes for equal values; long ones in short."""
    text = msgspec.json.encode(value, order="deterministic")
    return text if len(text) <= _SHORT else hashlib.blake2b(text, digest_size=_SHORT).digest()


_RULES = {
    "ttl": rules.number("a number of seconds above 0", above=0),
    "most_bytes": rules.whole("a number of bytes above 0", 1),
    "by": rules.FUNCTION,
    "invalidates": rules.FUNCTION,
}
_SCALARS = frozenset({str, int, bool, type(None)})


class _Kept(NamedTuple):
    """An answer; its data is encoded, so that no caller can change it."""

    output: str | None
    data: bytes | None
    content: tuple[Blob, ...]
    size: int
    until: float


_Flight = asyncio.Future[_Kept | None]
"""A call that runs for others that equal it: its answer, or None when it has none for them; cancelled when it was given up."""


def user_and_session(call: ToolCall) -> tuple[str, str]:
    """Return the user and session, which never get the answers of another."""
    return call.user, call.session


def whole_service(call: ToolCall) -> tuple[Answers, ...]:
    """Return all answers of the call's service, of which nothing closer is known."""
    return (Answers(service=call.service),)


class Cache:
    """Answers a call from what an earlier one said, for ``ttl`` seconds, if everything that a handler sees of both is equal.

    That is service, tool, arguments, config, user, session, metadata and idempotency key, and the publication that runs it.
    Only tools whose effect is ``read`` are answered, unless they declare ``cache``; failures are never kept. What was streamed
    comes in one piece. Equal calls at once run once: the others wait for its answer, and run themselves when it fails.

    Other tools may have changed something: when a call of one has ended here, what it ``invalidates`` is forgotten. When it ended while
    its handler may go on, nothing of that is kept or answered for ``ttl`` seconds. What changes elsewhere, or later, is seen after
    ``ttl``, or after ``invalidate``. Arguments that JSON can't express are passed on as they are.

    Args:
        ttl: seconds.
        most_bytes: of all answers; what was not asked for longest goes first, and no answer may have more than an eighth.
        by: whose answers may be given to whom: a text, or several, for each call; by default its user and session.
        invalidates: which answers a call of another tool makes out of date; by default all of its service.

    Raises:
        ConfigurationError: a value is of another kind, or out of its range.
    """

    def __init__(
        self,
        ttl: float = 60.0,
        *,
        most_bytes: int = 67_108_864,
        by: Callable[[ToolCall], Owner] = user_and_session,
        invalidates: Callable[[ToolCall], Iterable[Answers]] = whole_service,
    ) -> None:
        rules.check({"ttl": ttl, "most_bytes": most_bytes, "by": by, "invalidates": invalidates}, _RULES, "Cache")
        self._ttl = ttl
        self._most_bytes = most_bytes
        self._by = by
        self._invalidates = invalidates
        self._invalidation = Invalidation()
        self._kept: dict[bytes, _Kept] = {}
        self._flights: dict[bytes, _Flight] = {}
        self._bytes = 0

    async def __call__(self, call: ToolCall, next: Next) -> ToolResult:
        """Answer the call from the cache or from an equal one that runs, or let it pass and keep its answer."""
        if not call.cacheable and call.effect != "read":
            return await self._changing(call, next)
        while call.cacheable and (key := self._key(call)) is not None:
            found = self._found(key)
            if found is not None:
                return _result(found)
            flight = self._flights.get(key)
            if flight is None:
                return await self._lead(key, call, next)
            if flight.get_loop() is not asyncio.get_running_loop():
                break
            # Waiting for it does not end it when this call is cancelled.
            await asyncio.wait([flight])
            if flight.cancelled():
                continue
            joined = flight.result()
            if joined is not None:
                return _result(joined)
            result = await next(call)
            self._keep(key, result)
            return result
        return await next(call)

    def invalidate(self, tool: str = "", arguments: Mapping[str, Any] | None = None, *, service: str = "", by: Owner | None = None) -> None:
        """Forget the answers that fit everything that is given; nothing given is all of them.

        Args:
            tool: the tool's name.
            arguments: exactly what the calls passed.
            service: the service's id.
            by: whose answers, as the cache's own ``by`` returns it.

        Raises:
            ConfigurationError: JSON can't express the arguments.
        """
        try:
            self._invalidation.forget(_part(Answers(service=service, tool=tool, arguments=arguments, by=by)))
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigurationError(f"no answer is kept for arguments that JSON can't express: {error}") from None

    def statistics(self) -> dict[str, int]:
        """Return counts: answers kept, and their bytes."""
        return {"kept": len(self._kept), "bytes": self._bytes}

    async def _lead(self, key: bytes, call: ToolCall, next: Next) -> ToolResult:
        """Run a call, also for those that equal it meanwhile."""
        flight: _Flight = asyncio.get_running_loop().create_future()
        self._flights[key] = flight
        try:
            result = await next(call)
        except Exception:
            flight.set_result(None)
            raise
        else:
            flight.set_result(self._keep(key, result))
            return result
        finally:
            if self._flights.get(key) is flight:
                del self._flights[key]
            # One that was given up says nothing about the call, so the next one that waits runs for the others.
            flight.cancel()

    async def _changing(self, call: ToolCall, next: Next) -> ToolResult:
        """Let a call pass that may change answers."""
        changed = [_part(answers) for answers in self._invalidates(call)]
        settled = False
        try:
            result = await next(call)
            settled = result.error is None or result.error.type not in UNSETTLED
            return result
        finally:
            for part in changed:
                self._invalidation.forget(part)
                if not settled:
                    self._invalidation.unsettle(part, time.monotonic() + self._ttl)

    def _found(self, key: bytes) -> _Kept | None:
        found = self._kept.pop(key, None)
        if found is None:
            return None
        if found.until <= time.monotonic():
            self._bytes -= found.size
            return None
        self._kept[key] = found
        return found

    def _key(self, call: ToolCall) -> bytes | None:
        """Return the name of a call's answer; None when it can be neither kept nor found now."""
        try:
            by = self._by(call)
            state = self._invalidation.state(call, by, time.monotonic())
            where = (call.side, call.service, call.tool, call.digest, state)
            told = (where, by, call.config, call.arguments, call.metadata, call.idempotency_key)
            text = msgspec.json.encode(told, order="deterministic")
        except (TypeError, ValueError, RecursionError):
            return None
        # A value that contains itself could not be encoded above, so this check ends.
        if state is None or not _is_json([call.config, call.arguments, call.metadata]):
            return None
        return hashlib.blake2b(text, digest_size=16).digest()

    def _keep(self, key: bytes, result: ToolResult) -> _Kept | None:
        """Return the answer that equal calls may be given, if there is one, and keep it if it is not too large."""
        if result.error is not None or not result.success:
            return None
        try:
            data = None if result.data is None else msgspec.json.encode(result.data)
        except (TypeError, ValueError, RecursionError):
            return None
        size = (
            200 + len((result.output or "").encode("utf-8", "replace")) + len(data or b"") + sum(len(blob.data) for blob in result.content)
        )
        answer = _Kept(result.output, data, result.content, size, time.monotonic() + self._ttl)
        if size <= self._most_bytes // 8:
            before = self._kept.pop(key, None)
            self._bytes += size - (0 if before is None else before.size)
            self._kept[key] = answer
            while self._bytes > self._most_bytes:
                self._bytes -= self._kept.pop(next(iter(self._kept))).size
        return answer


def _is_json(value: Any) -> bool:
    """Return whether JSON expresses all of a value: the encoder writes NaN as null, and bytes, dates or sets like other values."""
    left = [value]
    while left:
        value = left.pop()
        if type(value) in _SCALARS:
            continue
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, (list, tuple)):
            left += value
        elif not (isinstance(value, float) and math.isfinite(value)):
            return False
    return True


def _result(kept: _Kept) -> ToolResult:
    return ToolResult(output=kept.output, data=None if kept.data is None else msgspec.json.decode(kept.data), content=kept.content)
