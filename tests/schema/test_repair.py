"""Arguments as models write them are repaired when there is no doubt, and refused otherwise."""

from __future__ import annotations

import ast
import contextlib
import json
import re
import sys
import warnings
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.schema.damage import DAMAGES, ENDS, STARTS, UNITS, hostile, said
from tests.tiers import some
from toolbus import ToolError
from toolbus.bus.schema.repair import parse

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=4), parts, max_size=3),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=4)
# Characters that mean something in strings of JSON, Python and JavaScript.
TEXTS = st.text(st.sampled_from("\"'\\\\\\/\n\t\x01bfnrtuxUNav0149Aw{}[],:` é😀"), max_size=10)
DELICATE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(TEXTS, parts, max_size=3),
    max_leaves=6,
)
DELICATE_OBJECTS = st.dictionaries(TEXTS, DELICATE, min_size=1, max_size=3)
PLAIN = st.dictionaries(
    st.text("ab é", min_size=1),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("ab {}[]:,1é"),
        lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text("ab é"), parts, max_size=3),
        max_leaves=6,
    ),
    min_size=1,
)
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
        ('{"a": True}', {"a": True}),
        ("""{'a': "it's", 'b': 'it\\'s', 'c': 'say "x"'}""", {"a": "it's", "b": "it's", "c": 'say "x"'}),
        ("{'a': 'one\\ntwo', 'b': 'C:\\\\x'}", {"a": "one\ntwo", "b": "C:\\x"}),
        (r'{"pattern": "(\w+)\s+\1"}', {"pattern": r"(\w+)\s+\1"}),
        (r'{"path": "C:\data\app"}', {"path": r"C:\data\app"}),
        (r'{"path": "C:\users\x", "say": "\"yes\""}', {"path": r"C:\users\x", "say": '"yes"'}),
        (r"{'pattern': '\w+\s'}", {"pattern": r"\w+\s"}),
        ('{"a": "True, None, NaN // x, ,] ```", "b": 1,}', {"a": "True, None, NaN // x, ,] ```", "b": 1}),
        ('{"a": 123456789012345678901234567890,}', {"a": 123456789012345678901234567890}),
        ('{"a": 9007199254740993,}', {"a": 9007199254740993}),
        ("{}" + WRITTEN + WRITTEN, ONE),
        ("```json\n{}\n```", {}),
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
        "{'a': '\\ud800'}",
        '{"a": "\ud800",}',
        '{"a": "a" "b"}',
        "{'a': 'a' 'b'}",
        '{"a": -1e999}',
        '{"a": 1e999}',
        "{'a': -1e999}",
        '{"a": Infinity}',
        '{"a": -Infinity}',
        '{"a": undefined}',
        "{'a': 1_000}",
        '{"a": 0x10}',
        "{'a': 0o17}",
        "{'a': 010}",
        "{'a': +1}",
        "{'a': .5}",
        "{'a': --1}",
        "{'a': 1+2j}",
        "{'a': (1, 2)}",
        "{'a': {1}}",
        "{'a': b'x'}",
        "{'a': r'x'}",
        "{'a': f'x'}",
        "{'a': '''x'''}",
        "{'a': set()}",
        "{'a': 1, # one\n 'b': 2}",
        '{"a": 1 /* one */}',
        "{'a': %s}" % ("9" * 5000),
        "{True: 1}",
        "{'a': 'x', 'a': 'y'}",
        '{"a": {"b": 1, "b": 2,}}',
        json.dumps('{"a": 1, "a": 2}'),
        '{"a": 1}{"a": true}',
        '{"a": 1}{"a": 1.0}',
        '{"a": 1}{}',
        '{"q": "say "}hi" now"}',
        "{'q': 'it'}s here'}",
        '{"a": {"b": 1}}, "c": 2}',
        '{"a": [,]}',
        "{,}",
        '{"a": 1,,}',
        r'{"a": "C:\data\new"}',
        r'{"a": "\\server\data"}',
        r'{"a": "\d", "b": "one\ntwo"}',
        r'{"a": "it\'s"}',
        r'{"a": "\x1b[0m"}',
        r'{"a": "\033[0m"}',
        r'{"a": "\u{1F600}"}',
        r'{"a": "\U0001F600"}',
        r'{"a": "\u12"}',
        '{"a": "one \\\ntwo"}',
        '{"a": "print(\\"x\\n\\")\n"}',
        r"{'a': '\w\1'}",
        r"{'a': 'C:\data\app'}",
        r"{'a': '\x41'}",
        r"{'a': '\N{BULLET}'}",
        r"{'a': 'a\/b'}",
        '```json\n{"a": 1}\n```\n```json\n{"a": 2}\n```',
        "```",
        "``````",
        "{}" * 100_000,
    ],
)
def test_what_is_not_clear_is_refused(text: Any) -> None:
    """Text that is cut off, could mean two things or is no object is an error, and never a guess."""
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


ACTIONS = ["error", "ignore"]
"""What Python does with a warning."""


@contextlib.contextmanager
def warnings_as(action: str) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter(action)  # type: ignore[arg-type]
        yield


@pytest.mark.parametrize("action", some(["error"], ACTIONS))
@pytest.mark.parametrize("damage", DAMAGES)
@settings(max_examples=examples(40), deadline=None)
@given(value=DELICATE_OBJECTS)
def test_a_damaged_value_is_itself_or_refused(action: str, damage: str, value: dict[str, Any]) -> None:
    """The repair of a value written with a slip is this value or a refusal, and never another value."""
    text, meant = DAMAGES[damage](value), [value]
    if "lone" in damage or "only" in damage:
        # A backslash that makes a valid escape may be one.
        meant += said(DAMAGES[damage.removeprefix("fence, ").removesuffix(", words after")](value))
    with warnings_as(action):
        try:
            found, _ = parse(text)
        except ToolError:
            return
    assert repr(found) in map(repr, meant)


@pytest.mark.parametrize("action", some(["ignore"], ACTIONS))
@pytest.mark.parametrize("damage", DAMAGES)
@settings(max_examples=examples(20), deadline=None)
@given(value=PLAIN)
def test_plain_values_survive_each_slip(action: str, damage: str, value: dict[str, Any]) -> None:
    """Each slip is repaired when no string holds a backslash, a quote or a control character."""
    with warnings_as(action):
        assert repr(parse(DAMAGES[damage](value))[0]) == repr(value)


def test_a_refusal_says_what_to_write_instead() -> None:
    """The model learns how to say it: backslashes doubled, one object, quotes escaped, the whole."""
    for text, advice in [
        (r'{"a": "C:\data\new"}', r"write \\ for each"),
        ('{"a": 1}{"a": 2}', "send one"),
        ('{"a": "cut of', "send the object whole"),
        ('{"a": {"b": 1}', "send the object whole"),
        ('{"a": "say "}hi" now"}', "quotes within strings escaped"),
        ("{'a': 'x', 'a': 'y'}", "write each key once"),
        ("{a: 1}", "double quotes"),
    ]:
        with pytest.raises(ToolError) as refused:
            parse(text)
        assert refused.value.error.message.startswith("The arguments are not valid JSON: ")
        assert advice in refused.value.error.message


@pytest.mark.parametrize(
    "text",
    ['{"a": 1, "a": 2}', b'{"a": 1, "a": 2}', '{"a": {"b": 1, "b": 1}}', '{"a": [{"b": 1, "\\u0062": 2}]}', '{"": 0, "": ":"}'],
)
def test_a_key_that_stands_twice_is_refused(text: str | bytes) -> None:
    """Readers of JSON differ in which of two values they take, so the model is told which key it wrote twice."""
    with pytest.raises(ToolError, match="stands twice in one object; write each key once") as refused:
        parse(text)
    assert (refused.value.error.type, refused.value.error.code) == ("invalid_arguments", "bad_json")


@pytest.mark.usefixtures("slow")
@given(OBJECTS, st.integers(0, 3), st.booleans())
def test_repeated_keys_are_found_at_any_place(value: dict[str, Any], depth: int, binary: bool) -> None:
    """A repeated key is refused at each level, beside any values, and in texts and bytes."""
    text = '{"k": 1, "v": ' + json.dumps(value) + ', "k": 1}'
    for _ in range(depth):
        text = '{"a:b": [":", ' + text + "]}"
    with pytest.raises(ToolError, match='"k" stands twice'):
        parse(text.encode() if binary else text)


# Values that decoders treat differently: numbers at the limits, exponents, halves of pairs, and names that are no JSON.
NUMBERS = st.sampled_from(
    "1e308 1e309 -1e999 1E400 0.1e-400 -0 -0.0 1.0 01 1. .5 +1 NaN -Infinity Infinity nan inf 9007199254740993 0x1F 1_0 1L 1n 1j True None "
    f"undefined 123456789012345678901234567890 {'1' * 400}".split()
)


@pytest.mark.parametrize("action", ["error", "ignore"])
@settings(max_examples=examples(200), deadline=None)
@given(number=NUMBERS, slip=st.sampled_from(["{}", "{},", "[{}]", "[{},]"]), quote=st.sampled_from("\"'"))
def test_numbers_are_those_of_a_strict_parser(action: str, number: str, slip: str, quote: str) -> None:
    """A number in a repaired text is what a strict reader of JSON, or of Python's words, makes of it alone, or the text is refused."""
    text = f"{{{quote}a{quote}: {slip.format(number)}}}"
    with warnings_as(action):
        try:
            found = parse(text)[0]["a"]
        except ToolError:
            return
    found = found[0] if isinstance(found, list) else found
    words = {"True": True, "None": None}
    meant = words[number] if number in words else json.loads(number, parse_constant=pytest.fail)
    assert (type(found), repr(found)) == (type(meant), repr(meant))


def strictly(text: str) -> Any:
    """Return what a strict reader of JSON, or of Python's literals, makes of a text; None when neither reads an object."""
    try:
        value = json.loads(text, parse_constant=pytest.fail)
    except (ValueError, pytest.fail.Exception):
        try:
            with warnings_as("error"):
                value = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


_LONE = re.compile(r"\\([1-7av])")
MEANINGFUL = [
    "{",
    "}",
    "[",
    "]",
    '"',
    "'",
    ",",
    ":",
    "\\",
    " ",
    "\n",
    "0",
    "1",
    ".",
    "e",
    "-",
    "n",
    "u",
    "\\u00e9",
    "True",
    "null",
    "NaN",
    "é",
    "#",
]


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("action", ACTIONS)
@settings(max_examples=examples(300), deadline=None)
@given(value=DELICATE_OBJECTS, damage=st.sampled_from(sorted(DAMAGES)), data=st.data())
def test_what_a_strict_parser_reads_is_what_is_returned(action: str, value: dict[str, Any], damage: str, data: st.DataObject) -> None:
    """A text with random changes is refused, or read as strict JSON or a strict Python literal where it is one."""
    text = DAMAGES[damage](value)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.sampled_from(["", *MEANINGFUL])) + text[at + data.draw(st.integers(0, 1)) :]
    with warnings_as(action):
        try:
            found, _ = parse(text)
        except ToolError:
            return
    meant = strictly(text)
    # In double quotes, which are JSON's, a backslash before a digit or a letter such as "a" is meant as one, and is no escape of Python's.
    doubled = strictly(_LONE.sub(r"\\\\\1", text))
    # JSON joins two escapes that stand for one character, and Python does not.
    assert meant is None or repr(found) in {repr(meant), repr(doubled)} or "\\ud8" in text


def test_a_backslash_before_a_digit_is_meant_as_one() -> None:
    """A reference within a replacement stays, as it does before other characters that are no escape of JSON's."""
    assert parse(r'{"to": "\1", "with": "C:\apps"}')[0] == {"to": "\\1", "with": "C:\\apps"}


def steps(text: str) -> int:
    """Return how many functions are called to read a text."""
    count = 0

    def note(*_: object) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        with contextlib.suppress(ToolError):
            parse(text)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("start", STARTS)
def test_reading_takes_steps_in_proportion_to_the_text(start: str) -> None:
    """Four times the text takes about four times the steps, whatever it repeats; ``python -m benchmarks schemas`` measures the time."""
    slow = []
    for unit, end in product(UNITS, ENDS):
        short, long = (steps(hostile(start, unit, end, size)) for size in (500, 2_000))
        if long > 4.5 * short + 200:
            slow.append((unit, end, short, long))
    assert slow == []
