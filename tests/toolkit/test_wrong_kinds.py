"""Arguments of wrong kinds, for everything that takes actions, tools, groups, graphs or lists of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.toolkit.graphs import facts, graph_of
from toolbus import ToolBus
from toolbus.toolkit import (
    Action,
    Tool,
    ToolGroup,
    Toolkit,
    ToolkitError,
    ToolkitService,
    ToolkitWrapper,
    Walk,
    add_chain,
    for_actions,
    group_of_definitions,
    recommend_subgraph,
    recommend_tools_actions,
)

A, B, T, G = Action("a", "A"), Action("b", "B"), Tool("t", "T"), ToolGroup("g", "G", "", [Tool("u", "U")])
BROKEN = Action("c", "C")
BROKEN.tools.append("no tool")  # type: ignore[arg-type]

# What stands in for an object, for the pairs of an action and a score, and for a list of actions.
OBJECTS = (None, 5, "a", ["a"], {}, object())
PAIRS = (None, 5, "a", A, ["a"], [A], [("a", 0.5)], [(T, 0.5)], [(A,)], [(A, 0.5, 1)], [(A, "high")], [(A, None)], (A, 0.5), {"a": 0.5})
LISTS = (None, 5, "abc", A, [5], [None], [T], [["a"]], [(A, 0.5)])
IDS = (None, 5, A, ["a"])

Call = Callable[[ToolkitService, Any], object]

OF_SERVICE: dict[str, list[tuple[Call, tuple[object, ...]]]] = {
    "add_action": [
        (lambda service, wrong: service.add_action(wrong), (*OBJECTS, T, G, BROKEN)),
        (lambda service, wrong: service.add_action(B, next_actions=wrong), PAIRS),
        (lambda service, wrong: service.add_action(B, prev_actions=wrong), PAIRS),
    ],
    "add_tool": [
        (lambda service, wrong: service.add_tool(wrong, [(A, 0.5)]), (*OBJECTS, A, G)),
        (lambda service, wrong: service.add_tool(T, wrong), PAIRS),
    ],
    "add_tool_group": [
        (lambda service, wrong: service.add_tool_group(wrong, [(A, 0.5)]), (*OBJECTS, A, T)),
        (lambda service, wrong: service.add_tool_group(G, wrong), PAIRS),
    ],
    "remove_action": [(lambda service, wrong: service.remove_action(wrong), IDS)],
    "remove_tool": [(lambda service, wrong: service.remove_tool(wrong), (*IDS, T))],
    "remove_tool_group": [(lambda service, wrong: service.remove_tool_group(wrong), (*IDS, G))],
    "recommend_subgraph": [(lambda service, wrong: service.recommend_subgraph(wrong), LISTS)],
    "recommend_tools_actions": [(lambda service, wrong: service.recommend_tools_actions(wrong), LISTS)],
    "visualize": [(lambda service, wrong: service.visualize(wrong, "title"), (*OBJECTS, A))],
}
OF_GRAPH: dict[str, list[tuple[Call, tuple[object, ...]]]] = {
    "add_vertex": [
        (lambda service, wrong: service.get_toolkit().add_vertex("b", data=wrong), OBJECTS),
        (lambda service, wrong: service.get_toolkit().add_vertex(wrong, data=B), IDS),
    ],
    "add_edge": [
        (lambda service, wrong: service.get_toolkit().add_edge(wrong, "a"), IDS),
        (lambda service, wrong: service.get_toolkit().add_edge("a", wrong), IDS),
    ],
    "set_score": [
        (lambda service, wrong: service.get_toolkit().set_score(wrong, "a", 0.5), IDS),
        (lambda service, wrong: service.get_toolkit().set_score("a", wrong, 0.5), IDS),
        (lambda service, wrong: service.get_toolkit().set_score("a", "a", wrong), (None, "high", True, A)),
    ],
    "remove_edge": [
        (lambda service, wrong: service.get_toolkit().remove_edge(wrong, "a"), IDS),
        (lambda service, wrong: service.get_toolkit().remove_edge("a", wrong), IDS),
    ],
    "remove_vertex": [(lambda service, wrong: service.get_toolkit().remove_vertex(wrong), IDS)],
    "predecessors": [(lambda service, wrong: service.get_toolkit().predecessors(wrong), IDS)],
    "successors": [(lambda service, wrong: service.get_toolkit().successors(wrong), IDS)],
    "update": [(lambda service, wrong: service.get_toolkit().update(wrong), (*OBJECTS, A))],
    "subgraph": [(lambda service, wrong: service.get_toolkit().subgraph(wrong), (*LISTS, [A]))],
}
ELSEWHERE: dict[str, list[tuple[Call, tuple[object, ...]]]] = {
    "a service": [(lambda service, wrong: ToolkitService(wrong), (5, "a", [], A, ToolkitService()))],
    "a wrapper": [(lambda service, wrong: ToolkitWrapper(wrong), (5, "a", [], A, ToolkitService()))],
    "a chain": [
        (add_chain, OBJECTS),
        (lambda service, wrong: add_chain(service, B, wrong), OBJECTS),
        (lambda service, wrong: add_chain(wrong, B), (None, 5, "a", Toolkit())),
    ],
    "recommendations": [
        (lambda service, wrong: recommend_subgraph(service.get_toolkit(), wrong), LISTS),
        (lambda service, wrong: recommend_tools_actions(service.get_toolkit(), wrong), LISTS),
        (lambda service, wrong: recommend_subgraph(wrong, ["a"]), (*OBJECTS, ToolkitService())),
        (lambda service, wrong: recommend_tools_actions(wrong, ["a"]), (*OBJECTS, ToolkitService())),
    ],
    "definitions": [(lambda service, wrong: group_of_definitions("g", wrong), (None, 5, "abc", [5], [A.id]))],
}
# They read by an id alone, or take networkx's own tables.
READERS = {"has_vertex", "has_edge", "get_action", "get_tool", "get_tool_group", "item", "get_score", "part"}


@pytest.fixture
def service() -> ToolkitService:
    """Return a service with one action that leads to itself."""
    return ToolkitService(graph_of_a())


def graph_of_a() -> Toolkit:
    """Return a graph of one action that leads to itself."""
    toolkit = Toolkit()
    toolkit.add_vertex("a", data=A)
    toolkit.add_edge("a", "a", 0.5)
    return toolkit


@pytest.mark.parametrize(("name", "cases"), [*OF_SERVICE.items(), *OF_GRAPH.items(), *ELSEWHERE.items()])
def test_an_argument_of_another_kind_is_refused(service: ToolkitService, name: str, cases: list[tuple[Call, tuple[object, ...]]]) -> None:
    """Each raises a ToolkitError, and the graph is as before."""
    before = facts(service.get_toolkit())
    for call, given in cases:
        for wrong in given:
            with pytest.raises(ToolkitError):
                pytest.fail(f"{name} took {wrong!r}: {call(service, wrong)!r}")
            assert facts(service.get_toolkit()) == before, (name, wrong)


@pytest.mark.parametrize(("cls", "cases"), [(ToolkitService, OF_SERVICE), (Toolkit, OF_GRAPH)])
def test_each_method_with_arguments_is_among_them(cls: type, cases: dict[str, object]) -> None:
    """A method that is added to a graph or its service has a row above, or reads by an id alone."""
    methods = {name: each for name, each in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("_")}
    assert {name for name, each in methods.items() if len(inspect.signature(each).parameters) > 1} - READERS == cases.keys()


def test_a_mistake_says_what_is_wanted(service: ToolkitService) -> None:
    """The message names the argument, its place in a list, and its kind."""
    for call, said in (
        (
            lambda: service.add_action(B, prev_actions=[(A, 1.0), ("a", 0.5)]),
            r"prev_actions\[1\] is no pair of an Action and a score: \('a', 0.5\)",
        ),  # type: ignore[list-item]
        (lambda: service.add_action("x"), "action has the type str, not Action: 'x'"),  # type: ignore[arg-type]
        (lambda: service.recommend_tools_actions("abc"), "actions has the type str, not list: 'abc'"),
        (lambda: service.recommend_tools_actions([A, T]), r"actions\[1\] has the type Tool, not Action or str"),  # type: ignore[list-item]
    ):
        with pytest.raises(ToolkitError, match=said):
            call()


@pytest.mark.parametrize(
    "add",
    [
        lambda service: add_chain(service, A, T, B, Tool("a", "A")),
        lambda service: add_chain(service, B, Tool("b", "B")),
        lambda service: service.add_action(Action("x", "X", tools=[T, Tool("x", "X")]), prev_actions=[(A, 0.5)]),
        lambda service: service.add_tool_group(ToolGroup("x", "X", "", [T, Tool("x", "X")]), [(A, 0.5)]),
    ],
)
def test_one_id_of_two_kinds_adds_nothing(service: ToolkitService, add: Callable[[ToolkitService], object]) -> None:
    """An id that stands for an action or group and for a tool is refused before anything of it is in the graph."""
    before = facts(service.get_toolkit())
    with pytest.raises(ToolkitError, match="already; give the tool another id"):
        add(service)
    assert facts(service.get_toolkit()) == before


def test_pairs_may_come_from_a_generator(service: ToolkitService) -> None:
    """Their edges are made, although they can be read only once."""
    service.add_action(B, next_actions=((each, 0.3) for each in [A]), prev_actions=((each, 0.4) for each in [A]))  # type: ignore[arg-type]
    assert facts(service.get_toolkit())[1] == {("a", "a"): 0.5, ("b", "a"): 0.3, ("a", "b"): 0.4}


@pytest.mark.anyio
@pytest.mark.parametrize("wrong", [None, 5, "abc", [5], [A]])
async def test_a_position_is_a_list_of_texts(wrong: Any) -> None:
    """A view or a walk takes no text for a list of its characters, and no actions themselves."""
    toolkit = graph_of(("a0", "t0"))
    async with ToolBus("memory://") as bus:
        with pytest.raises(ToolkitError, match="actions"):
            for_actions(bus.tools, wrong, toolkit=toolkit)
        with pytest.raises(ToolkitError, match="starts"):
            Walk(bus.tools, wrong, toolkit=toolkit)
        with pytest.raises(ToolkitError, match="called"):
            Walk(bus.tools, ["a0"], toolkit=toolkit).after(wrong)


def test_only_a_graph_is_drawn(tmp_path: Path) -> None:
    """A picture or page of anything else is refused, and no file is written."""
    from toolbus.toolkit.draw import draw, save

    for wrong in (None, "a", ToolkitService()):
        with pytest.raises(ToolkitError, match="graph has the type"):
            draw(wrong)  # type: ignore[arg-type]
        for name in ("a.svg", "a.html"):
            with pytest.raises(ToolkitError, match="graph has the type"):
                save(wrong, tmp_path / name)  # type: ignore[arg-type]
    assert [*tmp_path.iterdir()] == []
