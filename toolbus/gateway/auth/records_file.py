"""Read a file of tokens' records."""

from __future__ import annotations

from pathlib import Path

import msgspec

from toolbus.results import ConfigurationError
from toolbus.safe_text import type_name
from toolbus.tokens import TokenFile, TokenRecord

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
        raise ConfigurationError(f"{path} is no file of tokens: {str(error)[:200]}; `toolbus tokens add --file` writes one") from None
    records = {record.id: record for record in found.tokens}
    if len(records) != len(found.tokens):
        raise ConfigurationError(f"{path} has two tokens of one id")
    return records
