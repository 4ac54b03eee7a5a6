"""Support types and constraints that msgspec does not know: Pydantic's, annotated-types', and paths.

Pydantic is imported only for an annotation that msgspec can't describe or convert whole, and only where it is installed.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator
from enum import EnumType
from pathlib import PurePath
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

from toolbus.bus.schema.refusal import type_word
from toolbus.bus.schema.work import objects_in
from toolbus.bus.support.safe_text import described, type_name
from toolbus.bus.values.encoding import encode_json

_MOST_ERRORS = 3
_BOUNDS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")
_PROSE = ("title", "description", "examples")
_PACKAGES = frozenset({"annotated_types", "pydantic", "pydantic_core"})
# What Pydantic reads in a field beside its bounds and prose.
_FIELD = ("discriminator", "strict")


def describe(type_: type) -> dict[str, Any]:
    """Return the JSON Schema of another library's type, with its own ``$defs``; used as msgspec's ``schema_hook``.

    Raises:
        NotImplementedError: the type is unknown.
    """
    if _is_model(type_):
        return _own(type_.model_json_schema(ref_template=f"#/$defs/{type_.__name__}.{{model}}"), type_.__name__)  # type: ignore[attr-defined]
    if issubclass(type_, PurePath):
        return {"type": "string", "format": "path"}
    raise NotImplementedError


def convert(type_: type, value: Any) -> Any:
    """Convert a JSON value to that type; used as msgspec's ``dec_hook``.

    Raises:
        ValueError: the value does not fit.
        NotImplementedError: the type is unknown.
    """
    if _is_model(type_):
        try:
            return type_.model_validate(value)  # type: ignore[attr-defined]
        except ValueError as error:
            raise ValueError(_one_line(error)) from None
    if issubclass(type_, PurePath):
        if not isinstance(value, str):
            raise ValueError(f"Expected `str`, got `{type_name(value)}`")  # noqa: TRY004 - msgspec adds the path to a ValueError
        return type_(value)
    raise NotImplementedError


def hoist(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without the ``$defs`` that ``describe`` left in it; move them to ``definitions``."""
    for name, each in list(schema.items()):
        if name == "$defs" and isinstance(each, dict):
            definitions.update({key: hoist(value, definitions) for key, value in schema.pop(name).items()})
        elif isinstance(each, dict):
            schema[name] = hoist(each, definitions)
        elif isinstance(each, list):
            schema[name] = [hoist(one, definitions) if isinstance(one, dict) else one for one in each]
    return schema


# -- types that Pydantic describes and converts -----------------------------------------------------


class Adapted:
    """An annotation as Pydantic describes, validates and converts it.

    Raises:
        ValueError: Pydantic can't, or is not installed; the message says why.
    """

    __slots__ = ("_adapter", "schema")

    def __init__(self, annotation: Any, name: str) -> None:
        if importlib.util.find_spec("pydantic") is None:
            raise ValueError("msgspec can't describe it; Pydantic may, and is not installed")
        import pydantic  # noqa: PLC0415 - it takes 100 ms, and is no dependency

        def field(extra: Any) -> Any:
            """Replace msgspec's constraints with Pydantic's of the same names."""
            return pydantic.Field(**_said(extra)) if isinstance(extra, msgspec.Meta) else extra

        try:
            self._adapter: Any = pydantic.TypeAdapter(_rebuilt(annotation, field))
            with warnings.catch_warnings():
                # A default that JSON can't hold is left out, here as elsewhere.
                warnings.simplefilter("ignore")
                self.schema = _own(self._adapter.json_schema(ref_template=f"#/$defs/{name}.{{model}}"), name)
        except Exception as error:  # noqa: BLE001 - building a validator runs the code of the user's classes
            raise ValueError(described(error).partition("\n")[0]) from None

    def convert(self, value: Any) -> Any:
        """Convert a JSON value.

        Raises:
            ValueError: it does not fit.
        """
        try:
            # As JSON, in which a text may be a date and a list a set.
            return self._adapter.validate_json(encode_json(value))
        except (TypeError, ValueError) as error:
            raise ValueError(_one_line(error)) from None


def understood(annotation: Any) -> tuple[Any, bool]:
    """Return an annotation with other libraries' bounds as msgspec's, and whether some of what its author wrote is left out.

    Only Pydantic understands that: validators, discriminators, its dataclasses, and bounds of the fields of classes.
    """
    lost = [each for each in _types(annotation) if _is_pydantics(each)]
    try:
        made = _rebuilt(annotation, lambda extra: _understood(extra, lost))
    except (TypeError, ValueError):
        # Bounds that msgspec does not take, such as two lower ones.
        return annotation, True
    return made, bool(lost)


def in_order(schema: Any, annotations: Iterable[Any]) -> Any:
    """Give the enumerations within a schema their types, and the order in which their authors wrote them, in place."""
    authored: dict[frozenset[tuple[type, Any]], list[Any]] = {}
    for type_ in _types(*annotations):
        if isinstance(type_, EnumType):
            listed = [each.value for each in type_]  # type: ignore[var-annotated] # the values are whatever the author chose
        else:
            listed = list(get_args(type_)) if get_origin(type_) is Literal else []
        if listed:
            authored.setdefault(_key(listed), listed)
    for part in objects_in(schema):
        values = part.get("enum")
        if isinstance(part, dict) and isinstance(values, list) and values and "type" not in part:
            part["enum"] = authored.get(_key(values), values)
            kinds = list(dict.fromkeys(map(type_word, part["enum"])))
            part["type"] = kinds[0] if len(kinds) == 1 else kinds
    return schema


def _key(values: Iterable[Any]) -> frozenset[tuple[type, Any]]:
    return frozenset((type(each), each) for each in values)


def _own(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """Give the definitions of a schema names that no other type's have."""
    if "$defs" in schema:
        schema["$defs"] = {f"{name}.{each}": part for each, part in schema["$defs"].items()}
    return schema


def _types(*annotations: Any) -> Iterator[Any]:
    """Yield every type within annotations, and of the fields of classes their metadata, too."""
    left: list[tuple[Any, bool]] = [(each, False) for each in annotations]
    seen: dict[int, Any] = {}
    while left:
        annotation, is_field = left.pop()
        if id(annotation) in seen:
            continue
        # Kept, so that no other object has its id meanwhile.
        seen[id(annotation)] = annotation
        yield annotation
        origin, args = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            args = args if is_field else args[:1]
        left += [(each, is_field) for each in args if origin is not Literal]
        class_ = origin or annotation
        if isinstance(class_, type) and _has_fields(class_):
            try:
                left += [(each, True) for each in get_type_hints(class_, include_extras=True).values()]
            except Exception:  # noqa: BLE001, S112 - evaluating them is the user's code, and msgspec tells of it
                continue


def _has_fields(class_: type) -> bool:
    others = ("__struct_fields__", "__attrs_attrs__", "_fields")
    return dataclasses.is_dataclass(class_) or is_typeddict(class_) or any(hasattr(class_, name) for name in others)


def _rebuilt(annotation: Any, extra: Callable[[Any], Any]) -> Any:
    """Return an annotation whose ``Annotated`` parts have the metadata that ``extra`` makes of theirs."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return Annotated[_rebuilt(args[0], extra), *map(extra, args[1:])]
    if not args or origin is Literal:
        return annotation
    made = tuple(_rebuilt(arg, extra) for arg in args)
    if all(one is other for one, other in zip(made, args, strict=True)):
        return annotation
    return functools.reduce(operator.or_, made) if origin in (Union, UnionType) else origin[made]


def _understood(extra: Any, lost: list[Any]) -> Any:
    """Return what msgspec can express of another library's metadata, or else the metadata; add to ``lost`` what it can't."""
    if isinstance(extra, (str, msgspec.Meta)):
        return extra
    said: dict[str, Any] = {name: value for name in _PROSE if (value := getattr(extra, name, None)) and _is_pydantics(extra)}
    for piece in _pieces(extra):
        found = _said(piece)
        if not found and _is_pydantics(piece):
            lost.append(piece)
        said |= found
    return msgspec.Meta(**said) if said else extra


def _pieces(extra: Any) -> list[Any]:
    """Return the single constraints in metadata of annotated-types or Pydantic, and the metadata itself if it is more than these."""
    if not _is_pydantics(extra):
        return []
    parts = getattr(extra, "metadata", None)
    if isinstance(parts, list):
        more = any(getattr(extra, name, None) is not None for name in _FIELD) or callable(getattr(extra, "json_schema_extra", None))
        return [*(piece for part in parts for piece in _pieces(part)), *([extra] if more else [])]
    return list(extra) if isinstance(extra, Iterable) else [extra]


def _said(extra: Any) -> dict[str, Any]:
    """Return the bounds in one piece of metadata, and all of an msgspec.Meta."""
    names = (*_BOUNDS, *_PROSE) if isinstance(extra, msgspec.Meta) else _BOUNDS
    return {name: value for name in names if (value := getattr(extra, name, None)) is not None}


def _is_pydantics(thing: Any) -> bool:
    """Return whether Pydantic has a say in a type or in metadata; models excepted, which tell it themselves."""
    if isinstance(thing, type):
        return not _is_model(thing) and any(hasattr(thing, f"__{name}__") for name in ("get_pydantic_core_schema", "pydantic_validator"))
    return type(thing).__module__.partition(".")[0] in _PACKAGES or hasattr(thing, "__get_pydantic_core_schema__")


def _is_model(type_: type) -> bool:
    """Return whether a type is a Pydantic model, judged by its methods so that Pydantic need not be imported."""
    return all(callable(getattr(type_, name, None)) for name in ("model_validate", "model_json_schema"))


def _one_line(error: Exception) -> str:
    """Return Pydantic's errors in one line, each with its place."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    found = [f"{'.'.join(map(str, each['loc'])) or 'the value'}: {each['msg']}" for each in errors()]
    more = f"; and {len(found) - _MOST_ERRORS} more" if len(found) > _MOST_ERRORS else ""
    return "; ".join(found[:_MOST_ERRORS]) + more
