"""JSON texts with the slips of models, token by token: what can only have been meant one way is said as JSON.

Each character is looked at a bounded number of times, and no value is made here: words, numbers and structure stay for the
JSON decoder to judge, which refuses what other languages would read differently (``1_000``, ``0x10``, ``"a" "b"``, ``b'a'``).
"""

from __future__ import annotations

import re
from typing import NamedTuple

# Possessive: a string that does not end is given up at once, wherever a shorter match could have begun.
_TOKEN = re.compile(
    r"""
      "[^"\\]*+(?:\\.[^"\\]*+)*+"
    | '[^'\\]*+(?:\\.[^'\\]*+)*+'
    | [{}\[\],"']
    | \s++
    | [^{}\[\],"'\s]++
    """,
    re.DOTALL | re.VERBOSE,
)
_SPACE = re.compile(r"\s*+")
_ODD = re.compile(r"[\\\x00-\x1f]")
_RAW = re.compile(r"[\x00-\x1f]")
_QUOTES = re.compile(r'\\.|"', re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|U[0-9A-Fa-f]{8}|u[0-9A-Fa-f{]|.)", re.DOTALL)
_JSON_ESCAPE = re.compile(r'["\\/bfnrt]\Z|u[0-9A-Fa-f]{4}\Z')
# Escapes of JavaScript or Python: a quote, a character by its number, a line that goes on.
_OF_OTHERS = re.compile(r"['0\n\r]|x..|U.{8}|u[0-9A-Fa-f{]")
# In a text with single quotes, which is Python's, all of these mean something else than a backslash, or than in JSON.
_OF_PYTHON = re.compile(r"['/0-7NUuxav\n\r]")
_WORDS = {"True": "true", "False": "false", "None": "null"}
_CONTROL = {number: f"\\u{number:04x}" for number in range(32)}

LINE_BREAKS = "line breaks within strings were escaped"
BACKSLASHES = "backslashes within strings were doubled"
COMMAS = "commas before closing brackets were taken out"
PYTHON = "a Python literal was read as JSON"
REST = "what stood after the object was left out"

_MOST_OBJECTS = 16

_CUT_OFF = "it ends within the object; send the object whole"
_NO_END = "a string has no end; send the object whole, with the quotes within strings escaped"
_MORE = "more follows the object that may belong to it; send one object and nothing else, with the quotes within strings escaped"
_ESCAPES = r"it is unclear which of its backslashes are meant as such; write \\ for each of these, and \n for a line break in a string"


class UnclearError(ValueError):
    """A text that could mean several things; its message says what to write instead."""


class Scanned(NamedTuple):
    """The objects that a text starts with, as JSON, and what was changed."""

    objects: list[str]
    changes: list[str]


def scan(text: str) -> Scanned:
    """Return the objects that a text starts with, said as JSON as far as that is possible.

    Raises:
        UnclearError: it could mean several things, or ends within an object.
    """
    return _Scanner(text).scan()


class _Scanner:
    __slots__ = ("_changes", "_odd", "_python", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._changes: dict[str, None] = {}
        # Places of strings with backslashes or control characters: how these are meant depends on the whole text.
        self._odd: list[tuple[list[str], int]] = []
        self._python = False

    def scan(self) -> Scanned:
        """Scan all objects, then what is left."""
        objects: list[list[str]] = []
        position = 0
        while self._text.startswith("{", position):
            parts, position = self._object(position)
            objects.append(parts)
            if len(objects) > _MOST_OBJECTS:
                raise UnclearError(_MORE)
            space = _SPACE.match(self._text, position)
            position = position if space is None else space.end()
        self._check_rest(position)
        self._mend_strings()
        return Scanned(["".join(parts) for parts in objects], list(self._changes))

    def _object(self, start: int) -> tuple[list[str], int]:
        """The parts of the object that starts here, and where it ends."""
        parts: list[str] = []
        depth = 0
        # Where a comma waits for what follows it; one that follows no value is none to take out.
        comma, after_value = -1, False
        for token in _TOKEN.finditer(self._text, start):
            part = token[0]
            parts.append(part)
            first = part[0]
            if first.isspace():
                continue
            if first in "{[":
                depth += 1
            elif first in "}]":
                depth -= 1
                if comma >= 0:
                    parts[comma] = ""
                    self._changes[COMMAS] = None
            elif first in "\"'":
                self._string(parts, part)
            elif first != ",":
                self._word(parts, part)
            comma = len(parts) - 1 if first == "," and after_value else -1
            after_value = first not in "{[," and part[-1] != ":"
            if depth == 0:
                return parts, token.end()
        raise UnclearError(_CUT_OFF)

    def _string(self, parts: list[str], token: str) -> None:
        if len(token) == 1:
            raise UnclearError(_NO_END)
        if token[0] == "'":
            self._python = True
            self._changes[PYTHON] = None
        if _ODD.search(token):
            self._odd.append((parts, len(parts) - 1))
        elif token[0] == "'":
            parts[-1] = _in_double_quotes(token)

    def _word(self, parts: list[str], part: str) -> None:
        word = part.strip(":")
        if word in _WORDS:
            parts[-1] = part.replace(word, _WORDS[word])
            self._changes[PYTHON] = None

    def _check_rest(self, position: int) -> None:
        """Refuse what may belong to the object before it, such as the rest of a string whose quotes were not escaped."""
        rest = self._text[position:]
        if not rest:
            return
        quotes = "{[\"'" if self._python else '{["'
        if rest.lstrip("}] \t\r\n")[:1] in {",", ":"} or any(mark in rest for mark in quotes):
            raise UnclearError(_MORE)
        self._changes[REST] = None

    def _mend_strings(self) -> None:
        """Escape control characters and double lone backslashes, where no other escape casts doubt on what is one."""
        raw = lone = escaped = False
        unclear = _OF_PYTHON if self._python else _OF_OTHERS
        for parts, at in self._odd:
            token = parts[at]
            raw = raw or _RAW.search(token) is not None
            # The quotes that would end a string are escaped by those, too, who write other backslashes as they are.
            for escape in set(_ESCAPE.findall(token)) - {token[0]}:
                if _JSON_ESCAPE.match(escape) and not (self._python and escape == "/"):
                    escaped = True
                elif unclear.match(escape):
                    raise UnclearError(_ESCAPES)
                else:
                    lone = True
        if escaped and (raw or lone):
            raise UnclearError(_ESCAPES)
        if raw:
            self._changes[LINE_BREAKS] = None
        if lone:
            self._changes[BACKSLASHES] = None
        for parts, at in self._odd:
            parts[at] = _mended(parts[at], lone=lone)


def _mended(token: str, *, lone: bool) -> str:
    if token[0] == "'":
        token = _in_double_quotes(token)
    if lone:
        # There are no other escapes than those of quotes.
        token = token.replace("\\", "\\\\").replace('\\\\"', '\\"')
    return token.translate(_CONTROL) if _RAW.search(token) else token


def _in_double_quotes(token: str) -> str:
    """A string in single quotes as one in double quotes; its other escapes stay as they are."""
    body = token[1:-1]
    return f'"{_QUOTES.sub(_requoted, body)}"' if "\\" in body or '"' in body else f'"{body}"'


def _requoted(found: re.Match[str]) -> str:
    text = found[0]
    return "'" if text == "\\'" else '\\"' if text == '"' else text
