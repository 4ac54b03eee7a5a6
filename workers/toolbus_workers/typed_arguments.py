"""Typed arguments and config values: one Struct gives the schema for models and reads what they send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from toolbus import ToolError

T = TypeVar("T", bound=msgspec.Struct)


def parameters(type_: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema of a Struct whose fields are plain types."""
    schema: dict[str, Any] = msgspec.json.schema_components([type_])[1][type_.__name__]
    return {key: schema[key] for key in ("type", "properties", "required") if schema.get(key)}


def read_arguments(type_: type[T], arguments: Mapping[str, Any]) -> T:
    """Convert a call's arguments to a Struct; types may not be enforced yet for tools that an operator added.

    Raises:
        ToolError: an argument does not fit; the message names the field.
    """
    try:
        return msgspec.convert(_given(arguments), type_, strict=False)
    except msgspec.ValidationError as error:
        message = f"the arguments do not fit: {error}; correct them and call again"
        raise ToolError(message, type="invalid_arguments", code="bad_arguments") from None


def read_config(type_: type[T], config: Mapping[str, Any]) -> T:
    """Convert a tool's config values to a Struct.

    Raises:
        ToolError: a value does not fit; the message names the field, for the operator who wrote the descriptor.
    """
    try:
        return msgspec.convert(_given(config), type_, strict=False)
    except msgspec.ValidationError as error:
        message = f"this tool is configured wrongly: {error}; use another tool, and tell the operator"
        raise ToolError(message, code="bad_config") from None


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    # Models write null for "not given", and so do descriptors.
    return {name: value for name, value in values.items() if value is not None}
