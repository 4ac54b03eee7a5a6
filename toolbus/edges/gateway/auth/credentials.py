"""Describe what a source of credentials says of a token."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec

from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.values.secrets import Rate, TokenFile, TokenRecord
from toolbus.edges.gateway.options import Principal


class Refused(Exception):
    """A token that is not accepted; the message goes to the client and says nothing of the token."""


class Credential(msgspec.Struct, frozen=True):
    """The principal that a token stands for, and how many requests it may send."""

    principal: Principal
    rate: Rate | None = None


class Source(Protocol):
    """Knows tokens of one kind."""

    def takes(self, token: str) -> bool:
        """Return whether a token has the form of this source's."""

    async def credential(self, token: str) -> Credential | None:
        """Return whom a token of this form stands for; None when the source does not know it, and the next one is asked.

        Raises:
            Refused: it is known and not accepted (any more).
            Problem: 503, the source can't say now.
        """


def accepted(record: TokenRecord, token: str, now: float) -> Credential:
    """Return whom a token stands for by its record.

    Raises:
        Refused: it is another token, or has expired.
    """
    if not record.is_of(token):
        raise Refused("the token is not known")
    if record.has_expired(now):
        raise Refused("the token has expired")
    return _of_record(record)


def _of_record(record: TokenRecord) -> Credential:
    """Return the credential that a record describes."""
    principal = Principal(
        name=record.name,
        user=record.user,
        groups=None if record.groups is None else frozenset(record.groups),
        tools=None if record.tools is None else frozenset(record.tools),
        may=frozenset(record.permissions),
    )
    return Credential(principal, record.rate)


_MOST_BYTES = 16_777_216
_decoder = msgspec.json.Decoder(TokenFile)


def read(path: Path) -> dict[str, TokenRecord]:
    """Return the records of a file, by id.

    Raises:
        ConfigurationError: it can't be read; no message shows what is in it.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"the tokens in {path} can't be read: {error.strerror or type_name(error)}") from None
    if len(data) > _MOST_BYTES:
        raise ConfigurationError(f"{path} has more than {_MOST_BYTES:,} bytes")
    try:
        found = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise ConfigurationError(
            f"{path} is no file of tokens: {str(error)[:200]}; `toolbus secure tokens add --file` writes one"
        ) from None
    records = {record.id: record for record in found.tokens}
    if len(records) != len(found.tokens):
        raise ConfigurationError(f"{path} has two tokens of one id")
    return records
