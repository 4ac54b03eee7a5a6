"""Draw a toolkit graph with matplotlib (``toolbus[draw]``) as a Figure, SVG or PNG."""

from __future__ import annotations

import io
from pathlib import Path as FilePath
from typing import Any, Literal

try:
    import matplotlib as mpl
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"pictures need matplotlib: pip install 'toolbus[draw]' ({error})", name="matplotlib") from None
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import BoxStyle, FancyArrowPatch, FancyBboxPatch, Patch, Polygon, Rectangle
from matplotlib.path import Path

from toolbus.results import ToolkitError
from toolbus.toolkit.graph import Toolkit
from toolbus.toolkit.items import kind_of
from toolbus.toolkit.layout import HEIGHT, WIDTH, Layout, Point, layout

MOST = 120
"""Most vertices in a picture by default; more can't be read."""

# Fill and line of each kind of vertex, and colour, style and name of each kind of edge.
_FILLS = {"action": ("#dbeafe", "#1d4ed8"), "tool": ("#dcfce7", "#15803d"), "group": ("#fef3c7", "#b45309")}
_Line = tuple[str, Literal["-", "--", ":"], str]
_EDGES: dict[str, _Line] = {"action": ("#1d4ed8", "-", "next"), "tool": ("#15803d", "--", "call"), "group": ("#15803d", "--", "call")}
_HOLDS: _Line = ("#b45309", ":", "holds")

# Inches per unit of the layout, and the most inches of one side.
_INCHES, _MOST_INCHES = 0.8, 60.0
_NAME_LENGTH = 20


def visualize(graph: Toolkit, title: str, show: bool = False, *, most: int = MOST) -> Figure:
    """Draw a graph: actions are blue and rounded, tools green rectangles, groups yellow hexagons, each edge with its score.

    Next edges are solid, Call edges dashed, and edges from a group to its tools dotted. The same graph gives the same picture.
    With more than ``most`` vertices, the title says how many are shown.

    Args:
        show: open the picture in a window of matplotlib's backend, without waiting; otherwise matplotlib does not keep the figure.

    Raises:
        ToolkitError: ``most`` is not at least 1.
    """
    if most < 1:
        raise ToolkitError(f"most is {most!r}: a picture shows at least one vertex")
    placed = layout(graph, most)
    figure = _figure(show)
    axes = figure.add_subplot()
    _size(figure, axes, placed)
    for edge in placed.toolkit.edges():
        _draw_edge(axes, placed, *edge)
    for vertex, centre in placed.places.items():
        _draw_vertex(axes, placed.toolkit, vertex, centre)
    shown = f"{title} ({len(placed.places):,} of {len(placed.places) + placed.left_out:,} vertices)" if placed.left_out else title
    axes.set_title(shown, parse_math=False)
    _add_legend(axes)
    if show:
        from matplotlib import pyplot as plt  # noqa: PLC0415 - it chooses a backend when it is imported

        plt.show(block=False)
    return figure


def draw(graph: Toolkit, title: str = "", *, format: Literal["svg", "png"] = "svg", most: int = MOST) -> bytes:
    """Return the picture as SVG, whose text stays text, or as PNG; the same graph gives the same bytes."""
    written = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "toolbus", "svg.fonttype": "none"}):
        metadata = {"Date": None} if format == "svg" else {"Software": None}
        visualize(graph, title, most=most).savefig(written, format=format, metadata=metadata)
    if format == "svg":
        # matplotlib leaves spaces at the ends of lines.
        return b"".join(line.rstrip() + b"\n" for line in written.getvalue().splitlines())
    return written.getvalue()


def save(graph: Toolkit, path: str | FilePath, title: str = "", *, most: int = MOST) -> None:
    """Write the picture to a file: ``.svg``, ``.png``, or ``.html`` for the interactive page.

    Raises:
        ToolkitError: the name has another suffix.
    """
    path = FilePath(path)
    if path.suffix == ".html":
        from toolbus.toolkit.page import page  # noqa: PLC0415 - only for this format

        path.write_text(page(graph, title or path.stem), "utf-8")
    elif path.suffix == ".svg":
        path.write_bytes(draw(graph, title, most=most))
    elif path.suffix == ".png":
        path.write_bytes(draw(graph, title, format="png", most=most))
    else:
        raise ToolkitError(f"{path.name} ends in none of .svg, .png and .html, so it is not known what to write")


def _figure(show: bool) -> Figure:
    if not show:
        figure = Figure()
        FigureCanvasAgg(figure)
        return figure
    from matplotlib import pyplot as plt  # noqa: PLC0415 - it chooses a backend when it is imported

    return plt.figure()


def _size(figure: Figure, axes: Axes, placed: Layout) -> None:
    """Fit the axes to the vertices, and the figure to the axes."""
    right = max((x for x, _ in placed.places.values()), default=0.0) + WIDTH
    bottom = max((y for _, y in placed.places.values()), default=0.0) + HEIGHT * 2
    axes.set_xlim(-WIDTH, right)
    axes.set_ylim(bottom, -HEIGHT * 3)
    axes.set_aspect("equal")
    axes.axis("off")
    wide, high = right + WIDTH, bottom + HEIGHT * 3
    scale = min(_INCHES, _MOST_INCHES / max(wide, high))
    figure.set_size_inches(max(4.5, wide * scale), max(3.0, high * scale + 0.8))
    figure.set_layout_engine("tight")


def _draw_vertex(axes: Axes, toolkit: Toolkit, vertex: str, centre: Point) -> None:
    item = toolkit.item(vertex)
    kind = kind_of(item)
    fill, line = _FILLS[kind]
    axes.add_patch(_shape(kind, centre, facecolor=fill, edgecolor=line, linewidth=1.2, zorder=3, gid=f"{kind} {vertex}"))
    label = short(vertex if item is None else item.name, _NAME_LENGTH)
    axes.text(*centre, label, ha="center", va="center", fontsize=8, parse_math=False, zorder=4)


def _shape(kind: str, centre: Point, **style: Any) -> Patch:
    x, y = centre[0] - WIDTH / 2, centre[1] - HEIGHT / 2
    if kind == "action":
        round_ends = BoxStyle.Round(pad=0, rounding_size=HEIGHT / 2)
        return FancyBboxPatch((x, y), WIDTH, HEIGHT, boxstyle=round_ends, **style)
    if kind == "tool":
        return Rectangle((x, y), WIDTH, HEIGHT, **style)
    cut = HEIGHT / 3
    corners = [
        (x, centre[1]),
        (x + cut, y),
        (x + WIDTH - cut, y),
        (x + WIDTH, centre[1]),
        (x + WIDTH - cut, y + HEIGHT),
        (x + cut, y + HEIGHT),
    ]
    return Polygon(corners, **style)


def _draw_edge(axes: Axes, placed: Layout, u: str, v: str) -> None:
    kinds = kind_of(placed.toolkit.item(u)), kind_of(placed.toolkit.item(v))
    colour, style, name = _HOLDS if kinds[0] == "group" else _EDGES[kinds[1]]
    points = _curve(placed.places[u], placed.places[v], name)
    path = Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
    arrow = FancyArrowPatch(
        path=path, arrowstyle="-|>", mutation_scale=10, color=colour, linestyle=style, linewidth=1.2, zorder=1, gid=f"{name} {u} {v}"
    )
    axes.add_patch(arrow)
    x, y = (sum(weight * point[axis] for weight, point in zip((1, 3, 3, 1), points, strict=True)) / 8 for axis in (0, 1))
    box = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    axes.text(x, y, f"{placed.toolkit.get_score(u, v):.2f}", ha="center", va="center", fontsize=6.5, color=colour, bbox=box, zorder=2)


def _curve(start: Point, end: Point, name: str) -> list[Point]:
    """Return the four points of a cubic curve between the borders of two vertices."""
    (x, y), (to_x, to_y) = start, end
    if start == end:
        top = y - HEIGHT / 2
        return [(x - 0.3, top), (x - 0.6, top - 0.8), (x + 0.6, top - 0.8), (x + 0.3, top)]
    if name == "call" and to_x > x and to_y > y:
        corner = (x, to_y)
        return [(x, y + HEIGHT / 2), corner, corner, (to_x - WIDTH / 2, to_y)]
    if to_x > x:
        half = (to_x - x) / 2
        return [(x + WIDTH / 2, y), (x + half, y), (to_x - half, to_y), (to_x - WIDTH / 2, to_y)]
    if to_x == x:
        side = x - WIDTH / 2
        return [(side, y), (side - 0.7, y), (side - 0.7, to_y), (side, to_y)]
    if name == "call":
        below = max(y, to_y) + HEIGHT / 2 + 0.9
        return [(x, y + HEIGHT / 2), (x, below), (to_x, below), (to_x, to_y + HEIGHT / 2)]
    above = min(y, to_y) - HEIGHT / 2 - 0.9
    return [(x, y - HEIGHT / 2), (x, above), (to_x, above), (to_x, to_y - HEIGHT / 2)]


def _add_legend(axes: Axes) -> None:
    shapes = [Patch(facecolor=fill, edgecolor=line, label=kind) for kind, (fill, line) in _FILLS.items()]
    styles = dict.fromkeys([*_EDGES.values(), _HOLDS])
    lines = [Line2D([], [], color=colour, linestyle=style, label=name) for colour, style, name in styles]
    axes.legend(handles=[*shapes, *lines], loc="upper left", bbox_to_anchor=(0, -0.02), ncols=6, fontsize=7, frameon=False)


def short(text: str, most: int) -> str:
    """Return the text in one line of at most ``most`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
