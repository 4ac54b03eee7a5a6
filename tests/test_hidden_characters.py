"""A tool's name is what it looks like, and its description has nothing that only a model reads."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract import Place
from toolbus import tool
from toolbus.bus.values.descriptors import ToolDescriptor, check_tool, parse_tool
from toolbus.bus.values.results import DescriptorError

pytestmark = pytest.mark.anyio

HIDING = [
    "\u202e",
    "\u2066",
    "\u200b",
    "\u200d",
    "\u2060",
    "\ufeff",
    "\u00ad",
    "\x1b",
    "\x9b",
    "\x7f",
    "\u3164",
    "\u2800",
    "\ufe0f",
    "\U000e0041",
]
TWO_TIER = {"name": "pay", "description": "Pay.", "service": "s", "type": "tool-service"}


def with_arguments(name: str) -> dict[str, Any]:
    """A tool of the two-tier form."""
    return {**TWO_TIER, "arguments": [{"name": name, "type": "string", "description": "d"}]}


def with_schema(name: str) -> dict[str, Any]:
    """A tool with a schema."""
    return {**TWO_TIER, "parameters": {"type": "object", "properties": {name: {"type": "string"}}}}


def deep(name: str) -> dict[str, Any]:
    """A tool with objects in its schema."""
    inner = {"type": "array", "items": {"anyOf": [{"type": "object", "properties": {name: {}}}]}}
    return {**TWO_TIER, "parameters": {"type": "object", "properties": {"a": inner}}}


@pytest.mark.parametrize(
    "made", [lambda name: {**TWO_TIER, "name": name}, with_arguments, with_schema, deep], ids=["tool", "tier", "schema", "deep"]
)
def test_names_that_hide_something_are_refused(made: Any) -> None:
    """Of tools and of arguments, at every depth, when a descriptor is read and when a publication is."""
    for hiding in HIDING:
        with pytest.raises(DescriptorError, match="invisible or imitating characters") as refused:
            parse_tool(made(f"pay{hiding}ment"), None)
        assert hiding not in str(refused.value)
    assert parse_tool(made("bezahlen_zurück_支払い"), None).name


@pytest.mark.parametrize(
    "made", [lambda name: {**TWO_TIER, "name": name}, with_arguments, with_schema, deep], ids=["tool", "tier", "schema", "deep"]
)
def test_names_that_imitate_others_are_refused(made: Any) -> None:
    """A tool whose name has a Cyrillic letter among Latin ones is not the one that it looks like."""
    with pytest.raises(DescriptorError, match=r"imitating characters: 'p\\u0430yment'"):
        parse_tool(made("p\u0430yment"), None)


def test_a_schema_of_any_depth_can_be_checked() -> None:
    """Nesting without end takes no stack."""
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"properties": {"a": schema}}
    assert check_tool(ToolDescriptor("deep", "d", "s", parameters=schema)).name == "deep"


HIDDEN = "Adds.\u202e\u200b\U000e0049\U000e0047\x1b[8m"
SHOWN = "Adds.\\u202e\\u200b\\udb40\\udc49\\udb40\\udc47\\u001b[8m"
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "number", "description": HIDDEN, "enum": [1]}, "t": {"type": "string", "title": HIDDEN, "const": HIDDEN}},
}


@tool("add", HIDDEN, SCHEMA, service="hidden", effect="read")
def add(params: dict[str, Any]) -> Any:
    """Return the arguments."""
    return params


@tool("persian", "می\u200cخواهم\n\tनमस्ते 👩\u200d💻", {"type": "object"}, service="hidden", effect="read")
def persian(params: dict[str, Any]) -> Any:
    """Return the arguments."""
    return params


@pytest.mark.parametrize("format", ["bare", "openai", "responses", "anthropic", "mcp"])
async def test_what_descriptions_hide_is_marked(place: Place, format: Any) -> None:
    """A model reads what a person sees, in the descriptions of tools and arguments; values, and other languages, stay as they are."""
    async with place.serving(add, persian) as bus:
        made, plain = bus.tools.definitions(format)
        description = bus.tools["add"].description
    said = str(made)
    assert description == SHOWN
    assert said.count(repr(SHOWN)[1:-1]) == 3
    assert "\u202e" not in said.replace(repr(HIDDEN), "")
    assert HIDDEN in [each["const"] for each in find(made, "t")]
    assert find(plain, "description") == ["می\u200cخواهم\n\tनमस्ते 👩\u200d💻"]


def find(value: Any, key: str) -> list[Any]:
    """Every value of a key."""
    if isinstance(value, list):
        return [found for each in value for found in find(each, key)]
    if not isinstance(value, dict):
        return []
    return [*([value[key]] if key in value else []), *(found for each in value.values() for found in find(each, key))]
