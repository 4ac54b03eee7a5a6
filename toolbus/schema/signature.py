"""Read the signature of a Python function: names, annotations, defaults and documentation of its parameters."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin, get_type_hints

import docstring_parser
import msgspec

from toolbus.results import DescriptorError
from toolbus.safe_text import described

# The types that the worker fills in itself.
Injected: TypeAlias = Container[type] | Callable[[type], bool]

_Function: TypeAlias = Callable[..., Any]

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


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


class Signature(msgspec.Struct, frozen=True):
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
    parameters: tuple[Parameter, ...]
    injected: dict[str, type]
    rest: Parameter | None
    star: str
    reserved: frozenset[str]
    spared: dict[str, Any] = {}
    unresolved: dict[str, str] = {}
    filled: dict[str, Callable[[], Any]] = {}


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
    reserved = _bound_names(target)
    if skip_self and found and found[0].kind in _POSITIONAL:
        reserved.add(found.pop(0).name)
    description, documented = _documentation(target)
    namespace = _namespace(target, injected)

    parameters: list[Parameter] = []
    services: dict[str, type] = {}
    spared: dict[str, Any] = {}
    unresolved: dict[str, str] = {}
    filled: dict[str, Callable[[], Any]] = {}
    rest: Parameter | None = None
    star = ""
    for each in found:
        try:
            annotation = _resolve(each.annotation, namespace, target)
        except Exception as error:  # noqa: BLE001 - evaluating an annotation runs the user's code; an unresolved annotation means Any
            annotation, unresolved[each.name] = Any, described(error)
        annotation, default = _with_default(annotation, each, name, filled)
        service = _service_type(annotation, injected)
        text = _described(annotation) or documented.get(each.name, "")
        parameter = Parameter(each.name, annotation, default, text, named=each.kind in _NAMED, positional=each.kind in _POSITIONAL)
        if each.kind is inspect.Parameter.VAR_POSITIONAL:
            star = each.name
        elif each.kind is inspect.Parameter.VAR_KEYWORD:
            rest = parameter
        elif service is None:
            parameters.append(parameter)
        elif parameter.named:
            services[each.name] = service
            if each.default is not inspect.Parameter.empty:
                spared[each.name] = each.default
            elif allows_none(annotation):
                spared[each.name] = None
        else:
            raise DescriptorError(f"{name} takes the injected {each.name!r} by position only", path="$.parameters")
    kept = frozenset(reserved | services.keys())
    return Signature(name, description, tuple(parameters), services, rest, star, kept, spared, unresolved, filled)


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


def _bound_names(target: _Function) -> set[str]:
    if not inspect.ismethod(target):
        return set()
    return set(list(inspect.signature(target.__func__).parameters)[:1])


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
    if not isinstance(candidate, type):
        return None
    wanted = candidate in injected if isinstance(injected, Container) else injected(candidate)
    return candidate if wanted else None


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
