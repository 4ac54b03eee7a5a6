"""The parts of a picture: arrows run behind no box, names fit theirs, and a long chain is broken into rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from tests.toolkit.graphs import graph_of, toolkits
from toolbus.toolkit import Action, Tool, Toolkit
from toolbus.toolkit.draw import MISSING, draw, families, missing, visualize
from toolbus.toolkit.picture import HEIGHT, WIDTH, Point, Route, Router, layout

# Matplotlib is imported by those who draw, not by each process of pytest that collects the tests.
if TYPE_CHECKING:
    from matplotlib.text import Text

CHAIN = tuple((f"a{number}", f"a{number + 1}") for number in range(40))
CALLS = tuple((f"a{number}", f"t{number}") for number in range(0, 41, 2))


def points_of(route: Route) -> Iterator[Point]:
    """Yield points of a route that lie close together."""
    points, curved = route
    for step in range(401):
        t = step / 400
        if curved:
            weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
            yield (
                sum(weight * x for weight, (x, _) in zip(weights, points, strict=True)),
                sum(weight * y for weight, (_, y) in zip(weights, points, strict=True)),
            )
        else:
            for (x, y), (to_x, to_y) in pairwise(points):
                yield x + (to_x - x) * t, y + (to_y - y) * t


def crossed(toolkit: Toolkit) -> list[tuple[str, str, str]]:
    """Return the edges that run behind a box that is neither of their ends, with the box."""
    placed = layout(toolkit, 1_000)
    router = Router(placed)
    found = []
    for u, v in placed.toolkit.edges():
        points = list(points_of(router.route(u, v)))
        for vertex, (x, y) in placed.places.items():
            if vertex not in {u, v} and any(abs(at - x) < WIDTH / 2 and abs(down - y) < HEIGHT / 2 for at, down in points):
                found.append((u, v, vertex))
    return found


@pytest.mark.usefixtures("slow")
@given(toolkits())
def test_no_arrow_runs_behind_a_box(toolkit: Toolkit) -> None:
    """In any graph, each arrow touches only the boxes of its two ends."""
    assert crossed(toolkit) == []


BACK = tuple((f"a{number}", f"a{to}") for number in range(40) for to in ((number * 7 + 3) % 41, 0) if to != number)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    "edges",
    [
        (*CHAIN, *CALLS),
        (*CHAIN, *CALLS, *BACK),
        tuple((f"a{u}", f"a{v}") for u in range(9) for v in range(9) if u != v),
        tuple(edge for number in range(12) for edge in (("a99", f"a{number}"), (f"a{number}", "t0"), (f"a{number}", "a98"))),
        (
            *CHAIN[:4],
            *((f"a{u}", f"g{v}") for u in range(5) for v in range(5)),
            *((f"g{v}", f"t{v}{n}") for v in range(5) for n in range(4)),
        ),
    ],
    ids=["chain", "chain with ways back", "every pair", "fan", "groups"],
)
def test_no_arrow_of_a_crowded_graph_runs_behind_a_box(edges: tuple[tuple[str, str], ...]) -> None:
    """Ways back, across rows and over many boxes go around what is between."""
    assert crossed(graph_of(*edges)) == []


@pytest.mark.usefixtures("slow")
def test_a_long_chain_goes_on_in_further_rows() -> None:
    """No picture is much wider than it can be read; every row but the last is filled, and the boxes keep their distances."""
    placed = layout(graph_of(*CHAIN, *CALLS), 1_000)
    assert max(x for x, _ in placed.places.values()) < 27
    assert len(placed.rows) > 3
    for (_, bottom), (top, _) in pairwise(placed.rows):
        assert top > bottom
    figure = visualize(graph_of(*CHAIN, *CALLS), "Long")
    wide, high = figure.get_size_inches()
    assert wide < 23
    assert high < 30
    assert len(layout(graph_of(*CHAIN[:3]), 100).rows) == 1


NAMES = [
    "W" * 40, "M" * 22, "i" * 200, "get_customer_relationship_by_identifier", "a name of several words that is long", "x", "",
    "查询图数据库的模式定义并返回全部的结果给用户", "データのインポートと検証", "그래프 알고리즘", "🚀🔥", "a\nb\tc", "\x00\x07",
    "\u202ertl", "e" + "\u0301" * 9, "مرحبا بالعالم", "$\\frac{x}$ & <b>", "no_space_" * 30,
]  # fmt: skip


@pytest.mark.usefixtures("slow")
def test_names_fit_their_boxes_and_are_drawn_without_warnings() -> None:
    """The text of any name is within its box; no font lacks a character, and no control character is drawn."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    toolkit = Toolkit()
    for number, name in enumerate(NAMES):
        toolkit.add_vertex(f"a{number}", data=Action(f"a{number}", name))
        toolkit.add_vertex(f"t{number}", data=Tool(f"t{number}", name))
        toolkit.add_edge(f"a{number}", f"t{number}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = visualize(toolkit, "图 🚀 \x00")
        draw(toolkit, "图 🚀 \x00", format="png")
        svg = draw(toolkit, "图 🚀 \x00").decode()
        axes = figure.axes[0]
        canvas = figure.canvas
        assert isinstance(canvas, FigureCanvasAgg)
        canvas.draw()
        renderer = canvas.get_renderer()
        boxes = {tuple(round(value, 3) for value in patch.get_extents().bounds) for patch in axes.patches}
        texts = [text for text in axes.texts if text.get_fontsize() >= 6.5 and text.get_zorder() == 4]
        assert len(texts) == 2 * len(NAMES)
        for text in texts:
            assert any(_within(text, renderer, bounds) for bounds in boxes), text.get_text()
    assert {"查询图数据库", "データ", "🚀", "그래프"} <= {part for part in ("查询图数据库", "データ", "🚀", "그래프") if part in svg}
    assert "\x00" not in svg
    assert "…" in svg


def _within(text: Text, renderer: object, bounds: tuple[float, ...]) -> bool:
    extent = text.get_window_extent(renderer)  # type: ignore[arg-type]
    x, y, wide, high = bounds
    return x <= extent.x0 and extent.x1 <= x + wide and y <= extent.y0 and extent.y1 <= y + high


def test_characters_that_no_font_has_have_a_stand_in() -> None:
    """A PNG and a figure show a box in their place; an SVG names them, for its viewer's fonts."""
    assert families()[0] == "DejaVu Sans"
    unknown = "\U0001f680"
    assert missing(["abc", unknown, "Ж"]) == ([unknown] if MISSING in _drawn_texts(unknown) else [])
    toolkit = Toolkit()
    toolkit.add_vertex("a", data=Action("a", f"go {unknown} \u2801"))
    assert f"go {unknown} \u2801" in draw(toolkit).decode()


def _drawn_texts(name: str) -> str:
    toolkit = Toolkit()
    toolkit.add_vertex("a", data=Action("a", name))
    return "".join(text.get_text() for text in visualize(toolkit, "").axes[0].texts)
