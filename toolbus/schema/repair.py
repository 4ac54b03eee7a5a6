"""Arguments as a model wrote them: JSON, or what can only have been meant as this JSON.

Nothing is guessed. What was cut off in the middle, or could mean two things, is refused, since a tool would act on it.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from toolbus.results import ToolError
from toolbus.schema import refusal

# A Python literal is parsed by a compiler that is not made for large or deep input.
_MOST_LITERAL = 20_000
_MOST_REPAIRED = 1_048_576
_MOST_NESTED = 60

_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError, MemoryError, SyntaxError, TypeError, OverflowError)
_FENCE = re.compile(r"```[A-Za-z0-9_-]*\s*\n?(.*?)\s*```\Z", re.DOTALL)
# A comma before a closing bracket, or a string, which is passed over whole.
_TRAILING_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(\s*[}\]])', re.DOTALL)


def parse(text: str | bytes) -> tuple[dict[str, Any], list[str]]:
    """The arguments in a text, and what had to be repaired. Nothing at all, and ``null``, are no arguments.

    :raises ToolError: ``invalid_arguments``: it is not an object, or can't be read without guessing.
    """
    try:
        value = msgspec.json.decode(text)
    except _UNREADABLE as error:
        return _repaired(text, error)
    if type(value) is dict:
        return value, []
    if value is None:
        return {}, []
    if isinstance(value, str):
        return _within(value)
    raise refusal.not_an_object(value)


def _within(text: str) -> tuple[dict[str, Any], list[str]]:
    """The arguments in a string that was encoded twice."""
    if not text.strip():
        return {}, []
    try:
        value = msgspec.json.decode(text)
    except _UNREADABLE:
        value = text
    if not isinstance(value, dict):
        raise refusal.not_an_object(text)
    return value, ["the object was JSON within a JSON string"]


def _repaired(text: str | bytes, error: Exception) -> tuple[dict[str, Any], list[str]]:
    try:
        written = (text if isinstance(text, str) else text.decode()).strip().removeprefix("\ufeff").strip()
    except UnicodeDecodeError:
        raise _unreadable(error) from None
    if not written:
        return {}, []
    if len(written) <= _MOST_REPAIRED:
        for repair, what in _attempts(written):
            try:
                value = msgspec.json.decode(msgspec.json.encode(repair()))
            except _UNREADABLE:
                continue
            if isinstance(value, dict):
                return value, [what]
    raise _unreadable(error)


def _attempts(text: str) -> Iterator[tuple[Callable[[], Any], str]]:
    fenced = _FENCE.match(text) if text.startswith("```") else None
    if fenced:
        text = fenced[1].strip()
        yield lambda: msgspec.json.decode(text), "a code fence was taken off"
    yield lambda: _lenient(text), "line breaks within strings were escaped"
    yield lambda: _first(text), "what stood after the object was left out"
    without = _TRAILING_COMMA.sub(lambda found: found[1] or found[2], text)
    yield lambda: _lenient(without), "commas before closing brackets were taken out"
    if len(text) <= _MOST_LITERAL and text.startswith("{") and text.endswith("}") and _nested(text) <= _MOST_NESTED:
        yield lambda: _literal(text), "a Python literal was read as JSON"


def _lenient(text: str) -> Any:
    """JSON with control characters in strings, and no numbers that JSON does not have."""
    return json.loads(text, strict=False, parse_constant=_no_number)


def _first(text: str) -> Any:
    """The object at the start, when what follows is the same again or no JSON; an empty one before it does not count."""
    decoder = json.JSONDecoder(strict=False, parse_constant=_no_number)
    value: Any = None
    position = 0
    while text.startswith("{", position):
        found, position = decoder.raw_decode(text, position)
        if value and found and found != value:
            raise ValueError("two objects, and no telling which was meant")
        value = value or found
        position += len(text[position:]) - len(text[position:].lstrip())
    rest = text[position:]
    if "{" in rest or "[" in rest:
        raise ValueError("more follows that may belong to it")
    if rest[:1] in {",", ":", '"'}:
        raise ValueError("the object was closed too early")
    return value


def _literal(text: str) -> Any:
    value = ast.literal_eval(text)
    _check_literal(value)
    return value


def _check_literal(value: object) -> None:
    """Refuse what a Python literal may be and JSON may not: sets, bytes, keys that are no strings."""
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                raise TypeError("a key that is no string")
            _check_literal(part)
    elif isinstance(value, list):
        for part in value:
            _check_literal(part)
    elif not (value is None or isinstance(value, (str, int, float))) or value in (float("inf"), -float("inf")):
        raise TypeError("a value that JSON does not have")


def _nested(text: str) -> int:
    depth = most = 0
    for character in text:
        if character in "{[(":
            depth += 1
            most = max(most, depth)
        elif character in "}])":
            depth -= 1
    return most


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def _unreadable(error: Exception) -> ToolError:
    what = refusal.shorten(str(error).replace("\n", " "), 200)
    return ToolError(f"The arguments are not valid JSON: {what}", type="invalid_arguments", code="bad_json")
