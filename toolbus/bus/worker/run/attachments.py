"""Bytes within a value that a handler gives: they become blobs, since base64 within a text is of no use to a model."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import chain
from typing import Any
from uuid import UUID

import msgspec

from toolbus.bus.values.encoding import MOST_LEVELS, exact_text, is_numbers, simpler
from toolbus.bus.values.envelope import encode_data
from toolbus.bus.values.media import media_type_of
from toolbus.bus.values.results import Blob, Progress, ToolResult

_RAW = (bytes, bytearray, memoryview)
_SCALARS = frozenset({str, int, float, bool, type(None), Decimal, UUID})
_PLAIN = _SCALARS | {datetime.datetime, datetime.date, datetime.time, datetime.timedelta}
_HOLDERS = frozenset({dict, list, tuple})
_KNOWN = _PLAIN | _HOLDERS
# Levels of objects and lists that most values have at most.
_USUAL_LEVELS = 8
_BLOB = frozenset(Blob.__struct_fields__)


def blob_of(data: bytes | bytearray | memoryview) -> Blob:
    """Return bytes as a blob, with the media type that they say."""
    plain = bytes(memoryview(data))
    return Blob(media_type_of(plain), plain)


def pieces_of(item: object, sent: int) -> Iterator[object]:
    """Yield what an item of a stream is told as: texts, blobs, ``Progress`` and ``ToolResult``; nothing for None.

    Args:
        item: what the handler yielded.
        sent: how many blobs the caller was sent before.

    Raises:
        EnvelopeError: it can't be expressed in JSON.
    """
    if isinstance(item, (Blob, Progress, ToolResult)):
        yield item
    elif isinstance(item, str):
        yield exact_text(item)
    elif isinstance(item, _RAW):
        yield blob_of(item)
    elif item is not None:
        value, blobs = detached(item, sent)
        yield encode_data(value).decode()
        yield from blobs


def detached(value: Any, first: int = 0) -> tuple[Any, tuple[Blob, ...]]:
    """Return a value and its blobs: bytes and blobs in it become ``{"attachment", "media_type", "bytes"}``.

    A value that can't be encoded is returned as it is; the encoder says why.

    Args:
        first: the number of the first attachment, which is its place in the content of the call's result.
    """
    if _is_plain(value):
        return value, ()
    blobs: list[Blob] = []
    try:
        plain = msgspec.to_builtins(value, builtin_types=_RAW, enc_hook=simpler)
        made = plain if _is_plain(plain) else _without(plain, blobs, first)
    except Exception:  # noqa: BLE001 - a class of a user's may raise anything when it is asked for its value
        return value, ()
    return (made, tuple(blobs)) if blobs else (value, ())


def _is_plain(value: Any) -> bool:
    """Return whether there can be no bytes in it: nothing but plain values in objects and lists."""
    level: list[Any] = [value]
    if type(value) not in _HOLDERS:
        return type(value) in _PLAIN or is_numbers(value)
    for depth in range(MOST_LEVELS):
        # All of a level at once: one by one, large results took several times as long.
        kinds = set(map(type, _parts(level)))
        if kinds <= _PLAIN:
            return True
        if not kinds <= _KNOWN:
            return False
        level = [part for part in _parts(level) if type(part) in _HOLDERS]
        if depth >= _USUAL_LEVELS:
            # Each once, or what contains itself twice would grow without end.
            level = list({id(part): part for part in level}.values())
    return True


def _parts(level: list[Any]) -> Iterable[Any]:
    return chain.from_iterable([part.values() if type(part) is dict else part for part in level])


def _without(part: Any, blobs: list[Blob], first: int) -> Any:
    if isinstance(part, dict):
        if part.keys() == _BLOB and isinstance(part["data"], _RAW) and isinstance(part["media_type"], str):
            return _attachment(Blob(part["media_type"], bytes(memoryview(part["data"]))), blobs, first)
        return {key: _without(each, blobs, first) for key, each in part.items()}
    if isinstance(part, (list, tuple)):
        return [_without(each, blobs, first) for each in part]
    return _attachment(blob_of(part), blobs, first) if isinstance(part, _RAW) else part


def _attachment(blob: Blob, blobs: list[Blob], first: int) -> dict[str, Any]:
    blobs.append(blob)
    return {"attachment": first + len(blobs) - 1, "media_type": blob.media_type, "bytes": len(blob.data)}
