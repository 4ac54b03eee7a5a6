"""Derive the JSON Schema of a Python function's arguments, and a binder that fills its parameters."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Union

import msgspec

from toolbus.results import DescriptorError
from toolbus.schema.binding import CheckedBinder, TypedBinder, WholeBinder
from toolbus.schema.custom import Adapted, convert, describe, hoist, in_order, understood
from toolbus.schema.signature import Injected, Parameter, Signature, allows_none, read_signature

if TYPE_CHECKING:
    from toolbus.schema.validate import Preparer

_REF_TEMPLATE = "#/$defs/{name}"


class Derived(msgspec.Struct, frozen=True):
    """A function as a tool.

    Attributes:
        description: the docstring without its sections.
        parameters: JSON Schema of the arguments.
        injected: parameters that the worker fills in, with their service types.
        spared: values for those of them that can do without their service, when no code provides it.
        bind: turns arguments into keyword arguments; raises ``ToolError`` (``invalid_arguments``) with the place and what was
            expected there. Arguments that were left out stay out.
        unresolved: why some parameters take more than their annotations say: these can't be evaluated, or not be described whole.
            Empty where the schema was given.
    """

    description: str
    parameters: dict[str, Any]
    injected: dict[str, type]
    bind: Callable[[Mapping[str, Any]], dict[str, Any]]
    spared: dict[str, Any] = {}
    unresolved: dict[str, str] = {}


def derive(
    function: Callable[..., Any],
    *,
    parameters: Mapping[str, Any] | None = None,
    injected: Injected = (),
    skip_self: bool = False,
) -> Derived:
    """Derive a tool from a function, method, generator function, partial or callable object.

    Without ``parameters`` the schema comes from annotations, defaults and docstring. A type that msgspec can't describe is described
    and converted by Pydantic where that is installed; else it becomes "any" and is passed unchanged. With ``parameters`` that schema
    is enforced, and values are cast but not converted; a function with one positional parameter that is no property of the schema
    receives all arguments as a dict.

    Args:
        injected: the types of parameters that the worker fills in, or a predicate for them.
        skip_self: leave out the first parameter, for a function that will be a method.

    Raises:
        DescriptorError: the function can't be called with named arguments, or it does not fit ``parameters``.
    """
    signature = read_signature(function, injected=injected, skip_self=skip_self)
    if parameters is None:
        return _from_annotations(signature)
    return _from_schema(signature, parameters)


def _from_annotations(signature: Signature) -> Derived:
    if signature.star:
        raise _misfit(signature, f"takes '*{signature.star}'; tools are called with named arguments only")
    for parameter in signature.parameters:
        if not parameter.named:
            raise _misfit(signature, f"takes {parameter.name!r} by position only; tools are called with named arguments")
    taken = [_usable(parameter) for parameter in (*signature.parameters, *([signature.rest] if signature.rest else []))]
    types = {each.parameter.name: each.type for each in taken}
    rest = None if signature.rest is None else types.pop(signature.rest.name)
    schema = _schema(signature, taken)
    binder = TypedBinder(
        signature.function,
        types,
        [parameter.name for parameter in signature.parameters if parameter.required],
        rest=rest,
        reserved=signature.reserved,
        schema=schema,
        hints=_hints(schema),
        adapted={"" if each.parameter is signature.rest else each.parameter.name: each.adapted.convert for each in taken if each.adapted},
    )
    unresolved = signature.unresolved | {each.parameter.name: each.problem for each in taken if each.problem}
    return Derived(signature.description, schema, signature.injected, _filling(binder.bind, signature), signature.spared, unresolved)


def _schema(signature: Signature, taken: Iterable[_Taken]) -> dict[str, Any]:
    described, components = msgspec.json.schema_components([each.type for each in taken], schema_hook=describe, ref_template=_REF_TEMPLATE)
    definitions: dict[str, Any] = {}
    schemas = [
        hoist(schema if each.adapted is None else each.adapted.schema, definitions) for schema, each in zip(described, taken, strict=True)
    ]
    definitions |= {name: hoist(schema, definitions) for name, schema in components.items()}
    in_order([schemas, definitions], [each.parameter.annotation for each in taken])
    rest = None if signature.rest is None else schemas.pop()
    properties: dict[str, Any] = {}
    for parameter, schema in zip(signature.parameters, schemas, strict=True):
        if parameter.description:
            schema["description"] = parameter.description
        properties[parameter.name] = {**schema, **_default(parameter.default)}
    document: dict[str, Any] = {"type": "object", "properties": properties}
    if required := [parameter.name for parameter in signature.parameters if parameter.required]:
        document["required"] = required
    if rest is None:
        document["additionalProperties"] = False
    elif rest:
        document["additionalProperties"] = rest
    if definitions:
        document["$defs"] = definitions
    return document


def _hints(schema: dict[str, Any]) -> dict[str, object]:
    """Return the schema of each argument, with one reference followed."""
    definitions = {_REF_TEMPLATE.format(name=name): definition for name, definition in schema.get("$defs", {}).items()}
    return {name: definitions.get(each.get("$ref"), each) for name, each in schema["properties"].items()}


class _Taken(msgspec.Struct, frozen=True):
    """A parameter with what describes and converts its arguments: msgspec as ``type``, or Pydantic. ``problem`` is what neither can."""

    parameter: Parameter
    type: Any = Any
    adapted: Adapted | None = None
    problem: str = ""


def _usable(parameter: Parameter) -> _Taken:
    """Return how a parameter's arguments are described and converted; a default of None allows null."""
    annotation = parameter.annotation
    if annotation is object:
        return _Taken(parameter)
    if parameter.default is None and not allows_none(annotation):
        annotation = Union[annotation, None]  # noqa: UP007 - not every annotation has the operator
    type_, lost = understood(annotation)
    supported = _supported(lambda: type_)
    if supported and not lost:
        return _Taken(parameter, type_)
    try:
        return _Taken(parameter, adapted=Adapted(annotation, parameter.name))
    except ValueError as error:
        return _Taken(parameter, type_ if supported else Any, problem=str(error))


def _filling(bind: Callable[[Mapping[str, Any]], dict[str, Any]], signature: Signature) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return a binder that gives what was left out the defaults that Python would not: those within Pydantic's fields."""
    makers = signature.filled
    if not makers:
        return bind

    def fill(arguments: Mapping[str, Any], /) -> dict[str, Any]:
        bound = bind(arguments)
        return bound | {name: make() for name, make in makers.items() if name not in bound}

    return fill


def describable(type_: object) -> bool:
    """Return whether an argument may have a type: JSON Schema can describe it, and a JSON value can be converted to it."""
    return _supported(lambda: type_)


def _supported(annotation: Callable[[], Any]) -> bool:
    try:
        type_ = annotation()
        msgspec.json.schema_components([type_], schema_hook=describe, ref_template=_REF_TEMPLATE)
        # A decoder also refuses unions that have a schema but whose members can't be told apart.
        msgspec.json.Decoder(type_, dec_hook=convert)
    except Exception:  # noqa: BLE001 - looking into a class evaluates its annotations, which is the user's code
        return False
    return True


def _default(value: object) -> dict[str, Any]:
    if value is inspect.Parameter.empty or (isinstance(value, float) and not math.isfinite(value)):
        return {}
    try:
        return {"default": msgspec.json.decode(msgspec.json.encode(value, order="deterministic"))}
    except (TypeError, ValueError, OverflowError, RecursionError):
        return {}


def _from_schema(signature: Signature, parameters: Mapping[str, Any]) -> Derived:
    from toolbus.schema.validate import Preparer, Validator  # noqa: PLC0415 - it loads the compiler of schemas, which few need

    schema = dict(parameters)
    preparer = Preparer(schema, Validator(parameters, path="$.parameters"))
    if schema.get("type", "object") != "object":
        raise DescriptorError(f"the parameters of {signature.function} must be an object schema", path="$.parameters.type")
    properties = schema.get("properties", {})
    positional = [parameter for parameter in signature.parameters if parameter.positional]
    if len(positional) == 1 and positional[0].name not in properties:
        bind = _whole(signature, positional[0], preparer).bind
    else:
        bind = _checked(signature, properties, preparer).bind
    return Derived(signature.description, schema, signature.injected, _filling(bind, signature), signature.spared)


def _whole(signature: Signature, taker: Parameter, preparer: Preparer) -> WholeBinder:
    for parameter in signature.parameters:
        if parameter is not taker and parameter.required:
            raise _misfit(signature, f"takes all arguments in {taker.name!r}, so nothing is left for {parameter.name!r}")
    if not taker.named:
        raise _misfit(signature, f"takes {taker.name!r} by position only; tools are called with named arguments")
    return WholeBinder(preparer, taker.name)


def _checked(signature: Signature, properties: Collection[str], preparer: Preparer) -> CheckedBinder:
    known = {parameter.name for parameter in signature.parameters if parameter.named}
    for name in properties:
        if name in signature.reserved or not (name in known or signature.rest):
            where = f"$.parameters.properties.{name}"
            raise DescriptorError(f"{signature.function} takes no argument {name!r}", path=where)
    for parameter in signature.parameters:
        if parameter.required and not parameter.named:
            raise _misfit(signature, f"takes {parameter.name!r} by position only; tools are called with named arguments")
        if properties and parameter.required and parameter.name not in properties:
            raise _misfit(signature, f"needs {parameter.name!r}, which is not a property of its schema")
    required = [parameter.name for parameter in signature.parameters if parameter.required]
    return CheckedBinder(preparer, known, required, rest=signature.rest is not None, reserved=signature.reserved)


def _misfit(signature: Signature, what: str) -> DescriptorError:
    return DescriptorError(f"{signature.function} {what}", path="$.parameters")
