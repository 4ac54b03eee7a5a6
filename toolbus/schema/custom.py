"""Types that msgspec does not know and handlers take all the same: Pydantic models and paths."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

_MOST_SAID = 3


def describe(type_: type) -> dict[str, Any]:
    """The JSON Schema of a type of another library, with its own ``$defs``; msgspec's ``schema_hook``.

    Raises:
        NotImplementedError: nothing is known about it.
    """
    if _is_model(type_):
        # Its definitions get names that no other model's have.
        schema: dict[str, Any] = type_.model_json_schema(ref_template=f"#/$defs/{type_.__name__}.{{model}}")  # type: ignore[attr-defined]
        if "$defs" in schema:
            schema["$defs"] = {f"{type_.__name__}.{name}": each for name, each in schema["$defs"].items()}
        return schema
    if issubclass(type_, PurePath):
        return {"type": "string", "format": "path"}
    raise NotImplementedError


def convert(type_: type, value: Any) -> Any:
    """A value of JSON as that type; msgspec's ``dec_hook``.

    Raises:
        ValueError: it does not fit.
        NotImplementedError: nothing is known about the type.
    """
    if _is_model(type_):
        try:
            return type_.model_validate(value)  # type: ignore[attr-defined]
        except ValueError as error:
            raise ValueError(_told(error)) from None
    if issubclass(type_, PurePath):
        if not isinstance(value, str):
            raise ValueError(f"Expected `str`, got `{type(value).__name__}`")  # noqa: TRY004 - msgspec tells it with its path
        return type_(value)
    raise NotImplementedError


def hoist(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """A schema without the ``$defs`` that ``describe`` left in it; they go to ``definitions``."""
    for name, each in list(schema.items()):
        if name == "$defs" and isinstance(each, dict):
            definitions.update({key: hoist(value, definitions) for key, value in schema.pop(name).items()})
        elif isinstance(each, dict):
            schema[name] = hoist(each, definitions)
        elif isinstance(each, list):
            schema[name] = [hoist(one, definitions) if isinstance(one, dict) else one for one in each]
    return schema


def _is_model(type_: type) -> bool:
    """Whether it is a Pydantic model, known by what it can do, so that nothing need be imported."""
    return all(callable(getattr(type_, name, None)) for name in ("model_validate", "model_json_schema"))


def _told(error: ValueError) -> str:
    """Pydantic's errors in one line, each with its place."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    found = [f"{'.'.join(map(str, each['loc'])) or 'the value'}: {each['msg']}" for each in errors()]
    more = f"; and {len(found) - _MOST_SAID} more" if len(found) > _MOST_SAID else ""
    return "; ".join(found[:_MOST_SAID]) + more
