"""text_process and json_process: every operation, and texts and documents that are meant to hurt."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toolbus_workers import json_process as json_module
from toolbus_workers import text_process as text_module
from toolbus_workers.json_process import json_process
from toolbus_workers.text_process import MAX_RESULT, text_process

from toolbus import ToolBus, ToolError, ToolResult, Worker

LETTER = "  Dear Ann,\n\n\nthe  bees cost 1,200.50 at https://bees.example/a?b=1. Write to ann@bees.example!\nZoë\nZoë"


@pytest.mark.parametrize(
    ("operation", "text", "expected"),
    [
        ("upper", "aß", "ASS"),
        ("lower", "ÀB", "àb"),
        ("title", "two words", "Two Words"),
        ("trim", "  a \n b  ", "a\n b"),
        ("clean", " a   b \n\n\n c", "a b\n\nc"),
        ("ascii", "Zoë naïve", "Zoe naive"),
        ("sort_lines", "b\na", "a\nb"),
        ("unique_lines", "b\na\nb", "b\na"),
        ("reverse_lines", "b\na", "a\nb"),
        ("number_lines", "b\na", "1\tb\n2\ta"),
        ("count", "One. Two three.\n", {"characters": 16, "words": 3, "lines": 1, "sentences": 2}),
        ("words", "bee bee hive", {"bee": 2, "hive": 1}),
        ("summary", "Yes. No.", "Yes.\nNo."),
        ("emails", LETTER, ["ann@bees.example"]),
        ("urls", LETTER, ["https://bees.example/a?b=1"]),
        ("numbers", LETTER, ["1,200.50", "1"]),
        ("numbers", "-3 and 2e5, v1.2 x7", ["-3", "2e5"]),
        ("emails", "nobody", []),
    ],
)
def test_every_text_operation_does_what_its_name_says(operation, text, expected):
    """The result stands in the data, and as text for a model."""
    result = text_process(text, operation)
    assert result.data == {"operation": operation, "result": expected}
    assert result.output


def test_replacing_is_literal_and_bounded():
    """No pattern is a pattern, and a result that grows too long is refused before it is made."""
    assert text_process("a.b.c", "replace", find=".", replace_with="-").output == "a-b-c"
    with pytest.raises(ToolError, match="at most"):
        text_process("a" * 1_000_000, "replace", find="a", replace_with="b" * 1_000_000)
    assert len(text_process("a" * 1_000_000, "replace", find="a", replace_with="bb").output) == MAX_RESULT
    with pytest.raises(ToolError, match="in find"):
        text_process("a", "replace")


@pytest.mark.few(6)
@pytest.mark.parametrize(
    "text", ["a@" * 400_000, "a." * 400_000, "1," * 400_000, "http://" * 100_000, "1" * 900_000, "a@a." * 200_000, "+" * 900_000]
)
@pytest.mark.parametrize("operation", ["emails", "urls", "numbers", "clean"])
def test_no_text_makes_an_operation_slow(text, operation):
    """Time grows with the length of a text, not with its square."""
    started = time.perf_counter()
    text_process(text, operation)
    assert time.perf_counter() - started < 8


@settings(deadline=None)
@given(st.text(max_size=500), st.sampled_from(text_module.OPERATIONS))
def test_any_text_ends_in_a_result(text, operation):
    """Each operation answers for any text."""
    assert text_process(text, operation, find="a").success


@pytest.mark.parametrize(
    ("operation", "document", "expected"),
    [
        ("validate", '{"a": [1]}', {"valid": True, "type": "an object", "items": 1}),
        ("validate", "null", {"valid": True, "type": "null", "items": None}),
        ("format", {"b": 1, "a": 2}, '{\n  "b": 1,\n  "a": 2\n}'),
        ("sort", {"b": 1, "a": 2}, '{\n  "a": 2,\n  "b": 1\n}'),
        ("minify", '{ "a" : [1, 2] }', '{"a":[1,2]}'),
        ("keys", [{"a": 1}, {"b": 1, "a": 2}], ["a", "b"]),
        ("keys", {}, []),
        ("flatten", {"a": {"b": [1, {"c": None}]}, "d": []}, {"a.b[0]": 1, "a.b[1].c": None, "d": []}),
        ("flatten", "3", {"$": 3}),
    ],
)
def test_every_json_operation_does_what_its_name_says(operation, document, expected):
    """The result stands in the data, as text where it is a text."""
    result = json_process(document, operation)
    assert result.data == {"operation": operation, "result": expected}
    assert result.output


def test_a_query_picks_by_jmespath():
    """An expression is needed, and its result is the tool's."""
    assert json_process({"items": [{"n": 1}, {"n": 2}]}, "query", "items[?n > `1`].n").data["result"] == [2]
    with pytest.raises(ToolError, match="needs a JMESPath expression"):
        json_process({}, "query")


@pytest.mark.parametrize(
    ("document", "operation", "code"),
    [
        ("{", "validate", "bad_json"),
        ("[" * 10_000, "flatten", "too_deep"),
        ("[" + "1," * 20_000 + "1]", "flatten", "too_large"),
        ({"k" * 200_000: [[1, 2], [3, 4]]}, "flatten", "too_large"),
        ([1, 2], "keys", "no_keys"),
        (["x" * 300_000], "query", "output_too_large"),
    ],
)
def test_hostile_documents_are_refused_with_a_code(document, operation, code):
    """Broken, deep or large documents are errors of the caller."""
    with pytest.raises(ToolError) as failure:
        json_process(document, operation, "@")
    assert (failure.value.error.type, failure.value.error.code) == ("invalid_arguments", code)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(JSON.map(lambda value: [value]), st.sampled_from(json_module.OPERATIONS))
def test_any_document_ends_in_a_result_or_a_tool_error(document, operation):
    """Each operation answers, or says what is wrong."""
    try:
        assert isinstance(json_process(document, operation, "@"), ToolResult)
    except ToolError as failure:
        assert failure.error.type == "invalid_arguments"  # noqa: PT017


@pytest.mark.anyio
async def test_they_are_served(server, namespace):
    """Over a server, the operation is checked by the schema."""
    modules = [text_module, json_module]
    async with Worker(modules, url=server, namespace=namespace), ToolBus(server, namespace=namespace) as bus:
        for name in ("text_process", "json_process"):
            await bus.wait_for_tool(name, 10)
        assert (await bus.call("text_process", {"text": "a", "operation": "upper"})).output == "A"
        assert (await bus.call("json_process", {"document": "[1]", "operation": "minify"})).output == "[1]"
        result = await bus.call("text_process", {"text": "a", "operation": "explode"})
        assert result.error.type == "invalid_arguments"
