"""Support types that msgspec does not know but handlers use: Pydantic models and paths."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from toolbus.safe_text import type_name

_MOST_ERRORS = 3


def describe(type_: type) -> dict[str, Any]:
    """Return the JSON Schema of another library's type, with its own ``$defs``; used as msgspec's ``schema_hook``.

    Raises:
        NotImplementedError: the type is unknown.
    """
    if _is_model(type_):
        # Give its definitions names that no other model's definitions have.
        schema: dict[str, Any] = type_.model_json_schema(ref_template=f"#/$defs/{type_.__name__}.{{model}}")  # type: ignore[attr-defined]
        if "$defs" in schema:
            schema["$defs"] = {f"{type_.__name__}.{name}": each for name, each in schema["$defs"].items()}
        return schema
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


def _is_model(type_: type) -> bool:
    """Return whether a type is a Pydantic model, judged by its methods so that Pydantic need not be imported."""
    return all(callable(getattr(type_, name, None)) for name in ("model_validate", "model_json_schema"))


def _one_line(error: ValueError) -> str:
    """Return Pydantic's errors in one line, each with its place."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    found = [f"{'.'.join(map(str, each['loc'])) or 'the value'}: {each['msg']}" for each in errors()]
    more = f"; and {len(found) - _MOST_ERRORS} more" if len(found) > _MOST_ERRORS else ""
    return "; ".join(found[:_MOST_ERRORS]) + more
