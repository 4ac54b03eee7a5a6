"""Lead the arrows of a picture from box to box without running behind another box."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from toolbus.toolkit.items import edge_kind
from toolbus.toolkit.layout import HEIGHT, ROW_GAP, WIDTH, Layout, Point

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
        if row == to_row:
            lane = self._lane(row, above=kind == "next")
            return [first, (out, y), (out, lane), (into, lane), (into, to_y), last]
        lane = self._lane(row, above=to_row < row)
        if abs(row - to_row) == 1:
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
