"""Arguments and config values as typed forms: one Struct gives the schema that models see and reads what they send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from toolbus import ToolError

Form = TypeVar("Form", bound=msgspec.Struct)


def parameters(form: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of a form whose fields are plain types."""
    schema: dict[str, Any] = msgspec.json.schema_components([form])[1][form.__name__]
    return {key: schema[key] for key in ("type", "properties", "required") if schema.get(key)}


def read_arguments(form: type[Form], arguments: Mapping[str, Any]) -> Form:
    """A call's arguments as a form; tools that an operator adds later may come without enforced types.

    Raises:
        ToolError: they do not fit; names the field.
    """
    try:
        return msgspec.convert(_given(arguments), form, strict=False)
    except msgspec.ValidationError as error:
        message = f"the arguments do not fit: {error}; correct them and call again"
        raise ToolError(message, type="invalid_arguments", code="bad_arguments") from None


def read_config(form: type[Form], config: Mapping[str, Any]) -> Form:
    """A tool's config values as a form.

    Raises:
        ToolError: they do not fit; names the field, for the operator who wrote the descriptor.
    """
    try:
        return msgspec.convert(_given(config), form, strict=False)
    except msgspec.ValidationError as error:
        message = f"this tool is configured wrongly: {error}; use another tool, and tell the operator"
        raise ToolError(message, code="bad_config") from None


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    # Models write null for "not given", and so do descriptors.
    return {name: value for name, value in values.items() if value is not None}
