"""Tools, actions and groups: what they say, and how they are copied."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from toolbus import provide
from toolbus.bus.values.results import DescriptorError, ToolkitError
from toolbus.toolkit import Action, Item, Tool, ToolGroup


async def search(query: str, limit: int = 5) -> str:
    """Search the archive.

    Args:
        query: what to look for
        limit: how many
    """
    return f"{query} {limit}"


def test_a_tool_of_a_function_says_what_its_signature_and_docstring_say() -> None:
    """Name, description and JSON Schema come from the function, which runs in this process."""
    tool = Tool.from_function(search)
    assert (tool.id, tool.name, tool.description, tool.bus_name) == ("search", "search", "Search the archive.", "")
    assert tool.parameters["required"] == ["query"]
    assert tool.parameters["properties"]["query"] == {"type": "string", "description": "what to look for"}
    assert tool.definition() == {"name": "search", "description": "Search the archive.", "parameters": tool.parameters}
    assert tool.function is search


def test_what_is_given_wins_over_what_a_function_says() -> None:
    """A description and a schema that were given are used as they are."""
    schema = {"type": "object", "properties": {"query": {"type": "string"}}}
    tool = Tool("t", "find", "Find it.", schema, search)
    assert (tool.description, tool.parameters) == ("Find it.", schema)
    tool.parameters["more"] = 1
    assert tool.parameters == schema


def test_a_tool_without_a_function_is_a_tool_of_the_bus() -> None:
    """It is called by its name there, or by another that was given, and takes any object unless it says more."""
    assert (Tool("t", "find").bus_name, Tool("t", "find", bus_name="find.v2").bus_name) == ("find", "find.v2")
    assert Tool("t", "find").parameters == {"type": "object"}
    assert Tool("t", "find").function is None


def test_a_function_that_can_not_be_a_tool_is_refused_when_it_is_asked_for_its_schema() -> None:
    """The error names the function and what is wrong with it; its other facts can be read."""
    assert Tool("t", "say", function=print).description.startswith("Prints the values")
    assert Tool("t", "type", function=type).description == ""
    with pytest.raises(DescriptorError, match="takes '\\*words'"):
        Tool("t", "say", function=lambda *words: words).parameters  # noqa: B018 - reading it is the test


def test_copies_are_equal_and_independent() -> None:
    """A copy says the same, and changing an action's copy leaves the action alone."""
    tool, action = Tool("t", "find"), Action("a", "Find", "d", ["b"], [Tool("t", "find")])
    assert tool.copy() == tool
    assert tool.copy() is not tool
    copied = action.copy()
    assert copied == action
    copied.tools.clear()
    copied.next_action_ids.append("c")
    copied.name = "Lose"
    assert (action.name, action.next_action_ids, len(action.tools)) == ("Find", ["b"], 1)


def test_equality_takes_class_and_content() -> None:
    """Another id, description or class makes another tool; equal ones hash alike."""

    class Special(Tool):
        pass

    assert Tool("t", "find") == Tool("t", "find")
    assert len({Tool("t", "find"), Tool("t", "find")}) == 1
    assert len({Tool("t", "find"), Tool("u", "find"), Tool("t", "find", "d"), Special("t", "find")}) == 4
    assert Action("a", "A") != Action("a", "A", "d")
    assert Action("a", "A") != Tool("a", "A")


def test_a_group_keeps_its_tools_to_itself() -> None:
    """The list that a group hands out is the caller's own."""
    group = ToolGroup("g", "G", "d", [Tool("t", "find")])
    group.tools.clear()
    assert [tool.id for tool in group.tools] == ["t"]
    assert repr(group) == "ToolGroup('g', 'G', 1 tools)"


class Store:
    """Something that only a service can be."""


@dataclasses.dataclass
class Account:
    """Data, which an argument could be as well."""

    name: str = ""


async def ask(query: str, store: Store, account: Account, spare: Store | None = None) -> str:
    """Ask the store."""
    return f"{query} {store} {account} {spare}"


def test_parameters_that_services_fill_in_are_not_shown() -> None:
    """Only what a caller gives is in a definition, also when a type is provided later, or named by a schema that was given."""
    schema = {"type": "object", "properties": {"query": {"type": "string"}, "account": {}}, "required": ["query", "account"]}
    derived, given = Tool.from_function(ask), Tool("t", "ask", "Ask.", schema, ask)
    for tool in (derived, given):
        assert set(tool.definition()["parameters"]["properties"]) == {"query", "account"}
    provide(Account, Account())
    for tool in (derived, given, derived.copy()):
        assert (set(tool.parameters["properties"]), tool.parameters["required"]) == ({"query"}, ["query"])
        assert set(tool.derived.parameters["properties"]) == {"query"}
    assert schema["required"] == ["query", "account"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: ToolGroup("g", [Tool("t", "t")]),
            "name=.* of a ToolGroup has the type list: the order is ToolGroup\\(id, name, description, tools",
        ),
        (lambda: ToolGroup("g", "G", [Tool("t", "t")]), "description="),
        (lambda: ToolGroup("g", "G", "d", "tools"), "tools='tools'"),
        (lambda: ToolGroup("g", "G", "d", [Tool("t", "t"), search]), "tools\\[1\\]=<function sea"),
        (lambda: Action("a", "A", ["b"]), "description=\\['b'\\] of an Action has the type list"),
        (lambda: Action("a", "A", "d", "next"), "next_action_ids='next'"),
        (lambda: Action("a", "A", "d", [Tool("t", "t")]), "next_action_ids\\[0\\]"),
        (lambda: Tool("t", "T", search), "description=<function sea"),
        (lambda: Tool("t", "T", "d", search), "parameters=<function sea"),
        (lambda: Tool("t", "T", "d", {}, "search"), "function='search'"),
    ],
)
def test_arguments_in_each_others_place_are_refused(make: Callable[[], Item], said: str) -> None:
    """An argument of another kind is named, with the order of all of them."""
    with pytest.raises(ToolkitError, match=said):
        make()
