"""The records of bearer tokens within one event loop, for ``memory://``."""

from __future__ import annotations

from toolbus.tokens import TokenRecord


class MemoryTokens:
    """``Tokens`` within one event loop."""

    def __init__(self) -> None:
        self._records: dict[str, TokenRecord] = {}

    async def get(self, id: str) -> TokenRecord | None:
        """Return the record of a token, or None."""
        return self._records.get(id)

    async def all(self) -> list[TokenRecord]:
        """Return every record, by name."""
        return sorted(self._records.values(), key=lambda each: (each.name, each.id))

    async def add(self, record: TokenRecord) -> None:
        """Store a record."""
        self._records[record.id] = record

    async def revoke(self, id: str) -> bool:
        """Delete a record; False when there was none."""
        return self._records.pop(id, None) is not None
