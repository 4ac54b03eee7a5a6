"""Text of a user's exceptions and values. Their classes are the user's code, which may raise whatever it is asked for."""

from __future__ import annotations

import traceback
from typing import Any, TypeGuard, TypeVar

T = TypeVar("T")

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
