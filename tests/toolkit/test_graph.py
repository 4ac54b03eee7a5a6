"""The graph: vertices, edges and scores, and what goes with what."""

from __future__ import annotations

import math
from typing import Self

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.toolkit.graphs import IDS, facts, graph_of, item, toolkits
from toolbus.toolkit import Action, Tool, ToolGroup, Toolkit, ToolkitError

CHAIN = (("a0", "a1", 0.8), ("a0", "t0", 0.9), ("a1", "t1", 0.7))


def test_vertices_and_edges_are_listed_as_they_were_added() -> None:
    """Vertices, edges, neighbours and data are in the order in which they came."""
    toolkit = graph_of(*CHAIN)
    assert toolkit.vertices() == ["a0", "a1", "t0", "t1"]
    assert toolkit.edges() == [("a0", "a1"), ("a0", "t0"), ("a1", "t1")]
    assert (toolkit.successors("a0"), toolkit.predecessors("t1")) == (["a1", "t0"], ["a1"])
    assert [(vertex, type(about["data"])) for vertex, about in toolkit.vertices_data()] == [
        ("a0", Action), ("a1", Action), ("t0", Tool), ("t1", Tool),
    ]  # fmt: skip
    assert isinstance(toolkit.get_graph(), nx.DiGraph)


def test_what_stands_at_a_vertex_is_found_by_its_type_only() -> None:
    """Asking for another type, or for a vertex that is not there, gives None."""
    toolkit = graph_of(("a0", "g0"), ("g0", "t0"))
    found = [
        [get(vertex) is not None for vertex in ("a0", "t0", "g0", "x")]
        for get in (toolkit.get_action, toolkit.get_tool, toolkit.get_tool_group)
    ]
    assert found == [[True, False, False, False], [False, True, False, False], [False, False, True, False]]


def test_actions_and_tools_are_handed_out_as_copies_and_groups_as_they_are() -> None:
    """Changes to an action that a caller got do not reach the graph; a group is the group itself."""
    toolkit, group = graph_of(("a0", "t0")), ToolGroup("g", "G")
    toolkit.add_vertex("g", data=group)
    action = toolkit.get_action("a0")
    assert action is not None
    action.description = "changed"
    again = toolkit.get_action("a0")
    assert again is not None
    assert again.description == "about a0"
    assert toolkit.get_tool("t0") is not toolkit.get_tool("t0")
    assert toolkit.get_tool_group("g") is group
    data = dict(toolkit.vertices_data())
    assert data["g"]["data"] is group
    assert data["a0"]["data"] is not toolkit.item("a0")


def test_copies_are_made_by_the_object_itself() -> None:
    """A subclass that copies in its own way is asked to, wherever the graph hands it out."""

    class Counted(Tool):
        copies = 0

        def copy(self) -> Self:
            type(self).copies += 1
            return type(self)(f"{self.id}'", self.name)

    toolkit = graph_of(alone=("a0",))
    toolkit.add_vertex("t", data=Counted("t", "T"))
    tool = toolkit.get_tool("t")
    assert isinstance(tool, Counted)
    assert (tool.id, Counted.copies) == ("t'", 1)


def test_scores_are_one_until_they_are_set() -> None:
    """An edge without a score counts as sure, and so does one that is not there."""
    toolkit = graph_of(("a0", "t0"), ("a0", "a1", 0.25))
    assert (toolkit.get_score("a0", "t0"), toolkit.get_score("a0", "a1"), toolkit.get_score("a1", "nowhere")) == (1.0, 0.25, 1.0)
    toolkit.set_score("a0", "t0", 0)
    assert toolkit.get_score("a0", "t0") == 0.0


@pytest.mark.parametrize("score", [-0.01, 1.01, math.nan, math.inf, -math.inf, "0.5", None, True])
def test_impossible_scores_are_refused(score: object) -> None:
    """A score is a finite number from 0 to 1; the error says what it was and for which edge, and nothing changed."""
    toolkit = graph_of(("a0", "t0", 0.5))
    with pytest.raises(ToolkitError, match=r"the edge 'a0' → 't0' is .*, which is not a number from 0 to 1"):
        toolkit.set_score("a0", "t0", score)  # type: ignore[arg-type]
    assert toolkit.get_score("a0", "t0") == 0.5


def test_an_edge_with_an_impossible_score_is_not_added() -> None:
    """The edge is refused together with its score."""
    toolkit = graph_of(alone=("a0", "t0"))
    with pytest.raises(ToolkitError, match="2"):
        toolkit.add_edge("a0", "t0", 2)
    assert toolkit.edges() == []


def test_adding_an_edge_again_keeps_its_score() -> None:
    """Only a score that is given changes it."""
    toolkit = graph_of(("a0", "t0", 0.5))
    toolkit.add_edge("a0", "t0")
    assert toolkit.get_score("a0", "t0") == 0.5
    toolkit.add_edge("a0", "t0", 0.75)
    assert toolkit.get_score("a0", "t0") == 0.75


def test_a_removed_edge_has_no_score_when_it_comes_back() -> None:
    """The score goes with the edge, whether the graph, networkx or a vertex takes it away."""
    for number, remove in enumerate(
        [
            lambda toolkit: toolkit.remove_edge("a0", "t0"),
            lambda toolkit: toolkit.get_graph().remove_edge("a0", "t0"),
            lambda toolkit: toolkit.remove_vertex("t0"),
            lambda toolkit: toolkit.remove_vertex("a0"),
        ]
    ):
        toolkit = graph_of(("a0", "t0", 0.125))
        remove(toolkit)
        assert not toolkit.has_edge("a0", "t0"), number
        for vertex in ("a0", "t0"):
            toolkit.add_vertex(vertex, data=item(vertex))
        toolkit.add_edge("a0", "t0")
        assert toolkit.get_score("a0", "t0") == 1.0, number


@pytest.mark.parametrize(
    ("edge", "why"),
    [
        (("t0", "a0"), "a tool leads to nothing"),
        (("t0", "t1"), "a tool leads to nothing"),
        (("t0", "g0"), "a tool leads to nothing"),
        (("g0", "a0"), "a group leads to a tool"),
        (("g0", "g1"), "a group leads to a tool"),
        (("a0", "nowhere"), "there is no vertex 'nowhere'"),
        (("nowhere", "a0"), "there is no vertex 'nowhere'"),
    ],
)
def test_edges_lead_only_where_they_may(edge: tuple[str, str], why: str) -> None:
    """Actions lead to anything, groups to tools, tools to nothing, and nothing to what is not there."""
    toolkit = graph_of(alone=("a0", "t0", "t1", "g0", "g1"))
    with pytest.raises(ToolkitError, match=why):
        toolkit.add_edge(*edge)
    assert (toolkit.edges(), toolkit.has_vertex("nowhere")) == ([], False)


def test_asking_about_what_is_not_there_says_so() -> None:
    """Neighbours of a missing vertex, and the score or removal of a missing edge, are errors that name it."""
    toolkit = graph_of(alone=("a0", "t0"))
    for ask in (toolkit.predecessors, toolkit.successors):
        with pytest.raises(ToolkitError, match="'x'"):
            ask("x")
    for change in (lambda: toolkit.set_score("a0", "t0", 0.5), lambda: toolkit.remove_edge("a0", "t0")):
        with pytest.raises(ToolkitError, match="there is no edge 'a0' → 't0'"):
            change()


def test_a_vertex_keeps_its_kind() -> None:
    """Data of the same kind takes the place of what stands there and keeps its edges; another kind and anything else are refused."""
    toolkit = graph_of(("a0", "t0", 0.5))
    toolkit.add_vertex("t0", data=Tool("t0", "newer"))
    found = toolkit.get_tool("t0")
    assert found is not None
    assert (found.name, toolkit.get_score("a0", "t0")) == ("newer", 0.5)
    with pytest.raises(ToolkitError, match="'t0' is a tool already"):
        toolkit.add_vertex("t0", data=Action("t0", "T"))
    with pytest.raises(ToolkitError, match="can't hold a str"):
        toolkit.add_vertex("x", data="a tool")  # type: ignore[arg-type]


def test_equal_names_are_different_vertices() -> None:
    """Vertices are told apart by id, so names may repeat."""
    toolkit = Toolkit()
    for vertex in ("t", "u"):
        toolkit.add_vertex(vertex, data=Tool(vertex, "search"))
    toolkit.remove_vertex("t")
    assert (toolkit.vertices(), toolkit.get_tool("t")) == (["u"], None)


# -- removing -----------------------------------------------------------------------------------------


def test_an_action_takes_the_tools_that_nothing_else_leads_to() -> None:
    """A tool that only the removed action called goes; one that another action or a group leads to stays."""
    toolkit = graph_of(("a0", "t0"), ("a0", "t1"), ("a1", "t1"), ("a0", "t2"), ("g0", "t2"), ("a0", "a1"))
    toolkit.remove_vertex("a0")
    assert sorted(toolkit.vertices()) == ["a1", "g0", "t1", "t2"]
    assert toolkit.edges() == [("a1", "t1"), ("g0", "t2")]


def test_an_action_does_not_take_actions_or_groups() -> None:
    """Actions that followed the removed one stay, and so does a group that it alone called, with its tools."""
    toolkit = graph_of(("a0", "a1"), ("a0", "g0"), ("g0", "t0"))
    toolkit.remove_vertex("a0")
    assert sorted(toolkit.vertices()) == ["a1", "g0", "t0"]


def test_a_group_takes_its_tools() -> None:
    """They go with it, also those that actions call directly, and another group whose last tool was among them."""
    toolkit = graph_of(("a0", "g0"), ("g0", "t0"), ("g0", "t1"), ("a0", "t1"), ("g1", "t1"), ("g2", "t0"), ("g2", "t2"))
    toolkit.remove_vertex("g0")
    assert sorted(toolkit.vertices()) == ["a0", "g2", "t2"]


def test_the_last_tool_of_a_group_takes_the_group() -> None:
    """A group stays while it has a tool, and goes with its last one."""
    toolkit = graph_of(("a0", "g0"), ("g0", "t0"), ("g0", "t1"))
    toolkit.remove_vertex("t0")
    assert toolkit.has_vertex("g0")
    toolkit.remove_vertex("t1")
    assert toolkit.vertices() == ["a0"]


def test_removing_what_is_not_there_does_nothing() -> None:
    """There is nothing to do, so nothing is done."""
    toolkit = graph_of(*CHAIN)
    before = facts(toolkit)
    toolkit.remove_vertex("x")
    assert facts(toolkit) == before


def test_cycles_are_removed_one_action_at_a_time() -> None:
    """Actions in a circle, or that follow themselves, are taken apart like any others."""
    toolkit = graph_of(("a0", "a1"), ("a1", "a0"), ("a1", "a1"), ("a1", "t0"))
    toolkit.remove_vertex("a1")
    assert (toolkit.vertices(), toolkit.edges()) == (["a0"], [])


@given(toolkits(), st.sampled_from([*IDS["action"], *IDS["group"], *IDS["tool"]]))
def test_removal_takes_what_it_must_and_nothing_else(toolkit: Toolkit, gone: str) -> None:
    """Other actions stay, no tool loses its last way in and no group its last tool without going, and the rest keeps its scores."""
    before, scores = facts(toolkit)
    led_to = {v for _, v in toolkit.edges()}
    had_tools = {u for u, _ in toolkit.edges() if u in IDS["group"]}
    toolkit.remove_vertex(gone)
    after, kept = facts(toolkit)
    assert gone not in after
    assert {vertex for vertex in before if vertex in IDS["action"]} - set(after) <= {gone}
    assert after.items() <= before.items()
    assert kept == {(u, v): score for (u, v), score in scores.items() if u in after and v in after}
    for vertex in after:
        if vertex in IDS["tool"]:
            assert toolkit.predecessors(vertex) or vertex not in led_to
        if vertex in had_tools:
            assert toolkit.successors(vertex)
    taken = set(before) - set(after) - {gone}
    assert all(any(u in {*taken, gone} for u, v in scores if v == vertex) for vertex in taken if vertex in IDS["tool"])


# -- putting together, taking apart -------------------------------------------------------------------


def test_update_adds_and_keeps() -> None:
    """New vertices and edges come with their data and scores; what is there keeps its data and scores, also the unset ones."""
    mine = graph_of(("a0", "t0", 0.5), ("a0", "a1"))
    other = graph_of(("a0", "t0", 0.9), ("a0", "a1", 0.1), ("a1", "t1", 0.3))
    other.add_vertex("a0", data=Action("a0", "another name"))
    mine.update(other)
    assert facts(mine)[1] == {("a0", "t0"): 0.5, ("a0", "a1"): 1.0, ("a1", "t1"): 0.3}
    kept = mine.get_action("a0")
    assert kept is not None
    assert kept.name == "the a0"
    other.set_score("a1", "t1", 0.7)
    assert mine.get_score("a1", "t1") == 0.3


def test_update_refuses_a_vertex_of_another_kind() -> None:
    """An id that is an action here and a tool there is an error, and nothing was taken over."""
    mine, other = graph_of(("a0", "t0")), graph_of(("a5", "t5"))
    other.add_vertex("a0", data=Tool("a0", "T"))
    before = facts(mine)
    with pytest.raises(ToolkitError, match="'a0' is an action here and a tool in the other graph"):
        mine.update(other)
    assert facts(mine) == before


@pytest.mark.usefixtures("slow")
@given(toolkits(), toolkits())
def test_update_is_a_union_that_prefers_what_is_here(mine: Toolkit, other: Toolkit) -> None:
    """Afterwards everything of both is there, the scores being those from here where both have an edge; doing it again changes nothing."""
    (items, scores), (their_items, their_scores) = facts(mine), facts(other)
    mine.update(other)
    assert facts(mine) == (their_items | items, their_scores | scores)
    mine.update(other)
    assert facts(mine) == (their_items | items, their_scores | scores)


@given(toolkits(), st.sets(st.sampled_from([*IDS["action"], *IDS["group"], *IDS["tool"], "x"])))
def test_a_subgraph_has_the_vertices_and_the_edges_between_them(toolkit: Toolkit, ids: set[str]) -> None:
    """Edges keep their scores, unknown ids are left out, and changing the part leaves the whole alone."""
    items, scores = facts(toolkit)
    part = toolkit.subgraph(ids)
    expected = {edge: score for edge, score in scores.items() if set(edge) <= ids}
    assert facts(part) == ({vertex: found for vertex, found in items.items() if vertex in ids}, expected)
    for edge in part.edges():
        part.set_score(*edge, 0.01)
    for vertex in part.vertices():
        part.remove_vertex(vertex)
    assert facts(toolkit) == (items, scores)


def test_a_subgraph_is_of_the_same_class() -> None:
    """A subclass of the graph makes parts of its own class."""

    class Mine(Toolkit):
        pass

    assert type(Mine().subgraph([])) is Mine
