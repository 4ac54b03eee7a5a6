"""Checks and casts of a tool's arguments, as its descriptor asks for them: the same at every caller and in the worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from toolbus.descriptors import ToolDescriptor
from toolbus.results import ToolError
from toolbus.schema import bounds, refusal


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


class Preparer:
    """Casts arguments where a schema leaves no doubt, and checks them.

    Args:
        schema: tells what a value stands for; None to cast nothing.
        checker: refuses arguments that do not fit.
        shape: refuses those that are to be cast, where ``checker`` is more lenient than the schema.
    """

    __slots__ = ("_checker", "_integers", "_schema", "_shape")

    def __init__(self, schema: Mapping[str, Any] | None, checker: Checker, shape: Checker | None = None) -> None:
        self._schema = schema
        self._checker = checker
        self._shape = shape or checker
        self._integers = frozenset() if schema is None else bounds.integers_in(schema)

    def prepare(self, arguments: Mapping[str, Any], changes: list[str] | None = None, /) -> dict[str, Any]:
        """Return arguments that the tool takes; the ones given when they are.

        Args:
            arguments: left as they are.
            changes: what was cast is added, also when the arguments are refused all the same.

        Raises:
            ToolError: ``invalid_arguments``; the message names the place and what is expected there.
        """
        given = arguments if type(arguments) is dict else refusal.as_dict(arguments)
        try:
            self._shape.check(given)
        except ToolError:
            if self._schema is None:
                raise
        else:
            # To a validator 5.0 is an integer, and so is a float that stands for several integers.
            places = self._integers
            if not bounds.holds_float(given if places is None else [given[name] for name in places if name in given]):
                return given
        from toolbus.schema.casting import cast  # noqa: PLC0415 - most arguments fit as they are

        made, casts = cast(given, self._schema or {})
        if changes is not None:
            changes += casts
        self._checker.check(made)
        return made


def required_only(names: Iterable[str]) -> Checker:
    """Return a checker for the two-tier form, which only requires these arguments to be present."""
    return _RequiredOnly(names)


def preparer_for(tool: ToolDescriptor) -> Preparer:
    """Return what a tool's descriptor asks for: its schema, its required arguments, or nothing.

    Raises:
        DescriptorError: the tool's schema is invalid.
    """
    if tool.parameters is None and tool.arguments is None:
        return Preparer(None, _Anything())
    # Its import takes milliseconds, and is done at the first check.
    from toolbus.schema.validate import Validator  # noqa: PLC0415

    if tool.parameters is not None:
        return Preparer(tool.parameters, Validator(tool.parameters, path="$.parameters"))
    required = _RequiredOnly(argument.name for argument in tool.arguments or () if argument.required)
    # The types of the two-tier form are for the model and not enforced, but they tell what a text stands for.
    return Preparer(tool.schema, required, None if tool.schema is None else Validator(tool.schema))
