"""Small graphs and strategies that the tests of the toolkit share."""

from __future__ import annotations

from hypothesis import strategies as st

from toolbus.toolkit import Action, Tool, ToolGroup, Toolkit

IDS = {
    "action": [f"a{number}" for number in range(6)],
    "group": [f"g{number}" for number in range(3)],
    "tool": [f"t{number}" for number in range(6)],
}
SCORES = st.one_of(st.none(), st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]))


def item(vertex: str) -> Action | Tool | ToolGroup:
    """Return the items for the vertices with these ids."""
    return {"a": Action, "t": Tool, "g": ToolGroup}[vertex[0]](vertex, f"the {vertex}", f"about {vertex}")


def graph_of(*edges: tuple[str, str] | tuple[str, str, float | None], alone: tuple[str, ...] = ()) -> Toolkit:
    """Return a graph of edges between ids that begin with a (action), t (tool) or g (group)."""
    toolkit = Toolkit()
    for vertex in [*alone, *(vertex for edge in edges for vertex in edge[:2])]:
        if not toolkit.has_vertex(vertex):
            toolkit.add_vertex(vertex, data=item(vertex))
    for edge in edges:
        toolkit.add_edge(*edge)
    return toolkit


@st.composite
def toolkits(draw: st.DrawFn) -> Toolkit:
    """Graphs with every kind of vertex and edge, with cycles and loops, and with and without scores."""
    calls = IDS["tool"] + IDS["group"]
    pairs = st.one_of(
        st.tuples(st.sampled_from(IDS["action"]), st.sampled_from(IDS["action"] + calls), SCORES),
        st.tuples(st.sampled_from(IDS["group"]), st.sampled_from(IDS["tool"]), SCORES),
    )
    alone = draw(st.lists(st.sampled_from([*IDS["action"], *calls]), max_size=4))
    return graph_of(*draw(st.lists(pairs, max_size=30)), alone=tuple(alone))


def facts(toolkit: Toolkit) -> tuple[dict[str, object], dict[tuple[str, str], float]]:
    """Return the content of a graph: the items of its vertices, and the score of each edge."""
    return dict(toolkit.items()), {edge: toolkit.get_score(*edge) for edge in toolkit.edges()}
