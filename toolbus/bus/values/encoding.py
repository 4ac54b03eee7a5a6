"""Encode Python values as JSON: which kinds there are, and what each becomes."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import math
import operator
import os
import re
import sys
from collections import UserString, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, KeysView, Mapping, ValuesView
from collections.abc import Set as AbstractSet
from decimal import Decimal
from numbers import Rational
from types import SimpleNamespace
from typing import Any

import msgspec

from toolbus.bus.support.safe_text import is_a, reason_of, type_name

DECODE_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError)
"""Raised by msgspec's decoders for what can't be read: texts with bad UTF-8 and deep nesting have errors of their own."""

_MICROSECONDS = "timedelta64[us]"


def is_scientific(value: Any) -> bool:
    """Return whether a value is of numpy or pandas, and ``plain_of`` has something to do."""
    return _is_numpy(value) or ("pandas" in sys.modules and type(value).__module__.partition(".")[0] == "pandas")


def is_numbers(value: Any) -> bool:
    """Return whether a value is of numpy and holds nothing but numbers."""
    return _is_numpy(value) and value.dtype.kind in "biuf"


def is_table(value: Any) -> bool:
    """Return whether a value is a DataFrame or a Series of pandas."""
    return type_name(value) in {"DataFrame", "Series"} and type(value).__module__.partition(".")[0] == "pandas"


def plain_of(value: Any) -> Any:
    """Return what stands for a value of numpy or pandas: a number, text, None, list or dictionary, or parts that are to be asked again.

    Raises:
        TypeError: nothing does.
        ValueError: it is no time, or labels would be lost.
    """
    return _of_numpy(value) if _is_numpy(value) else _of_pandas(value)


def _is_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.generic, numpy.ndarray))


def _of_numpy(value: Any) -> Any:
    kind = value.dtype.kind
    if kind in "mM":
        return _times(value)
    if value.dtype.names:
        # Names tell more than places, so that a record becomes an object.
        names = value.dtype.names
        if value.ndim:
            return [dict(zip(names, row, strict=True)) if isinstance(row, tuple) else row for row in value.tolist()]
        return dict(zip(names, value.item(), strict=True))
    # A masked value has an item, which is made up.
    plain = value.tolist()
    if not value.ndim and type(plain).__module__ == "numpy":
        # Python has no type for it, such as a longdouble.
        plain = float(plain)
    return plain


def _times(value: Any) -> Any:
    if value.ndim:
        return [_times(each) for each in value]
    text = str(value)
    if text == "NaT":
        raise ValueError("NaT is not a time")
    if value.dtype.kind == "m":
        span = value.astype(_MICROSECONDS).item() if text.rpartition(" ")[2] not in {"years", "months", "units"} else None
        exact = isinstance(span, datetime.timedelta) and value == value.astype(_MICROSECONDS)
        return span if exact else text
    return text


def _of_pandas(value: Any) -> Any:
    name = type_name(value)
    if name == "NAType":
        return None
    if name == "NaTType":
        raise ValueError("NaT is not a time")
    if name == "DataFrame":
        table = value if _is_numbered(value.index) else value.reset_index()
        if not table.columns.is_unique:
            raise ValueError("two columns of a DataFrame have the same name")
        made = {name: _known(column) for name, column in table.items()}
        return [dict(zip(made, row, strict=True)) for row in zip(*made.values(), strict=True)]
    if name == "Series":
        if _is_numbered(value.index):
            return _known(value)
        if not value.index.is_unique:
            raise ValueError("two entries of a Series have the same label; return series.reset_index()")
        return dict(zip(value.index.tolist(), _known(value), strict=True))
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        span = value.to_pytimedelta()  # type: ignore[attr-defined]
        return value.isoformat() if value.nanoseconds else span  # type: ignore[attr-defined]
    if hasattr(value, "tolist"):
        return value.tolist()
    if name in {"Period", "Interval"}:
        return str(value)
    raise TypeError(f"a value of the type {type(value).__module__}.{type(value).__qualname__} can't be sent; return a list or a dictionary")


def _known(column: Any) -> list[Any]:
    """Return the values of a Series. Among texts, NaN only says that one is missing; among numbers it stays, and is refused."""
    values: list[Any] = column.tolist()
    if column.dtype.kind != "O":
        return values
    return [None if isinstance(each, float) and math.isnan(each) else each for each in values]


def _is_numbered(index: Any) -> bool:
    """Return whether an index says no more than the places in it."""
    return type_name(index) == "RangeIndex" and index.start == 0 and index.step == 1


MOST_LEVELS = 200
"""Most objects and lists within each other in a value; a reader's stack must hold them beside whatever calls it."""

NO_NUMBERS = (b"null", b"NaN", b'Infinity"')
"""Bytes that may stand for NaN or infinity in an encoded value: of a float, and of a Decimal."""

# Characters of a key that an error names.
_MOST_KEY = 40
_TOO_DEEP = f"more than {MOST_LEVELS} levels of objects and lists, or a value that contains itself"
_INFINITE = "not a finite number"
_MISSING = "; return table.astype(object).where(table.notna(), None), with None for what is missing"
_ADVICE = "use texts, numbers, lists, objects, dataclasses"
_UNFINISHED: tuple[tuple[type, str], ...] = (
    (Awaitable, "was an `await` left out?"),
    (AsyncIterator, "yield its items: `async for item in …: yield item`"),
    (Iterator, "yield its items, or return a list of them"),
)


def simpler(value: Any) -> Any:
    """Return what stands for a value whose type msgspec does not know; it asks for keys too.

    Raises:
        TypeError: nothing does.
        ValueError: nothing does, because of what it holds.
    """
    # These are known as values, so here they are keys.
    if value is None or value is True or value is False:
        return _KEYS[value]
    kind = type(value)
    if hasattr(kind, "__pydantic_serializer__"):
        return _of_model(value)
    if is_scientific(value):
        plain = plain_of(value)
        return _finite(plain) if isinstance(plain, float) else plain
    for known, convert in _CONVERSIONS:
        if isinstance(value, known):
            return convert(value)
    if kind.__module__ in _TEXTUAL:
        return str(value)
    number = _number(value)
    if number is not None:
        return number
    for unfinished, advice in _UNFINISHED:
        if isinstance(value, unfinished):
            raise TypeError(f"a value of the type {kind.__module__}.{kind.__qualname__} can't be sent; {advice}")
    raise TypeError(f"a value of the type {kind.__module__}.{kind.__qualname__} can't be sent; {_ADVICE}")


encode_json: Callable[[Any], bytes] = msgspec.json.Encoder(enc_hook=simpler).encode
"""Encode a value, NaN and infinity as null."""


def encode_data(value: Any) -> bytes:
    """Encode a value for another process.

    Raises:
        ValueError: JSON can't express it, or it is nested too deeply; the message names the place.
    """
    try:
        document = encode_json(value)
        # A msgspec.Raw in it need not be JSON.
        _skim(document)
        if len(document) > _MOST_SMALL:
            _check_depth(document)
        # Counting is quicker than a pattern, also in a long text.
        if not any(map(document.count, NO_NUMBERS)) or is_finite(value):
            return document
        problem = _INFINITE
    except Exception as error:  # noqa: BLE001 - a class of a user's may raise anything when it is asked for its value
        problem = _reason(error)
    raise ValueError(problem if problem == _TOO_DEEP else _located(value, problem))


def is_finite(value: Any) -> bool:
    """Return whether no number within a value that can be encoded is NaN or infinity."""
    return all(map(_is_finite, _leaves(value)))


def exact_text(text: str) -> str:
    """Return a text as a plain ``str``, whatever a subclass says that it is."""
    return text if type(text) is str else str.__str__(text)


def whole_text(text: str) -> str:
    """Return a text with its lone surrogates, which UTF-8 can't carry, replaced by U+FFFD."""
    text = exact_text(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


# -- what stands for what -------------------------------------------------------------------------


def _finite(number: float) -> float:
    plain = float.__float__(number)
    if not math.isfinite(plain):
        # The encoder would write null.
        raise ValueError(f"{plain} is {_INFINITE}")
    return plain


def _number(value: Any) -> int | float | None:
    """Return the number that a value of a numeric library becomes, or None when it becomes none.

    Raises:
        ValueError: it is NaN, infinite or complex.
        OverflowError: it is too large.
    """
    kind = type(value)
    if isinstance(value, Rational) and value.denominator == 1:
        return int(value.numerator)
    # Symbols of an unknown value have these methods too, and raise when they are asked.
    for name, become in (("__index__", operator.index), ("__float__", float)):
        with contextlib.suppress(TypeError):
            if hasattr(kind, name):
                return _finite(become(value)) if become is float else become(value)
    with contextlib.suppress(TypeError):
        if hasattr(kind, "__complex__") and complex(value).imag:
            raise ValueError(f"{value} is a complex number, which JSON does not know; send its parts or its text")
    return None


def _of_model(model: Any) -> Any:
    """Return a Pydantic model as its own serialisation makes it, with those bytes as they are that it takes for text and are none."""
    try:
        return model.model_dump(mode="json")
    except ValueError:
        places = {name: place for place, name in enumerate(type(model).model_fields)}
        held = [name for name in places if isinstance(getattr(model, name), bytes)]
        if not held:
            raise
    plain = model.model_dump(mode="json", exclude=set(held))
    for name in held:
        try:
            plain |= model.model_dump(mode="json", include={name})
        except ValueError:
            plain[name] = getattr(model, name)
    return dict(sorted(plain.items(), key=lambda field: places.get(field[0], len(places))))


def _of_key(key: Any) -> Any:
    raise TypeError(f"a key is a text or a number, not a {type_name(key)}")


# Modules whose values are told as text; they need not be imported for that.
_TEXTUAL = frozenset({"ipaddress", "zoneinfo"})
_KEYS = {None: "null", True: "true", False: "false"}
_CONVERSIONS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (str, exact_text),
    (UserString, str),
    (int, int.__int__),
    (float, _finite),
    ((bytes, bytearray), memoryview),
    (datetime.datetime, lambda when: datetime.datetime.combine(when.date(), when.timetz())),
    (datetime.date, lambda day: datetime.date(day.year, day.month, day.day)),
    (datetime.timedelta, lambda span: datetime.timedelta(span.days, span.seconds, span.microseconds)),
    (Decimal, Decimal),
    (SimpleNamespace, vars),
    (os.PathLike, lambda path: os.fsdecode(os.fspath(path))),
    # These are known as values, so here they are keys.
    ((tuple, list, dict, set, frozenset), _of_key),
    (Mapping, dict),
    ((AbstractSet, KeysView, ValuesView, deque, range), list),
)


# -- what no decoder could read -------------------------------------------------------------------

_skim = msgspec.json.Decoder(msgspec.Raw).decode
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*"')


# Two characters a level, at least.
_MOST_SMALL = 2 * MOST_LEVELS


def _check_depth(document: bytes) -> None:
    """Refuse a document that is nested too deeply.

    Raises:
        RecursionError: it is.
    """
    if _is_deep(document) and _is_deep(_TEXTS.sub(b"", document)):
        raise RecursionError


def _is_deep(document: bytes) -> bool:
    """Return whether more than ``MOST_LEVELS`` brackets are within each other, or not in pairs, as those in texts may be."""
    brackets = document.translate(None, _NO_BRACKETS)
    for _ in range(MOST_LEVELS):
        if not brackets:
            return False
        # The innermost ones go, by which those around them become the innermost.
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return bool(brackets)


# -- what can't be encoded, and where it is -------------------------------------------------------

_PLAIN = frozenset({str, int, float, bool, type(None)})


def _leaves(value: Any) -> Iterator[Any]:
    """Yield what is no container; only of a value that could be encoded, so that it ends."""
    left = [value]
    while left:
        part = left.pop()
        kind = type(part)
        if kind in _PLAIN:
            yield part
        elif kind is dict:
            left += part.values()
        elif kind is list:
            left += part
        elif (parts := _parts(part)) is None:
            yield part
        else:
            left += [each for _, each in parts]


def _is_finite(value: Any) -> bool:
    if isinstance(value, Decimal):
        return Decimal.is_finite(value)
    return type(value) is not float or math.isfinite(value)


def _parts(value: Any) -> list[tuple[str, Any]] | None:
    """Return what a value holds, each with its step in a path; None when it holds nothing."""
    if isinstance(value, Mapping):
        return [(_step(key), part) for key, part in value.items()]
    if isinstance(value, (list, tuple, AbstractSet, deque)):
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    names: Iterable[str] = ()
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
    elif dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    elif hasattr(value, "__attrs_attrs__"):
        names = [field.name for field in value.__attrs_attrs__]
    if names:
        return [(f".{name}", getattr(value, name, None)) for name in names]
    if type(value) in _PLAIN:
        return None
    try:
        return _parts(simpler(value))
    except Exception:  # noqa: BLE001 - as in encode_data
        return None


def _step(key: Any) -> str:
    if isinstance(key, str) and key.isidentifier() and key.isascii() and len(key) <= _MOST_KEY:
        return f".{exact_text(key)}"
    shown = ascii(exact_text(key)) if isinstance(key, str) else type_name(key)
    return f"[{shown[:_MOST_KEY]}]"


def _located(value: Any, problem: str) -> str:
    """Return what is wrong with the innermost part that can't be encoded, and where it is."""
    path, problem, table = "$", _problem(value) or problem, is_table(value)
    # A class of a user's may raise when it is asked for its parts: then the place is known so far.
    with contextlib.suppress(Exception):
        for _ in range(MOST_LEVELS):
            for step, part in _parts(value) or ():
                found = _problem(part)
                if found is not None:
                    path, value, problem = path + step, part, found
                    table = table or is_table(part)
                    break
            else:
                break
    remedy = _MISSING if table and problem.endswith(_INFINITE) else ""
    return f"{problem}{remedy} - at `{path}`"


def _problem(value: Any) -> str | None:
    """Return why a value can't be encoded, or None."""
    try:
        document = encode_json(value)
        _skim(document)
        _check_depth(document)
    except Exception as error:  # noqa: BLE001 - as in encode_data
        return _reason(error)
    if is_finite(value):
        return None
    return f"{value} is {_INFINITE}" if isinstance(value, (float, Decimal)) else _INFINITE


def _reason(error: Exception) -> str:
    if is_a(error, RecursionError):
        return _TOO_DEEP
    if is_a(error, UnicodeEncodeError):
        return "a text with half of a surrogate pair, which UTF-8 can't express"
    if is_a(error, msgspec.DecodeError):
        return f"a msgspec.Raw that is not JSON: {error}"
    return reason_of(error)
