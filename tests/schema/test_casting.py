"""Arguments of almost the right types."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schema.test_strict import ANYTHING, SCHEMAS
from tests.tiers import some
from toolbus import ToolError
from toolbus.bus.schema import casting
from toolbus.bus.schema.arguments import Validator
from toolbus.bus.schema.casting import cast, summary
from toolbus.bus.schema.dialects import strict
from toolbus.bus.schema.repair import decoded

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
# A whole float becomes an integer where only those are taken.
_FLOATS = st.floats().filter(lambda number: not number.is_integer())
SCALARS = st.none() | st.booleans() | st.integers() | _FLOATS | st.text(max_size=5)
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
        ({"i": str(2**63 - 1), "n": str(2**63)}, {"i": 2**63 - 1, "n": 2**63}),
        ({"i": str(2**63)}, {"i": str(2**63)}),
        ({"i": str(-(2**63))}, {"i": -(2**63)}),
        ({"i": str(-(2**63) - 1)}, {"i": str(-(2**63) - 1)}),
        ({"n": "3"}, {"n": 3}),
        ({"n": "1e3"}, {"n": 1000.0}),
        ({"n": "1e999"}, {"n": "1e999"}),
        ({"n": "nan"}, {"n": "nan"}),
        ({"n": "-inf"}, {"n": "-inf"}),
        ({"n": "1e-999"}, {"n": "1e-999"}),
        ({"n": "0e9"}, {"n": 0.0}),
        ({"n": "0.1"}, {"n": 0.1}),
        ({"n": "9007199254740993"}, {"n": 9007199254740993}),
        ({"n": "9007199254740993.0"}, {"n": "9007199254740993.0"}),
        ({"n": "18446744073709551617"}, {"n": 18446744073709551617}),
        ({"n": "1e300"}, {"n": 1e300}),
        ({"n": "1_000"}, {"n": "1_000"}),
        ({"n": "0x10"}, {"n": "0x10"}),
        ({"n": "+3"}, {"n": "+3"}),
        ({"n": ".5"}, {"n": ".5"}),
        ({"n": "1,5"}, {"n": "1,5"}),
        ({"i": "١٢"}, {"i": "١٢"}),
        ({"i": "1e2"}, {"i": "1e2"}),
        ({"i": "0x10"}, {"i": "0x10"}),
        ({"l": "[1e999]"}, {"l": "[1e999]"}),
        ({"l": "[1,]"}, {"l": "[1,]"}),
        ({"l": "[12345678901234567890123.5]"}, {"l": "[12345678901234567890123.5]"}),
        ({"l": "[9007199254740993.0]"}, {"l": "[9007199254740993.0]"}),
        ({"l": "[[1e-400]]"}, {"l": "[[1e-400]]"}),
        ({"l": "[1e-99999999999999999999]"}, {"l": "[1e-99999999999999999999]"}),
        ({"l": "[0.5, 3.0, 123456789012345678901234567890]"}, {"l": [0.5, 3, 123456789012345678901234567890]}),
        ({"l": '[{"a": 1, "a": 2}]'}, {"l": '[{"a": 1, "a": 2}]'}),
        ({"o": '{"a": 12345678901234567890123.5}'}, {"o": '{"a": 12345678901234567890123.5}'}),
        ({"o": '{"a": 1, "a": 2}'}, {"o": '{"a": 1, "a": 2}'}),
        ({"o": '{"x": {"a": 1, "\\u0061": 1}}'}, {"o": '{"x": {"a": 1, "\\u0061": 1}}'}),
        ({"o": '{"x": {"a": 1}, "y": {"a": 1}}'}, {"o": {"x": {"a": 1}, "y": {"a": 1}}}),
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


BRANCHES: dict[str, Any] = {
    "properties": {
        "shape": {
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}}, "required": ["kind", "r"]},
                {"type": "object", "properties": {"kind": {"enum": ["box"]}, "r": {"type": "string"}, "w": {"$ref": "#/$defs/Width"}}},
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            ]
        },
        "size": {"anyOf": [{"type": "integer"}, {"type": "number"}]},
        "two": {"oneOf": [{"type": "object", "properties": {"n": {"type": "integer"}}}, {"type": "object"}]},
    },
    "$defs": {"Width": {"type": "integer"}},
}


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"shape": {"kind": "circle", "r": "2.5"}}, {"shape": {"kind": "circle", "r": 2.5}}),
        ({"shape": {"kind": "box", "r": "2", "w": "3"}}, {"shape": {"kind": "box", "r": "2", "w": 3}}),
        ({"shape": {"kind": "ball", "a": "3"}}, {"shape": {"kind": "ball", "a": 3}}),
        ({"shape": {"kind": "circle", "r": "1", "a": "3"}}, {"shape": {"kind": "circle", "r": "1", "a": "3"}}),
        ({"size": "3"}, {"size": 3}),
        ({"size": "3.5"}, {"size": 3.5}),
        ({"size": "x"}, {"size": "x"}),
        ({"two": {"n": "1"}}, {"two": {"n": "1"}}),
    ],
)
def test_the_one_branch_that_a_value_can_belong_to_is_its_schema(given: dict[str, Any], made: dict[str, Any]) -> None:
    """Branches are told apart by fixed values and required names; where several are left nothing is guessed."""
    assert cast(given, BRANCHES)[0] == made


@pytest.mark.parametrize(
    ("given", "texts", "made"),
    [
        (True, ["true", "false"], "true"),
        (False, ["On", " FALSE "], " FALSE "),
        (1, ["true", "1"], "1"),
        (True, ["1", "0"], True),
        (1, ["1", "1.0"], 1),
        (1.5, ["1.50", "2"], "1.50"),
        (0.1, ["0.1"], "0.1"),
        (12345678901234567890, ["12345678901234567890"], "12345678901234567890"),
        (float("inf"), ["inf", "1"], float("inf")),
        (3, ["3", 3], 3),
        (3, ["three"], 3),
    ],
)
def test_a_value_becomes_the_one_text_that_says_it(given: Any, texts: list[Any], made: Any) -> None:
    """A value becomes the text of an enumeration of texts that says it; where several do, or it has other values, nothing is guessed."""
    value, changes = cast({"a": given}, {"properties": {"a": {"enum": texts}}})
    assert repr(value) == repr({"a": made})
    kind = {bool: "boolean", int: "integer", float: "number"}[type(given)]
    assert changes == ([f"{kind} → string - at `$.a`"] if isinstance(made, str) else [])


@pytest.mark.parametrize(
    ("schema", "default", "refused"),
    [
        ({"type": "integer", "minimum": 1}, 0, True),
        ({"type": "integer", "minimum": 0}, 0, False),
        ({"type": "integer", "maximum": 9}, 10, True),
        ({"type": "integer", "maximum": 10}, 10, False),
        ({"type": "number", "exclusiveMinimum": 0}, 0, True),
        ({"type": "number", "exclusiveMaximum": 0}, 0, True),
        ({"type": "number", "exclusiveMinimum": True, "exclusiveMaximum": "0"}, 0, False),
        ({"type": "string", "minLength": 1}, "", True),
        ({"type": "string", "maxLength": 2}, "abc", True),
        ({"type": "string", "maxLength": 3, "maximum": 1}, "abc", False),
        ({"type": "integer", "minLength": 9}, 3, False),
        ({"type": "string", "maximum": 1, "minLength": 1}, "", True),
        ({"minimum": 5}, None, False),
        ({"type": "integer"}, "", True),
        ({"enum": ["a"]}, "b", True),
        ({"enum": ["a", 1]}, True, True),
        ({"enum": ["a", 1]}, 1.0, False),
    ],
)
def test_a_default_that_the_schema_refuses_is_left_out(schema: dict[str, Any], default: Any, refused: bool) -> None:
    """A value equal to an impossible default, as models repeat it, is left out; a required one, or another value, stays."""
    part = {**schema, "default": default}
    value, changes = cast({"a": default}, {"properties": {"a": part}})
    assert value == ({} if refused else {"a": default})
    assert changes == (["the default, which the schema refuses, left out - at `$.a`"] if refused else [])
    assert cast({"a": default}, {"properties": {"a": part}, "required": ["a"]})[0] == {"a": default}
    assert cast({"a": [default]}, {"properties": {"a": part}})[0] == {"a": [default]}


INTEGER = {"type": "integer"}


@pytest.mark.parametrize(
    ("schema", "arguments", "steps"),
    [
        ({"properties": {"a": INTEGER}}, {"a": "1"}, 3),
        ({"properties": {"a": INTEGER}}, {"b": 0, "c": 0, "a": "1"}, 7),
        ({"additionalProperties": INTEGER}, {"a": "1", "b": "2"}, 5),
        ({"properties": {"a": {"type": "array", "items": INTEGER}}}, {"a": ["1", "2", "3"]}, 9),
        ({"properties": {"a": {"allOf": [{}, INTEGER]}}}, {"a": "1"}, 5),
        ({"properties": {"a": {"anyOf": [INTEGER, {"type": "object"}, {"type": "boolean"}]}}}, {"a": "1"}, 7),
        (
            {"properties": {"a": {"anyOf": [{"type": "object", "properties": {"k": {"const": k}, "n": INTEGER}} for k in "xy"]}}},
            {"a": {"k": "x", "n": "1"}},
            14,
        ),
        ({"properties": {"a": {"enum": ["1", "2", "3"]}}}, {"a": 1}, 6),
        ({"properties": {"a": {"anyOf": [INTEGER, INTEGER]}, "b": INTEGER}}, {"a": None, "b": "1"}, 7),
    ],
)
def test_every_part_that_is_looked_at_is_a_step(
    schema: dict[str, Any], arguments: dict[str, Any], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part of a schema that is looked at counts as a step, and beyond the bound the rest stays as it is."""
    whole = cast(arguments, schema)
    assert whole[1]
    monkeypatch.setattr(casting, "_MOST_STEPS", steps - 1)
    assert cast(arguments, schema) != whole
    monkeypatch.setattr(casting, "_MOST_STEPS", steps)
    assert cast(arguments, schema) == whole


@pytest.mark.parametrize(
    ("outer", "value"),
    [
        (lambda inner: {"properties": {"a": inner}}, lambda inner: {"a": inner}),
        (lambda inner: {"additionalProperties": inner}, lambda inner: {"a": inner}),
        (lambda inner: {"items": inner}, lambda inner: [inner]),
        (lambda inner: {"prefixItems": [inner]}, lambda inner: [inner]),
        (lambda inner: {"allOf": [inner]}, lambda inner: inner),
        (lambda inner: {"anyOf": [inner]}, lambda inner: inner),
        (lambda inner: {"oneOf": [inner]}, lambda inner: inner),
    ],
    ids=["properties", "additionalProperties", "items", "prefixItems", "allOf", "anyOf", "oneOf"],
)
def test_arguments_are_corrected_to_a_depth(outer: Any, value: Any) -> None:
    """The thirty-second level is corrected and the next is not, whatever the levels are made of."""
    for depth, made in ((31, 1), (32, "1")):
        schema: Any = INTEGER
        given: Any = "1"
        expected: Any = made
        for _ in range(depth):
            schema, given, expected = outer(schema), value(given), value(expected)
        assert cast({"top": given}, {"properties": {"top": schema}})[0] == {"top": expected}


def _within(schema: Any, levels: int) -> Any:
    for _ in range(levels):
        schema = {"anyOf": [schema]}
    return schema


@pytest.mark.parametrize(
    ("schema", "takes"),
    [
        (True, True),
        (False, False),
        ({"$ref": "#/nowhere"}, True),
        ({"type": "integer"}, False),
        ({"type": ["integer", "null"]}, True),
        ({"const": None}, True),
        ({"const": 0}, False),
        ({"enum": [0]}, False),
        ({"enum": [0, None]}, True),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, True),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, False),
        ({"allOf": [{}, {"type": "null"}]}, True),
        ({"allOf": [{}, {"type": "integer"}]}, False),
        (_within({"type": "integer"}, 8), False),
        (_within({"type": "integer"}, 9), True),
        ({"allOf": [_within({"type": "integer"}, 8)]}, True),
    ],
)
def test_a_null_is_left_out_where_nothing_takes_it(schema: Any, takes: bool) -> None:
    """A null stays where the schema takes it, and where that can't be found out or takes too long."""
    value, changes = cast({"a": None}, {"properties": {"a": schema}})
    assert value == ({"a": None} if takes else {})
    assert changes == ([] if takes else ["null left out - at `$.a`"])


def test_a_float_becomes_the_integer_that_it_is() -> None:
    """A whole float becomes an integer where the schema takes integers alone; one that stands for several is refused."""
    assert cast({"a": 3.0}, {"properties": {"a": INTEGER}}) == ({"a": 3}, ["number → integer - at `$.a`"])
    for kinds in ("number", ["integer", "number"], ["integer", "string", "number"]):
        assert repr(cast({"a": 3.0}, {"properties": {"a": {"type": kinds}}})[0]) == "{'a': 3.0}"
    assert repr(cast({"a": 3.5}, {"properties": {"a": INTEGER}})[0]) == "{'a': 3.5}"
    assert cast({"a": 2.0**53 - 1}, {"properties": {"a": INTEGER}})[0] == {"a": 2**53 - 1}
    for large in (2.0**53, -(2.0**53)):
        with pytest.raises(ToolError, match=r"got a float of 2\*\*53 or more, which stands for several; write it in digits alone"):
            cast({"a": large}, {"properties": {"a": INTEGER}})


def test_twenty_changes_are_told() -> None:
    """All values are cast, and the first twenty changes are told."""
    value, changes = cast({"a": ["1"] * 25}, {"properties": {"a": {"items": INTEGER}}})
    assert value == {"a": [1] * 25}
    assert changes == [f"string → integer - at `$.a[{number}]`" for number in range(20)]


def test_changes_are_told_in_short() -> None:
    """A summary has at most twenty tools and changes, by name, and how many more there were."""
    assert summary({"b": ["x"], "a": ["y", "z"]}) == {"tools": ["a", "b"], "changes": ["a: y", "a: z", "b: x"]}
    twenty = {f"t{number:02}": ["x"] for number in range(20)}
    assert summary(twenty) == {"tools": [*twenty], "changes": [f"{name}: x" for name in twenty]}
    more = {**twenty, "u": ["x", "y"]}
    assert summary(more) == {**summary(twenty), "further": 2}


def test_changes_are_told_with_their_place() -> None:
    """Each change says what was made of what, and where, without the values."""
    _, changes = cast({"i": "3", "o": {"deep": None}}, SCHEMA)
    assert changes == ["string → integer - at `$.i`", "null left out - at `$.o.deep`"]


@pytest.mark.usefixtures("slow")
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
    """Casting returns arguments for any kind of schema."""
    if isinstance(schema, dict):
        assert isinstance(cast(arguments, schema)[0], dict)


@given(SCHEMAS)
def test_nulls_of_strict_mode_go_away(schema: dict[str, Any]) -> None:
    """Arguments of strict mode with a null for every optional property are valid again without the nulls."""
    made = strict(schema)
    if made is not None:
        optional = {**schema, "required": []}
        Validator(optional).check(cast(dict.fromkeys(made["properties"]), optional)[0])


def test_what_a_pattern_of_names_takes_is_left_alone() -> None:
    """Beside patterns of names, the schema for all other names casts nothing that a pattern may take as it is."""
    schema = {"patternProperties": {"^x": {"type": "string"}}, "additionalProperties": {"type": "integer"}}
    assert cast({"xa": "3"}, schema) == ({"xa": "3"}, [])


LAYERS = 8


MULTIPLYING = [
    lambda below: {"allOf": [below] * 20},
    lambda below: {"anyOf": [below] * 20},
    lambda below: {"oneOf": [{"allOf": [below] * 20}]},
    lambda below: {"properties": {"a": below}, "allOf": [below] * 20},
]


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("parts", some(MULTIPLYING[:1], MULTIPLYING))
def test_no_schema_makes_casting_take_long(parts: Any) -> None:
    """Definitions that multiply at each step are followed a bounded number of steps, for values and for nulls."""
    definitions = {f"d{level}": parts({"$ref": f"#/$defs/d{level + 1}"}) for level in range(LAYERS)}
    schema = {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": {**definitions, f"d{LAYERS}": {"type": ["integer", "null"]}}}
    started = time.process_time()
    for value in (None, "3", {"a": {"a": None}}, {"b": [None] * 10_000}):
        cast({"a": value}, schema)
    assert time.process_time() - started < 20


def test_a_text_is_read_carefully_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers and keys of a text are read once for any number of branches in a schema."""
    looked: list[str] = []

    def look(text: str, check_number: Any) -> Any:
        looked.append(text)
        return decoded(text, check_number)

    monkeypatch.setattr("toolbus.bus.schema.casting.decoded", look)
    either = {"anyOf": [{"type": "array"}, {"type": ["array", "null"]}]}
    for text in ("[0.5]", "[12345678901234567890123.5]"):
        assert cast({"a": text}, {"properties": {"a": {"allOf": [either] * 20}}}) == ({"a": text}, [])
        assert looked == [text]
        looked.clear()
