"""Checks of a tool's arguments, as its descriptor asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from toolbus.descriptors import ToolDescriptor
from toolbus.schema import refusal


class Checker(Protocol):
    """Checks whether a tool may be called with some arguments."""

    def check(self, arguments: Mapping[str, Any], /) -> None:
        """Check the arguments.

        Raises:
            ToolError: ``invalid_arguments``; the message names the place and what is expected there.
        """


class _RequiredOnly:
    """Checks that some arguments are present, with any values."""

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(dict.fromkeys(names))

    def check(self, arguments: Mapping[str, Any], /) -> None:
        if not isinstance(arguments, Mapping):
            raise refusal.not_an_object(arguments)
        for name in self._names:
            if name not in arguments:
                raise refusal.of([refusal.missing(name) for name in self._names if name not in arguments])


class _Anything:
    """Accepts all arguments."""

    __slots__ = ()

    def check(self, arguments: Mapping[str, Any], /) -> None:
        pass


def required_only(names: Iterable[str]) -> Checker:
    """Return a checker for the two-tier form, which only requires these arguments to be present."""
    return _RequiredOnly(names)


def check_for(tool: ToolDescriptor) -> Checker:
    """Return the checker that a tool's descriptor asks for: its schema, its required arguments, or none.

    Raises:
        DescriptorError: the tool's schema is invalid.
    """
    if tool.parameters is not None:
        # Its import takes milliseconds, and is done at the first check.
        from toolbus.schema.validate import Validator  # noqa: PLC0415

        return Validator(tool.parameters, path="$.parameters")
    if tool.arguments is not None:
        return _RequiredOnly(argument.name for argument in tool.arguments if argument.required)
    return _Anything()
