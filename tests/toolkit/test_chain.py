"""Chains: what they build, and what they refuse."""

from __future__ import annotations

import pytest

from tests.toolkit.graphs import facts, graph_of, item
from toolbus.toolkit import Action, Link, Tool, ToolGroup, Toolkit, ToolkitWrapper

A, B, C = (Action(vertex, vertex.upper()) for vertex in "abc")
T, U, V = (Tool(vertex, vertex.upper()) for vertex in "tuv")
G = ToolGroup("g", "G", "", [Tool("w", "W")])


@pytest.mark.parametrize(
    ("chain", "edges"),
    [
        ((), ""),
        ((A,), ""),
        ((A, T), "a-t"),
        ((A, G), "a-g g-w"),
        ((A, B, C), "a-b b-c"),
        ((A, T, B, U), "a-b a-t b-u"),
        ((A, (T, U)), "a-t a-u"),
        ((A, (T, G), B, V), "a-b a-g a-t b-v g-w"),
        (((A, T), B), "a-b a-t"),
        (((A, (T, U), B), C), "a-b a-t a-u b-c"),
        ((A, (B, T), C), "a-b b-c b-t"),
        (((A, (B, (C, T))),), "a-b b-c c-t"),
        ((A, B, A), "a-b b-a"),
        ((A, A), "a-a"),
    ],
)
def test_chains_build_graphs(chain: tuple[Link, ...], edges: str) -> None:
    """Actions follow each other, tools and groups hang on the action before them, and every score is 1.0."""
    toolkit = ToolkitWrapper().chain(*chain).toolkit
    scores = facts(toolkit)[1]
    assert " ".join(sorted(f"{u}-{v}" for u, v in scores)) == edges
    assert set(scores.values()) <= {1.0}


@pytest.mark.parametrize(
    ("chain", "why"),
    [
        ((T,), "Chain must start with an Action; this one starts with the Tool 't'"),
        ((G, A), "Chain must start with an Action; this one starts with the ToolGroup 'g'"),
        (((T, U), A), "Chain must start with an Action; this one starts with a parallel tuple"),
        (((),), "Chain must start with an Action"),
        ((A, T, U), "the Tool 't' can only be followed by an Action, not by the Tool 'u'"),
        ((A, G, T), "the ToolGroup 'g' can only be followed by an Action"),
        ((A, (T, U), V), "a parallel tuple can only be followed by an Action, not by the Tool 'v'"),
        ((A, T, (U, V)), "the Tool 't' can only be followed by an Action, not by a parallel tuple"),
        ((A, (T, B)), "can only contain Tools or ToolGroups, not the Action 'b'"),
        ((A, (T, (U, V))), "can only contain Tools or ToolGroups, not a parallel tuple"),
        ((A, ()), "is empty"),
        ((A, "t"), "made of Actions, Tools, ToolGroups and tuples of them, not of a str"),
        ((A, None), "not of a NoneType"),
    ],
)
def test_impossible_chains_are_value_errors(chain: tuple[object, ...], why: str) -> None:
    """The message says which rule was broken and by what, and nothing was added."""
    wrapper = ToolkitWrapper()
    with pytest.raises(ValueError, match=why.replace("(", "\\(")):
        wrapper.chain(A, B).chain(*chain)  # type: ignore[arg-type]
    assert wrapper.toolkit.vertices() == ["a", "b"]


def test_chains_join_on_what_is_there() -> None:
    """A second chain adds to the first, edges that are there keep their scores, and the graph may be one that exists."""
    toolkit = graph_of(("a0", "a1", 0.3), ("a0", "t0", 0.4))
    a0, a1, t0 = (item(vertex) for vertex in ("a0", "a1", "t0"))
    wrapper = ToolkitWrapper(toolkit).chain(a0, t0, a1, T).chain(a1, B)
    assert wrapper.toolkit is toolkit
    assert facts(toolkit)[1] == {("a0", "a1"): 0.3, ("a0", "t0"): 0.4, ("a1", "t"): 1.0, ("a1", "b"): 1.0}
    assert [tool.id for tool in wrapper.service.recommend_tools_actions(["a0"], 0.2, 1)[0]] == ["t0", "t"]


def test_each_wrapper_has_a_graph_of_its_own() -> None:
    """Nothing is shared between two of them."""
    assert ToolkitWrapper().chain(A).toolkit is not ToolkitWrapper().toolkit
    assert isinstance(ToolkitWrapper().toolkit, Toolkit)
