"""Derive the JSON Schema of a Python function's arguments, and a binder that fills its parameters."""

from __future__ import annotations

import functools
import inspect
import math
import sys
import types
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin, get_type_hints

import docstring_parser
import msgspec

from toolbus.bus.schema import refusal
from toolbus.bus.schema.arguments import REF_TEMPLATE, Parameter, Preparer, Signature, Taken, TypedBinder, Validator
from toolbus.bus.schema.custom import Adapted, convert, describe, hoist, in_order, understood
from toolbus.bus.support.safe_text import described
from toolbus.bus.values.results import DescriptorError

# The types that the worker fills in itself.
Injected: TypeAlias = Container[type]

_Function: TypeAlias = Callable[..., Any]
_Bind: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any]]

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def read_signature(function: _Function, *, injected: Injected, skip_self: bool) -> Signature:
    """Read the signature of a function, method, partial or callable object.

    Raises:
        DescriptorError: Python can't show its signature, a parameter to be injected is positional-only, or one has an alias.
    """
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise DescriptorError(f"{name} shows no signature: wrap it in a function", path="$.parameters") from None
    target = _target(function)
    bound = list(inspect.signature(target.__func__).parameters)[:1] if inspect.ismethod(target) else []
    reserved = set(bound)
    if skip_self and found and found[0].kind in _POSITIONAL:
        reserved.add(found.pop(0).name)
    description, documented = _documentation(target)
    namespace = _namespace(target, injected)
    made = Signature(name, description, reserved)
    for each in found:
        try:
            annotation = _resolve(each.annotation, namespace, target)
        except Exception as error:  # noqa: BLE001 - evaluating an annotation runs the user's code; an unresolved annotation means Any
            annotation, made.unresolved[each.name] = Any, described(error)
        annotation, default = _with_default(annotation, each, name, made.filled)
        service = _service_type(annotation, injected)
        text = _described(annotation) or documented.get(each.name, "")
        parameter = Parameter(each.name, annotation, default, text, named=each.kind in _NAMED, positional=each.kind in _POSITIONAL)
        if each.kind is inspect.Parameter.VAR_POSITIONAL:
            made.star = each.name
        elif each.kind is inspect.Parameter.VAR_KEYWORD:
            made.rest = parameter
        elif service is None:
            made.parameters.append(parameter)
        elif parameter.named:
            made.injected[each.name] = service
            if each.default is not inspect.Parameter.empty:
                made.spared[each.name] = each.default
            elif allows_none(annotation):
                made.spared[each.name] = None
        else:
            raise DescriptorError(f"{name} takes the injected {each.name!r} by position only", path="$.parameters")
    made.reserved.update(made.injected)
    return made


def _target(function: _Function) -> _Function:
    """Return the innermost function, which carries the documentation and the globals."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if isinstance(function, type) or inspect.isroutine(function):
        return function
    instance: Any = function
    call: _Function = instance.__call__
    return call


def _namespace(target: _Function, injected: Injected) -> dict[str, Any]:
    """Return the names that string annotations may use; service types count even where they were imported for type checkers only."""
    namespace: dict[str, Any] = {}
    if isinstance(injected, Iterable):
        namespace.update((service.__name__, service) for service in injected)
    inner = getattr(target, "__func__", target)
    namespace.update(getattr(inner, "__globals__", {}))
    code = getattr(inner, "__code__", None)
    for name, cell in zip(code.co_freevars if code else (), getattr(inner, "__closure__", None) or (), strict=False):
        try:
            namespace[name] = cell.cell_contents
        except ValueError:  # the name is bound later
            continue
    return namespace


def _resolve(annotation: object, namespace: dict[str, Any], target: _Function) -> Any:
    if annotation is inspect.Parameter.empty:
        return Any
    holder = types.SimpleNamespace(__annotations__={"it": annotation}, __type_params__=getattr(target, "__type_params__", ()))
    return get_type_hints(holder, globalns=namespace, include_extras=True)["it"]


def _with_default(annotation: Any, of: inspect.Parameter, function: str, filled: dict[str, Callable[[], Any]]) -> tuple[Any, Any]:
    """Return a parameter's annotation and default, with what a Pydantic field says in the place of either; note what makes that default."""
    pydantic = sys.modules.get("pydantic.fields")
    if pydantic is None:
        return annotation, of.default
    default = of.default
    if isinstance(default, pydantic.FieldInfo):
        annotation, default = Annotated[annotation, default], inspect.Parameter.empty
    for field in get_args(annotation)[1:] if get_origin(annotation) is Annotated else ():
        if not isinstance(field, pydantic.FieldInfo):
            continue
        if field.alias or field.validation_alias:
            raise DescriptorError(f"{function} gives {of.name!r} an alias: name the parameter so", path="$.parameters")
        if default is inspect.Parameter.empty and not field.is_required():
            filled[of.name] = functools.partial(field.get_default, call_default_factory=True)
            default = filled[of.name]()
    return annotation, default


def _service_type(annotation: Any, injected: Injected) -> type | None:
    """Return the service type in ``X``, ``Optional[X]`` or ``Annotated[X, …]``, or None."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _service_type(get_args(annotation)[0], injected)
    if origin in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        return _service_type(members[0], injected) if len(members) == 1 else None
    candidate = origin or annotation
    return candidate if isinstance(candidate, type) and candidate in injected else None


def allows_none(annotation: Any) -> bool:
    """Return whether an annotation is a union with None."""
    if get_origin(annotation) is Annotated:
        return allows_none(get_args(annotation)[0])
    return type(None) in get_args(annotation)


def _described(annotation: Any) -> str:
    """Return the description in ``Annotated``: a plain string, or an object with one (``msgspec.Meta``, ``Doc``, …)."""
    if get_origin(annotation) is not Annotated:
        return ""
    for extra in get_args(annotation)[1:]:
        text = extra if isinstance(extra, str) else getattr(extra, "description", None) or getattr(extra, "documentation", None)
        if isinstance(text, str) and text:
            return text
    return ""


def _documentation(target: _Function) -> tuple[str, Mapping[str, str]]:
    owner = getattr(target, "__self__", None)
    # A callable object without a docstring on __call__ is described by its class; getdoc(__call__) would find object's text.
    undocumented = target.__name__ == "__call__" and not target.__doc__
    text = (inspect.getdoc(type(owner) if undocumented else target) or "").strip()
    try:
        parsed = docstring_parser.parse(text)
    except docstring_parser.ParseError:
        return text, {}
    described: dict[str, str] = {}
    for parameter in parsed.params:
        for name in parameter.arg_name.split(","):
            described[name.strip().lstrip("*")] = " ".join((parameter.description or "").split())
    parts = [part.strip() for part in (parsed.short_description, parsed.long_description) if part]
    # The first line may be the first half of a sentence.
    return ("\n\n" if parsed.blank_after_short_description else "\n").join(parts) or text, described


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
    bind: _Bind
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
        injected: the types of parameters that the worker fills in.
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
    schema = _schema(signature, taken)
    binder = TypedBinder(signature, taken, schema)
    unresolved = signature.unresolved | {each.parameter.name: each.problem for each in taken if each.problem}
    return Derived(signature.description, schema, signature.injected, _filling(binder.bind, signature), signature.spared, unresolved)


def _schema(signature: Signature, taken: Iterable[Taken]) -> dict[str, Any]:
    described, components = msgspec.json.schema_components([each.type for each in taken], schema_hook=describe, ref_template=REF_TEMPLATE)
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


def _usable(parameter: Parameter) -> Taken:
    """Return how a parameter's arguments are described and converted; a default of None allows null."""
    annotation = parameter.annotation
    if annotation is object:
        return Taken(parameter)
    if parameter.default is None and not allows_none(annotation):
        annotation = Union[annotation, None]  # noqa: UP007 - not every annotation has the operator
    type_, lost = understood(annotation)
    supported = describable(type_)
    if supported and not lost:
        return Taken(parameter, type_)
    try:
        return Taken(parameter, adapted=Adapted(annotation, parameter.name))
    except ValueError as error:
        return Taken(parameter, type_ if supported else Any, problem=str(error))


def _filling(bind: _Bind, signature: Signature) -> _Bind:
    """Return a binder that gives what was left out the defaults that Python would not: those within Pydantic's fields."""
    makers = signature.filled
    if not makers:
        return bind

    def fill(arguments: Mapping[str, Any], /) -> dict[str, Any]:
        bound = bind(arguments)
        return bound | {name: make() for name, make in makers.items() if name not in bound}

    return fill


def describable(type_: Any) -> bool:
    """Return whether an argument may have a type: JSON Schema can describe it, and a JSON value can be converted to it."""
    try:
        msgspec.json.schema_components([type_], schema_hook=describe, ref_template=REF_TEMPLATE)
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
    schema = dict(parameters)
    preparer = Preparer(schema, Validator(parameters, path="$.parameters"))
    if schema.get("type", "object") != "object":
        raise DescriptorError(f"the parameters of {signature.function} must be an object schema", path="$.parameters.type")
    properties = schema.get("properties", {})
    positional = [parameter for parameter in signature.parameters if parameter.positional]
    if len(positional) == 1 and positional[0].name not in properties:
        bind = _whole(signature, positional[0], preparer)
    else:
        bind = _checked(signature, properties, preparer)
    return Derived(signature.description, schema, signature.injected, _filling(bind, signature), signature.spared)


def _whole(signature: Signature, taker: Parameter, preparer: Preparer) -> _Bind:
    """Return what passes all arguments as one dict, once they match a schema that the author gave."""
    for parameter in signature.parameters:
        if parameter is not taker and parameter.required:
            raise _misfit(signature, f"takes all arguments in {taker.name!r}, so nothing is left for {parameter.name!r}")
    if not taker.named:
        raise _misfit(signature, f"takes {taker.name!r} by position only; tools are called with named arguments")
    return lambda arguments: {taker.name: dict(preparer.prepare(arguments))}


def _checked(signature: Signature, properties: Collection[str], preparer: Preparer) -> _Bind:
    """Return what passes arguments on, once they match a schema that the author gave."""
    known = frozenset(parameter.name for parameter in signature.parameters if parameter.named)
    for name in properties:
        if name in signature.reserved or not (name in known or signature.rest):
            where = f"$.parameters.properties.{name}"
            raise DescriptorError(f"{signature.function} takes no argument {name!r}", path=where)
    for parameter in signature.parameters:
        if parameter.required and not parameter.named:
            raise _misfit(signature, f"takes {parameter.name!r} by position only; tools are called with named arguments")
        if properties and parameter.required and parameter.name not in properties:
            raise _misfit(signature, f"needs {parameter.name!r}, which is not a property of its schema")
    required = frozenset(parameter.name for parameter in signature.parameters if parameter.required)
    rest, reserved = signature.rest is not None, signature.reserved

    def bind(arguments: Mapping[str, Any], /) -> dict[str, Any]:
        made = preparer.prepare(arguments)
        names = made.keys()
        if required <= names and (reserved.isdisjoint(names) if rest else names <= known):
            return dict(made)
        # The schema accepts more than the function does.
        unknown = [name for name in names if name in reserved or not (rest or name in known)]
        violations = [refusal.unexpected(unknown, sorted(known))] if unknown else []
        violations += [refusal.missing(name) for name in sorted(required - names)]
        raise refusal.of(violations)

    return bind


def _misfit(signature: Signature, what: str) -> DescriptorError:
    return DescriptorError(f"{signature.function} {what}", path="$.parameters")
