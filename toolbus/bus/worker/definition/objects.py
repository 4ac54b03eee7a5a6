"""Tools that are objects, such as those of a toolkit graph: what they tell of themselves, and serving them as functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import msgspec

from toolbus.bus.support.safe_text import is_a, reason_of, type_name
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.worker.definition.function import defined_as, register

# Clients, locks and the like do not tell two tools apart.
_DATA = (str, int, float, bytes, type(None), list, tuple, dict, set, frozenset, Path, Enum)

METHOD = "__toolbus_tools__"
"""The name of the method by which an object names the tools that it stands for."""


class ToolObject(msgspec.Struct, frozen=True):
    """A tool that an object stands for.

    Attributes:
        name, description: for models; the function's docstring when the description is empty.
        parameters: JSON Schema of the arguments; None to derive it from the function.
        function: what runs.
        owner: the object itself.
    """

    name: str
    description: str
    parameters: Mapping[str, Any] | None
    function: Callable[..., Any]
    owner: object

    def is_like(self, other: ToolObject) -> bool:
        """Return whether both run the same: one function, or a method of objects of one class that hold equal data."""
        mine, others = _function_and_data(self.function), _function_and_data(other.function)
        try:
            return bool(mine == others)
        except Exception:  # noqa: BLE001 - comparing runs code of the user's values
            return False


class Holder(Protocol):
    """An object that stands for tools."""

    def __toolbus_tools__(self) -> Iterable[ToolObject]:
        """Return the tools."""


def holds_tools(value: object) -> TypeGuard[Holder]:
    """Return whether an object stands for tools, without asking the object."""
    return METHOD in _names(type(value))


def is_tool_class(value: object) -> TypeGuard[type[Any]]:
    """Return whether the objects of a class stand for tools."""
    return is_a(value, type) and METHOD in _names(value)


def made(cls: type[Any]) -> Iterable[ToolObject]:
    """Return the tools of a new object of a class.

    Raises:
        ConfigurationError: it can't be made without arguments.
    """
    try:
        return list(cls().__toolbus_tools__())
    except Exception as error:  # noqa: BLE001 - the user's class
        message = f"{cls.__qualname__} can't be made without arguments ({reason_of(error)}): make an object of it in the module"
        raise ConfigurationError(message) from None


def functions_of(found: Iterable[ToolObject]) -> list[Callable[..., Any]]:
    """Register tools of objects, so that a worker can serve them, and return their functions.

    Raises:
        ConfigurationError: two different ones have the same name, or one can't be a tool.
    """
    by_name: dict[str, ToolObject] = {}
    for each in found:
        known = by_name.setdefault(each.name, each)
        if known is not each and not known.is_like(each):
            raise ConfigurationError(f"two different tools are named {each.name!r}, and names on a bus are unique: rename one of them")
    return [_registered(each) for each in by_name.values()]


def _registered(found: ToolObject) -> Callable[..., Any]:
    function = found.function
    if not callable(function):
        raise ConfigurationError(f"the function of the tool {found.name!r} is a {type_name(function)}, which can't be called")
    # One function may be several tools.
    held: Callable[..., Any] = functools.partial(function)
    description = inspect.cleandoc(found.description) or None
    register(defined_as(held, name=found.name, description=description, parameters=found.parameters), replace=True)
    return held


def _function_and_data(function: Callable[..., Any]) -> tuple[object, ...]:
    held = getattr(function, "__self__", None)
    kept = getattr(held, "__dict__", {}).items()
    return (
        getattr(function, "__func__", function),
        type(held),
        {key: value for key, value in kept if key != "_id" and isinstance(value, _DATA)},
    )


def _names(cls: type[Any]) -> set[str]:
    return {name for each in type.__getattribute__(cls, "__mro__") for name in type.__getattribute__(each, "__dict__") if name == METHOD}
