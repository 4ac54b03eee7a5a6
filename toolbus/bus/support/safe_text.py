"""Text of a user's exceptions and values. Their classes are the user's code, which may raise whatever it is asked for."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

T = TypeVar("T")

_TOOLBUS = f"{Path(__file__).parents[2]}{os.sep}"

# What type.__name__ gives, also when a metaclass defines another one.
_name_of: Any = vars(type)["__name__"].__get__


def type_name(value: object) -> str:
    """Return the name of a value's class. Never raises."""
    return str.__str__(_name_of(type(value)))


def is_a(value: object, kind: type[T]) -> TypeGuard[T]:
    """Return whether a value is of a class, without asking the value, as ``isinstance`` may. Never raises."""
    return issubclass(type(value), kind)


def text_of(value: object) -> str:
    """Return ``str(value)``, or that it can't be shown. Never raises."""
    try:
        return str.__str__(str(value))
    except BaseException:  # noqa: BLE001 - whatever the user's class raises
        return f"<{type_name(value)} that can't be shown>"


def reason_of(error: BaseException) -> str:
    """Return the text of an exception, or its class's name when it has none. Never raises."""
    try:
        return str.__str__(str(error)) or type_name(error)
    except BaseException:  # noqa: BLE001 - whatever the user's class raises
        return type_name(error)


def described(error: BaseException) -> str:
    """Return the class's name and the text of an exception. Never raises."""
    name, reason = type_name(error), reason_of(error)
    return name if reason == name else f"{name}: {reason}"


def placed(error: BaseException, module: str) -> str:
    """Return in one line what ``described`` does, and where a module's code led to it."""
    text = " ".join(described(error).split())
    if is_a(error, SyntaxError) and error.filename:
        return f"{text} - at {error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if Path(frame.filename).stem == module.rpartition(".")[2]]
    # What another module raises is told where this one, or else the last that is not of toolbus itself, has it.
    last = (own or [frame for frame in frames if not frame.filename.startswith(_TOOLBUS)])[-1:]
    return "".join(f"{text} - at {frame.filename}:{frame.lineno}" for frame in last) or text


def in_utf8(text: str) -> bool:
    """Return whether UTF-8 can express a text: it has no half of a surrogate pair."""
    try:
        str.encode(text)
    except UnicodeEncodeError:
        return False
    return True


def is_printable(error: BaseException) -> bool:
    """Return whether the interpreter can print an exception with its traceback. Never raises."""
    try:
        traceback.format_exception(error)
    except BaseException:  # noqa: BLE001 - whatever the user's class raises
        return False
    return True


def traceback_of(error: BaseException) -> str:
    """Return an exception with its traceback, as the interpreter prints it. Never raises."""
    try:
        return "".join(traceback.format_exception(error)).rstrip("\n")
    except BaseException:  # noqa: BLE001 - whatever the user's class raises
        frames = "".join(traceback.format_tb(error.__traceback__))
        return f"Traceback (most recent call last):\n{frames}{described(error)}"
