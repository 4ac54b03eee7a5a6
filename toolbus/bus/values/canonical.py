"""Canonical JSON (RFC 8785), and digests of values: the same bytes in every language, so that programs can compare them."""

from __future__ import annotations

import hashlib
import re
from decimal import Decimal
from typing import Any

import msgspec

from toolbus.bus.values.encoding import encode_json, simpler

_encode_sorted = msgspec.json.Encoder(enc_hook=simpler, order="sorted").encode
_encode_own = msgspec.json.Encoder(order="deterministic").encode
_exponent = re.compile(rb"e-?[0-9]").search
_beyond = re.compile(rb"[\xf0-\xf4]").search

# Floats of which msgspec writes the digits as JavaScript does, if they are not whole.
_LEAST_PLAIN = 1e-5
_MOST_PLAIN = 2.0**53
# JavaScript writes numbers of other sizes with an exponent.
_LEAST_DIGITS = 1e-6
_MOST_DIGITS = 1e21


def canonical(value: Any) -> bytes:
    """Return a value as canonical JSON, in UTF-8.

    Integers keep all their digits, also those beyond 2^53, which the RFC leaves out: others can't be told apart as floats.

    Raises:
        TypeError, ValueError, RecursionError: JSON can't express it.
    """
    return _forms(value)[0]


def _forms(value: Any) -> tuple[bytes, bytes]:
    """Return a value as canonical JSON, and as msgspec writes it with sorted keys."""
    try:
        document = _encode_sorted(value)
    except TypeError:
        # It sorts no keys that are numbers.
        document = _encode_sorted(msgspec.json.decode(encode_json(value)))
    # msgspec writes what the RFC wants, but for whole numbers as floats, exponents, and keys beyond U+FFFF.
    may_differ = b".0" in document or _exponent(document) or (not document.isascii() and _beyond(document))
    return msgspec.json.encode(_in_order(msgspec.json.decode(document))) if may_differ else document, document


def digest(value: Any, size: int = 16) -> str:
    """Return the digest of a value: so many bytes of BLAKE2b over its canonical JSON, in hexadecimal; raises as ``canonical`` does."""
    return _digest(canonical(value), size)


def digests(value: Any, size: int = 16) -> list[str]:
    """Return the digest of a value and, if that is another, the one that earlier releases made of it; raises as ``canonical`` does."""
    return [_digest(each, size) for each in dict.fromkeys(_forms(value))]


def own_digest(value: Any, size: int = 16) -> str:
    """Return a stable digest of a value as msgspec writes it, which other languages can't make: for what toolbus alone compares.

    Fields of a Struct keep their order.
    """
    return _digest(_encode_own(value), size)


def _digest(document: bytes, size: int) -> str:
    return hashlib.blake2b(document, digest_size=size).hexdigest()


def _in_order(value: Any) -> Any:
    """Return a decoded value with its keys sorted by UTF-16 code units, and its numbers as JavaScript writes them."""
    whole = [value]
    left: list[Any] = [whole]
    # A value may be nested more deeply than functions can call themselves.
    while left:
        part = left.pop()
        for place, each in enumerate(part) if isinstance(part, list) else part.items():
            if isinstance(each, float):
                part[place] = _number(each)
            elif isinstance(each, dict):
                part[place] = {key: each[key] for key in sorted(each, key=lambda key: key.encode("utf-16-be"))}
                left.append(part[place])
            elif isinstance(each, list):
                left.append(each)
    return whole[0]


def _number(value: float) -> float | int | msgspec.Raw:
    size = abs(value)
    if size <= _MOST_PLAIN and value.is_integer():
        return int(value)
    if _LEAST_PLAIN <= size < _MOST_PLAIN:
        return value
    # Both languages write the fewest digits that stand for a number, in another form.
    digits = repr(value)
    if _LEAST_DIGITS <= size < _MOST_DIGITS:
        return msgspec.Raw(f"{Decimal(digits):f}".removesuffix(".0"))
    return msgspec.Raw(digits.replace("e-0", "e-"))
