"""Parts of a JSON document found by its brackets and quotes alone, so that a part which no parser takes spoils no other."""

from __future__ import annotations

import re
from typing import NamedTuple

MOST_BYTES = 2 * 1024 * 1024
"""Longest document that is searched: what is searched holds up everything else meanwhile."""

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
# A quote by itself opens a string that never ends: without a match of its own each later quote would be tried to the end.
_MARKS = re.compile(_STRING + rb'|[\[{]+|[\]}]+|,|"', re.DOTALL)
_KEY = re.compile(rb"\s*(" + _STRING + rb")\s*:", re.DOTALL)


class Piece(NamedTuple):
    """The place of a part in a document."""

    start: int
    end: int

    def of(self, document: bytes) -> bytes:
        """Return the part itself."""
        return document[self.start : self.end]


def elements(document: bytes) -> list[Piece]:
    """Return the elements of a list, or the keys with their values of an object, each unread.

    Raises:
        ValueError: the brackets and quotes don't fit, or the document is too long.
    """
    if len(document) > MOST_BYTES:
        raise ValueError(f"its {len(document)} bytes are over the limit of {MOST_BYTES}")
    found: list[Piece] = []
    depth = start = 0
    for mark in _MARKS.finditer(document):
        first = document[mark.start()]
        if first in b"[{":
            if depth == 0:
                start = mark.start() + 1
            depth += mark.end() - mark.start()
        elif first in b"]}":
            depth -= mark.end() - mark.start()
            if depth > 0:
                continue
            if depth < 0 or document[mark.end() :].strip():
                break
            last = Piece(start, mark.end() - 1)
            return [*found, last] if found or last.of(document).strip() else []
        elif first == ord(",") and depth == 1:
            found.append(Piece(start, mark.start()))
            start = mark.end()
        elif depth == 0 or mark[0] == b'"':
            break
    raise ValueError("its brackets and quotes don't fit")


def member(document: bytes, key: str) -> Piece | None:
    """Return where the value of an object's key is, None when it has no such key; raises as ``elements`` does."""
    wanted = b'"%b"' % key.encode()
    value = None
    for piece in elements(document):
        found = _KEY.match(document, piece.start, piece.end)
        if found is not None and found[1] == wanted:
            value = Piece(found.end(), piece.end)
    return value
