"""Pictures with matplotlib: what they show, that they are the same each time, and their bounds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given

from tests.toolkit.graphs import graph_of, item, toolkits
from toolbus.toolkit import Action, Tool, Toolkit, ToolkitError, ToolkitService, recommend_subgraph
from toolbus.toolkit.draw import draw, save, visualize
from toolbus.toolkit.picture import HEIGHT, WIDTH, layout

# Matplotlib is imported by those who draw, not by each process of pytest that collects the tests.
if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLE = (("a0", "a1", 0.8), ("a1", "a0", 0.3), ("a1", "a1"), ("a0", "t0", 0.25), ("a1", "t0"), ("a1", "g0", 0.5), ("g0", "t1", 0.75))


def drawn(figure: Figure) -> dict[str, object]:
    """Return the figure's patches by their names."""
    return {str(patch.get_gid()): patch for patch in figure.axes[0].patches}


def test_kinds_of_vertices_and_edges_differ_and_scores_are_shown() -> None:
    """Actions, tools and groups have shapes and colours of their own, Next and Call edges colours and styles, and each edge its score."""
    from matplotlib.patches import FancyBboxPatch, Polygon, Rectangle

    figure = visualize(graph_of(*SAMPLE), "Sample")
    patches = drawn(figure)
    shapes = [patches[name] for name in ("action a0", "tool t0", "group g0")]
    assert [type(shape) for shape in shapes] == [FancyBboxPatch, Rectangle, Polygon]
    assert len({shape.get_facecolor() for shape in shapes}) == 3
    lines = [patches[name] for name in ("next a0 a1", "call a0 t0", "call a1 g0", "holds g0 t1")]
    assert [line.get_linestyle() for line in lines] == ["-", "--", "--", ":"]
    assert lines[0].get_edgecolor() != lines[1].get_edgecolor() == lines[2].get_edgecolor()
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert sorted(text for text in texts if text.startswith(("0.", "1."))) == ["0.25", "0.30", "0.50", "0.75", "0.80", "1.00", "1.00"]
    assert {"the a0", "the t0", "the g0"} <= set(texts)
    assert figure.axes[0].get_title() == "Sample"
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["action", "tool", "group", "next", "call", "holds"]


@pytest.mark.usefixtures("slow")
def test_matplotlib_keeps_no_figure_that_is_not_shown() -> None:
    """Drawing many pictures in a long-lived process does not fill pyplot's list of figures."""
    from matplotlib import pyplot as plt

    for _ in range(30):
        visualize(graph_of(*SAMPLE), "Sample")
    assert plt.get_fignums() == []


def test_showing_opens_the_figure_in_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``show`` the figure is pyplot's, which is asked to show it and not to wait."""
    from matplotlib import pyplot as plt

    plt.switch_backend("agg")
    asked: list[dict[str, object]] = []
    monkeypatch.setattr(plt, "show", lambda **options: asked.append(options))
    figure = visualize(graph_of(*SAMPLE), "Sample", show=True)
    assert plt.get_fignums() == [figure.number]
    assert asked == [{"block": False}]
    plt.close(figure)


@pytest.mark.usefixtures("slow")
def test_the_same_graph_gives_the_same_bytes() -> None:
    """SVG and PNG do not depend on when they are drawn; the SVG is well-formed, with its text as text."""
    assert draw(graph_of(*SAMPLE), "Sample", format="png") == draw(graph_of(*SAMPLE), "Sample", format="png")
    assert draw(graph_of(*SAMPLE), "Sample") == draw(graph_of(*SAMPLE), "Sample")
    svg = ET.fromstring(draw(graph_of(*SAMPLE), "Sample"))
    assert {"the a0", "0.25", "Sample"} <= set("".join(svg.itertext()).split("\n")) | {text.strip() for text in svg.itertext()}
    assert draw(graph_of(*SAMPLE), format="png")[:8] == b"\x89PNG\r\n\x1a\n"


def test_names_are_drawn_as_they_are() -> None:
    """Markup, dollars and line breaks in a name are not read as such and break no picture; long names take two lines, and are then cut."""
    toolkit = graph_of(alone=("a0",))
    toolkit.add_vertex("x", data=Action("x", "<b>&\n$\\frac{$"))
    toolkit.add_vertex("y", data=Action("y", "a name that is much too long for its box"))
    texts = {text.strip() for text in ET.fromstring(draw(toolkit, "$x < y & z")).itertext()}
    assert {"<b>& $\\frac{$", "a name that is much", "too long for its box", "$x < y & z"} <= texts


@pytest.mark.usefixtures("slow")
def test_a_large_graph_is_cut_and_says_so() -> None:
    """At most so many vertices are drawn, actions with what they call first, and the title says how many of how many."""
    toolkit = graph_of(*((f"a{number}", f"t{number}") for number in range(200)))
    figure = visualize(toolkit, "Large")
    assert figure.axes[0].get_title() == "Large (120 of 400 vertices)"
    assert {"action a0", "tool t0", "action a59", "tool t59"} <= set(drawn(figure))
    assert "action a60" not in drawn(figure)
    assert visualize(toolkit, "Few", most=3).axes[0].get_title() == "Few (3 of 400 vertices)"
    assert max(figure.get_size_inches()) <= 61
    with pytest.raises(ToolkitError, match="at least one"):
        visualize(toolkit, "None", most=0)


def test_an_empty_graph_is_an_empty_picture() -> None:
    """There is nothing to see, which is no error."""
    assert visualize(Toolkit(), "Empty").axes[0].get_title() == "Empty"


def test_the_service_draws_and_recommending_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """``ToolkitService.visualize`` is the same picture; a recommendation makes none."""
    from matplotlib.figure import Figure

    service = ToolkitService(graph_of(*SAMPLE))
    assert set(drawn(service.visualize(service.get_toolkit(), "Sample"))) == set(drawn(visualize(graph_of(*SAMPLE), "Sample")))
    monkeypatch.setattr(Figure, "__init__", lambda *_, **__: pytest.fail("a figure was made"))
    service.recommend_tools_actions(["a0"], hops=2)
    assert recommend_subgraph(service.get_toolkit(), ["a0"]).vertices() == ["a0"]


def test_files_are_written_by_their_suffix(tmp_path: Path) -> None:
    """SVG, PNG and the interactive page; anything else is refused before a file is there."""
    begins = {"svg": b"<?xml", "png": b"\x89PNG", "html": b"<!DOCTYPE html>"}
    for suffix, begin in begins.items():
        save(graph_of(*SAMPLE), tmp_path / f"graph.{suffix}", "Sample")
        assert (tmp_path / f"graph.{suffix}").read_bytes().startswith(begin)
    with pytest.raises(ToolkitError, match=r"graph\.gif ends in none of"):
        save(graph_of(*SAMPLE), tmp_path / "graph.gif")
    assert not (tmp_path / "graph.gif").exists()


@given(toolkits())
def test_every_vertex_has_a_place_of_its_own(toolkit: Toolkit) -> None:
    """In any graph, with cycles and lone vertices, each vertex has one place, none over another, and the same each time."""
    placed = layout(toolkit, 1_000)
    assert placed.places.keys() == set(toolkit.vertices())
    assert (placed.left_out, placed.places) == (0, layout(toolkit, 1_000).places)
    places = list(placed.places.values())
    for number, (x, y) in enumerate(places):
        assert all(abs(x - u) >= WIDTH or abs(y - v) >= HEIGHT for u, v in places[:number])


def test_actions_stand_in_the_order_in_which_they_come() -> None:
    """A following action stands to the right of the one before it, and called tools stand below their action."""
    toolkit = graph_of(("a2", "a1"), ("a1", "a0"), ("a2", "t2"), ("a1", "g1"), ("g1", "t1"))
    places = layout(toolkit, 100).places
    assert places["a2"][0] < places["a1"][0] < places["a0"][0]
    assert places["t2"][1] > places["a2"][1]
    assert places["a1"][0] < places["g1"][0] < places["t1"][0]


def test_vertices_without_names_are_told_by_their_ids() -> None:
    """An item whose name is empty is no reason to fail."""
    toolkit = Toolkit()
    toolkit.add_vertex("t", data=Tool("t", ""))
    toolkit.add_vertex("a0", data=item("a0"))
    assert visualize(toolkit, "").axes[0].get_title() == ""
    assert "t" in [text.get_text() for text in visualize(toolkit, "").axes[0].texts]
