"""Values of numpy and pandas as plain ones. Neither is imported: whoever has such a value has imported it."""

from __future__ import annotations

import datetime
import math
import sys
from typing import Any

from toolbus.bus.support.safe_text import type_name

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
