"""Check and cast the arguments of a tool, as its descriptor asks for them: the same at every caller and in the worker.

Importing this module loads the compiler of schemas, which takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import jsonschema_rs
from jsonschema_rs import ValidationError, ValidationErrorKind

from toolbus.bus.schema import refusal, work
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


class RequiredOnly:
    """Checks that some arguments are present, with any values: the two-tier form enforces no more."""

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = tuple(dict.fromkeys(names))

    def check(self, arguments: Mapping[str, Any], /) -> None:
        """Check the arguments.

        Raises:
            ToolError: ``invalid_arguments``; the message names those that are missing.
        """
        if not isinstance(arguments, Mapping):
            raise refusal.not_an_object(arguments)
        for name in self._names:
            if name not in arguments:
                raise refusal.of([refusal.missing(name) for name in self._names if name not in arguments])


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
            self._work = work.work_of(self._schema)
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
        if self._levels is not None and work.deeper_than(arguments, self._levels):
            raise refusal.of([refusal.violation(f"Expected at most {self._levels} nested levels")])
        try:
            if self._compiled.is_valid(arguments):
                return
            violations = self._violations(arguments)
        except ValueError as error:
            # Keys that are no strings, lone surrogates, values that are not JSON.
            violations = [refusal.violation(f"Expected JSON values: {error}", work.foreign_part(arguments))]
        raise refusal.of(violations)

    def _violations(self, arguments: dict[str, Any]) -> list[str]:
        steps = self._work.steps(work.levels_of(arguments, _MOST_LEVELS_COUNTED))
        if steps > _MOST_DESCRIBED:
            return [refusal.violation("The arguments do not match the schema")]
        if not work.heavier_than(arguments, min(_MOST_WEIGHT, _MOST_VIOLATIONS // steps)):
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

    def __init__(self, schema: Mapping[str, Any] | None, checker: Validator | RequiredOnly, shape: Validator | None = None) -> None:
        self._schema = schema
        self._checker = checker
        self._shape = shape or checker
        self._integers = frozenset() if schema is None else work.integers_in(schema)

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
                if not work.holds_float(given):
                    return given
            elif not places or not work.holds_float([given[name] for name in places if name in given]):
                return given
        from toolbus.bus.schema.casting import cast  # noqa: PLC0415 - most arguments fit as they are

        made, casts = cast(given, self._schema or {})
        if changes is not None:
            changes += casts
        self._checker.check(made)
        return made


def preparer_for(tool: ToolDescriptor) -> Preparer:
    """Return what a tool's descriptor asks for: its schema, its required arguments, or nothing.

    Raises:
        DescriptorError: the tool's schema is invalid.
    """
    if tool.parameters is None and tool.arguments is None:
        return Preparer(None, RequiredOnly())
    if tool.parameters is not None:
        return Preparer(tool.parameters, Validator(tool.parameters, path="$.parameters"))
    required = RequiredOnly(argument.name for argument in tool.arguments or () if argument.required)
    # The types of the two-tier form are for the model and not enforced, but they tell what a text stands for.
    return Preparer(tool.schema, required, None if tool.schema is None else Validator(tool.schema))


def flaw(schema: dict[str, Any]) -> tuple[tuple[str | int, ...], str] | None:
    """Return where and why a schema is invalid, as far as the compiler says; None when it is valid."""
    try:
        _compiled(schema)
        work.work_of(schema)
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
    for path, reference in work.references(schema):
        if any(part and part in message for part in reference.split("#", 1)):
            return path
    return ()
