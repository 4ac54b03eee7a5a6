"""Recognise simple schemas without compiling them: known keywords with values of the right types."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

_Type = Literal["string", "number", "integer", "boolean", "object", "array", "null"]
_Size = Annotated[int, msgspec.Meta(ge=0)]


class _Simple(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The keywords of a schema of types and bounds only; other keywords make a schema not simple."""

    type: _Type | Annotated[list[_Type], msgspec.Meta(min_length=1)] = "object"
    description: str = ""
    title: str = ""
    format: str = ""
    properties: dict[str, _Simple | bool] = {}
    required: list[str] = []
    additionalProperties: _Simple | bool = True  # noqa: N815 - keywords of JSON Schema, here and below
    items: _Simple | bool = True
    enum: list[Any] = []
    default: Any = None
    const: Any = None
    examples: list[Any] = []
    anyOf: Annotated[list[_Simple | bool], msgspec.Meta(min_length=1)] = []  # noqa: N815
    oneOf: Annotated[list[_Simple | bool], msgspec.Meta(min_length=1)] = []  # noqa: N815
    minimum: float = 0
    maximum: float = 0
    minLength: _Size = 0  # noqa: N815
    maxLength: _Size = 0  # noqa: N815
    minItems: _Size = 0  # noqa: N815
    maxItems: _Size = 0  # noqa: N815
    uniqueItems: bool = False  # noqa: N815

    def __post_init__(self) -> None:
        types = self.type if isinstance(self.type, list) else ()
        if len(set(self.required)) < len(self.required) or len(set(types)) < len(types):
            raise ValueError("a name stands twice")


def is_simple(schema: object) -> bool:
    """Return whether a schema is certainly valid; costs a tenth of compiling it."""
    try:
        msgspec.convert(schema, _Simple)
    except (msgspec.ValidationError, RecursionError):
        return False
    return True
