"""Keep the records of bearer tokens, for every gateway of a namespace."""

from __future__ import annotations

import msgspec

from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.server.reading import document, skipping
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.links import scan_hash
from toolbus.bus.values.results import ConfigurationError, EnvelopeError
from toolbus.bus.values.secrets import TokenRecord

MOST_TOKENS = 10_000
"""Most tokens of a namespace."""

_MOST_RECORD = 262_144


class Tokens:
    """The records of bearer tokens."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._key = keys.tokens

    async def get(self, id: str) -> TokenRecord | None:
        """Return the record of a token, or None.

        Raises:
            BrokerError: the server could not be asked.
        """
        value: bytes | None = await self._link.execute("HGET", self._key, id, repeatable=True)
        return None if value is None else self._read(id.encode(), value)

    async def all(self) -> list[TokenRecord]:
        """Return every record that can be read, by name.

        Raises:
            BrokerError: the server could not be asked.
        """
        found = {field: value async for field, value in scan_hash(self._link, self._key)}
        records = (self._read(field, value) for field, value in found.items())
        return sorted((each for each in records if each is not None), key=lambda each: (each.name, each.id))

    async def add(self, record: TokenRecord) -> None:
        """Store a record.

        Raises:
            ConfigurationError: there are too many.
            BrokerError: the server refuses it.
        """
        if len(await self.all()) >= MOST_TOKENS:
            raise ConfigurationError(f"there are {MOST_TOKENS:,} tokens; revoke some with `toolbus secure tokens revoke`")
        await self._link.execute("HSET", self._key, record.id, msgspec.json.encode(record), repeatable=True)

    async def revoke(self, id: str) -> bool:
        """Delete a record, also one that can't be read; False when there was none.

        Raises:
            BrokerError: the server refuses it.
        """
        return bool(await self._link.execute("HDEL", self._key, id, repeatable=True))

    def _read(self, field: bytes, value: bytes) -> TokenRecord | None:
        with skipping(self._key, field=field):
            record = document(value, TokenRecord, most=_MOST_RECORD)
            if record.id.encode() != field:
                raise EnvelopeError(f"it holds the record of another token, {record.id}")
            return record
        return None
