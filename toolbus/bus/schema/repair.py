"""Parse arguments as a model wrote them: JSON, or text that can only mean one JSON value.

Nothing is guessed. Text that is cut off or could mean two things, as with a key that stands twice in an object, is refused with
advice, because a tool would act on the guess. Valid JSON is never changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from toolbus.bus.schema import refusal
from toolbus.bus.schema.documents import RepeatedKeyError, check_keys
from toolbus.bus.values.results import ToolError

# Possessive quantifiers: an unterminated string fails at once instead of being tried from every shorter match.
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
# Escapes of JavaScript or Python: a quote, a character by its number, a continued line.
_OF_OTHERS = re.compile(r"['0\n\r]|x..|U.{8}|u[0-9A-Fa-f{]")
# In single-quoted text, which is Python's, each of these means something else than a backslash, or than in JSON.
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
    """A text with several possible meanings; the message says what to write instead."""


class Scanned(NamedTuple):
    """The objects at the start of a text, as JSON, and the list of changes."""

    objects: list[str]
    changes: list[str]


def scan(text: str) -> Scanned:
    """Return the objects at the start of a text, rewritten as JSON.

    Raises:
        UnclearError: the text has several possible meanings, or ends within an object.
    """
    return _Scanner(text).scan()


class _Scanner:
    __slots__ = ("_changes", "_odd", "_python", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._changes: dict[str, None] = {}
        # Places of strings with backslashes or control characters, whose meaning depends on the whole text.
        self._odd: list[tuple[list[str], int]] = []
        self._python = False

    def scan(self) -> Scanned:
        """Scan all objects, then the rest of the text."""
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
        """Return the parts of the object that starts here, and the position of its end."""
        parts: list[str] = []
        depth = 0
        # Index of a comma until a value follows it; a comma without a value before it is not removed.
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
        """Refuse text that may belong to the object before it, such as the rest of a string with unescaped quotes."""
        rest = self._text[position:]
        if not rest:
            return
        quotes = "{[\"'" if self._python else '{["'
        if rest.lstrip("}] \t\r\n")[:1] in {",", ":"} or any(mark in rest for mark in quotes):
            raise UnclearError(_MORE)
        self._changes[REST] = None

    def _mend_strings(self) -> None:
        """Escape control characters and double lone backslashes, unless another escape makes their meaning unclear."""
        raw = lone = escaped = False
        unclear = _OF_PYTHON if self._python else _OF_OTHERS
        for parts, at in self._odd:
            token = parts[at]
            raw = raw or _RAW.search(token) is not None
            # Models that leave other backslashes unescaped still escape the quotes that would end the string, so those prove nothing.
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
        # The only escapes here are those of quotes.
        token = token.replace("\\", "\\\\").replace('\\\\"', '\\"')
    return token.translate(_CONTROL) if _RAW.search(token) else token


def _in_double_quotes(token: str) -> str:
    """Return a single-quoted string in double quotes; its other escapes stay as they are."""
    body = token[1:-1]
    return f'"{_QUOTES.sub(_requoted, body)}"' if "\\" in body or '"' in body else f'"{body}"'


def _requoted(found: re.Match[str]) -> str:
    text = found[0]
    return "'" if text == "\\'" else '\\"' if text == '"' else text


_MOST_REPAIRED = 1_048_576
_FENCE = "```"
_INFO = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
_UNREADABLE = (ValueError, RecursionError, MemoryError, OverflowError)
_ADVICE = "send one JSON object, with texts and keys in double quotes"


def parse(text: str | bytes) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments in a text, and the list of repairs. Empty text and ``null`` mean no arguments.

    Raises:
        ToolError: ``invalid_arguments``: the text is not an object, or can't be read without guessing.
    """
    try:
        value = msgspec.json.decode(text)
    except _UNREADABLE as error:
        return _repaired(text, error)
    if type(value) is dict:
        _check_keys(text, value)
        return value, []
    if value is None:
        return {}, []
    if isinstance(value, str):
        return _within(value)
    raise refusal.not_an_object(value)


def _check_keys(text: str | bytes, value: dict[str, Any]) -> None:
    """Refuse an object in which a key stands twice, since readers of JSON differ in which of the values they take."""
    # As many colons as keys: each is there once, and there are no further objects.
    colons = text.count(":") if isinstance(text, str) else text.count(b":")
    if colons == len(value):
        return
    try:
        json.loads(text, object_pairs_hook=_checked_keys, parse_int=_no_value, parse_float=_no_value)
    except UnclearError as unclear:
        raise ToolError(f"The arguments are unclear: {unclear}", type="invalid_arguments", code="bad_json") from None
    except _UNREADABLE as error:
        raise _unreadable(error, _ADVICE) from None


def _within(text: str) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments in a string that was encoded twice."""
    if not text.strip():
        return {}, []
    try:
        value = decoded(text)
    except UnclearError as unclear:
        raise _unreadable(unclear, _ADVICE) from None
    except _UNREADABLE:
        value = text
    if not isinstance(value, dict):
        raise refusal.not_an_object(text)
    return value, ["the object was JSON within a JSON string"]


def _repaired(text: str | bytes, error: Exception) -> tuple[dict[str, Any], list[str]]:
    try:
        written = (text if isinstance(text, str) else text.decode()).strip().removeprefix("\ufeff").strip()
    except UnicodeDecodeError:
        raise _unreadable(error, _ADVICE) from None
    if not written:
        return {}, []
    if len(written) > _MOST_REPAIRED:
        raise _unreadable(error, _ADVICE)
    inner, changes = _without_fence(written)
    try:
        objects, mended = scan(inner)
        value = _the_one([decoded(each) for each in objects])
    except UnclearError as unclear:
        raise _unreadable(error, str(unclear)) from None
    except _UNREADABLE:
        raise _unreadable(error, _ADVICE) from None
    if len(objects) > 1 and REST not in mended:
        mended.append(REST)
    return value, changes + mended


def _without_fence(text: str) -> tuple[str, list[str]]:
    if not (text.startswith(_FENCE) and text.endswith(_FENCE) and len(text) >= 2 * len(_FENCE)):
        return text, []
    return text[len(_FENCE) : -len(_FENCE)].lstrip(_INFO).strip(), ["a code fence was taken off"]


def _no_value(_: str) -> None:
    return None


def decoded(text: str, check_number: Callable[[str], object] = _no_value) -> Any:
    """Return the value of a JSON text whose meaning has to be unambiguous.

    Args:
        text: one value.
        check_number: called with each number that is not whole, as it is written; it raises to refuse the number.

    Raises:
        UnclearError: an object contains a key twice.
    """
    value = msgspec.json.decode(text)
    # The decoder keeps the last of equal keys, but the first may be the one that was meant.
    json.loads(text, object_pairs_hook=_checked_keys, parse_int=_no_value, parse_float=check_number)
    return value


def _checked_keys(pairs: list[tuple[str, Any]]) -> None:
    try:
        check_keys(pairs)
    except RepeatedKeyError as repeated:
        shown = json.dumps(refusal.shorten(repeated.key, 60), ensure_ascii=False)
        raise UnclearError(f"the key {shown} stands twice in one object; write each key once") from None


def _the_one(objects: list[Any]) -> dict[str, Any]:
    """Return the object that was meant: all objects are equal, or those before it are empty.

    Raises:
        UnclearError: there is none, or more than one.
    """
    if not objects:
        raise UnclearError(_ADVICE)
    meant: dict[str, Any] = next(filter(None, objects), objects[-1])
    # Compared as JSON, because Python takes 1, 1.0 and True for equal.
    encoded = msgspec.json.encode(meant)
    started = False
    for each in objects:
        started = started or bool(each)
        if started and msgspec.json.encode(each) != encoded:
            raise UnclearError("there are several objects, and it is unclear which was meant; send one")
    return meant


def _unreadable(error: Exception, advice: str) -> ToolError:
    what = refusal.shorten(str(error).replace("\n", " "), 200)
    return ToolError(f"The arguments are not valid JSON: {what}; {advice}", type="invalid_arguments", code="bad_json")
