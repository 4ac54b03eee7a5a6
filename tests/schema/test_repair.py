"""What models write as arguments: repaired when there is no doubt, refused otherwise."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbus import ToolError
from toolbus.schema.repair import parse

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=4), parts, max_size=3),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=4)
ONE = {"a": "é", "n": [1, 2.5, None, True]}
WRITTEN = json.dumps(ONE)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", {}),
        ("  \n", {}),
        ("null", {}),
        ('""', {}),
        (WRITTEN, ONE),
        (WRITTEN.encode(), ONE),
        ("\ufeff" + WRITTEN, ONE),
        (json.dumps(WRITTEN), ONE),
        (f"```json\n{WRITTEN}\n```", ONE),
        (f"```\n{WRITTEN}```", ONE),
        (f"{WRITTEN}}}", ONE),
        (f"{WRITTEN} that is it", ONE),
        (f"{WRITTEN}{WRITTEN}", ONE),
        (f"{WRITTEN}\n{WRITTEN}\n", ONE),
        ("{}" + WRITTEN, ONE),
        ('{"a": "two\nlines"}', {"a": "two\nlines"}),
        ('{"a": [1, 2,], "b": ",]",}', {"a": [1, 2], "b": ",]"}),
        ("{'a': True, 'b': None, 'c': [1.5]}", {"a": True, "b": None, "c": [1.5]}),
    ],
)
def test_what_is_clear_is_repaired(text: Any, value: dict[str, Any]) -> None:
    """Fences, repetitions, garbage after the object, trailing commas and Python literals leave no doubt of what was meant."""
    assert parse(text)[0] == value


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1',
        '{"a": "cut of',
        '{"a": {"b": 2}',
        '{"a": 1}{"a": 2}',
        '{"a": 1}, "b": 2}',
        '{"a": 1} [2]',
        "[1, 2]",
        "3",
        "true",
        '"words"',
        "words",
        '{"a": NaN}',
        "{'a': {1, 2}}",
        "{'a': 1e999}",
        "{1: 2}",
        b"\xff\xfe",
        "{" * 100_000,
        "{'a': " + "(" * 5_000 + ")" * 5_000 + "}",
        '{"a": "\\ud800"}',
    ],
)
def test_what_is_not_clear_is_refused(text: Any) -> None:
    """What was cut off, could mean two things or is no object is an error, and never a guess."""
    with pytest.raises(ToolError) as refused:
        parse(text)
    assert refused.value.error.type == "invalid_arguments"


@given(OBJECTS)
def test_valid_arguments_are_never_changed(value: dict[str, Any]) -> None:
    """JSON comes out as it was written, and nothing is noted."""
    assert parse(json.dumps(value)) == (value, [])
    assert parse(json.dumps(value, ensure_ascii=False, indent=1)) == (value, [])


@given(st.one_of(st.text(), st.text("{}[]\",:\\n1 '`atrue", max_size=30), st.binary(max_size=30)))
def test_nothing_makes_it_raise_anything_else(text: str | bytes) -> None:
    """Every text is an object or refused, and what was repaired needs no repair any more."""
    try:
        value, _ = parse(text)
    except ToolError:
        return
    assert parse(json.dumps(value)) == (value, [])


@given(OBJECTS, st.integers(1, 40))
def test_what_was_cut_off_is_never_taken_for_whole(value: dict[str, Any], cut: int) -> None:
    """The beginning of an object is refused, wherever it was cut."""
    text = json.dumps(value)
    if len(text) > cut:
        with pytest.raises(ToolError):
            parse(text[: len(text) - cut])
