"""``Cache``: answers of tools that only read, kept for a while in this process."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from toolbus.middleware.chain import Next, ToolCall
from toolbus.results import Blob, ConfigurationError, ToolResult

CACHEABLE = frozenset({"read", "idempotent"})


class _Kept(NamedTuple):
    """An answer; its data is encoded, so that nobody who gets it can change it."""

    output: str | None
    data: bytes | None
    content: tuple[Blob, ...]
    size: int
    until: float


class Cache:
    """Answers calls with equal arguments from what an earlier one said, for ``ttl`` seconds. Failures are never kept.

    Only tools whose effect is ``read`` or ``idempotent`` are answered from it; what they streamed comes in one piece.

    Args:
        ttl: seconds.
        most_bytes: of all answers; what was not asked for longest goes first, and no answer may have more than an eighth.
        by: whose answers may be given to whom: a text for each call, by default its user.

    :raises ConfigurationError: a value is out of its range.
    """

    def __init__(self, ttl: float = 60.0, *, most_bytes: int = 67_108_864, by: Callable[[ToolCall], str] = lambda call: call.user) -> None:
        if ttl <= 0 or most_bytes < 1:
            raise ConfigurationError(f"a cache needs a ttl and a size above 0, not {ttl} and {most_bytes}")
        self._ttl = ttl
        self._most_bytes = most_bytes
        self._by = by
        self._kept: dict[bytes, _Kept] = {}
        self._bytes = 0

    async def __call__(self, call: ToolCall, next: Next) -> ToolResult:
        """Answer the call from the cache, or let it pass and keep its answer."""
        key = self._key(call) if call.effect in CACHEABLE else None
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
        """Counts: answers kept, and their bytes."""
        return {"kept": len(self._kept), "bytes": self._bytes}

    def _key(self, call: ToolCall) -> bytes | None:
        try:
            told = (self._by(call), call.service, call.tool, call.config, call.arguments)
            return hashlib.blake2b(msgspec.json.encode(told, order="deterministic"), digest_size=16).digest()
        except (TypeError, ValueError, RecursionError):
            return None

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


def _result(kept: _Kept) -> ToolResult:
    return ToolResult(output=kept.output, data=None if kept.data is None else msgspec.json.decode(kept.data), content=kept.content)
