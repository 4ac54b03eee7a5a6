"""Arguments are checked against JSON Schemas, and refused in words a model can act on."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from toolbus.bus.schema.arguments import RequiredOnly, Validator, preparer_for
from toolbus.bus.values.descriptors import Argument, ToolDescriptor
from toolbus.bus.values.results import DescriptorError, ToolError

SEARCH = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1, "description": "what to look for"},
        "count": {"type": "integer", "minimum": 1},
        "style": {"enum": ["short", "long"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["query"],
    "additionalProperties": False,
}

TREE = {
    "type": "object",
    "properties": {"children": {"type": "array", "items": {"$ref": "#"}}, "name": {"type": "string"}},
}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["query", "count", "style", "tags", "children", "name"]) | st.text(), JSON, max_size=6)


def refused(schema: Mapping[str, Any], arguments: Any) -> str:
    with pytest.raises(ToolError) as caught:
        Validator(schema).check(arguments)
    assert caught.value.error.type == "invalid_arguments"
    return caught.value.error.message


def test_valid_arguments_are_accepted() -> None:
    """Arguments that match the schema pass without a word."""
    Validator(SEARCH).check({"query": "x", "count": 3, "style": "long", "tags": ["a"]})


def test_a_wrong_type_names_place_expectation_and_schema() -> None:
    """A refusal says where, what was expected, what came instead, and what the schema is there."""
    assert refused(SEARCH, {"query": "x", "count": "three"}) == (
        'Expected `integer`, got `string` - at `$.count` (schema: {"type":"integer","minimum":1})'
    )


def test_a_missing_argument_is_named_at_its_own_place() -> None:
    """A required argument that is missing is named with its schema, without its prose."""
    assert refused(SEARCH, {}) == 'Missing required `query` - at `$.query` (schema: {"type":"string","minLength":1})'


def test_an_unexpected_argument_comes_with_the_known_ones() -> None:
    """An argument that the schema doesn't know is answered with those it does."""
    assert refused(SEARCH, {"query": "x", "cnt": 1}) == "Unexpected `cnt` - at `$` (known: `query`, `count`, `style`, `tags`)"


def test_places_inside_lists_and_odd_keys_are_readable() -> None:
    """Indexes and keys that are no identifiers stand in brackets."""
    assert "`$.tags[1]`" in refused(SEARCH, {"query": "x", "tags": ["a", 2]})
    assert '`$["a b"]`' in refused({"properties": {"a b": {"type": "null"}}}, {"a b": 1})


def test_an_enum_lists_its_options() -> None:
    """A value outside an enum is answered with the options."""
    assert '"short" or "long"' in refused(SEARCH, {"query": "x", "style": "medium"})


def test_a_property_that_is_forbidden_is_named() -> None:
    """A schema of ``false`` says that nothing may stand there."""
    assert refused({"properties": {"old": False}}, {"old": 1}) == "Expected nothing here - at `$.old`"


def test_values_do_not_appear_in_messages() -> None:
    """The offending value, which may be large or private, is not repeated."""
    assert "hunter2" not in refused({"properties": {"password": {"pattern": "^[0-9]+$"}}}, {"password": "hunter2"})


def test_at_most_five_violations_are_reported() -> None:
    """A sixth violation is only hinted at."""
    message = refused(SEARCH, {"query": "x", "tags": list(range(20))})
    assert message.count(" - at ") == 5
    assert message.endswith("; and more")


def test_messages_are_bounded() -> None:
    """The message stays near a thousand characters for names and schemas of any length."""
    names = [letter * 5000 for letter in "abcdefghij"]
    schema = {"properties": {name: {"enum": ["x" * 5000]} for name in names}, "required": ["z" * 5000]}
    assert len(refused(schema, dict.fromkeys(names, 1))) <= 1000


def test_large_arguments_are_refused_quickly() -> None:
    """A million violations cost no more than the first."""
    started = time.process_time()
    refused(SEARCH, {"query": "x", "tags": [1] * 1_000_000})
    assert time.process_time() - started < 2


@pytest.mark.parametrize("pattern", [r"^(a+)+$", r"^(a*)*\1b$", r"^((?=a)a+)+$"])
def test_no_pattern_is_catastrophic(pattern: str) -> None:
    """Patterns that explode in backtracking engines give up or answer in linear time."""
    validator = Validator({"properties": {"q": {"pattern": pattern}}})
    started = time.process_time()
    with pytest.raises(ToolError, match=r"at `\$\.q`"):
        validator.check({"q": "a" * 40 + "!"})
    assert time.process_time() - started < 1


def test_deep_arguments_of_a_recursive_schema_are_refused() -> None:
    """Nesting that would overflow a small thread's native stack is refused before it is followed."""
    validator = Validator(TREE)
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"children": [deep]}
    seen: list[str] = []

    def check() -> None:
        try:
            validator.check(deep)
        except ToolError as error:
            seen.append(error.error.message)

    before = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=check)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert seen == ["Expected at most 64 nested levels - at `$`"]


def test_a_recursive_schema_accepts_ordinary_depth() -> None:
    """The bound on nesting is far from what people write."""
    tree: dict[str, Any] = {"name": "leaf"}
    for _ in range(20):
        tree = {"children": [tree], "name": "branch"}
    Validator(TREE).check(tree)


def test_a_recursive_schema_that_forks_stays_affordable() -> None:
    """When each level of nesting doubles the work, fewer levels are followed and fewer violations described."""
    branch = {"properties": {"a": {"$ref": "#"}}}
    validator = Validator({"anyOf": [{**branch, "required": ["b"]}, {**branch, "required": ["c"]}]})
    nested: dict[str, Any] = {}
    messages = []
    started = time.process_time()
    for _ in range(30):
        nested = {"a": nested}
        with pytest.raises(ToolError) as caught:
            validator.check(nested)
        messages.append(caught.value.error.message)
    assert time.process_time() - started < 5
    assert "anyOf" in messages[0]
    assert messages[10] == "The arguments do not match the schema - at `$`"
    assert messages[-1] == "Expected at most 15 nested levels - at `$`"


def test_an_optional_reference_does_not_fork() -> None:
    """A reference beside ``null``, as in optional fields of a tree, may nest as deep as any other."""
    tree = {"properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "other": {"type": "integer"}}}
    chain: dict[str, Any] = {"next": None}
    for _ in range(40):
        chain = {"next": chain}
    Validator(tree).check(chain)


@pytest.mark.parametrize("arguments", [None, [], "text", 3])
def test_arguments_that_are_no_object_are_refused(arguments: Any) -> None:
    """Only an object can be checked, even when the schema says nothing."""
    assert refused({}, arguments).startswith("Expected `object`, got `")


def test_any_mapping_is_accepted() -> None:
    """Mappings other than dict count as objects."""
    Validator(SEARCH).check(MappingProxyType({"query": "x"}))


@pytest.mark.parametrize("arguments", [{1: 2}, {"query": object()}, {"\ud800": 1}, {"query": "\ud800"}])
def test_what_is_not_json_is_refused_not_raised(arguments: Any) -> None:
    """Keys, values and text that JSON can't hold end in a refusal."""
    assert refused({**SEARCH, "properties": {"query": {"type": "string", "pattern": "x"}}}, arguments)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"a": {"type": "text"}}}, "$.properties.a.type"),
        ({"properties": {"a": {"pattern": "["}}}, "$.properties.a.pattern"),
        ({"required": "a"}, "$.required"),
        ({"properties": {"a": {"$ref": "#/$defs/gone"}}}, '$.properties.a["$ref"]'),
        ({"properties": {"a": {"$ref": "https://example.com/a.json"}}}, '$.properties.a["$ref"]'),
        ({"properties": {"a": {"$ref": "file:///etc/hostname"}}}, '$.properties.a["$ref"]'),
        ({1: 2}, "$"),
        ({"default": object()}, "$"),
        (True, "$"),
    ],
)
def test_an_impossible_schema_is_refused_at_once(schema: Any, path: str) -> None:
    """A schema that can't be compiled, or refers to another document, fails where it is built and names the place."""
    with pytest.raises(DescriptorError) as caught:
        Validator(schema)
    assert caught.value.path == path


def test_a_validator_can_stand_inside_a_document() -> None:
    """The path of an impossible schema starts where the caller says the schema stands."""
    with pytest.raises(DescriptorError) as caught:
        Validator({"required": "a"}, path="$.parameters")
    assert caught.value.path == "$.parameters.required"


def test_a_deep_schema_is_refused_at_once() -> None:
    """A schema nested without end is impossible, not a crash."""
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"properties": {"a": schema}}
    with pytest.raises(DescriptorError):
        Validator(schema)


@pytest.mark.usefixtures("slow")
@settings(max_examples=examples(300))
@given(ARGUMENTS, st.sampled_from([SEARCH, TREE, {}, {"propertyNames": {"maxLength": 3}}, {"maxProperties": 1}, {"not": {}}]))
def test_checking_only_ever_raises_tool_error(arguments: dict[str, Any], schema: dict[str, Any]) -> None:
    """For any JSON object the answer is acceptance or a bounded refusal."""
    message = "accepted"
    try:
        Validator(schema).check(arguments)
    except ToolError as error:
        message = error.error.message
    assert 0 < len(message) <= 1000


@pytest.mark.usefixtures("slow")
@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_any_mapping_as_a_schema_compiles_or_is_a_descriptor_error(schema: dict[str, Any]) -> None:
    """Schemas come from other people's services: whatever they hold, only DescriptorError comes out."""
    with contextlib.suppress(DescriptorError):
        Validator({"properties": schema, **schema})


def test_required_only_enforces_presence_and_nothing_else() -> None:
    """The two-tier form checks that required arguments are there, whatever their type."""
    checker = RequiredOnly(["topic", "style"])
    checker.check({"topic": 3, "style": None, "more": []})
    with pytest.raises(ToolError, match=r"Missing required `style` - at `\$\.style`") as caught:
        checker.check({"topic": "x"})
    assert caught.value.error.type == "invalid_arguments"
    with pytest.raises(ToolError, match="Expected `object`"):
        checker.check([])  # type: ignore[arg-type]


def test_a_tool_with_parameters_is_checked_by_its_schema() -> None:
    """``parameters`` are enforced."""
    checker = preparer_for(ToolDescriptor("search", "d", "s", parameters=SEARCH))
    checker.prepare({"query": "x"})
    with pytest.raises(ToolError):
        checker.prepare({"query": 3})


def test_a_two_tier_tool_is_checked_for_its_required_arguments() -> None:
    """Of ``arguments`` only ``required`` is enforced, not the types shown to the model."""
    arguments = (Argument("topic", "string", "what about", required=True), Argument("count", "integer", "how many"))
    checker = preparer_for(ToolDescriptor("joke", "d", "s", arguments=arguments))
    checker.prepare({"topic": 3, "count": "many", "else": 1})
    with pytest.raises(ToolError, match="topic"):
        checker.prepare({"count": 1})


def test_a_tool_without_either_accepts_anything() -> None:
    """An untyped tool gets what the caller sends."""
    preparer_for(ToolDescriptor("raw", "d", "s")).prepare({"any": object()})


def test_a_tool_with_an_impossible_schema_names_its_parameters() -> None:
    """The error's path leads into the descriptor."""
    with pytest.raises(DescriptorError) as caught:
        preparer_for(ToolDescriptor("bad", "d", "s", parameters={"type": "nope"}))
    assert caught.value.path == "$.parameters.type"


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({"a": {1}}, "$.a"),
        ({"b": [0, {"c": object()}]}, "$.b[1].c"),
        ({"b": 1, "a": b"x"}, "$.a"),
        ({"a": {1: 2}}, "$.a"),
        ({"a": "\ud800"}, "$.a"),
        ({1: 2}, "$"),
    ],
)
def test_a_value_that_json_does_not_know_is_told_with_its_place(arguments: Any, place: str) -> None:
    """The message names the part, not the whole."""
    with pytest.raises(ToolError, match="Expected JSON values: ") as refused:
        Validator({"type": "object", "additionalProperties": {"enum": [0]}}).check(arguments)
    assert refused.value.error.message.endswith(f" - at `{place}`")
