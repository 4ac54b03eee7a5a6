"""Lay out a graph: actions in columns by distance from the start, with what they call below them; always the same way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from toolbus.toolkit.graph import Toolkit
from toolbus.toolkit.items import Action, Tool, ToolGroup

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
    columns = [[_block(toolkit, action, taken) for action in layer] for layer in _layers(toolkit)]
    rest = _Block()
    _call(toolkit, [vertex for vertex, item in toolkit.items() if isinstance(item, ToolGroup)], rest, taken)
    _call(toolkit, [vertex for vertex, item in toolkit.items() if isinstance(item, Tool)], rest, taken)
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


def _block(toolkit: Toolkit, action: str, taken: set[str]) -> _Block:
    block = _Block(action)
    _call(toolkit, toolkit.successors(action), block, taken)
    return block


def _call(toolkit: Toolkit, called: Iterable[str], block: _Block, taken: set[str]) -> None:
    """Add the called vertices that have no position yet to a block, groups first."""
    called = [vertex for vertex in called if vertex not in taken]
    for vertex in called:
        if isinstance(toolkit.item(vertex), ToolGroup):
            tools = [tool for tool in toolkit.successors(vertex) if tool not in taken]
            taken |= {vertex, *tools}
            block.groups.append((vertex, tools))
    for vertex in called:
        if isinstance(toolkit.item(vertex), Tool) and vertex not in taken:
            taken.add(vertex)
            block.tools.append(vertex)


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
