"""Arguments of almost the right types."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schema.test_strict import ANYTHING, SCHEMAS
from toolbus import ToolError
from toolbus.schema import Validator, strict
from toolbus.schema.casting import cast

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "i": {"type": "integer"},
        "n": {"type": "number"},
        "b": {"type": "boolean"},
        "s": {"type": "string"},
        "l": {"type": "array", "items": {"type": "integer"}},
        "o": {"type": "object", "properties": {"deep": {"type": "boolean"}}},
        "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "ref": {"$ref": "#/$defs/Count"},
        "nullable": {"type": ["string", "null"]},
        "words": {"enum": ["x"]},
    },
    "required": ["s"],
    "$defs": {"Count": {"type": "integer"}},
}
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS | st.sampled_from(["3", "3.5", "true", "[1]", '{"a": "1"}']),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.sampled_from("abcd"), parts, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4)


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"i": "3"}, {"i": 3}),
        ({"i": " -3 "}, {"i": -3}),
        ({"i": "3.0"}, {"i": 3}),
        ({"i": "3.5"}, {"i": "3.5"}),
        ({"i": "007"}, {"i": "007"}),
        ({"i": "9" * 30}, {"i": "9" * 30}),
        ({"n": "3"}, {"n": 3}),
        ({"n": "1e3"}, {"n": 1000.0}),
        ({"n": "1e999"}, {"n": "1e999"}),
        ({"n": "nan"}, {"n": "nan"}),
        ({"b": "True"}, {"b": True}),
        ({"b": "yes"}, {"b": "yes"}),
        ({"s": "3"}, {"s": "3"}),
        ({"l": '["1", 2]'}, {"l": [1, 2]}),
        ({"l": "1, 2"}, {"l": "1, 2"}),
        ({"o": '{"deep": "false"}'}, {"o": {"deep": False}}),
        ({"either": "4"}, {"either": 4}),
        ({"either": None}, {"either": None}),
        ({"ref": "5"}, {"ref": 5}),
        ({"i": None, "words": None, "nullable": None, "s": None, "unknown": None}, {"nullable": None, "s": None, "unknown": None}),
        ({"o": {"deep": None}}, {"o": {}}),
    ],
)
def test_texts_become_the_values_they_say(given: dict[str, Any], made: dict[str, Any]) -> None:
    """A text becomes the declared number, boolean, array or object it is the JSON of; a null that nobody takes is left out."""
    before = repr(given)
    value, changes = cast(given, SCHEMA)
    assert value == made
    assert bool(changes) == (given != made)
    assert repr(given) == before


def test_changes_are_told_with_their_place() -> None:
    """Each change says what was made of what, and where, without the values."""
    _, changes = cast({"i": "3", "o": {"deep": None}}, SCHEMA)
    assert changes == ["string → integer - at `$.i`", "null left out - at `$.o.deep`"]


@given(SCHEMAS, ARGUMENTS)
def test_valid_arguments_are_not_changed(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    """Arguments that a schema of plain types accepts come out the same, and what came out stays."""
    made, changes = cast(arguments, schema)
    try:
        Validator(schema).check(arguments)
    except ToolError:
        pass
    else:
        assert repr(made) == repr(arguments)
        assert changes == []
    assert repr(cast(made, schema)[0]) == repr(made)


@given(ANYTHING, ARGUMENTS)
def test_no_schema_makes_it_raise(schema: Any, arguments: dict[str, Any]) -> None:
    """Whatever stands for a schema, casting gives arguments back."""
    if isinstance(schema, dict):
        assert isinstance(cast(arguments, schema)[0], dict)


@given(SCHEMAS)
def test_nulls_of_strict_mode_go_away(schema: dict[str, Any]) -> None:
    """What a provider may send in strict mode with every optional null is valid again without the nulls."""
    made = strict(schema)
    if made is not None:
        optional = {**schema, "required": []}
        Validator(optional).check(cast(dict.fromkeys(made["properties"]), optional)[0])
