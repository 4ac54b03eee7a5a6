"""Schemas as tool servers and datasets say them, and what is made of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schema.test_strict import ANYTHING, SCHEMAS
from toolbus.bus.schema.arguments import Validator
from toolbus.bus.schema.mend import mended, mended_document
from toolbus.bus.values.results import DescriptorError

WORDS = [
    ("dict", {"type": "object"}),
    ("float", {"type": "number"}),
    ("STRING", {"type": "string"}),
    ("tuple", {"type": "array"}),
    ("any", {}),
    ("frobnicate", {}),
    ("string[]", {"type": "array", "items": {"type": "string"}}),
    ("List[int]", {"type": "array", "items": {"type": "integer"}}),
    ("Array<string>", {"type": "array", "items": {"type": "string"}}),
    ("List[Union[int, str]]", {"type": "array", "items": {"type": ["integer", "string"]}}),
    ("List[Foo]", {"type": "array", "items": {}}),
    ("Optional[int]", {"type": ["integer", "null"]}),
    ("Union[int, str]", {"type": ["integer", "string"]}),
    ("int | None", {"type": ["integer", "null"]}),
    ("str, optional", {"type": "string"}),
    ("int, default 3", {"type": "integer"}),
    ("str or bool", {"type": ["string", "boolean"]}),
    ("Dict[str, int]", {"type": "object"}),
    ("Literal['a', 'b']", {}),
    (["int", "NoneType"], {"type": ["integer", "null"]}),
    ({"type": "integer", "minimum": 1}, {"type": "integer", "minimum": 1}),
    ("", {}),
    (7, {}),
]


@pytest.mark.parametrize(("word", "meant"), WORDS, ids=[str(word) for word, _ in WORDS])
def test_words_of_other_languages_are_read_as_types(word: Any, meant: dict[str, Any]) -> None:
    """A type that JSON Schema does not know becomes the one that is meant, or any."""
    made, changes = mended({"type": "object", "properties": {"a": {"type": word}}})
    assert made["properties"]["a"] == meant
    assert changes


PARTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, {"type": "integer", "exclusiveMinimum": 0}),
    ({"type": "integer", "maximum": 9, "exclusiveMaximum": False}, {"type": "integer", "maximum": 9}),
    ({"type": "string", "minLength": "3"}, {"type": "string", "minLength": 3}),
    ({"type": "string", "minLength": "three"}, {"type": "string"}),
    ({"type": "string", "enum": None, "description": None, "default": None}, {"type": "string", "default": None}),
    ({"type": "string", "description": ["two", "lines"]}, {"type": "string", "description": "['two', 'lines']"}),
    (
        {"type": "array", "items": [{"type": "int"}], "additionalItems": False},
        {"type": "array", "prefixItems": [{"type": "integer"}], "items": False},
    ),
    ({"type": "array", "items": "string"}, {"type": "array", "items": {"type": "string"}}),
    ({"type": "object", "additionalProperties": "false"}, {"type": "object", "additionalProperties": False}),
    ({"type": "string", "pattern": "(["}, {"type": "string"}),
    ({"$ref": "#/components/schemas/Pet"}, {}),
    ({"$ref": "https://example.com/pet.json", "description": "a pet"}, {"description": "a pet"}),
    ({"type": "number", "maximum": float("inf")}, {"type": "number"}),
    (
        {"type": "dict", "properties": {"b": {"type": "str", "required": True}}},
        {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]},
    ),
    ({"anyOf": [{"type": "int"}, {"type": "str"}]}, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
]


@pytest.mark.parametrize(("part", "meant"), PARTS, ids=[str(part)[:60] for part, _ in PARTS])
def test_what_is_meant_is_said_properly(part: dict[str, Any], meant: dict[str, Any]) -> None:
    """Each habit of the wild is said as JSON Schema, and what nobody can understand is left out alone; the given one is left as it was."""
    before = repr(part)
    made, changes = mended({"type": "object", "properties": {"a": part, "z": {"type": "string", "maxLength": 2}}})
    assert made["properties"] == {"a": meant, "z": {"type": "string", "maxLength": 2}}
    assert changes
    assert repr(part) == before


CONTRADICTIONS: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({"type": "string", "nullable": True}, {"type": ["string", "null"]}, ["wrote 'nullable' as a type"]),
    ({"type": ["string"], "nullable": False}, {"type": ["string"]}, ["wrote 'nullable' as a type"]),
    ({"type": ["string", "null"], "nullable": True}, {"type": ["string", "null"]}, ["wrote 'nullable' as a type"]),
    (
        {"type": "string", "nullable": True, "enum": ["a"]},
        {"type": ["string", "null"], "enum": ["a", None]},
        ["wrote 'nullable' as a type"],
    ),
    (
        {"type": "string", "nullable": True, "enum": [None, "a"]},
        {"type": ["string", "null"], "enum": [None, "a"]},
        ["wrote 'nullable' as a type"],
    ),
    ({"type": "array", "enum": [1, 2]}, {"type": "array", "items": {"enum": [1, 2]}}, ["moved 'enum' to the items"]),
    (
        {"type": "array", "items": {"type": "string"}, "enum": [1, 2, "1"]},
        {"type": "array", "items": {"type": "string", "enum": ["1", "2"]}},
        ["made the values of 'enum' fit the type 'string'", "moved 'enum' to the items"],
    ),
    ({"type": "array", "items": {"enum": [3]}, "enum": [1]}, {"type": "array", "items": {"enum": [3]}}, ["moved 'enum' to the items"]),
    ({"type": "array", "items": True, "enum": [1]}, {"type": "array", "items": True, "enum": [1]}, []),
    ({"type": "array", "enum": [[1], [2]]}, {"type": "array", "enum": [[1], [2]]}, []),
    (
        {"type": "integer", "enum": ["1", " 2 ", "1", 1]},
        {"type": "integer", "enum": [1, 2]},
        ["made the values of 'enum' fit the type 'integer'"],
    ),
    (
        {"type": "string", "enum": [True, 1.5, False, 7]},
        {"type": "string", "enum": ["true", "1.5", "false", "7"]},
        ["made the values of 'enum' fit the type 'string'"],
    ),
    ({"type": "boolean", "enum": ["yes", "no"]}, {"type": "boolean"}, ["left out 'enum', whose values are not of the type 'boolean'"]),
    (
        {"type": ["object", "null"], "enum": ["a"]},
        {"type": ["object", "null"]},
        ["left out 'enum', whose values are not of the type ['object', 'null']"],
    ),
    (
        {"type": "integer", "enum": ["one", 2]},
        {"type": ["integer", "string"], "enum": ["one", 2]},
        ["made the type that of the values of 'enum', ['integer', 'string']"],
    ),
    ({"type": "integer", "enum": ["one"]}, {"type": "string", "enum": ["one"]}, ["made the type that of the values of 'enum', 'string'"]),
    ({"type": "integer", "enum": []}, {"type": "integer", "enum": []}, []),
    ({"type": "integer", "default": "3"}, {"type": "integer", "default": 3}, ["made the default '3' fit the type"]),
    ({"type": "integer", "default": "three"}, {"type": "integer", "default": "three"}, []),
    (
        {"type": "string", "enum": ["On", "off"], "default": " on "},
        {"type": "string", "enum": ["On", "off"], "default": "On"},
        ["made the default ' on ' one of its values"],
    ),
    ({"type": "string", "enum": ["On", "ON"], "default": "on"}, {"type": "string", "enum": ["On", "ON"], "default": "on"}, []),
    ({"type": "string", "enum": ["on", "On"], "default": "on"}, {"type": "string", "enum": ["on", "On"], "default": "on"}, []),
]


@pytest.mark.parametrize(("part", "settled", "notes"), CONTRADICTIONS, ids=[str(part) for part, _, _ in CONTRADICTIONS])
def test_what_contradicts_itself_is_settled(part: dict[str, Any], settled: dict[str, Any], notes: list[str]) -> None:
    """A contradiction is settled by what its author must have meant, and each change is told; what is possible stays as it is."""
    made, changes = mended({"type": "object", "properties": {"a": part}})
    assert made["properties"]["a"] == settled
    assert [change.partition(": ")[2] or change for change in changes] == notes


def test_the_top_is_mended_too() -> None:
    """Required arguments, lists of properties and unknown drafts at the top are understood."""
    made, _ = mended({"type": "dict", "properties": [{"name": "a", "type": "int", "required": True}, {"name": "b", "type": "str"}]})
    assert made == {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}
    made, _ = mended({"type": None, "properties": {"a": "string", "b": "how many"}, "required": ["a", "a", 1]})
    assert made == {"type": "object", "properties": {"a": {"type": "string"}, "b": {"description": "how many"}}, "required": ["a"]}
    made, changes = mended({"$schema": "https://example.com/mine", "properties": {}})
    assert made == {"properties": {}, "type": "object"}
    assert "example.com" in changes[0]
    assert mended_document({"name": "a", "parameters": None}) == ({"name": "a", "parameters": None}, [])


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": ["array"]}, {"type": "list"}, [], "object", True, 3])
def test_what_is_no_object_is_refused(schema: Any) -> None:
    """Arguments are an object, so anything else is refused with the reason."""
    with pytest.raises(DescriptorError, match="object"):
        mended(schema)


def test_nesting_is_bounded() -> None:
    """Schemas that are too deep or wrong in too many places are refused with the reason, at once."""
    deep: dict[str, Any] = {"type": "str"}
    for _ in range(500):
        deep = {"type": "dict", "properties": {"a": deep}}
    with pytest.raises(DescriptorError, match="levels"):
        mended(deep)
    wrong = {f"p{index}": {"type": "string", "pattern": "(["} for index in range(200)}
    with pytest.raises(DescriptorError, match="64 things"):
        mended({"type": "object", "properties": wrong})


@given(SCHEMAS)
def test_what_is_possible_is_left_alone(schema: dict[str, Any]) -> None:
    """A possible schema is published as it was given."""
    Validator(schema)
    assert mended(schema) == (schema, [])


KEYWORDS = st.sampled_from(
    ["type", "properties", "items", "required", "enum", "anyOf", "$ref", "minimum", "exclusiveMinimum", "$defs", "x"]
)
WILD = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-2, 2), st.floats(), st.sampled_from(["dict", "int", "List[int", "|", "#/$defs/a", "a"])
    ),
    lambda parts: st.one_of(st.lists(parts, max_size=3), st.dictionaries(st.one_of(KEYWORDS, st.just("name")), parts, max_size=4)),
    max_leaves=20,
)


@given(st.one_of(ANYTHING, WILD, WILD.map(lambda part: {"type": "dict", "properties": {"a": part}})))
def test_whatever_stands_for_a_schema_is_mended_or_refused(schema: Any) -> None:
    """No document makes the mending raise anything but a refusal, and what it makes is possible."""
    try:
        made, _ = mended(schema)
    except DescriptorError:
        return
    Validator(made)
