"""Draw a toolkit graph with matplotlib (``toolbus[draw]``) as a Figure, SVG or PNG."""

from __future__ import annotations

import bisect
import io
from pathlib import Path as FilePath
from typing import Any, Literal

try:
    import matplotlib as mpl
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"pictures need matplotlib: pip install 'toolbus[draw]' ({error})", name="matplotlib") from None
import functools
from collections.abc import Iterable

from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import BoxStyle, FancyArrowPatch, FancyBboxPatch, Patch, Polygon, Rectangle
from matplotlib.path import Path

from toolbus.bus.support.display import harmless
from toolbus.bus.values.results import ToolkitError
from toolbus.toolkit.graph import Toolkit, edge_kind, expect, kind_of
from toolbus.toolkit.picture import HEIGHT, WIDTH, Layout, Point, Route, Router, layout, middle, page

BASE = "DejaVu Sans"
"""The font that comes with matplotlib."""
# Fonts with further scripts, as systems have them; the first installed one with a character is used.
_FURTHER = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Noto Sans JP", "Noto Sans KR", "Source Han Sans SC", "Source Han Sans",
    "WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback", "PingFang SC", "Hiragino Sans", "Apple SD Gothic Neo",
    "Microsoft YaHei", "SimHei", "Yu Gothic", "Malgun Gothic", "Arial Unicode MS", "Noto Sans", "Noto Sans Thai", "Noto Sans Devanagari",
    "Noto Sans Arabic", "Noto Sans Hebrew", "Leelawadee UI", "Nirmala UI", "Noto Emoji", "Segoe UI Symbol", "Segoe UI Emoji",
)  # fmt: skip
MISSING = "□"
"""The character that stands for one that no installed font has."""
SIZE = 8.0
_SMALLEST = 6.5
_DPI = 72.0

MOST = 120
"""Most vertices in a picture by default; more can't be read."""

# Fill and line of each kind of vertex, and colour and style of each kind of edge.
_FILLS = {"action": ("#dbeafe", "#1d4ed8"), "tool": ("#dcfce7", "#15803d"), "group": ("#fef3c7", "#b45309")}
_EDGES: dict[str, tuple[str, Literal["-", "--", ":"]]] = {"next": ("#1d4ed8", "-"), "call": ("#15803d", "--"), "holds": ("#b45309", ":")}

# Inches per unit of the layout, and the most inches of one side.
_INCHES, _MOST_INCHES = 0.8, 59.0
# Inches around the graph: at the sides, for the title, and for the legend.
_SIDE, _TITLE, _LEGEND = 0.25, 0.55, 0.55
# Units around the outermost lines.
_EDGE = 0.1
# The part of a box's width that its name may take, and the radius of a corner of an arrow.
_NAME_PART, _ROUND = 0.88, 0.12
# Stand-ins for characters that no font has, while an SVG is made, which names them to its viewer.
_STAND_INS = range(0x2801, 0x2900)


def visualize(graph: Toolkit, title: str, show: bool = False, *, most: int = MOST) -> Figure:
    """Draw a graph: actions are blue and rounded, tools green rectangles, groups yellow hexagons, each edge with its score.

    Next edges are solid, Call edges dashed, and edges from a group to its tools dotted. The same graph gives the same picture.
    With more than ``most`` vertices, the title says how many are shown.

    Args:
        show: open the picture in a window of matplotlib's backend, without waiting; otherwise matplotlib does not keep the figure.

    Raises:
        ToolkitError: it is no graph, or ``most`` is not at least 1.
    """
    expect("graph", graph, Toolkit)
    return _picture(graph, title, show=show, most=most, stand_ins={})


def _picture(graph: Toolkit, title: str, *, show: bool, most: int, stand_ins: dict[str, str]) -> Figure:
    if most < 1:
        raise ToolkitError(f"most is {most!r}: a picture shows at least one vertex")
    placed = layout(graph, most)
    shown = f"{title} ({len(placed.places):,} of {len(placed.places) + placed.left_out:,} vertices)" if placed.left_out else title
    with mpl.rc_context({"font.family": list(families())}):
        if show:
            from matplotlib import pyplot as plt  # noqa: PLC0415 - it chooses a backend when it is imported

            figure = plt.figure()
        else:
            figure = Figure()
            FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        router = Router(placed)
        routes = {edge: router.route(*edge) for edge in placed.toolkit.edges()}
        scale = _size(figure, axes, placed, [point for points, _ in routes.values() for point in points])
        for edge, route in routes.items():
            _draw_edge(axes, placed.toolkit, route, *edge)
        for vertex, centre in placed.places.items():
            item = placed.toolkit.item(vertex)
            name = _lettered(vertex if item is None or not item.name.strip() else item.name, stand_ins)
            _draw_vertex(axes, f"{kind_of(item)} {vertex}", centre, *fitted(name, WIDTH * scale * 72 * _NAME_PART))
        axes.set_title(_lettered(shown, stand_ins), parse_math=False, wrap=False)
        _add_legend(axes)
        if show:
            plt.show(block=False)
    return figure


def _lettered(text: str, stand_ins: dict[str, str]) -> str:
    """Return a text with only characters that can be drawn; ``stand_ins`` has those that stand for what no font has."""
    line = plain(text)
    return line.translate({ord(each): stand_ins.get(each, MISSING) for each in missing([line])})


def draw(graph: Toolkit, title: str = "", *, format: Literal["svg", "png"] = "svg", most: int = MOST) -> bytes:
    """Return the picture as SVG, whose text stays text, or as PNG; the same graph gives the same bytes.

    Raises:
        ToolkitError: see ``visualize``.
    """
    expect("graph", graph, Toolkit)
    stand_ins = _stand_ins(graph, title) if format == "svg" else {}
    content = rendered(_picture(graph, title, show=False, most=most, stand_ins=stand_ins), format)
    return content.decode().translate({ord(each): shown for shown, each in stand_ins.items()}).encode() if stand_ins else content


def rendered(figure: Figure, format: Literal["svg", "png"], **options: Any) -> bytes:
    """Return a figure as SVG, whose text stays text, or as PNG; the same figure gives the same bytes."""
    written = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "toolbus", "svg.fonttype": "none"}):
        figure.savefig(written, format=format, metadata={"Date": None} if format == "svg" else {"Software": None}, **options)
    content = written.getvalue()
    # matplotlib leaves spaces at the ends of lines of an SVG.
    return content if format == "png" else b"".join(line.rstrip() + b"\n" for line in content.splitlines())


def _stand_ins(graph: Toolkit, title: str) -> dict[str, str]:
    """Return a character that the base font has, and that stands nowhere in the picture, for each one that no font has."""
    texts = [plain(title), *(plain(vertex) for vertex in graph.vertices()), *(plain(item.name) for _, item in graph.items())]
    used = set().union(*texts)
    free = (chr(code) for code in _STAND_INS if chr(code) not in used)
    return dict(zip(missing(texts), free, strict=False))


def save(graph: Toolkit, path: str | FilePath, title: str = "", *, most: int = MOST) -> None:
    """Write the picture to a file: ``.svg``, ``.png``, or ``.html`` for the interactive page.

    Raises:
        ToolkitError: it is no graph, or the name has another suffix.
    """
    expect("graph", graph, Toolkit)
    path = FilePath(path)
    if path.suffix == ".html":
        path.write_text(page(graph, title or path.stem), "utf-8")
    elif path.suffix in {".svg", ".png"}:
        path.write_bytes(draw(graph, title, format="png" if path.suffix == ".png" else "svg", most=most))
    else:
        raise ToolkitError(f"{path.name} ends in none of .svg, .png and .html, so it is not known what to write")


def _size(figure: Figure, axes: Axes, placed: Layout, points: list[Point]) -> float:
    """Fit the axes to the vertices and arrows, and the figure to the axes; return the inches of one unit."""
    boxes = [(x + dx * WIDTH / 2, y + dy * HEIGHT / 2) for x, y in placed.places.values() for dx in (-1, 1) for dy in (-1, 1)]
    across, down = zip(*boxes, *points, strict=True) if boxes else ((0.0, WIDTH), (0.0, HEIGHT))
    left, right, top, bottom = min(across) - _EDGE, max(across) + _EDGE, min(down) - _EDGE, max(down) + _EDGE
    wide, high = right - left, bottom - top
    scale = float(min(_INCHES, _MOST_INCHES / max(wide, high)))
    figure.set_size_inches(max(4.5, wide * scale + 2 * _SIDE), max(3.0, high * scale + _TITLE + _LEGEND))
    full_wide, full_high = figure.get_size_inches()
    # The axes get the whole figure but for the title and the legend; a small graph stands in its middle.
    axes.set_position((_SIDE / full_wide, _LEGEND / full_high, 1 - 2 * _SIDE / full_wide, 1 - (_TITLE + _LEGEND) / full_high))
    more_wide = ((full_wide - 2 * _SIDE) / scale - wide) / 2
    more_high = ((full_high - _TITLE - _LEGEND) / scale - high) / 2
    axes.set_xlim(left - more_wide, right + more_wide)
    axes.set_ylim(bottom + more_high, top - more_high)
    axes.axis("off")
    return scale


def _draw_vertex(axes: Axes, gid: str, centre: Point, label: str, size: float) -> None:
    """Draw a box with its label; its id begins with its kind."""
    kind = gid.partition(" ")[0]
    fill, line = _FILLS[kind]
    axes.add_patch(_shape(kind, centre, facecolor=fill, edgecolor=line, linewidth=1.2, zorder=3, gid=gid))
    axes.text(*centre, label, ha="center", va="center", fontsize=size, linespacing=1.1, parse_math=False, zorder=4)


def _shape(kind: str, centre: Point, **style: Any) -> Patch:
    x, y = centre[0] - WIDTH / 2, centre[1] - HEIGHT / 2
    if kind == "action":
        round_ends = BoxStyle.Round(pad=0, rounding_size=HEIGHT / 2)
        return FancyBboxPatch((x, y), WIDTH, HEIGHT, boxstyle=round_ends, **style)
    if kind == "tool":
        return Rectangle((x, y), WIDTH, HEIGHT, **style)
    cut, half = HEIGHT / 3, HEIGHT / 2
    corners = ((0, half), (cut, 0), (WIDTH - cut, 0), (WIDTH, half), (WIDTH - cut, HEIGHT), (cut, HEIGHT))
    return Polygon([(x + dx, y + dy) for dx, dy in corners], **style)


def _draw_edge(axes: Axes, toolkit: Toolkit, route: Route, u: str, v: str) -> None:
    name = edge_kind(toolkit.item(u), toolkit.item(v))
    colour, style = _EDGES[name]
    arrow = FancyArrowPatch(
        path=_path(route),
        arrowstyle="-|>",
        mutation_scale=10,
        color=colour,
        linestyle=style,
        linewidth=1.2,
        zorder=1,
        gid=f"{name} {u} {v}",
    )
    axes.add_patch(arrow)
    box = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    score = f"{toolkit.get_score(u, v):.2f}"
    axes.text(*middle(route), score, ha="center", va="center", fontsize=6.5, color=colour, bbox=box, zorder=2)


def _path(route: Route) -> Path:
    points, curved = route
    if curved:
        return Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
    vertices, codes = [points[0]], [Path.MOVETO]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        vertices += [_towards(corner, before), corner, _towards(corner, after)]
        codes += [Path.LINETO, Path.CURVE3, Path.CURVE3]
    return Path([*vertices, points[-1]], [*codes, Path.LINETO])


def _towards(corner: Point, other: Point) -> Point:
    """Return the point where a rounded corner begins."""
    (x, y), (to_x, to_y) = corner, other
    length = abs(to_x - x) + abs(to_y - y)
    part = min(_ROUND, length / 2) / length if length else 0.0
    return x + (to_x - x) * part, y + (to_y - y) * part


def _add_legend(axes: Axes) -> None:
    shapes = [Patch(facecolor=fill, edgecolor=line, label=kind) for kind, (fill, line) in _FILLS.items()]
    lines = [Line2D([], [], color=colour, linestyle=style, label=name) for name, (colour, style) in _EDGES.items()]
    axes.legend(handles=[*shapes, *lines], loc="upper left", bbox_to_anchor=(0, 0), ncols=6, fontsize=7, frameon=False)


@functools.cache
def families() -> tuple[str, ...]:
    """Return the fonts to letter with, the base font first."""
    installed = {each.name for each in font_manager.fontManager.ttflist}
    return (BASE, *(name for name in _FURTHER if name in installed))


def missing(texts: Iterable[str]) -> list[str]:
    """Return the characters of some texts that no font has, sorted."""
    return sorted(character for character in set().union(*texts) if not _has(character))


def plain(text: str) -> str:
    """Return a text in one line, with what is invisible written out."""
    return harmless(" ".join(text.split()))


def fitted(name: str, width: float) -> tuple[str, float]:
    """Return a name as it stands in a box, and its size in points: smaller, in two lines, or cut.

    Args:
        name: one line.
        width: points of a line in the box.
    """
    for size in (SIZE, _SMALLEST):
        if _wide(name, size) <= width:
            return name, size
    first = _longest(name, width)
    # Names are parted at their words, if a word ends in the second half of the line.
    at = max(first.rfind(mark) + 1 for mark in " _-./")
    head = first[:at] if at > len(first) // 2 else first
    rest = name[len(head) :].lstrip()
    if _wide(rest, _SMALLEST) > width:
        rest = _longest(rest, width - _wide("…", _SMALLEST)).rstrip() + "…"
    return f"{head.rstrip(' ')}\n{rest}", _SMALLEST


def _longest(text: str, width: float) -> str:
    """Return the longest beginning that fits at the smallest size; at least one character."""
    return text[: max(1, bisect.bisect_right(range(1, len(text) + 1), width, key=lambda length: _wide(text[:length], _SMALLEST)))]


def _wide(text: str, size: float) -> float:
    prop = FontProperties(family=list(families()), size=size)
    return float(_renderer().get_text_width_height_descent(text, prop, ismath=False)[0])


@functools.cache
def _renderer() -> Any:
    make: Any = RendererAgg
    return make(1, 1, _DPI)


@functools.lru_cache(65_536)
def _has(character: str) -> bool:
    return any(_font(family).get_char_index(ord(character)) for family in families())


@functools.cache
def _font(family: str) -> Any:
    return font_manager.get_font(font_manager.findfont(FontProperties(family=family)))
