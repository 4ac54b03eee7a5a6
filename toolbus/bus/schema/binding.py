"""Bind checked arguments to the keyword arguments of a handler."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from toolbus.bus.schema import custom, refusal
from toolbus.bus.schema.casting import cast
from toolbus.bus.values.results import ToolError

if TYPE_CHECKING:
    from toolbus.bus.schema.validate import Preparer

# Raised when converting arguments of the wrong shape, lone surrogates, numbers out of range or endless nesting.
_WRONG = (msgspec.ValidationError, ValueError, OverflowError, RecursionError)
# The argument's name in the path at the end of a message.
_ARGUMENT = re.compile(r"`\$\.(\w+)[^`]*`\Z")


class TypedBinder:
    """Validates arguments by the annotations of a function and converts them. What does not fit is cast where its schema leaves no doubt.

    Arguments that were left out stay out, so that the function's own defaults apply.
    """

    __slots__ = ("_adapted", "_fields", "_hints", "_known", "_required", "_reserved", "_rest", "_schema", "_struct")

    def __init__(
        self,
        function: str,
        types: Mapping[str, Any],
        required: Collection[str],
        *,
        rest: Any,
        reserved: Collection[str],
        schema: Mapping[str, Any],
        hints: Mapping[str, object],
        adapted: Mapping[str, Callable[[Any], Any]],
    ) -> None:
        """Make a binder.

        Args:
            function: its name.
            types: of its parameters.
            required: the parameters without a default.
            rest: the type of further arguments; None: there may be none.
            reserved: names that no further argument may have.
            schema: of the arguments.
            hints: schemas by name.
            adapted: what converts arguments that msgspec can't, by name; those of further arguments under an empty name.
        """
        # Struct fields get names of their own, since a parameter may have the name of one of Struct's attributes.
        self._fields = {name: f"f{index}" for index, name in enumerate(types)}
        self._known = types.keys()
        self._hints = hints
        self._schema = schema
        self._adapted = dict(adapted)
        self._required = tuple(required)
        self._rest = rest
        self._reserved = frozenset(reserved)
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [
            (field, types[name]) if name in required else (field, types[name], msgspec.UNSET) for name, field in self._fields.items()
        ]
        self._struct = msgspec.defstruct(
            function.rpartition(".")[2].strip("<>") or "arguments",
            fields,
            rename={field: name for name, field in self._fields.items()},
            kw_only=True,
            forbid_unknown_fields=rest is None,
        )

    def bind(self, arguments: Mapping[str, Any], /) -> dict[str, Any]:
        """Return the keyword arguments for the handler.

        Raises:
            ToolError: ``invalid_arguments``; the message names the place and what was expected there.
        """
        try:
            return self._bound(arguments)
        except ToolError:
            if not isinstance(arguments, Mapping):
                raise
            made, changes = cast(arguments, self._schema)
            if not changes:
                raise
        return self._bound(made)

    def _bound(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            values = msgspec.convert(arguments, self._struct, str_keys=True, dec_hook=custom.convert)
        except _WRONG as error:
            raise self._refusal(arguments, error) from None
        fields = self._fields
        if self._rest is None:
            bound = {name: getattr(values, fields[name]) for name in arguments}
        else:
            bound = {
                name: getattr(values, fields[name]) if name in fields else self._further(name, value) for name, value in arguments.items()
            }
        for name, convert in self._adapted.items():
            if name in bound:
                try:
                    bound[name] = convert(bound[name])
                except ValueError as error:
                    raise refusal.of([_located(error, refusal.place([name])) + refusal.hint(self._hints.get(name))]) from None
        return bound

    def _further(self, name: object, value: object) -> Any:
        if not isinstance(name, str):
            raise refusal.of([refusal.violation(f"Expected names that are strings, got `{refusal.type_word(name)}`")])
        if name in self._reserved:
            raise refusal.of([refusal.unexpected([name], self._known)])
        try:
            if "" in self._adapted:
                return self._adapted[""](value)
            return msgspec.convert(value, self._rest, str_keys=True, dec_hook=custom.convert)
        except _WRONG as error:
            raise refusal.of([_located(error, refusal.place([name]))]) from None

    def _refusal(self, arguments: object, error: Exception) -> ToolError:
        if not isinstance(arguments, Mapping):
            return refusal.not_an_object(arguments)
        violations: list[str] = []
        unknown = [name for name in arguments if name not in self._fields]
        if unknown and self._rest is None:
            violations.append(refusal.unexpected(map(str, unknown), self._known))
        violations += [refusal.missing(name) for name in self._required if name not in arguments]
        if violations:
            return refusal.of(violations)
        located = _located(error, "$")
        argument = _ARGUMENT.search(located)
        return refusal.of([located + refusal.hint(self._hints.get(argument[1]) if argument else None)])


class CheckedBinder:
    """Passes arguments on, once they match a schema that the author gave."""

    __slots__ = ("_known", "_open", "_preparer", "_required", "_reserved")

    def __init__(
        self, preparer: Preparer, known: Collection[str], required: Collection[str], *, rest: bool, reserved: Collection[str]
    ) -> None:
        """Make a binder; ``rest`` says whether the function takes further names, except those that are ``reserved``."""
        self._preparer = preparer
        self._known = frozenset(known)
        self._required = frozenset(required)
        self._open = rest
        self._reserved = frozenset(reserved)

    def bind(self, arguments: Mapping[str, Any], /) -> dict[str, Any]:
        """Return the keyword arguments for the handler.

        Raises:
            ToolError: ``invalid_arguments``; the message names the place and what is expected there.
        """
        made = self._preparer.prepare(arguments)
        names = made.keys()
        if self._required <= names and (self._reserved.isdisjoint(names) if self._open else names <= self._known):
            return dict(made)
        # The schema accepts more than the function does.
        unknown = [name for name in names if name in self._reserved or not (self._open or name in self._known)]
        violations = [refusal.unexpected(unknown, sorted(self._known))] if unknown else []
        violations += [refusal.missing(name) for name in sorted(self._required - names)]
        raise refusal.of(violations)


class WholeBinder:
    """Passes all arguments as one dict, once they match a schema that the author gave."""

    __slots__ = ("_name", "_preparer")

    def __init__(self, preparer: Preparer, name: str) -> None:
        self._preparer = preparer
        self._name = name

    def bind(self, arguments: Mapping[str, Any], /) -> dict[str, Any]:
        """Return the one keyword argument for the handler.

        Raises:
            ToolError: ``invalid_arguments``; the message names the place and what is expected there.
        """
        return {self._name: dict(self._preparer.prepare(arguments))}


def _located(error: Exception, root: str) -> str:
    """Return msgspec's message with its path moved under ``root``."""
    what, _, where = str(error).rpartition(" - at `")
    if not what:
        return f"{refusal.shorten(where, 200)} - at `{root}`"
    return f"{refusal.shorten(what, 200)} - at `{where.replace('$', root, 1)}"
