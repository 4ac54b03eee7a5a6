"""The records of bearer tokens that every gateway of a namespace knows."""

from __future__ import annotations

from typing import Protocol

from toolbus.tokens import TokenRecord


class Tokens(Protocol):
    """The records of bearer tokens."""

    async def get(self, id: str) -> TokenRecord | None:
        """Return the record of a token, or None.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def all(self) -> list[TokenRecord]:
        """Return every record, by name.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def add(self, record: TokenRecord) -> None:
        """Store a record.

        Raises:
            BrokerError: the server refuses it.
        """

    async def revoke(self, id: str) -> bool:
        """Delete a record; False when there was none.

        Raises:
            BrokerError: the server refuses it.
        """
