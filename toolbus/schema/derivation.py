"""Derive the JSON Schema of a Python function's arguments, and a binder that fills its parameters."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from toolbus.results import DescriptorError
from toolbus.schema.binding import CheckedBinder, TypedBinder, WholeBinder
from toolbus.schema.checking import Checker
from toolbus.schema.custom import convert, describe, hoist
from toolbus.schema.signature import Injected, Parameter, Signature, read_signature

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
        unresolved: why some parameters take anything: their annotations can't be evaluated. Empty where the schema was given.
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

    Without ``parameters`` the schema comes from annotations, defaults and docstring; a type that msgspec can't describe becomes
    "any" and is passed unchanged. With ``parameters`` that schema is enforced and values are not converted; a function with
    one positional parameter that is no property of the schema receives all arguments as a dict.

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
    annotations = {parameter.name: _usable(parameter) for parameter in signature.parameters}
    rest = None if signature.rest is None else _usable(signature.rest)
    schema = _schema(signature, annotations, rest)
    binder = TypedBinder(
        signature.function,
        annotations,
        [parameter.name for parameter in signature.parameters if parameter.required],
        rest=rest,
        reserved=signature.reserved,
        hints=_hints(schema),
    )
    return Derived(signature.description, schema, signature.injected, binder.bind, signature.spared, signature.unresolved)


def _schema(signature: Signature, annotations: Mapping[str, Any], rest: Any) -> dict[str, Any]:
    described, components = msgspec.json.schema_components([*annotations.values(), rest], schema_hook=describe, ref_template=_REF_TEMPLATE)
    definitions: dict[str, Any] = {}
    schemas = [hoist(schema, definitions) for schema in described]
    definitions |= {name: hoist(schema, definitions) for name, schema in components.items()}
    properties: dict[str, Any] = {}
    for parameter, schema in zip(signature.parameters, schemas, strict=False):
        if parameter.description:
            schema["description"] = parameter.description
        properties[parameter.name] = {**schema, **_default(parameter.default)}
    document: dict[str, Any] = {"type": "object", "properties": properties}
    if required := [parameter.name for parameter in signature.parameters if parameter.required]:
        document["required"] = required
    if rest is None:
        document["additionalProperties"] = False
    elif rest is not Any:
        document["additionalProperties"] = schemas[-1]
    if definitions:
        document["$defs"] = definitions
    return document


def _hints(schema: dict[str, Any]) -> dict[str, object]:
    """Return the schema of each argument, with one reference followed."""
    definitions = {_REF_TEMPLATE.format(name=name): definition for name, definition in schema.get("$defs", {}).items()}
    return {name: definitions.get(each.get("$ref"), each) for name, each in schema["properties"].items()}


def _usable(parameter: Parameter) -> Any:
    """Return the parameter's type if msgspec can describe and convert it, else Any; a default of None allows null."""
    if parameter.default is None and _supported(lambda: parameter.annotation | None):
        return parameter.annotation | None
    return parameter.annotation if _supported(lambda: parameter.annotation) else Any


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
    from toolbus.schema.validate import Validator  # noqa: PLC0415 - it loads the compiler of schemas, which few need

    validator = Validator(parameters, path="$.parameters")
    schema = dict(parameters)
    if schema.get("type", "object") != "object":
        raise DescriptorError(f"the parameters of {signature.function} must be an object schema", path="$.parameters.type")
    properties = schema.get("properties", {})
    positional = [parameter for parameter in signature.parameters if parameter.positional]
    if len(positional) == 1 and positional[0].name not in properties:
        bind = _whole(signature, positional[0], validator).bind
    else:
        bind = _checked(signature, properties, validator).bind
    return Derived(signature.description, schema, signature.injected, bind, signature.spared)


def _whole(signature: Signature, taker: Parameter, validator: Checker) -> WholeBinder:
    for parameter in signature.parameters:
        if parameter is not taker and parameter.required:
            raise _misfit(signature, f"takes all arguments in {taker.name!r}, so nothing is left for {parameter.name!r}")
    if not taker.named:
        raise _misfit(signature, f"takes {taker.name!r} by position only; tools are called with named arguments")
    return WholeBinder(validator, taker.name)


def _checked(signature: Signature, properties: Collection[str], validator: Checker) -> CheckedBinder:
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
    return CheckedBinder(validator, known, required, rest=signature.rest is not None, reserved=signature.reserved)


def _misfit(signature: Signature, what: str) -> DescriptorError:
    return DescriptorError(f"{signature.function} {what}", path="$.parameters")
