"""Readers of what a server holds. Any client may have written it, so each value is checked: its type, its size, its bounds.

Each reader raises ``EnvelopeError`` and nothing else. Callers that can do without the value read it within ``skipping``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.envelope import is_ident
from toolbus.bus.values.results import ConfigurationError, EnvelopeError

T = TypeVar("T")

MOST_TEXT = 1_024
"""Most characters of a name."""

LAST_MS = 253_402_300_799_999
LAST_SECOND = LAST_MS // 1000
"""The last millisecond, and the last second, since 1970 that a date can show."""

MOST_INTEGER = 2**53 - 1
"""Lua and JavaScript count exactly as far."""

_MOST_DIGITS = 16
MOST_DOCUMENT = 4 * 1024 * 1024
"""Most bytes of a stored document."""

_MOST_SHOWN = 120
MOST_ENTRY_DIGITS = 15
"""Most digits of the milliseconds in the id of an entry: with more, it leaves its stream, now or soon, no room for others."""


def text(value: object, *, most: int = MOST_TEXT) -> str:
    """Return a text of at most ``most`` characters."""
    if isinstance(value, bytes):
        # A character has four bytes at most.
        if len(value) > 4 * most:
            raise EnvelopeError(f"its {len(value)} bytes are too many for a text of {most} characters")
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise EnvelopeError(f"{shown(value)!r} is not UTF-8") from None
    if not isinstance(value, str):
        raise EnvelopeError(f"a {type_name(value)} is no text")
    if len(value) > most:
        raise EnvelopeError(f"its {len(value)} characters are over the limit of {most}")
    return value


def identifier(value: object) -> str:
    """Return an id of a call, an agent or a confirmation request."""
    found = text(value)
    if not is_ident(found):
        raise EnvelopeError(f"{shown(found)!r} is no id of 1 to 64 letters, digits, '_' or '-'")
    return found


def integer(value: object, *, least: int = 0, most: int = MOST_INTEGER) -> int:
    """Return a whole number within bounds, given as a number or in decimal digits."""
    if isinstance(value, str):
        value = value.encode("utf-8", "replace")
    if isinstance(value, bytes):
        digits = value[1:] if value[:1] == b"-" else value
        # int() of some thousand digits takes long, or raises by itself.
        if not digits.isdigit() or len(digits) > _MOST_DIGITS:
            raise EnvelopeError(f"{shown(value)!r} is no whole number of at most {_MOST_DIGITS} digits")
        value = int(value)
    if type(value) is not int:
        raise EnvelopeError(f"a {type_name(value)} is no whole number")
    if not least <= value <= most:
        raise EnvelopeError(f"{str(value)[:_MOST_DIGITS]} is not between {least} and {most}")
    return value


def moment(value: object) -> float:
    """Return a moment that a date can show, in seconds since 1970; it is given in milliseconds."""
    return integer(value, most=LAST_MS) / 1000


def document(value: object, kind: type[T], *, most: int = MOST_DOCUMENT) -> T:
    """Return what a JSON document of at most ``most`` bytes says."""
    if isinstance(value, str):
        value = value.encode("utf-8", "replace")
    if not isinstance(value, bytes):
        raise EnvelopeError(f"a {type_name(value)} is no document")
    if len(value) > most:
        raise EnvelopeError(f"its {len(value)} bytes are over the limit of {most}")
    try:
        return msgspec.json.decode(value, type=kind)
    except DECODE_ERRORS as error:
        raise EnvelopeError(f"malformed document: {shown(str(error))}") from None


def stored(key: str, value: object, kind: type[T]) -> T | None:
    """Return what the document at a key says; None when there is none, or, as ``skip`` tells, it can't be read."""
    if value is not None:
        with skipping(key):
            return document(value, kind)
    return None


def check_document(key: str, document: bytes) -> None:
    """Refuse a document that nobody would read.

    Raises:
        ConfigurationError: it is too long.
    """
    if len(document) > MOST_DOCUMENT:
        raise ConfigurationError(f"{shown(key)} can't be stored: its {len(document):,} bytes are over the limit of {MOST_DOCUMENT:,}")


def uses_up(entry: bytes) -> bool:
    """Return whether the id of an entry leaves its stream, now or soon, no room for others."""
    return len(entry.partition(b"-")[0]) > MOST_ENTRY_DIGITS


def shown(value: object) -> str:
    """Return the beginning of a value that can't be read, for people."""
    if isinstance(value, bytes):
        value = value[:_MOST_SHOWN].decode("utf-8", "backslashreplace")
    found = str(value)
    return found if len(found) <= _MOST_SHOWN else f"{found[:_MOST_SHOWN]}…"


@contextlib.contextmanager
def skipping(key: str, *, field: object = "") -> Iterator[None]:
    """Leave out what can't be read within, as ``skip`` does."""
    try:
        yield
    except EnvelopeError as error:
        skip(key, error, field=field)


def skip(key: str, error: EnvelopeError | str, *, field: object = "") -> None:
    """Log, once, that a value can't be read and is left out; ``field`` is the place within the key."""
    place = f"{key} {shown(field)}" if field else key
    telemetry.log.warning("value.unreadable", key=place, error=str(error), advice="nothing of toolbus writes this; delete it")
