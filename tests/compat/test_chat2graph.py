"""Chat2Graph's names: its users' code, and what its tests check, with only the imports changed."""

from __future__ import annotations

import importlib
import threading
from typing import Any
from unittest import mock

import networkx as nx
import pytest

from tests.compat.chat2graph_groups import ExampleQuery
from toolbus.bus.values.results import ToolkitError
from toolbus.compat import chat2graph
from toolbus.compat.chat2graph.core.common.singleton import AbcSingleton, Singleton
from toolbus.compat.chat2graph.core.common.type import ToolGroupType
from toolbus.compat.chat2graph.core.sdk.wrapper.toolkit_wrapper import ToolkitWrapper
from toolbus.compat.chat2graph.core.service.toolkit_service import ToolkitService
from toolbus.compat.chat2graph.core.toolkit.action import Action
from toolbus.compat.chat2graph.core.toolkit.tool_config import ToolGroupConfig
from toolbus.compat.chat2graph.core.toolkit.tool_group import ToolPackage
from toolbus.compat.chat2graph.core.toolkit.toolkit import Toolkit

# -- the graph ----------------------------------------------------------------------------------------


def test_the_graph_of_four_actions(populated: ToolkitService, actions: list[Action]) -> None:
    """Vertices, edges by kind, and scores are those that were given; adding an action again changes nothing."""
    toolkit = populated.get_toolkit()
    assert isinstance(toolkit.get_graph(), nx.DiGraph)
    populated.add_action(action=actions[0], next_actions=[], prev_actions=[])
    assert (len(toolkit.vertices()), len(toolkit.edges())) == (8, 9)
    assert [len([id_ for id_ in toolkit.vertices() if get(id_)]) for get in (toolkit.get_action, toolkit.get_tool)] == [4, 4]
    assert [len([v for _, v in toolkit.edges() if get(v)]) for get in (toolkit.get_action, toolkit.get_tool)] == [5, 4]
    assert sorted(toolkit.get_score(u, v) for u, v in toolkit.edges()) == [0.6, 0.7, 0.7, 0.8, 0.8, 0.8, 0.9, 0.9, 0.9]
    assert toolkit.get_action("action 1") == actions[0]
    assert toolkit.get_action("action 1") is not actions[0]


def test_tools_are_copied_by_themselves(populated: ToolkitService) -> None:
    """A tool class that copies in its own way does so: the copy is of the class, and has the id that the class gives it."""
    tool = populated.get_toolkit().get_tool("tool 1")
    assert isinstance(tool, ExampleQuery)
    assert tool.id != "tool 1"


def test_what_users_reach_into(populated: ToolkitService, tools: list[ExampleQuery]) -> None:
    """The private names of the graph are live: reading, popping and setting them is reading and changing the graph."""
    toolkit = populated._toolkit
    assert isinstance(toolkit, Toolkit)
    assert [tool.id for tool in toolkit._tools.values()] == [f"tool {number}" for number in range(1, 5)]
    assert toolkit._tools["tool 1"] is tools[0]
    assert (len(toolkit._actions), len(toolkit._tool_groups), "tool 1" in toolkit._actions) == (4, 0, False)
    assert toolkit._scores["action 1", "tool 1"] == 0.9
    toolkit._scores["action 1", "tool 1"] = 0.2
    assert toolkit.get_score("action 1", "tool 1") == 0.2
    del toolkit._scores["action 1", "tool 1"]
    assert (toolkit.get_score("action 1", "tool 1"), len(toolkit._scores)) == (1.0, 8)
    with pytest.raises(KeyError):
        toolkit._scores["action 1", "nowhere"] = 0.5
    toolkit._graph.remove_node("tool 1")
    assert toolkit._tools.pop("tool 1", None) is None
    toolkit._tools["tool 1"] = tools[0]
    assert toolkit.get_tool("tool 1") is not None
    assert toolkit._tools.pop("tool 2") is tools[1]
    assert (toolkit.get_tool("tool 2"), toolkit.has_vertex("tool 2")) == (None, True)
    toolkit.remove_vertices({"tool 1", "tool 2"})
    assert (toolkit.vertices_count(), toolkit.out_degree("action 1")) == (6, 2)


def test_vertices_without_data() -> None:
    """Edges between ids alone make a graph, as JSON does; such vertices are neither recommended nor drawn."""
    toolkit = Toolkit()
    toolkit.add_edge("a", "b", 0.5)
    toolkit.add_vertex("a", data=Action("a", "A", ""))
    again = Toolkit.from_json_str(toolkit.to_json_str())
    assert (again.vertices(), again.edges(), again.vertices_data()) == (["a", "b"], [("a", "b")], [])
    assert [id_ for id_, _ in toolkit.vertices_data()] == ["a"]
    service: ToolkitService = ToolkitService.instance or ToolkitService()
    service._toolkit = toolkit
    assert service.recommend_subgraph([Action("a", "A", "")], hops=1).vertices() == ["a"]
    assert len(service.visualize(toolkit, "A").axes[0].patches) == 1
    with pytest.raises(ToolkitError, match="not a number from 0 to 1"):
        toolkit.add_edge("b", "a", 2)


# -- the service --------------------------------------------------------------------------------------


def test_there_is_one_service() -> None:
    """Every call of the class is the same object, which ``instance`` names, whichever thread makes it first."""

    class Thing(metaclass=Singleton):
        def __init__(self, value: int = 0) -> None:
            self.value = value

    class Other(metaclass=AbcSingleton):
        pass

    assert (Thing.instance, Other.instance) == (None, None)
    found: list[Thing] = []
    threads = [threading.Thread(target=lambda number=number: found.append(Thing(number))) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {id(each) for each in found} == {id(Thing.instance)}
    assert Other() is Other.instance
    assert ToolkitService() is ToolkitService.instance


def test_both_forms_of_each_call(populated: ToolkitService, actions: list[Action]) -> None:
    """The id of the toolkit that earlier versions take first changes nothing."""
    toolkit = populated.get_toolkit()
    assert populated.get_action("action 1") == populated.get_action("any", "action 1") == actions[0]
    populated.remove_tool("tool 1")
    populated.remove_tool("any", "tool 2")
    populated.remove_action("action 3")
    populated.remove_action("any", "action 4")
    assert toolkit.vertices() == ["action 1", "action 2"]
    with pytest.raises(ValueError, match="action 4"):
        populated.get_action("any", "action 4")
    with pytest.raises(TypeError, match="3 arguments"):
        populated.remove_tool("a", "b", "c")


@pytest.mark.parametrize(
    ("starts", "threshold", "hops", "vertices", "edges"),
    [([1], 0.5, 0, [1], 1), ([1], 0.5, 1, [1, 2, 3], 6), ([1], 0.7, 2, [1, 2, 3, 4], 8), ([1, 3], 0.6, 1, [1, 2, 3, 4], 9)],
)
def test_recommendations(
    populated: ToolkitService, actions: list[Action], starts: list[int], threshold: float, hops: int, vertices: list[int], edges: int
) -> None:
    """Actions within the hops and their tools, with every edge that is strong enough."""
    given = [actions[number - 1] for number in starts]
    part = populated.recommend_subgraph(actions=given, threshold=threshold, hops=hops)
    assert set(part.vertices()) == {f"{kind} {number}" for kind in ("action", "tool") for number in vertices}
    assert len(part.edges()) == edges
    assert all(part.get_score(*edge) >= threshold for edge in part.edges())
    assert isinstance(part, Toolkit)
    found, following = populated.recommend_tools_actions(actions=given, threshold=threshold, hops=hops)
    assert (len(found), {action.id for action in following}) == (len(vertices), {f"action {number}" for number in vertices})


# -- chains -------------------------------------------------------------------------------------------


def calls_of(chain: tuple[Any, ...]) -> tuple[list[Any], list[Any], list[Any]]:
    """A chain calls the service through ``add_action``, ``add_tool`` and ``add_tool_group``."""
    names = ("add_action", "add_tool", "add_tool_group")
    with mock.patch.multiple(ToolkitService, **dict.fromkeys(names, mock.DEFAULT)) as made:
        ToolkitWrapper().chain(*chain)
        found = [made[name].mock_calls for name in names]
    return found[0], found[1], found[2]


def test_a_chain_calls_the_service_as_its_users_expect(service: ToolkitService, actions: list[Action], tools: list[ExampleQuery]) -> None:
    """Each action with the one before it, each tool and group with its action, all with 1.0."""
    first, second = actions[:2]
    package = ToolPackage(ToolGroupConfig(ToolGroupType.PACKAGE, "p"))
    added, with_tools, with_groups = calls_of(((first, (tools[0], package)), second, tools[1]))
    assert added == [
        mock.call(first, next_actions=[], prev_actions=[]),
        mock.call(second, next_actions=[], prev_actions=[(first, 1.0)]),
    ]
    assert with_tools == [mock.call(tools[0], connected_actions=[(first, 1.0)]), mock.call(tools[1], connected_actions=[(second, 1.0)])]
    assert with_groups == [mock.call(package, connected_actions=[(first, 1.0)])]
    assert calls_of(()) == ([], [], [])


def test_chains_build_the_graph_of_the_process_or_a_given_one(
    service: ToolkitService, actions: list[Action], tools: list[ExampleQuery]
) -> None:
    """Without a graph the wrapper adds to the service's; with one to that; ``action`` adds one action with its tools."""
    wrapper = ToolkitWrapper().chain(actions[0], tools[0], actions[1])
    assert wrapper.toolkit is service.get_toolkit()
    assert service.get_toolkit().edges() == [("action 1", "tool 1"), ("action 1", "action 2")]
    own = Toolkit()
    assert ToolkitWrapper(own).action(actions[2], [tools[1], tools[2]]).action(actions[3]).toolkit is own
    assert own.edges() == [("action 3", "tool 2"), ("action 3", "tool 3")]
    assert not service.get_toolkit().has_vertex("action 3")


def test_impossible_chains(service: ToolkitService, actions: list[Action], tools: list[ExampleQuery]) -> None:
    """The messages are those that the rules are known by, and nothing is added."""
    package = ToolPackage(ToolGroupConfig(ToolGroupType.PACKAGE, "p"))
    for chain, why in (
        ((tools[0],), "Chain must start with an Action"),
        ((package,), "Chain must start with an Action"),
        ((actions[0], tools[0], tools[1]), "can only be followed by an Action"),
        ((actions[0], (tools[0], actions[1])), "Parallel connection tuples can only contain Tools or ToolGroups"),
    ):
        with pytest.raises(ValueError, match=why):
            ToolkitWrapper().chain(*chain)
    assert service.get_toolkit().vertices() == []


@pytest.mark.parametrize("name", chat2graph.__all__)
def test_every_name_is_there_once(name: str) -> None:
    """The package's own names are those of the modules that the project has them in."""
    found = getattr(chat2graph, name)
    assert getattr(importlib.import_module(found.__module__), name) is found
