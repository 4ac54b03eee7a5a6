"""``Cache``: answers of tools that only read, or say that they may be kept, for a while in this process."""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from toolbus.middleware.chain import Next, ToolCall
from toolbus.results import Blob, ConfigurationError, ToolResult

# Of services that changed something, more at once make the cache forget everything.
_MOST_CHANGED = 10_000
# With these the caller has stopped waiting, or has lost sight of the call; what runs may go on, such as a plain function in its thread.
_GOES_ON = frozenset({"outcome_unknown", "deadline_exceeded", "cancelled", "slow_consumer"})
_SCALARS = frozenset({str, int, bool, type(None)})


class _Kept(NamedTuple):
    """An answer; its data is encoded, so that no caller can change it."""

    output: str | None
    data: bytes | None
    content: tuple[Blob, ...]
    size: int
    until: float


def user_and_session(call: ToolCall) -> tuple[str, str]:
    """Return the user and session, which never get the answers of another."""
    return call.user, call.session


class Cache:
    """Answers a call from what an earlier one said, for ``ttl`` seconds, if everything that a handler sees of both is equal.

    That is service, tool, arguments, config, user, session, metadata and idempotency key, and the publication that runs it.
    Only tools whose effect is ``read`` are answered, unless they declare ``cache``; failures are never kept. What was streamed
    comes in one piece. Other tools may have changed something: when a call of one has ended here, the answers of its service
    are forgotten. When it ended while its handler may go on, nothing of its service is kept or answered for ``ttl`` seconds.
    What changes elsewhere, or later, is seen after ``ttl``. Arguments that JSON can't express are passed on as they are.

    Args:
        ttl: seconds.
        most_bytes: of all answers; what was not asked for longest goes first, and no answer may have more than an eighth.
        by: whose answers may be given to whom: a text, or several, for each call; by default its user and session.

    Raises:
        ConfigurationError: a value is out of its range.
    """

    def __init__(
        self, ttl: float = 60.0, *, most_bytes: int = 67_108_864, by: Callable[[ToolCall], str | tuple[str, ...]] = user_and_session
    ) -> None:
        if ttl <= 0 or most_bytes < 1:
            raise ConfigurationError(f"a cache needs a ttl and a size above 0, not {ttl} and {most_bytes}")
        self._ttl = ttl
        self._most_bytes = most_bytes
        self._by = by
        self._kept: dict[bytes, _Kept] = {}
        self._bytes = 0
        self._changes = itertools.count(1)
        self._changed: dict[str, int] = {}
        self._forgotten = 0
        # Until when what runs may still change services, and all of them.
        self._unsettled: dict[str, float] = {}
        self._all_unsettled = 0.0

    async def __call__(self, call: ToolCall, next: Next) -> ToolResult:
        """Answer the call from the cache, or let it pass and keep its answer."""
        if not call.cacheable and call.effect != "read":
            return await self._changing(call, next)
        key = self._key(call) if call.cacheable and self._is_settled(call.service) else None
        if key is None:
            return await next(call)
        found = self._kept.pop(key, None)
        if found is not None and found.until > time.monotonic():
            self._kept[key] = found
            return _result(found)
        if found is not None:
            self._bytes -= found.size
        result = await next(call)
        if result.error is None and result.success:
            self._keep(key, result)
        return result

    def statistics(self) -> dict[str, int]:
        """Return counts: answers kept, and their bytes."""
        return {"kept": len(self._kept), "bytes": self._bytes}

    async def _changing(self, call: ToolCall, next: Next) -> ToolResult:
        """Let a call pass that may change its service."""
        settled = False
        try:
            result = await next(call)
            settled = result.error is None or result.error.type not in _GOES_ON
            return result
        finally:
            self._forget(call.service)
            if not settled:
                self._unsettle(call.service)

    def _unsettle(self, service: str) -> None:
        """Keep and answer nothing of a service for as long as an answer would be kept."""
        until = time.monotonic() + self._ttl
        if len(self._unsettled) >= _MOST_CHANGED:
            self._unsettled.clear()
            self._all_unsettled = until
        self._unsettled[service] = until

    def _is_settled(self, service: str) -> bool:
        if not self._unsettled and not self._all_unsettled:
            return True
        now = time.monotonic()
        if self._unsettled.get(service, 0.0) > now:
            return False
        self._unsettled.pop(service, None)
        return self._all_unsettled <= now

    def _forget(self, service: str) -> None:
        """Find nothing any more that was kept of a service, or is being computed: it was begun under another number."""
        if len(self._changed) >= _MOST_CHANGED:
            self._changed.clear()
            self._forgotten = next(self._changes)
        self._changed[service] = next(self._changes)

    def _key(self, call: ToolCall) -> bytes | None:
        try:
            where = (call.side, call.service, call.tool, call.digest, self._changed.get(call.service, self._forgotten))
            told = (where, self._by(call), call.config, call.arguments, call.metadata, call.idempotency_key)
            text = msgspec.json.encode(told, order="deterministic")
        except (TypeError, ValueError, RecursionError):
            return None
        # A value that contains itself could not be encoded above, so this check ends.
        if not _is_json([call.config, call.arguments, call.metadata]):
            return None
        return hashlib.blake2b(text, digest_size=16).digest()

    def _keep(self, key: bytes, result: ToolResult) -> None:
        try:
            data = None if result.data is None else msgspec.json.encode(result.data)
        except (TypeError, ValueError, RecursionError):
            return
        size = (
            200 + len((result.output or "").encode("utf-8", "replace")) + len(data or b"") + sum(len(blob.data) for blob in result.content)
        )
        if size > self._most_bytes // 8:
            return
        before = self._kept.pop(key, None)
        self._bytes += size - (0 if before is None else before.size)
        self._kept[key] = _Kept(result.output, data, result.content, size, time.monotonic() + self._ttl)
        while self._bytes > self._most_bytes:
            self._bytes -= self._kept.pop(next(iter(self._kept))).size


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
