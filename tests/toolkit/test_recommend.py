"""Recommendations: what is found, against a plain reading of the rules."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.toolkit.graphs import IDS, facts, graph_of, toolkits
from toolbus.toolkit import Toolkit, ToolkitError, ToolkitService, recommend_subgraph, recommend_tools_actions

SAMPLE = (
    ("a1", "a2", 0.8), ("a1", "a3", 0.6), ("a2", "a3", 0.7), ("a2", "a4", 0.9), ("a3", "a4", 0.7),
    ("a1", "t1", 0.9), ("a2", "t2", 0.8), ("a3", "t3", 0.9), ("a4", "t4", 0.8),
)  # fmt: skip


def expected(toolkit: Toolkit, starts: set[str], threshold: float, hops: int) -> tuple[set[str], set[tuple[str, str]]]:
    """Apply the rules literally to all edges, once for each hop."""
    strong = {edge for edge in toolkit.edges() if toolkit.get_score(*edge) >= threshold}
    found = {vertex for vertex in starts if toolkit.get_action(vertex)}
    for _ in range(hops):
        found |= {v for u, v in strong if u in found and toolkit.get_action(v)}
    found |= {v for u, v in strong if u in found and not toolkit.get_action(v)}
    found |= {v for u, v in strong if u in found and toolkit.get_tool_group(u)}
    return found, {(u, v) for u, v in strong if u in found and v in found}


@pytest.mark.parametrize(
    ("starts", "threshold", "hops", "vertices", "edges"),
    [
        (["a1"], 0.5, 0, "a1 t1", 1),
        (["a1"], 0.5, 1, "a1 a2 a3 t1 t2 t3", 6),
        (["a1"], 0.7, 2, "a1 a2 a3 a4 t1 t2 t3 t4", 8),
        (["a1", "a3"], 0.6, 1, "a1 a2 a3 a4 t1 t2 t3 t4", 9),
        (["a1"], 0.8, 2, "a1 a2 a4 t1 t2 t4", 5),
        (["a4"], 0.81, 5, "a4", 0),
    ],
)
def test_the_sample_graph(starts: list[str], threshold: float, hops: int, vertices: str, edges: int) -> None:
    """Hops and the threshold narrow a graph of four actions with a tool each as one counts by hand."""
    part = recommend_subgraph(graph_of(*SAMPLE), starts, threshold, hops)
    assert sorted(part.vertices()) == vertices.split()
    assert len(part.edges()) == edges
    assert all(part.get_score(*edge) >= threshold for edge in part.edges())


@given(toolkits(), st.sets(st.sampled_from([*IDS["action"], "t0", "g0", "x"])), st.sampled_from([0, 0.25, 0.3, 0.5, 1]), st.integers(0, 4))
def test_recommendations_are_what_the_rules_say(toolkit: Toolkit, starts: set[str], threshold: float, hops: int) -> None:
    """Vertices, edges, scores and data are those of the rules read literally, and the graph itself is as before."""
    before = facts(toolkit)
    part = recommend_subgraph(toolkit, sorted(starts), threshold, hops)
    vertices, edges = expected(toolkit, starts, threshold, hops)
    items, scores = facts(part)
    assert items == {vertex: before[0][vertex] for vertex in vertices}
    assert scores == {edge: before[1][edge] for edge in edges}
    assert facts(toolkit) == before
    tools, actions = recommend_tools_actions(toolkit, sorted(starts), threshold, hops)
    assert {tool.id for tool in tools} == {vertex for vertex in vertices if toolkit.get_tool(vertex)}
    assert {action.id for action in actions} == {vertex for vertex in vertices if toolkit.get_action(vertex)}


def test_a_group_brings_its_tools() -> None:
    """The tools of a called group are recommended, unless the group's edge or their own is too weak."""
    toolkit = graph_of(("a0", "g0", 0.9), ("a0", "g1", 0.2), ("g0", "t0"), ("g0", "t1", 0.1), ("g1", "t2"))
    part = recommend_subgraph(toolkit, ["a0"])
    assert part.vertices() == ["a0", "g0", "t0"]
    tools, actions = recommend_tools_actions(toolkit, ["a0"])
    assert ([tool.id for tool in tools], [action.id for action in actions]) == (["t0"], ["a0"])


def test_a_tool_that_a_weak_and_a_strong_edge_lead_to_comes_by_the_strong_one() -> None:
    """It is there, and the weak edge is not."""
    part = recommend_subgraph(graph_of(("a0", "t0", 0.2), ("a0", "a1"), ("a1", "t0", 0.9)), ["a0"], hops=1)
    assert part.edges() == [("a0", "a1"), ("a1", "t0")]


def test_unknown_starts_give_nothing() -> None:
    """Actions that are not in the graph, tools and groups start nothing; there is no error."""
    toolkit = graph_of(*SAMPLE, ("a1", "g0"))
    for starts in ([], ["x"], ["t1"], ["g0"]):
        assert recommend_subgraph(toolkit, starts, hops=3).vertices() == []
        assert recommend_tools_actions(toolkit, starts) == ([], [])


def test_cycles_end() -> None:
    """Actions in a circle are met once each, however many hops there are."""
    part = recommend_subgraph(graph_of(("a0", "a1"), ("a1", "a2"), ("a2", "a0"), ("a0", "a0")), ["a0"], hops=10_000_000)
    assert part.vertices() == ["a0", "a1", "a2"]
    assert len(part.edges()) == 4


def test_nothing_is_looked_at_that_is_not_met() -> None:
    """A recommendation reads the edges of the vertices it finds, so its time does not grow with the graph."""
    looked: list[str] = []

    class Edges(UserDict[str, Any]):
        def __getitem__(self, vertex: str) -> Any:
            looked.append(vertex)
            return self.data[vertex]

    class Watched(Toolkit):
        def tables(self) -> Any:
            nodes, edges = super().tables()
            watched = Edges()
            watched.data = edges  # type: ignore[assignment] # the graph's own, not a copy
            return nodes, watched

    toolkit = Watched()
    toolkit.update(graph_of(*SAMPLE, *((f"a{number}", f"t{number}") for number in range(10, 500))))
    assert len(recommend_subgraph(toolkit, ["a1"], 0.7, 1).vertices()) == 4
    assert sorted(looked) == ["a1", "a2"]


def test_hops_are_counted_by_the_shortest_way() -> None:
    """An action that a long way and a short way lead to is as near as the short one."""
    toolkit = graph_of(("a0", "a1"), ("a1", "a2"), ("a0", "a2"), ("a2", "a3"), ("a3", "t3"))
    assert "t3" in recommend_subgraph(toolkit, ["a0"], hops=2).vertices()
    assert "a3" not in recommend_subgraph(toolkit, ["a0"], hops=1).vertices()


def test_the_order_is_that_of_meeting() -> None:
    """Starts first, then what follows them, then what they call; the same each time."""
    toolkit = graph_of(*SAMPLE)
    assert recommend_subgraph(toolkit, ["a1"], hops=1).vertices() == ["a1", "a2", "a3", "t1", "t2", "t3"]
    assert recommend_subgraph(toolkit, ["a3", "a1"]).vertices() == ["a3", "a1", "t3", "t1"]


def test_starts_may_be_actions_and_results_are_copies() -> None:
    """An action stands for its id, also when it is another object, and what comes back is not what the graph holds."""
    service = ToolkitService(graph_of(*SAMPLE))
    action = service.get_action("a1")
    tools, actions = service.recommend_tools_actions([action])
    assert (actions, [tool.id for tool in tools]) == ([action], ["t1"])
    assert tools[0] is not service.get_toolkit().item("t1")
    assert service.recommend_subgraph([action], 0.5, 1).vertices() == ["a1", "a2", "a3", "t1", "t2", "t3"]


@pytest.mark.parametrize(
    ("threshold", "hops", "what"), [(1.5, 0, "threshold"), (float("nan"), 0, "threshold"), (0.5, -1, "hops"), (0.5, 1.5, "hops")]
)
def test_impossible_questions_are_refused(threshold: float, hops: int, what: str) -> None:
    """A threshold outside of 0 to 1, and hops that are no whole number from 0, are errors that say so."""
    with pytest.raises(ToolkitError, match=what):
        recommend_subgraph(graph_of(*SAMPLE), ["a1"], threshold, hops)
