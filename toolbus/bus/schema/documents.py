"""Read JSON documents that people write: nothing in them may be lost."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_BOM = b"\xef\xbb\xbf"


class RepeatedKeyError(ValueError):
    """A key stands twice in one object.

    Attributes:
        key: the key.
    """

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {json.dumps(key)} stands twice in one object; write it once")
        self.key = key


def read_document(text: str | bytes, kind: type[T]) -> T:
    """Return a JSON document of a known type.

    Raises:
        ValueError: it is not JSON, has another type, or has a key twice in one object; the message says where.
    """
    try:
        data = (text.encode() if isinstance(text, str) else text).removeprefix(_BOM)
        if not data.strip():
            raise ValueError("it is empty")
        value = msgspec.json.decode(data, type=kind)
        # The decoder keeps the last of equal keys, but the first may be the one that was meant.
        json.loads(data, object_pairs_hook=check_keys, parse_int=str, parse_float=str)
    except UnicodeError:
        raise ValueError("its text is not UTF-8") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of the pairs; the ``object_pairs_hook`` for readers of the standard library's kind.

    Raises:
        RepeatedKeyError: a key stands twice.
    """
    check_keys(pairs)
    return dict(pairs)


def check_keys(pairs: list[tuple[str, Any]]) -> None:
    """Check that each key of an object stands once.

    Raises:
        RepeatedKeyError: a key stands twice.
    """
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise RepeatedKeyError(key)
        seen.add(key)
