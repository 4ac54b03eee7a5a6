"""Check and cast the arguments of a tool, as its descriptor asks for them: the same at every caller and in the worker.

Importing this module loads the compiler of schemas, which takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol

import jsonschema_rs
from jsonschema_rs import ValidationError, ValidationErrorKind

from toolbus.bus.schema import documents as bounds
from toolbus.bus.schema import refusal
from toolbus.bus.schema.casting import fits, value_in
from toolbus.bus.schema.work import work_of
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.descriptors import ToolDescriptor
from toolbus.bus.values.results import DescriptorError, ToolError

# A pattern with look-around or back-references may backtrack; 100,000 steps take about 3 ms.
_PATTERNS = jsonschema_rs.FancyRegexOptions(backtrack_limit=100_000)
# Replaces the offending value in messages, because values can be large or private.
_MASK = "the value"
# All violations are built before the first can be read, each taking 40 µs and 5 KB.
_MOST_VIOLATIONS = 20_000
_MOST_WEIGHT = 1000
# Even a single violation includes those of all choices that did not fit.
_MOST_DESCRIBED = 2_000
_MOST_LEVELS_COUNTED = 64


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


class Validator:
    """Checks arguments against a JSON Schema; never fetches documents that the schema refers to.

    The schema is compiled at once (about 10 µs, some 400 µs with Unicode classes), because only that shows whether it is valid.

    Raises:
        DescriptorError: the schema is invalid; the error's ``path`` starts with ``path``.
    """

    __slots__ = ("_compiled", "_levels", "_schema", "_work")

    def __init__(self, schema: Mapping[str, Any], *, path: str = "$") -> None:
        if not isinstance(schema, Mapping):
            raise DescriptorError(f"a JSON Schema must be an object, not {type_name(schema)}", path=path)
        self._schema = dict(schema)
        try:
            self._compiled = _compiled(self._schema)
            self._work = work_of(self._schema)
        except ValidationError as error:
            where = refusal.place(error.instance_path or _broken_reference(self._schema, error.message))
            raise DescriptorError(f"impossible JSON Schema: {refusal.shorten(error.message, 300)}", path=path + where[1:]) from None
        except (ValueError, RecursionError) as error:
            raise DescriptorError(f"impossible JSON Schema: {refusal.shorten(str(error), 300)}", path=path) from None
        self._levels = self._work.levels

    def check(self, arguments: Mapping[str, Any], /) -> None:
        """Check the arguments.

        Raises:
            ToolError: ``invalid_arguments``; the message names up to five places, what is expected there, and a hint of the schema.
        """
        if type(arguments) is not dict:
            arguments = refusal.as_dict(arguments)
        if self._levels is not None and bounds.deeper_than(arguments, self._levels):
            raise refusal.of([refusal.violation(f"Expected at most {self._levels} nested levels")])
        try:
            if self._compiled.is_valid(arguments):
                return
            violations = self._violations(arguments)
        except ValueError as error:
            # Keys that are no strings, lone surrogates, values that are not JSON.
            violations = [refusal.violation(f"Expected JSON values: {error}", bounds.foreign_part(arguments))]
        raise refusal.of(violations)

    def _violations(self, arguments: dict[str, Any]) -> list[str]:
        steps = self._work.steps(bounds.levels_of(arguments, _MOST_LEVELS_COUNTED))
        if steps > _MOST_DESCRIBED:
            return [refusal.violation("The arguments do not match the schema")]
        if not bounds.heavier_than(arguments, min(_MOST_WEIGHT, _MOST_VIOLATIONS // steps)):
            errors = islice(self._compiled.iter_errors(arguments), refusal.MOST_VIOLATIONS + 1)
            return [self._describe(error, arguments) for error in errors]
        try:
            self._compiled.validate(arguments)
        except ValidationError as error:
            return [self._describe(error, arguments)]
        return [refusal.violation("The arguments do not match the schema")]

    def _describe(self, error: ValidationError, arguments: dict[str, Any]) -> str:
        path = error.instance_path
        schema = _look_up(self._schema, error.schema_path[:-1])
        known = _look_up(schema, ["properties"])
        match error.kind:
            case ValidationErrorKind.Required(name):
                return refusal.missing(name, path) + refusal.hint(_look_up(known, [name]))
            case ValidationErrorKind.AdditionalProperties(names) | ValidationErrorKind.UnevaluatedProperties(names):
                return refusal.unexpected(names, known if isinstance(known, dict) else (), path)
            case ValidationErrorKind.FalseSchema():
                return refusal.violation("Expected nothing here", path)
            case ValidationErrorKind.Type(types):
                wanted = " | ".join(types)
                what = f"Expected `{wanted}`, got `{refusal.type_word(_look_up(arguments, path))}`"
                return refusal.violation(what, path) + refusal.hint(schema)
        # The whole schema of the arguments would be too long for a hint.
        return refusal.violation(error.message[:1].upper() + error.message[1:], path) + (refusal.hint(schema) if path else "")


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
            if places is None:
                if not bounds.holds_float(given):
                    return given
            elif not places or not bounds.holds_float([given[name] for name in places if name in given]):
                return given
        from toolbus.bus.schema.casting import cast  # noqa: PLC0415 - most arguments fit as they are

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
    if tool.parameters is not None:
        return Preparer(tool.parameters, Validator(tool.parameters, path="$.parameters"))
    required = _RequiredOnly(argument.name for argument in tool.arguments or () if argument.required)
    # The types of the two-tier form are for the model and not enforced, but they tell what a text stands for.
    return Preparer(tool.schema, required, None if tool.schema is None else Validator(tool.schema))


def flaw(schema: dict[str, Any]) -> tuple[tuple[str | int, ...], str] | None:
    """Return where and why a schema is invalid, as far as the compiler says; None when it is valid."""
    try:
        _compiled(schema)
        work_of(schema)
    except ValidationError as error:
        return tuple(error.instance_path) or _broken_reference(schema, error.message), refusal.shorten(error.message, 100)
    except (ValueError, RecursionError) as error:
        return (), refusal.shorten(str(error), 100)
    return None


def _compiled(schema: dict[str, Any]) -> Any:
    return jsonschema_rs.validator_for(schema, offline=True, pattern_options=_PATTERNS, mask=_MASK)


def _look_up(value: Any, path: Iterable[str | int]) -> Any:
    """Return the value at a path, or None: schemas with ids of their own report paths that start elsewhere."""
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _broken_reference(schema: Mapping[str, Any], message: str) -> tuple[str | int, ...]:
    """Return the path of the reference that a message mentions; the compiler does not report it."""
    for path, reference in bounds.references(schema):
        if any(part and part in message for part in reference.split("#", 1)):
            return path
    return ()


Note = Callable[[str, str], None]

_SUSPECT = frozenset({"enum", "default", "optional", "nullable"})
_TRUE = frozenset({"true", "yes"})
_FALSE = frozenset({"false", "no"})
_MOST_VALUES = 10_000
_UNREAD = object()


def may_contradict(schema: Mapping[str, Any]) -> bool:
    """Return whether any part of a schema has a keyword that may contradict another."""
    left: list[Any] = [schema]
    while left:
        part = left.pop()
        if isinstance(part, Mapping):
            if not _SUSPECT.isdisjoint(part):
                return True
            left += part.values()
        elif isinstance(part, (list, tuple)):
            left += part
    return False


def settle(made: dict[str, Any], path: str, note: Note) -> None:
    """Settle the contradictions of one schema in place, whose parts are settled already."""
    if made.get("nullable") in (True, False) and "type" in made:
        _nullable(made, path, note)
    values = made.get("enum")
    if isinstance(values, list) and 0 < len(values) <= _MOST_VALUES:
        _enumeration(made, values, path, note)
    if "default" in made:
        _default(made, path, note)


def flag(value: object) -> bool | None:
    """Return what ``true``, ``"yes"`` and the like say inside a property, or None for anything else."""
    if isinstance(value, bool):
        return value
    word = value.lower() if isinstance(value, str) else ""
    return True if word in _TRUE else False if word in _FALSE else None


def _kinds(made: Mapping[str, Any]) -> list[str]:
    kinds = made.get("type")
    return [kinds] if isinstance(kinds, str) else [kind for kind in kinds if isinstance(kind, str)] if isinstance(kinds, list) else []


def _set_kinds(made: dict[str, Any], kinds: list[str]) -> None:
    made["type"] = kinds[0] if len(kinds) == 1 else kinds


def _nullable(made: dict[str, Any], path: str, note: Note) -> None:
    """Write OpenAPI's ``nullable`` as a type."""
    kinds = _kinds(made)
    if made.pop("nullable") and "null" not in kinds:
        _set_kinds(made, [*kinds, "null"])
        if isinstance(made.get("enum"), list) and None not in made["enum"]:
            made["enum"] = [*made["enum"], None]
    note(path, "wrote 'nullable' as a type")


def _enumeration(made: dict[str, Any], values: list[Any], path: str, note: Note) -> None:
    kinds = _kinds(made)
    if not kinds or all(fits(value, kinds) for value in values):
        return
    if "array" in kinds and not any(isinstance(value, list) for value in values):
        _move_to_items(made, values, path, note)
        return
    read = list(_distinct(_as_one_of(kinds, value) for value in values))
    if all(fits(value, kinds) for value in read):
        made["enum"] = read
        note(path, f"made the values of 'enum' fit the type {made['type']!r}")
    elif "object" in kinds or kinds == ["boolean"]:
        # Their values are not told by other values: yes and no may be true and false, or the other way round.
        del made["enum"]
        note(path, f"left out 'enum', whose values are not of the type {made['type']!r}")
    else:
        used = [kind for kind in kinds if any(fits(value, [kind]) for value in read)]
        others = [_kind(value) for value in read if not fits(value, kinds)]
        made["enum"] = read
        _set_kinds(made, list(dict.fromkeys([*used, *others])))
        note(path, f"made the type that of the values of 'enum', {made['type']!r}")


def _move_to_items(made: dict[str, Any], values: list[Any], path: str, note: Note) -> None:
    """Make an array's enumeration of single values that of its items."""
    items = made.get("items", {})
    if not isinstance(items, dict):
        return
    del made["enum"]
    if "enum" not in items:
        made["items"] = {**items, "enum": values}
        settle(made["items"], f"{path}.items", note)
    note(path, "moved 'enum' to the items")


def _as_one_of(kinds: list[str], value: Any) -> Any:
    """Return the value of one of these types that is meant by a value of another, or the value itself."""
    if fits(value, kinds):
        return value
    if isinstance(value, str):
        read = value_in(value.strip(), tuple(kinds), _UNREAD)
        return value if read is _UNREAD else read
    if "string" in kinds and isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if "string" in kinds and isinstance(value, (int, float)) else value


def _default(made: dict[str, Any], path: str, note: Note) -> None:
    kinds, default = _kinds(made), made["default"]
    if not kinds or not isinstance(default, str):
        return
    values = made.get("enum")
    meant = _as_one_of(kinds, default)
    if isinstance(values, list) and meant is default and default not in values:
        near = [value for value in values if isinstance(value, str) and value.lower() == default.strip().lower()]
        meant = near[0] if len(near) == 1 else default
    if meant is not default:
        made["default"] = meant
        note(
            path,
            f"made the default {default[:40]!r} one of its values"
            if isinstance(meant, str)
            else f"made the default {default[:40]!r} fit the type",
        )


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, known in (("string", str), ("integer", int), ("number", float), ("array", list)):
        if isinstance(value, known):
            return kind
    return "object"


def _distinct(values: Iterator[Any]) -> Iterator[Any]:
    """Yield each value once; 1, 1.0 and true are three."""
    seen: set[str] = set()
    for value in values:
        key = f"{type_name(value)} {value!r}"
        if key not in seen:
            seen.add(key)
            yield value
