"""Schemas for models: strict mode, plain objects at the top, and schemas that are possible at a glance."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolbus import ConfigurationError
from toolbus.bus.schema.arguments import Validator
from toolbus.bus.schema.dialects import ANTHROPIC, check_possible, flat, is_simple, plain_object, strict

LEAVES = st.one_of(
    st.sampled_from(["string", "integer", "number", "boolean"]).map(lambda word: {"type": word}),
    st.just({"type": "string", "description": "words", "default": "x", "minLength": 1}),
    st.just({"enum": ["a", "b"]}),
    st.just({"type": ["integer", "null"], "minimum": 1}),
    st.just({}),
    st.just({"type": "object"}),
)


def objects(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects of some properties, with some required."""
    properties = st.dictionaries(st.sampled_from("abcd"), parts, max_size=3)
    return st.tuples(properties, st.lists(st.sampled_from("abcd"), unique=True, max_size=2), st.booleans()).map(
        lambda made: {
            "type": "object",
            "properties": made[0],
            "required": [name for name in made[1] if name in made[0]],
            **({"additionalProperties": False} if made[2] else {}),
        }
    )


SCHEMAS = objects(
    st.recursive(
        LEAVES,
        lambda parts: st.one_of(
            objects(parts),
            parts.map(lambda part: {"type": "array", "items": part}),
            st.lists(parts, min_size=1, max_size=2).map(lambda branches: {"anyOf": branches}),
        ),
        max_leaves=8,
    )
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "required", "items", "anyOf", "allOf", "oneOf", "$ref", "enum", "$defs", "additionalProperties", "a"]
            ),
            parts,
            max_size=4,
        )
    ),
    max_leaves=20,
)


def closed(node: Any) -> bool:
    """Return whether every object of a schema is closed and requires all of its properties."""
    if isinstance(node, list):
        return all(map(closed, node))
    if not isinstance(node, dict):
        return True
    if "properties" in node and not (node["additionalProperties"] is False and node["required"] == list(node["properties"])):
        return False
    return all(map(closed, node.values()))


def test_optionals_become_nullable() -> None:
    """In strict mode everything is required, and what was optional may be null; defaults and lengths are left out."""
    schema = {
        "type": "object",
        "properties": {
            "query": {"type": "string", "minLength": 1},
            "limit": {"type": "integer", "default": 5, "minimum": 1, "description": "how many"},
            "kind": {"enum": ["a", "b"]},
            "place": {"type": "object", "properties": {"city": {"type": "string"}}},
            "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        },
        "required": ["query"],
    }
    before = repr(schema)
    assert strict(schema) == {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": ["integer", "null"], "minimum": 1, "description": "how many"},
            "kind": {"type": ["string", "null"], "enum": ["a", "b", None]},
            "place": {
                "type": ["object", "null"],
                "properties": {"city": {"type": ["string", "null"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
            "either": {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
        },
        "required": ["query", "limit", "kind", "place", "either"],
        "additionalProperties": False,
    }
    assert repr(schema) == before
    assert "minimum" not in str(strict(schema, ANTHROPIC))


def test_definitions_are_written_too() -> None:
    """Referred parts are closed as well, and an optional reference becomes a choice with null."""
    schema = {
        "type": "object",
        "properties": {"node": {"$ref": "#/$defs/Node"}},
        "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}, "required": []}},
    }
    made = strict(schema)
    assert made is not None
    assert made["properties"]["node"] == {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}
    assert made["$defs"]["Node"]["required"] == ["next"]
    assert strict(schema, ANTHROPIC) is None


@pytest.mark.parametrize(
    "part",
    [
        {"type": "object"},
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": True},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "array"},
        {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
        {},
        True,
        {"not": {"type": "string"}},
        {"allOf": [{"type": "string"}]},
        {"$ref": "http://elsewhere.example/schema"},
        {"type": "strange"},
    ],
)
def test_what_strict_mode_has_no_words_for_is_not_forced(part: Any) -> None:
    """Free-form objects, tuples, anything and conditions are left as they are."""
    assert strict({"type": "object", "properties": {"a": part}}) is None


@pytest.mark.usefixtures("slow")
@given(SCHEMAS)
def test_strict_schemas_are_closed_and_possible(schema: dict[str, Any]) -> None:
    """A strict schema is valid and all of its objects are closed, and the given schema is not modified."""
    before = repr(schema)
    for made in (strict(schema), strict(schema, ANTHROPIC)):
        if made is not None:
            assert closed(made)
            Validator(made)
    assert repr(schema) == before


FLAT_PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["string", "number", "null", ["string"], 1])},
    optional={"description": st.sampled_from(["words", 1, None]), "title": st.just("T"), "default": st.none(), "minimum": st.just(-1)},
)


@pytest.mark.usefixtures("slow")
@example({"type": "object", "properties": {"a": {"type": "string"}}}, ["a", "a"])
@given(st.one_of(SCHEMAS, objects(FLAT_PARTS), objects(st.one_of(FLAT_PARTS, LEAVES))), st.lists(st.sampled_from(["a", "b", 1, ["a"]])))
def test_the_short_way_is_the_long_way(schema: dict[str, Any], required: list[Any]) -> None:
    """An object of plain values has the same strict form as by the long way, and is possible; nothing makes the short way fail."""
    for each in (schema, {**schema, "required": required}):
        made = flat(each)
        if made is not None:
            assert made == strict(each) == strict(each, ANTHROPIC)
            Validator(each)
    assert flat({"type": "object", "properties": {"a": {"type": "string", "description": "words"}}}) is not None


@given(ANYTHING)
def test_whatever_stands_for_a_schema_is_made_or_refused(schema: Any) -> None:
    """No document makes strict mode, the check or the flattening raise anything but their refusal."""
    strict(schema)
    try:
        check_possible(schema)
        made = plain_object(schema)
    except ConfigurationError:
        return
    assert made["type"] == "object"
    assert isinstance(made["properties"], dict)


@example({"required": ["a", "a"]})
@example({"type": ["string", "string"]})
@example({"properties": {"a": {"anyOf": [{"required": ["b", "b"]}]}}})
@given(ANYTHING)
def test_what_is_possible_at_a_glance_is_possible(schema: Any) -> None:
    """The quick look never takes an impossible schema for a possible one."""
    if is_simple(schema):
        Validator(schema)


def test_choices_at_the_top_become_one_object() -> None:
    """Providers refuse choices at the top: the properties of all branches are gathered, and only what all require is required."""
    schema = {
        "type": "object",
        "oneOf": [
            {
                "properties": {"id": {"type": "integer"}, "both": {"type": "string"}},
                "required": ["id", "both"],
                "additionalProperties": False,
            },
            {"properties": {"name": {"type": "string"}, "both": {"type": "integer"}}, "required": ["name", "both"]},
        ],
        "additionalProperties": False,
    }
    assert plain_object(schema) == {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "both": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            "name": {"type": "string"},
        },
        "required": ["both"],
    }


def test_a_reference_at_the_top_is_followed() -> None:
    """A schema that is only a reference becomes the object it refers to; one that goes round in circles is refused."""
    schema = {"$ref": "#/$defs/In", "$defs": {"In": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}}}
    made = plain_object(schema)
    assert (made["properties"], made["required"]) == ({"a": {"type": "string"}}, ["a"])
    with pytest.raises(ConfigurationError):
        plain_object({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}})


def of_properties(count: int, length: int) -> dict[str, Any]:
    """Return an object of plain properties whose names have this many characters."""
    return {"type": "object", "properties": {f"{number:0{length}}": {"type": "string"} for number in range(count)}}


def of_values(values: list[Any], more: list[Any] | None = None) -> dict[str, Any]:
    """Return an object with enumerations that are required."""
    properties = {"a": {"enum": values, "type": "string"}, "b": {"enum": more or ["x"], "type": "string"}}
    return {"type": "object", "properties": properties, "required": ["a", "b"]}


@pytest.mark.parametrize(
    ("within", "beyond"),
    [
        (of_properties(12, 10_000), of_properties(12, 10_001)),
        (of_properties(5_000, 20), of_properties(5_001, 20)),
        (of_values([f"{number:059}" for number in range(250)]), of_values([f"{number:060}" for number in range(251)])),
        (of_values([f"{number:08}" for number in range(999)]), of_values([f"{number:08}" for number in range(1_000)])),
        (
            of_values([f"{number:0479}" for number in range(249)]),
            of_values([f"{number:0479}" for number in range(249)], ["y" * 1000]),
        ),
        (
            {**of_values(["v"]), "$defs": {"n" * 119_000: {"type": "string"}}},
            {**of_values(["v"]), "$defs": {"n" * 120_000: {"type": "string"}}},
        ),
        (
            {"type": "object", "properties": {"a": {"type": "string", "enum": [f"{number}" for number in range(999)]}}},
            {"type": "object", "properties": {"a": {"type": "string", "enum": [f"{number}" for number in range(1_000)]}}},
        ),
        (
            {"type": "object", "properties": {"a": {"type": "string", "const": "v" * 119_999}}, "required": ["a"]},
            {"type": "object", "properties": {"a": {"type": "string", "const": "v" * 120_000}}, "required": ["a"]},
        ),
    ],
    ids=["names", "properties", "a large enumeration", "values", "text", "definitions", "added nulls", "const"],
)
def test_sizes_beyond_the_documented_limits_are_not_forced(within: dict[str, Any], beyond: dict[str, Any]) -> None:
    """A schema that is too large for strict mode stays as it is, since it would make a provider refuse the whole list of tools."""
    assert strict(within) is not None
    assert strict(beyond) is None
    assert flat(beyond) is None
