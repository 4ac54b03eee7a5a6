"""Tools that are objects, such as those of a toolkit graph: what they tell of themselves, and serving them as functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeGuard

import msgspec

from toolbus.results import ConfigurationError
from toolbus.safe_text import reason_of
from toolbus.worker.definition.function import tool

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

    @property
    def state(self) -> tuple[object, ...]:
        """What the function works with: objects of one class with equal values are one tool."""
        function = getattr(self.function, "__func__", self.function)
        held = getattr(self.function, "__self__", None)
        own = {key: value for key, value in getattr(held, "__dict__", {}).items() if not _is_identity(key, value)}
        return (function, type(held), own)


class Holder(Protocol):
    """An object that stands for tools."""

    def __toolbus_tools__(self) -> Iterable[ToolObject]:
        """Return the tools."""


def holds_tools(value: object) -> TypeGuard[Holder]:
    """Return whether an object stands for tools, without asking the object."""
    return METHOD in _names(type(value))


def is_tool_class(value: object) -> TypeGuard[type[Any]]:
    """Return whether the objects of a class stand for tools."""
    return isinstance(value, type) and METHOD in _names(value)


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
        if known.state != each.state:
            raise ConfigurationError(f"two different tools are named {each.name!r}, and names on a bus are unique: rename one of them")
    return [_registered(each) for each in by_name.values()]


def _registered(found: ToolObject) -> Callable[..., Any]:
    function = found.function
    if not callable(function):
        raise ConfigurationError(f"the function of the tool {found.name!r} is a {type(function).__name__}, which can't be called")
    # A partial belongs to no class, unlike a method, whose service would be its class.
    held: Callable[..., Any] = functools.partial(function)
    description = inspect.cleandoc(found.description) or None
    tool(found.name, description, found.parameters, replace=True)(held)
    return held


def _is_identity(key: str, value: object) -> bool:
    return key == "_id" or inspect.ismethod(value) or key == "_derived"


def _names(cls: type[Any]) -> set[str]:
    return {name for each in type.__getattribute__(cls, "__mro__") for name in vars(each) if name == METHOD}
