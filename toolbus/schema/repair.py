"""Parse arguments as a model wrote them: JSON, or text that can only mean one JSON value.

Nothing is guessed. Text that is cut off or could mean two things, as with a key that stands twice in an object, is refused with
advice, because a tool would act on the guess. Valid JSON is never changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from toolbus.results import ToolError
from toolbus.schema import refusal
from toolbus.schema.documents import RepeatedKeyError, check_keys
from toolbus.schema.scanner import REST, UnclearError, scan

_MOST_REPAIRED = 1_048_576
_FENCE = "```"
_INFO = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError, MemoryError, OverflowError)
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
