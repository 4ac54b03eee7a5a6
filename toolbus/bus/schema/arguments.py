"""Check and cast the arguments of a tool, as its descriptor asks for them, and bind them to what its function takes.

They are checked in the same way at every caller and in the worker, which binds them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from toolbus.bus.schema import custom, refusal, work
from toolbus.bus.schema.casting import cast
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.descriptors import ToolDescriptor
from toolbus.bus.values.results import DescriptorError, ToolError

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError

# A pattern with look-around or back-references may backtrack; 100,000 steps take about 3 ms.
_BACKTRACK_LIMIT = 100_000
# Replaces the offending value in messages, because values can be large or private.
_MASK = "the value"
# All violations are built before the first can be read, each taking 40 µs and 5 KB.
_MOST_VIOLATIONS = 20_000
_MOST_WEIGHT = 1000
# Even a single violation includes those of all choices that did not fit.
_MOST_DESCRIBED = 2_000
_MOST_LEVELS_COUNTED = 64


class RequiredOnly(msgspec.Struct, frozen=True):
    """Checks that some arguments are present, with any values: the two-tier form enforces no more."""

    names: Collection[str] = ()

    def check(self, arguments: Mapping[str, Any], /) -> None:
        """Check the arguments.

        Raises:
            ToolError: ``invalid_arguments``; the message names those that are missing.
        """
        if not isinstance(arguments, Mapping):
            raise refusal.not_an_object(arguments)
        if lacking := [name for name in self.names if name not in arguments]:
            raise refusal.of([refusal.missing(name) for name in dict.fromkeys(lacking)])


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
        compiled = _compiled(self._schema)
        if isinstance(compiled, SchemaFlaw):
            where = refusal.place(compiled.path)
            raise DescriptorError(f"impossible JSON Schema: {refusal.shorten(compiled.reason, 300)}", path=path + where[1:])
        self._compiled, self._work = compiled
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
        from jsonschema_rs import ValidationError  # noqa: PLC0415 - it was loaded to compile the schema

        try:
            self._compiled.validate(arguments)
        except ValidationError as error:
            return [self._describe(error, arguments)]
        return [refusal.violation("The arguments do not match the schema")]

    def _describe(self, error: ValidationError, arguments: dict[str, Any]) -> str:
        from jsonschema_rs import ValidationErrorKind  # noqa: PLC0415 - it was loaded to compile the schema

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
    if tool.parameters is not None:
        return Preparer(tool.parameters, Validator(tool.parameters, path="$.parameters"))
    required = RequiredOnly([argument.name for argument in tool.arguments or () if argument.required])
    # The types of the two-tier form are for the model and not enforced, but they tell what a text stands for.
    return Preparer(tool.schema, required, None if tool.schema is None else Validator(tool.schema))


class SchemaFlaw(NamedTuple):
    """Hold what is wrong with a schema, as far as the compiler says: at which path, and why."""

    path: tuple[str | int, ...]
    reason: str


def flaw_of(schema: dict[str, Any]) -> SchemaFlaw | None:
    """Return what is wrong with a schema; None when it is valid."""
    compiled = _compiled(schema)
    return compiled if isinstance(compiled, SchemaFlaw) else None


def _compiled(schema: dict[str, Any]) -> tuple[Any, work.Work] | SchemaFlaw:
    """Return a schema's validator and what it costs to run it, or what is wrong with the schema."""
    import jsonschema_rs  # noqa: PLC0415 - it takes milliseconds, and a worker whose tools have annotations compiles no schema

    patterns = jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACK_LIMIT)
    try:
        return jsonschema_rs.validator_for(schema, offline=True, pattern_options=patterns, mask=_MASK), work.work_of(schema)
    except jsonschema_rs.ValidationError as error:
        return SchemaFlaw(tuple(error.instance_path) or _broken_reference(schema, error.message), error.message)
    except (ValueError, RecursionError) as error:
        return SchemaFlaw((), str(error))


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
    found = (path for path, reference in work.references(schema) if any(part and part in message for part in reference.split("#", 1)))
    return next(found, ())


# -- what a function takes -----------------------------------------------------------------------------

REF_TEMPLATE = "#/$defs/{name}"
# Raised when converting arguments of the wrong shape, lone surrogates, numbers out of range or endless nesting.
_WRONG = (msgspec.ValidationError, ValueError, OverflowError, RecursionError)
# The argument's name in the path at the end of a message.
_ARGUMENT = re.compile(r"`\$\.(\w+)[^`]*`\Z")


class Parameter(msgspec.Struct, frozen=True):
    """One parameter that takes an argument of the caller.

    Attributes:
        annotation: the resolved annotation; Any when there is none or it can't be resolved.
        default: the default; ``inspect.Parameter.empty`` when there is none.
        description: the text from ``Annotated``, else from the docstring.
        named: whether an argument can be passed by name.
        positional: whether an argument can be passed by position.
    """

    name: str
    annotation: Any
    default: Any
    description: str
    named: bool
    positional: bool

    @property
    def required(self) -> bool:
        """True if a call must give an argument for it."""
        return self.default is inspect.Parameter.empty


class Signature(msgspec.Struct):
    """The signature of a function as its callers see it.

    Attributes:
        parameters: those that take arguments, in order; without ``*args`` and ``**kwargs``.
        injected: parameters that the worker fills in, with their types.
        spared: values for injected parameters whose service no code provides: the default, or None where the annotation allows it.
        rest: ``**kwargs``, or None.
        star: the name of ``*args``, or empty.
        reserved: names that no argument may have, even with ``**kwargs``.
        unresolved: why the annotations of some parameters stand for anything: they can't be evaluated.
        filled: what makes the defaults that stand in Pydantic's fields, which Python would pass as the fields themselves.
    """

    function: str
    description: str
    reserved: set[str]
    parameters: list[Parameter] = []
    injected: dict[str, type] = {}
    rest: Parameter | None = None
    star: str = ""
    spared: dict[str, Any] = {}
    unresolved: dict[str, str] = {}
    filled: dict[str, Callable[[], Any]] = {}


class Taken(msgspec.Struct, frozen=True):
    """A parameter with what describes and converts its arguments: msgspec as ``type``, or Pydantic. ``problem`` is what neither can."""

    parameter: Parameter
    type: Any = Any
    adapted: custom.Adapted | None = None
    problem: str = ""


class TypedBinder:
    """Validates arguments by the annotations of a function and converts them. What does not fit is cast where its schema leaves no doubt.

    Arguments that were left out stay out, so that the function's own defaults apply.
    """

    def __init__(self, signature: Signature, taken: Sequence[Taken], schema: dict[str, Any]) -> None:
        types = {each.parameter.name: each.type for each in taken}
        self._rest = None if signature.rest is None else types.pop(signature.rest.name)
        self._reserved = signature.reserved
        self._required = [parameter.name for parameter in signature.parameters if parameter.required]
        self._schema = schema
        self._hints = _hints(schema)
        # Of arguments that msgspec can't convert; those of further arguments under an empty name.
        self._adapted = {
            "" if each.parameter is signature.rest else each.parameter.name: each.adapted.convert for each in taken if each.adapted
        }
        # Struct fields get names of their own, since a parameter may have the name of one of Struct's attributes.
        self._fields = {name: f"f{index}" for index, name in enumerate(types)}
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [
            (field, types[name]) if name in self._required else (field, types[name], msgspec.UNSET) for name, field in self._fields.items()
        ]
        self._struct = msgspec.defstruct(
            signature.function.rpartition(".")[2].strip("<>") or "arguments",
            fields,
            rename={field: name for name, field in self._fields.items()},
            kw_only=True,
            forbid_unknown_fields=self._rest is None,
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
        for name, adapt in self._adapted.items():
            if name in bound:
                try:
                    bound[name] = adapt(bound[name])
                except ValueError as error:
                    raise refusal.of([_located(error, refusal.place([name])) + refusal.hint(self._hints.get(name))]) from None
        return bound

    def _further(self, name: object, value: object) -> Any:
        if not isinstance(name, str):
            raise refusal.of([refusal.violation(f"Expected names that are strings, got `{refusal.type_word(name)}`")])
        if name in self._reserved:
            raise refusal.of([refusal.unexpected([name], self._fields)])
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
            violations.append(refusal.unexpected(map(str, unknown), self._fields))
        violations += [refusal.missing(name) for name in self._required if name not in arguments]
        if violations:
            return refusal.of(violations)
        located = _located(error, "$")
        argument = _ARGUMENT.search(located)
        return refusal.of([located + refusal.hint(self._hints.get(argument[1]) if argument else None)])


def _located(error: Exception, root: str) -> str:
    """Return msgspec's message with its path moved under ``root``."""
    what, _, where = str(error).rpartition(" - at `")
    if not what:
        return f"{refusal.shorten(where, 200)} - at `{root}`"
    return f"{refusal.shorten(what, 200)} - at `{where.replace('$', root, 1)}"


def _hints(schema: dict[str, Any]) -> dict[str, object]:
    """Return the schema of each argument, with one reference followed."""
    definitions = {REF_TEMPLATE.format(name=name): definition for name, definition in schema.get("$defs", {}).items()}
    return {name: definitions.get(each.get("$ref"), each) for name, each in schema["properties"].items()}
