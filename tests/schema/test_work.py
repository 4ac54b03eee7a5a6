"""Schemas whose references multiply: refused, or checked within bounds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from toolbus import ToolError
from toolbus.bus.schema.arguments import Validator
from toolbus.bus.schema.dialects import plain_object
from toolbus.bus.schema.mend import mended
from toolbus.bus.schema.work import EndlessError, unfolded, work_of
from toolbus.bus.values.results import DescriptorError

Schema = dict[str, Any]
LAYERS: dict[str, Callable[[Schema], Schema]] = {
    "allOf": lambda below: {"allOf": [below, below]},
    "anyOf": lambda below: {"anyOf": [below, below]},
    "oneOf": lambda below: {"oneOf": [below, below]},
    "if": lambda below: {"if": below, "then": below, "else": below},
    "not": lambda below: {"not": below, "allOf": [below]},
    "beside": lambda below: {**below, "anyOf": [below]},
    "dependentSchemas": lambda below: {"dependentSchemas": {"a": below, "b": below}},
    "properties": lambda below: {"properties": {"a": below, "b": below}},
    "names": lambda below: {"properties": {"a": below}, "patternProperties": {"a": below}},
    "additionalProperties": lambda below: {"additionalProperties": below, "anyOf": [{"additionalProperties": below}, True]},
    "propertyNames": lambda below: {"propertyNames": below, "additionalProperties": below},
    "items": lambda below: {"items": below, "contains": below},
    "within": lambda below: {"properties": {"a": {"allOf": [below, below]}}},
    "unevaluated": lambda below: {"allOf": [below], "unevaluatedProperties": False, "properties": {"a": True}},
}
STAIRS = [1, 4, 8, 12, 16, 18, 24, 40, 60]


def layered(layer: Callable[[Schema], Schema], stairs: int) -> Schema:
    definitions = {f"d{level}": layer({"$ref": f"#/$defs/d{level + 1}"}) for level in range(stairs)}
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": {**definitions, f"d{stairs}": {"type": "integer"}}}


def nested(levels: int) -> dict[str, Any]:
    value: Any = "no integer"
    for _ in range(levels):
        value = {"a": value, "c": value} if levels < 8 else {"a": value}
    return {"a": value}


def possible(schema: Schema) -> bool:
    with contextlib.suppress(DescriptorError):
        Validator(schema)
        return True
    return False


@pytest.mark.few(5)
@pytest.mark.parametrize("layer", LAYERS)
def test_no_schema_makes_checking_take_long(layer: str) -> None:
    """With definitions that multiply, a schema is refused at once, or any arguments are checked and described in bounded time."""
    started = time.process_time()
    for stairs in STAIRS:
        schema = layered(LAYERS[layer], stairs)
        if not possible(schema):
            assert stairs > 4, "what is small is possible"
            continue
        validator = Validator(schema)
        for arguments in (*map(nested, (0, 1, 2, 5, 15, 30, 70)), {"a": 3}, {"a": [[["x"]]] * 50}, {"a": dict.fromkeys("abcdefgh", "x")}):
            with contextlib.suppress(ToolError):
                validator.check(arguments)
    assert time.process_time() - started < 20


@pytest.mark.few(4)
@pytest.mark.parametrize("layer", LAYERS)
def test_nothing_else_made_of_a_schema_takes_long(layer: str) -> None:
    """Mending and gathering properties for providers are bounded, too."""
    started = time.process_time()
    for stairs in STAIRS:
        schema = layered(LAYERS[layer], stairs)
        with contextlib.suppress(DescriptorError):
            mended(schema)
        with contextlib.suppress(DescriptorError):
            plain_object({**schema, "allOf": [{"$ref": "#/$defs/d0"}]})
    assert time.process_time() - started < 20


def test_gathering_for_providers_is_bounded() -> None:
    """Eight layers of sixty-four references each are no object that a provider could be told of."""
    schema = layered(lambda below: {"anyOf": [below] * 64}, 7)
    schema["$defs"]["d7"] = {"properties": {"x": {}}}
    started = time.process_time()
    with pytest.raises(DescriptorError):
        plain_object({**schema, "anyOf": [{"$ref": "#/$defs/d0"}]})
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {"type": "null"}]}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"$id": "https://example.com/a", "allOf": [{"$ref": "https://example.com/a"}]},
        {"$dynamicAnchor": "n", "allOf": [{"$dynamicRef": "#n"}]},
        {"$anchor": "n", "oneOf": [{"$ref": "#n"}]},
        {"$defs": {str(each): {"allOf": [{"$ref": f"#/$defs/{other}"} for other in range(9) if other != each]} for each in range(9)}},
    ],
)
def test_a_schema_that_applies_itself_without_end_is_impossible(schema: Schema) -> None:
    """A schema that comes back to itself for the same value is refused; it would say nothing, or take for ever."""
    with pytest.raises(DescriptorError, match="without end"):
        Validator({**schema, "properties": {"x": {"$ref": "#/$defs/0"}}} if "0" in schema.get("$defs", {}) else schema)


def test_ordinary_references_cost_nothing() -> None:
    """Shared and recursive definitions, as libraries make them, are bounded only where they recurse."""
    address = {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}
    shared = {
        "type": "object",
        "properties": {f"p{index}": {"anyOf": [{"$ref": "#/$defs/Address"}, {"type": "null"}]} for index in range(30)},
        "$defs": {"Address": address},
    }
    assert work_of(shared).levels is None
    tree = {"properties": {"children": {"type": "array", "items": {"$ref": "#"}}, "parent": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}
    assert work_of(tree).levels == 64
    expression = {
        "$defs": {
            "e": {
                "anyOf": [
                    {"type": "number"},
                    {"type": "object", "properties": {"op": {"const": "and"}, "all": {"type": "array", "items": {"$ref": "#/$defs/e"}}}},
                    {"type": "object", "properties": {"op": {"const": "not"}, "what": {"$ref": "#/$defs/e"}}},
                    {
                        "type": "object",
                        "properties": {"op": {"const": "lt"}, "left": {"$ref": "#/$defs/e"}, "right": {"$ref": "#/$defs/e"}},
                    },
                ]
            }
        },
        "properties": {"where": {"$ref": "#/$defs/e"}},
    }
    assert work_of(expression).levels == 64


def test_the_size_with_references_replaced_is_known_without_replacing_them() -> None:
    """The size doubles with each layer, and what is recursive has none."""
    sizes = [unfolded(layered(LAYERS["properties"], stairs)) for stairs in (10, 11)]
    assert sizes[0] is not None
    assert sizes[1] is not None
    assert 1.9 < sizes[1] / sizes[0] < 2.1
    assert unfolded({"properties": {"a": {"$ref": "#"}}}) is None


@pytest.mark.usefixtures("slow")
def test_large_schemas_are_looked_at_in_bounded_time() -> None:
    """Documents with thousands of definitions, anchors or identifiers take no time that grows with their square."""
    many = 4_000
    documents: list[Schema] = [
        {"properties": {f"p{i}": {"$ref": f"#/$defs/d{i}"} for i in range(many)}, "$defs": {f"d{i}": {"items": {}} for i in range(many)}},
        {"properties": {f"p{i}": {"$ref": "#a"} for i in range(many)}, "$defs": {f"d{i}": {"$anchor": "a"} for i in range(many)}},
        {
            "properties": {f"p{i}": {"$ref": f"http://x/{i}"} for i in range(many)},
            "$defs": {f"d{i}": {"$id": f"http://x/{i}"} for i in range(many)},
        },
        {
            "$ref": "#/$defs/d0",
            "$defs": {f"d{i}": {"properties": {f"x{i}": {}}, "allOf": [{"$ref": f"#/$defs/d{i + 1}"}]} for i in range(many)}
            | {f"d{many}": {}},
        },
        {
            "$defs": {f"d{i}": {"properties": {f"n{j}": {"$ref": f"#/$defs/d{(i * 7 + j) % 300}"} for j in range(9)}} for i in range(300)},
            "properties": {"a": {"$ref": "#/$defs/d0"}},
        },
    ]
    for document in documents:
        started = time.process_time()
        with contextlib.suppress(EndlessError):
            work_of(document)
        assert time.process_time() - started < 10
