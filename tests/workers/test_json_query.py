"""The JSON tools: queries, formatting, differences, and documents and expressions meant to hurt."""

import builtins
import json
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from toolbus_workers import json_query as module
from toolbus_workers.json_query import Difference, differences, json_diff, json_format, json_query, load

from tests.examples import examples
from toolbus import ToolError, ToolResult
from toolbus.bus.schema.derivation import derive

SHOP = {"items": [{"name": "pen", "price": 2}, {"name": "book", "price": 12.5}, {"name": "lamp", "price": 40}], "open": True, "note": None}

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=4)
    ),
    max_leaves=15,
)


def nested(depth):
    return "[" * depth + "]" * depth


def error_of(call):
    def drained():
        result = call()
        return result if isinstance(result, ToolResult) else list(result)

    with pytest.raises(ToolError) as failure:
        drained()
    assert len(str(failure.value)) < 600
    return failure.value.error


def diff(left, right, **options):
    *lines, result = json_diff(left, right, **options)
    return "".join(lines), result.data


@pytest.mark.parametrize("document", [SHOP, json.dumps(SHOP), "\ufeff" + json.dumps(SHOP, indent=3)], ids=["value", "text", "with BOM"])
@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("items[?price > `10`].name", ["book", "lamp"]),
        ("items[0].name", "pen"),
        ("sum(items[].price)", 54.5),
        ("sort_by(items, &price)[-1].name", "lamp"),
        ("join(', ', items[].name)", "pen, book, lamp"),
        ("{names: items[*].name, open: open}", {"names": ["pen", "book", "lamp"], "open": True}),
        ("note", None),
        ("nowhere", None),
    ],
)
def test_an_expression_picks_values_from_text_or_object(document, expression, result):
    """The result is data for programs and JSON text for people."""
    answer = json_query(document, expression)
    assert answer.data == {"result": result}
    assert json.loads(answer.output) == result


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [("", 1, 1), ("{", 1, 2), ('{"a": 1,,}', 1, 9), ('{\n  "a": 1\n  "b": 2\n}', 3, 3), ("[1] x", 1, 5), ("{'a': 1}", 1, 2)],
)
def test_bad_json_is_named_with_line_and_column(text, line, column):
    """The error says where the document stops being JSON."""
    error = error_of(lambda: json_query(text, "a"))
    assert (error.type, error.code) == ("invalid_arguments", "bad_json")
    assert f"line {line}, column {column}" in error.message
    assert error.details == {"line": line, "column": column}


def test_a_key_that_stands_twice_is_named():
    """Half of such a document would be ignored in silence."""
    error = error_of(lambda: load('[{"a": 1, "b": {}, "a": 2}]'))
    assert error.code == "bad_json"
    assert 'the key "a" stands twice' in error.message


def test_single_quotes_are_hinted_at():
    """The commonest slip gets told how to mend it."""
    assert "double quotes" in error_of(lambda: load("{'a': 1}")).message


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ("NaN", "bad_json"),
        ("[-Infinity]", "bad_json"),
        ("1e999", "not_finite"),
        ("9" * 5000, "bad_json"),
        ('"\\ud800"', "bad_character"),
        ('{"\\udc00": 1}', "bad_character"),
        (nested(101), "too_deep"),
        (nested(5000), "too_deep"),
        (nested(400_000), "too_deep"),
        ('{"a":' * 500 + "1" + "}" * 500, "too_deep"),
        (json.loads(nested(101)), "too_deep"),
        ("[" + "1," * 600_000 + "1]", "too_large"),
        (["x" * 1_000_000] * 5, "too_large"),
        ([{1, 2}], "not_json"),
        ([float("nan")], "not_finite"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_documents_that_are_no_json_or_too_much_fail_clearly(document, code):
    """Every tool checks size, nesting, numbers and characters first."""
    for use in (lambda: json_query(document, "@"), lambda: json_format(document), lambda: json_diff("[]", document)):
        error = error_of(use)
        assert (error.type, error.code) == ("invalid_arguments", code)


def test_the_deepest_document_allowed_works_everywhere():
    """A hundred levels pass all three tools."""
    assert json_query(nested(100), "@").data == {"result": json.loads(nested(100))}
    assert json.loads("".join(json_format(nested(100), indent=8))) == json.loads(nested(100))
    assert diff(nested(100), nested(99))[1]["equal"] is False


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        ("", "bad_expression"),
        ("a[", "bad_expression"),
        ("a b", "bad_expression"),
        ("nosuch(@)", "bad_expression"),
        ("length(`1`)", "bad_expression"),
        ("length(@, @)", "bad_expression"),
        ("items[0].price < 'x'", "bad_expression"),
        ("contains('abc', `1`)", "bad_expression"),
        ("items[::0]", "bad_expression"),
        ("&items", "not_json"),
        ("[&items]", "not_json"),
        ("sum([`1e308`, `1e308`])", "not_finite"),
        ("to_number('inf')", "not_finite"),
        ("ceil(to_number('9e999'))", "not_finite"),
        ("a" * 2001, "too_long"),
        ("(" * 900 + "a" + ")" * 900, "too_deep"),
        ("!" * 1500 + "a", "too_deep"),
        ("|".join(["@"] * 900), "too_deep"),
        ("`" + nested(900) + "`", "too_deep"),
    ],
)
def test_bad_expressions_fail_clearly(expression, code):
    """An expression that jmespath can't parse or compute is the caller's error, with a short message."""
    error = error_of(lambda: json_query(SHOP, expression))
    assert (error.type, error.code) == ("invalid_arguments", code)


BOMBS = [
    "|".join(["[@,@]"] * 300),
    "|".join(["[@,@][]"] * 200),
    "|".join(["[@,@]"] * 18) + "|to_string(@)",
    "|".join(["join('', [@, @])"] * 100),
    "|".join(["[@,@]"] * 16) + "|" + "|".join(["[]"] * 16) + "| [@, @, @][] | map(&to_string(@), @) | join(to_string(@), @)",
    "|".join(["{a: @, b: @}"] * 150),
    "|".join(["[@,@]"] * 17) + "|" + " || ".join(["(@ != @)"] * 150),
    "map(&map(&map(&map(&map(&@, `[1,2,3,4,5,6,7,8,9,0]`), `[1,2,3,4,5,6,7,8,9,0]`), `[1,2,3,4,5,6,7,8,9,0]`), `[1,2,3,4,5,6,7,8,9,0]`), "
    "`[" + ",".join(["1"] * 300) + "]`)",
]


@pytest.mark.few(4)
@pytest.mark.parametrize("expression", BOMBS, ids=range(len(BOMBS)))
@pytest.mark.parametrize("document", ['"x"', json.dumps(["word"] * 50_000)], ids=["small", "large"])
def test_expressions_that_ask_for_gigabytes_are_stopped(expression, document):
    """Work and intermediate results are metered, so a bomb ends soon and with a clear error."""
    assert len(expression) <= module.MAX_EXPRESSION
    started = time.process_time()
    error = error_of(lambda: json_query(document, expression))
    assert error.code in {"too_large", "too_deep", "too_expensive", "output_too_large", "bad_expression"}
    assert time.process_time() - started < 8


def test_honest_queries_on_large_documents_pass_the_meter():
    """Ten thousand records can be filtered, sorted and reshaped in one expression."""
    records = [{"id": number, "name": f"name {number}", "tags": ["a", "b"], "price": number % 100} for number in range(10_000)]
    answer = json_query(json.dumps(records), "sort_by([?price > `90` && contains(tags, 'a')], &name)[:3].{id: id, name: name}")
    assert [row["id"] for row in answer.data["result"]] == [1091, 1092, 1093]


def test_a_result_that_is_too_long_is_refused_and_not_cut():
    """Half a JSON document would be of no use."""
    error = error_of(lambda: json_query(["x" * 100] * 5000, "@"))
    assert error.code == "output_too_large"


def test_without_jmespath_the_error_says_what_to_install(monkeypatch):
    """The package is an extra; formatting and comparing do without it."""
    plain = builtins.__import__

    def without(name, *rest, **options):
        if name.partition(".")[0] == "jmespath":
            raise ModuleNotFoundError(name)
        return plain(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    error = error_of(lambda: json_query("{}", "a"))
    assert (error.type, error.code) == ("unavailable", "not_installed")
    assert "pip install 'toolbus[workers]'" in error.message
    assert "".join(json_format("[1]", indent=0)) == "[1]"


@pytest.mark.parametrize(
    ("indent", "sort_keys", "expected"),
    [
        (2, False, '{\n  "b": [\n    1,\n    2.0\n  ],\n  "a": "é"\n}'),
        (0, False, '{"b":[1,2.0],"a":"é"}'),
        (1, True, '{\n "a": "é",\n "b": [\n  1,\n  2.0\n ]\n}'),
    ],
)
def test_a_document_is_written_with_the_indentation_asked_for(indent, sort_keys, expected):
    """Characters stay as they are, keys in their order unless sorted."""
    assert "".join(json_format('{"b": [1, 2.0], "a": "\\u00e9"}', indent=indent, sort_keys=sort_keys)) == expected


def test_a_long_document_is_formatted_in_parts():
    """Formatting streams."""
    formatted = list(json_format(list(range(10_000))))
    assert len(formatted) > 5
    assert json.loads("".join(formatted)) == list(range(10_000))


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (json_format, {"document": "[]", "indent": -1}),
        (json_format, {"document": "[]", "indent": 9}),
        (json_format, {"document": 3}),
        (json_diff, {"left": "1", "right": "2", "max_differences": 0}),
        (json_diff, {"left": "1", "right": "2", "max_differences": 1001}),
        (json_query, {"document": None, "expression": "a"}),
    ],
)
def test_arguments_out_of_bounds_are_refused_by_the_schema(function, arguments):
    """Bounds and types stand in the schema, so a call that breaks one never reaches the handler."""
    with pytest.raises(ToolError) as failure:
        derive(function).bind(arguments)
    assert failure.value.error.type == "invalid_arguments"


@pytest.mark.parametrize("document", ['{"a": 1}', {"a": 1}, [{"a": 1}], "1"])
def test_a_document_reaches_the_tool_as_it_was_given(document):
    """Text stays text and a value stays a value on the way through the schema."""
    assert derive(json_format).bind({"document": document}) == {"document": document}


def test_a_formatted_document_has_a_bound():
    """Deep indentation of many values stops with an error."""
    document = "[" * 90 + ",".join(["1"] * 10_000) + "]" * 90
    assert error_of(lambda: json_format(document, indent=8)).code == "output_too_large"


def test_differences_are_listed_with_their_paths_in_the_order_of_the_left_document():
    """Added, removed and changed values each have a line; equal ones none."""
    left = {"a": 1, "same": [1, {"x": None}], "list": [1, 2, 3], "odd key": {"é": True}, "gone": None}
    right = {"same": [1.0, {"x": None}], "list": [1, 5], "a": "1", "odd key": {"é": 1}, "new": {"deep": []}}
    text, data = diff(left, json.dumps(right))
    assert text.splitlines() == [
        '~ $.a: 1 -> "1"',
        "~ $.list[1]: 2 -> 5",
        "- $.list[2]: 3",
        '~ $["odd key"]["é"]: true -> 1',
        "- $.gone: null",
        '+ $.new: {"deep": []}',
    ]
    assert data == {"equal": False, "added": 1, "removed": 2, "changed": 3, "truncated": False}


def test_equal_documents_are_said_to_be_equal():
    """Order of keys and 1 or 1.0 make no difference."""
    assert diff('{"a": 1, "b": 2}', {"b": 2.0, "a": 1}) == (
        "The documents are equal.\n",
        {"equal": True, "added": 0, "removed": 0, "changed": 0, "truncated": False},
    )


def test_differences_are_bounded():
    """Beyond the bound there is a note and no more lines."""
    text, data = diff(list(range(50)), list(range(1, 51)), max_differences=3)
    assert text.splitlines() == ["~ $[0]: 0 -> 1", "~ $[1]: 1 -> 2", "~ $[2]: 2 -> 3", "… only the first 3 differences are listed"]
    assert data["truncated"] is True


def test_long_keys_and_values_are_cut_in_the_lines_and_cost_nothing_elsewhere():
    """A huge key above many values is not copied for each of them."""
    key = "k" * 400_000
    left, right = {key: [0] * 100_000}, {key: [*[0] * 99_999, "v" * 100_000]}
    started = time.perf_counter()
    text, _ = diff(left, right)
    assert len(text) < 300
    assert time.perf_counter() - started < 5


def test_a_wrong_bound_in_one_document_names_it():
    """With two documents the error says which one is bad."""
    assert "right document" in error_of(lambda: json_diff("{}", "{")).message


@settings(deadline=None)
@given(JSON)
def test_formatting_keeps_every_value(value):
    """A formatted document reads back as it was, with any indentation."""
    for indent in (0, 2):
        assert json.loads("".join(json_format(json.dumps(value), indent=indent))) == value


@settings(deadline=None)
@given(JSON)
def test_the_identity_query_returns_the_document(value):
    """``@`` is the whole document."""
    assert json_query(json.dumps(value), "@").data == {"result": value}


@settings(deadline=None)
@given(JSON, JSON)
def test_documents_differ_exactly_when_a_difference_is_listed(left, right):
    """No difference is listed for equal documents, and at least one for others, both ways."""
    canonical = json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
    forth, back = list(differences(left, right)), list(differences(right, left))
    assert not list(differences(left, json.loads(json.dumps(left))))
    assert len(forth) == len(back)
    if canonical:
        assert not forth
    mirrored = {"+": "-", "-": "+", "~": "~"}
    assert sorted((mirrored[d.kind], d.path) for d in forth) == sorted((d.kind, d.path) for d in back)
    assert all(isinstance(d, Difference) and "\n" not in str(d) for d in forth)


SYMBOLS = "a @ * [ ] [] [? ( ) { } . , : | || && & ! == < - 0 -1 99999999999999999999 `1` `[ ` 'x' ' \" \\".split()  # noqa: SIM905 - a list would be forty lines
CALLS = ['"a"', "length(", "map(&", "join(", "sort_by(", "merge(", "to_string(", "max_by(", "sum(", "not_null(", " "]
TOKENS = st.sampled_from([*SYMBOLS, *CALLS])


@pytest.mark.usefixtures("slow")
@settings(max_examples=examples(500), deadline=None)
@pytest.mark.filterwarnings("ignore:deprecated string literal syntax")
@given(JSON, st.lists(TOKENS, max_size=25).map("".join) | st.text(max_size=50))
@example([1], "[*")
@example([1], "a[99999999999999999999]")
@example({"a": "x"}, "a < `1`")
def test_hostile_expressions_only_fail_with_a_tool_error(value, expression):
    """Every expression gives a JSON result or a ToolError."""
    try:
        answer = json_query([value, value], expression)
    except ToolError as failure:
        assert len(str(failure)) < 600  # noqa: PT017
        return
    json.dumps(answer.data, allow_nan=False)


@settings(deadline=None)
@given(st.text(max_size=200) | st.lists(st.sampled_from('[]{}",:0-e.tfn \\u'), max_size=60).map("".join))
def test_hostile_documents_only_fail_with_a_tool_error(text):
    """Any string is a document or a clear error."""
    try:
        json.dumps(load(text), allow_nan=False)
    except ToolError as failure:
        assert failure.error.code in {"bad_json", "bad_character", "not_finite", "too_deep"}  # noqa: PT017
