"""All that an author writes in a signature reaches the model, the check and the handler."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from tests.schema.signatures import NOTHING, SIGNATURES, Signature
from toolbus import ToolError
from toolbus.bus.schema.derivation import Derived, derive


def derived(signature: Signature) -> Derived:
    """Return the tool of a function with one parameter."""

    def f(it: Any) -> None: ...

    f.__annotations__["it"] = signature.type
    if signature.default is not NOTHING:
        f.__defaults__ = (signature.default,)
    return derive(f)


def followed(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with what it refers to."""
    name = schema.get("$ref", "").removeprefix("#/$defs/")
    return {**document["$defs"][name], **schema} if name else schema


def allows_null(schema: dict[str, Any]) -> bool:
    return "null" in schema.get("type", ()) or any(part.get("type") == "null" for part in schema.get("anyOf", ()))


EACH = pytest.mark.parametrize(
    "signature", SIGNATURES, ids=[f"{number}-{each.type}".partition(" at 0x")[0] for number, each in enumerate(SIGNATURES)]
)


@EACH
def test_a_signature_is_kept(signature: Signature) -> None:
    """The schema says what the author wrote, the right value is taken and converted, and the wrong one refused by schema and handler."""
    made = derived(signature)
    assert made.unresolved == {}
    schema = followed(made.parameters["properties"]["it"], made.parameters)
    for key, value in signature.says.items():
        if key == "null":
            assert allows_null(schema)
        elif key in {"anyOf", "oneOf"}:
            assert len(schema[key]) == value
        else:
            assert schema[key] == value
    jsonschema_rs.meta.validate(made.parameters)
    given = {} if signature.given is NOTHING else {"it": signature.given}
    if signature.made is not NOTHING:
        assert made.bind(given) == {"it": signature.made}
        assert type(made.bind(given)["it"]) is type(signature.made)
    if signature.refused is not NOTHING:
        with pytest.raises(ToolError) as refused:
            made.bind({"it": signature.refused})
        assert refused.value.error.type == "invalid_arguments"
