"""Pictures of a graph that need no library: the layout, an interactive page, GraphML and DOT."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import pairwise
from typing import Any

import msgspec
import networkx as nx

from toolbus.bus.values.results import ToolkitError
from toolbus.toolkit.graph import Action, Tool, ToolGroup, Toolkit, edge_kind, kind_of

Point = tuple[float, float]

# Distances in the picture; a vertex is 1.6 wide and 0.5 high.
WIDTH, HEIGHT = 1.6, 0.5
_STEP = 1.0
_INDENT = 2.4
_GAP = 0.4
# A wider graph goes on in a further row; arrows between the rows run in the gap.
_MOST_WIDTH = 26.0
ROW_GAP = 2.2


@dataclass(frozen=True)
class Layout:
    """The geometry of a picture.

    Attributes:
        toolkit: the graph that is shown, or the part of it that fits.
        places: centre of each vertex; x grows to the right and y downwards.
        left_out: number of vertices that are not shown.
        rows: the top and bottom of each row of columns; there is one unless the graph is too wide for it.
    """

    toolkit: Toolkit
    places: dict[str, Point]
    left_out: int
    rows: tuple[tuple[float, float], ...] = ()


def layout(toolkit: Toolkit, most: int) -> Layout:
    """Place the first ``most`` vertices of a graph, in the order of actions, each followed by what it calls."""
    columns = _columns(toolkit)
    order = [vertex for column in columns for block in column for vertex in block.vertices()]
    left_out = max(0, len(order) - most)
    # A vertex without data has no position, so its edges can't be drawn either.
    if left_out or len(order) < len(toolkit.vertices()):
        toolkit = toolkit.subgraph(order[:most])
        columns = _columns(toolkit)
    places, rows = _places(columns)
    return Layout(toolkit, places, left_out, rows)


@dataclass
class _Block:
    """An action with what it calls and no earlier action does; without an action, the vertices that no action calls."""

    action: str = ""
    groups: list[tuple[str, list[str]]] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)

    def vertices(self) -> list[str]:
        """Return all vertices of the block, in order."""
        first = [self.action] if self.action else []
        return [*first, *(vertex for group, tools in self.groups for vertex in (group, *tools)), *self.tools]

    def places(self, x: float, y: float) -> tuple[dict[str, Point], float]:
        """Return the positions of its vertices when its corner is at (x, y), and the y of its end."""
        places: dict[str, Point] = {}
        if self.action:
            places[self.action] = (x, y)
            y += _STEP
        for group, tools in self.groups:
            places[group] = (x + _INDENT, y)
            for number, tool in enumerate(tools):
                places[tool] = (x + 2 * _INDENT, y + number * _STEP)
            y += max(1, len(tools)) * _STEP
        for tool in self.tools:
            places[tool] = (x + _INDENT, y)
            y += _STEP
        return places, y


def _columns(toolkit: Toolkit) -> list[list[_Block]]:
    taken: set[str] = set()
    columns = [[_block(toolkit, action, toolkit.successors(action), taken) for action in layer] for layer in _layers(toolkit)]
    rest = _block(toolkit, "", [vertex for vertex, _ in toolkit.items()], taken)
    return [*columns, [rest]] if rest.vertices() else columns


def _layers(toolkit: Toolkit) -> list[list[str]]:
    """Return the actions by number of Next edges from an action that none leads to; a cycle starts at its first action."""
    nodes, edges = toolkit.tables()
    following = {
        u: [v for v in edges[u] if isinstance(nodes[v].get("data"), Action)] for u, item in toolkit.items() if isinstance(item, Action)
    }
    led_to = {v for u, targets in following.items() for v in targets if v != u}
    layers: list[list[str]] = []
    seen: set[str] = set()
    for starts in ([u for u in following if u not in led_to], *([u] for u in following)):
        front, depth = [u for u in starts if u not in seen], 0
        while front:
            seen.update(front)
            if depth == len(layers):
                layers.append([])
            layers[depth] += front
            front, depth = list(dict.fromkeys(v for u in front for v in following[u] if v not in seen)), depth + 1
    return layers


def _block(toolkit: Toolkit, action: str, called: Iterable[str], taken: set[str]) -> _Block:
    """Return the block of an action with the called vertices that have no position yet, groups first."""
    block, called = _Block(action), [vertex for vertex in called if vertex not in taken]
    for vertex in called:
        if isinstance(toolkit.item(vertex), ToolGroup):
            tools = [tool for tool in toolkit.successors(vertex) if tool not in taken]
            taken |= {vertex, *tools}
            block.groups.append((vertex, tools))
    for vertex in called:
        if isinstance(toolkit.item(vertex), Tool) and vertex not in taken:
            taken.add(vertex)
            block.tools.append(vertex)
    return block


def _places(columns: list[list[_Block]]) -> tuple[dict[str, Point], tuple[tuple[float, float], ...]]:
    """Return the centre of each vertex, and the top and bottom of each row; a column that does not fit begins a new row."""
    places: dict[str, Point] = {}
    rows: list[tuple[float, float]] = []
    x = top = bottom = 0.0
    for column in columns:
        wide = _width(column)
        if x > 0 and x + wide > _MOST_WIDTH:
            rows.append((top, bottom))
            x, top = 0.0, bottom + ROW_GAP
        y = top
        for block in column:
            there, y = block.places(x, y)
            places |= there
            bottom = max([bottom, *(at + HEIGHT / 2 for _, at in there.values())])
            y += _GAP
        x += wide
    if places:
        rows.append((top, bottom))
    return places, tuple((start - HEIGHT / 2, end) for start, end in rows)


def _width(column: list[_Block]) -> float:
    """Return the distance from a column to the next one."""
    deep = any(tools for block in column for _, tools in block.groups)
    called = any(block.groups or block.tools for block in column)
    return WIDTH + _GAP * 2 + (2 * _INDENT if deep else _INDENT if called else 0.6)


# Distances of parallel arrows, and of the first one from the boxes.
_TRACK, _MARGIN = 0.11, 0.14
_TRACKS = 6
# Most units of a curve between two of its points that are looked at.
_STRIDE = 0.15
# A curve stays that far from a box.
_CLEAR = 0.05

Route = tuple[list[Point], bool]
"""Points, and whether they are the four points of a cubic curve rather than the corners of a line."""


class Router:
    """Finds routes in one layout; the same layout gives the same routes.

    No box is between two neighbouring columns of boxes of one row, nor between two rows. A route that can't be a simple curve
    leaves its box to the right into the first of these, and reaches the other box from the left.
    """

    def __init__(self, placed: Layout) -> None:
        self._placed = placed
        self._boxes = list(placed.places.items())
        self._used: Counter[tuple[str, float]] = Counter()
        self._left = min((x for x, _ in placed.places.values()), default=0.0) - WIDTH / 2

    def route(self, u: str, v: str) -> Route:
        """Return the route of an edge."""
        toolkit, places = self._placed.toolkit, self._placed.places
        kind = edge_kind(toolkit.item(u), toolkit.item(v))
        start, end = places[u], places[v]
        curve = _curve(start, end, kind)
        if u == v or self._is_free(curve, u, v):
            return curve, True
        return self._corners(start, end, kind), False

    def _is_free(self, curve: Sequence[Point], u: str, v: str) -> bool:
        reach = sum(abs(x - to_x) + abs(y - to_y) for (x, y), (to_x, to_y) in pairwise(curve))
        samples = int(reach / _STRIDE) + 2
        points = [_at(curve, number / samples) for number in range(1, samples)]
        low_x, high_x = min(x for x, _ in points), max(x for x, _ in points)
        low_y, high_y = min(y for _, y in points), max(y for _, y in points)
        for vertex, (x, y) in self._boxes:
            clear = -_CLEAR if vertex in {u, v} else _CLEAR
            wide, high = WIDTH / 2 + clear, HEIGHT / 2 + clear
            if x + wide < low_x or x - wide > high_x or y + high < low_y or y - high > high_y:
                continue
            if any(abs(at - x) < wide and abs(down - y) < high for at, down in points):
                return False
        return True

    def _corners(self, start: Point, end: Point, kind: str) -> list[Point]:
        (x, y), (to_x, to_y) = start, end
        row, to_row = self._row(y), self._row(to_y)
        out = self._beside(x + WIDTH / 2, 1)
        first, last = (x + WIDTH / 2, y), (to_x - WIDTH / 2, to_y)
        if row == to_row and self._are_neighbours(x, to_x, row):
            return [first, (out, y), (out, to_y), last]
        into = self._beside(to_x - WIDTH / 2, -1)
        lane = self._lane(row, above=kind == "next" if row == to_row else to_row < row)
        if abs(row - to_row) <= 1:
            return [first, (out, y), (out, lane), (into, lane), (into, to_y), last]
        side, to_lane = self._beside(self._left, -1), self._lane(to_row, above=to_row > row)
        return [first, (out, y), (out, lane), (side, lane), (side, to_lane), (into, to_lane), (into, to_y), last]

    def _row(self, y: float) -> int:
        return next(number for number, (_, bottom) in enumerate(self._placed.rows) if y <= bottom)

    def _are_neighbours(self, x: float, to_x: float, row: int) -> bool:
        """Return whether a box's column is the next one to the right of another's, in their row."""
        top, bottom = self._placed.rows[row]
        return to_x > x and not any(x < at < to_x for _, (at, y) in self._boxes if top <= y <= bottom)

    def _beside(self, edge: float, direction: int) -> float:
        return edge + direction * (_MARGIN + _TRACK * self._track("column", edge))

    def _lane(self, row: int, *, above: bool) -> float:
        top, bottom = self._placed.rows[row]
        track = _TRACK * self._track("above" if above else "below", row)
        # The lanes of two rows share a gap, and each has its half of it.
        return top - ROW_GAP / 4 - track if above else bottom + ROW_GAP / 8 + track

    def _track(self, where: str, place: float) -> int:
        key = (where, round(place, 3))
        self._used[key] += 1
        return (self._used[key] - 1) % _TRACKS


def middle(route: Route) -> Point:
    """Return where an edge's score stands: the middle of a curve, or of the longest part of a line."""
    points, curved = route
    if curved:
        return _at(points, 0.5)
    (x, y), (to_x, to_y) = max(pairwise(points), key=lambda pair: abs(pair[0][0] - pair[1][0]) + abs(pair[0][1] - pair[1][1]))
    return (x + to_x) / 2, (y + to_y) / 2


def _at(curve: Sequence[Point], t: float) -> Point:
    weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
    x, y = (sum(weight * point[axis] for weight, point in zip(weights, curve, strict=True)) for axis in (0, 1))
    return x, y


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


MOST = 2_000
"""Most vertices on a page by default; more make a browser slow."""

_DESCRIPTION_LENGTH = 1_000
# Characters that could end a script element or a line of JavaScript when they stand within JSON.
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def page(graph: Toolkit, title: str = "Toolkit", *, most: int = MOST) -> str:
    """Return an HTML page to pan, zoom and drag in, with details under the pointer, a search, and a filter by score.

    Script, style and data are inside the page, and its content security policy allows nothing else. When the graph has more than
    ``most`` vertices, the page says how many were left out.

    Raises:
        ToolkitError: ``most`` is not at least 1.
    """
    if most < 1:
        raise ToolkitError(f"most is {most!r}: a page shows at least one vertex")
    parts = {name: _asset(f"page.{name}") for name in ("html", "css", "js")}
    parts["js"] = drawing() + parts["js"]
    data = msgspec.json.encode(picture(graph, most)).decode()
    for unsafe, escaped in _UNSAFE.items():
        data = data.replace(unsafe, escaped)
    policy = (
        f"default-src 'none'; style-src '{_hash(parts['css'])}'; script-src '{_hash(parts['js'])}'; base-uri 'none'; form-action 'none'"
    )
    filled = {"TITLE": html.escape(title), "POLICY": policy, "STYLE": parts["css"], "SCRIPT": parts["js"], "DATA": data}
    # The template is split once instead of searched again, so that no text of the graph is taken for a placeholder.
    pieces = parts["html"].split("%%")
    return "".join(filled[piece] if number % 2 else piece for number, piece in enumerate(pieces))


def drawing() -> str:
    """Return the script that draws a ``picture``: a function ``drawGraph(data, parts)``."""
    return _asset("drawing.js")


def picture(graph: Toolkit, most: int) -> dict[str, Any]:
    """Return what the page draws as plain data: ``vertices`` with positions, ``edges`` with scores, and the number ``left_out``."""
    placed = layout(graph, most)
    vertices = [
        {"id": vertex, "kind": kind_of(placed.toolkit.item(vertex)), "x": x, "y": y, **_about(placed.toolkit, vertex)}
        for vertex, (x, y) in placed.places.items()
    ]
    edges = [{"from": u, "to": v, "score": placed.toolkit.get_score(u, v)} for u, v in placed.toolkit.edges()]
    return {"vertices": vertices, "edges": edges, "left_out": placed.left_out}


def _about(toolkit: Toolkit, vertex: str) -> dict[str, str]:
    item = toolkit.item(vertex)
    if item is None:
        return {"name": vertex, "description": "", "runs": ""}
    runs = "" if not isinstance(item, Tool) else f"bus: {item.bus_name}" if item.bus_name else "in this process"
    return {"name": item.name, "description": item.description[:_DESCRIPTION_LENGTH], "runs": runs}


def _asset(name: str) -> str:
    return resources.files("toolbus.toolkit").joinpath("assets", name).read_text("utf-8")


def _hash(text: str) -> str:
    """Return the hash of a text in the form that content security policies use."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def graphml(toolkit: Toolkit) -> str:
    """Return GraphML with the kind, name and description of each vertex and the score of each edge."""
    plain: nx.DiGraph[str] = nx.DiGraph()
    for vertex, item in toolkit.items():
        plain.add_node(vertex, kind=kind_of(item), name=item.name, description=item.description)
    plain.add_edges_from((u, v, {"score": toolkit.get_score(u, v)}) for u, v in toolkit.edges())
    return "\n".join(nx.generate_graphml(plain))


def dot(toolkit: Toolkit) -> str:
    """Return DOT for Graphviz: rounded boxes for actions, boxes for tools, hexagons for groups, and scores as edge labels."""
    shapes = {"action": "box,style=rounded", "tool": "box", "group": "hexagon"}
    lines = ["digraph toolkit {", "  rankdir=LR"]
    lines += [f"  {_quoted(vertex)} [label={_quoted(item.name)},shape={shapes[kind_of(item)]}]" for vertex, item in toolkit.items()]
    lines += [f'  {_quoted(u)} -> {_quoted(v)} [label="{toolkit.get_score(u, v):.2f}"]' for u, v in toolkit.edges()]
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    # DOT strings are like JSON strings, except for what may follow a backslash.
    return json.dumps(text.replace("\\", "/").replace("\n", " "), ensure_ascii=False)
