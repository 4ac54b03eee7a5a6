"""Draw bar, line and pie charts as SVG without any library; the same numbers give the same picture."""

from __future__ import annotations

import math
import re
from html import escape
from typing import Literal, NamedTuple

WIDTH, HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 50, 100
_COLOURS = ("#2563eb", "#ea580c", "#16a34a", "#9333ea", "#dc2626", "#0891b2", "#ca8a04", "#64748b")
_MOST_LABELS, _MOST_DOTS = 24, 60
_LABEL, _LEGEND, _TITLE = 14, 18, 80
# Of the numbers in a range, the part that it must span, and the least number that it must: below, steps are all the same number.
_LEAST_RANGE, _LEAST_NUMBER = 1e-8, 1e-300
# Characters that XML can't hold, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Chart(NamedTuple):
    """The content of a chart: each series has a name, and a value or None for each label."""

    kind: Literal["bar", "line", "pie"]
    title: str
    labels: list[str]
    series: list[tuple[str, list[float | None]]]


def plot(chart: Chart) -> str:
    """Return the chart as an SVG document, whose text stays text."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(WIDTH / 2, 26, _short(chart.title, _TITLE), 'text-anchor="middle" font-size="16"'),
    ]
    if chart.kind == "pie":
        parts += _pie(chart)
    else:
        parts += _axes(chart)
    return "\n".join([*parts, "</svg>", ""])


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round numbers that span a range, including zero if it lies within.

    A range that is too narrow for numbers of its size, or for any, is made wider.
    """
    if not high > low:
        high = low + (abs(low) or 1.0)
    least = max(_LEAST_RANGE * max(abs(low), abs(high)), _LEAST_NUMBER)
    if high - low < least:
        low, high = (low + high) / 2 - least / 2, (low + high) / 2 + least / 2
    rough = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= rough * 0.999)
    first = math.floor(low / step)
    return [number * step for number in range(first, math.ceil(high / step - 1e-9) + 1)]


def _axes(chart: Chart) -> list[str]:
    """Return the frame of bars and lines, with its content."""
    given = [value for _, values in chart.series for value in values if value is not None] or [0.0]
    low, high = min(given), max(given)
    # The lengths of bars are compared, so bars must begin at zero.
    marks = ticks(min(low, 0.0), max(high, 0.0)) if chart.kind == "bar" else ticks(low, high)
    bottom, top = marks[0], marks[-1]
    # As many digits as tell neighbours apart.
    digits = max(6, math.ceil(math.log10(max(abs(bottom), abs(top)) / (marks[1] - bottom))) + 2)

    def y(value: float) -> float:
        return _TOP + (HEIGHT - _TOP - _BOTTOM) * (top - value) / (top - bottom)

    step = (WIDTH - _LEFT - _RIGHT) / len(chart.labels)
    centres = [_LEFT + step * (at + 0.5) for at in range(len(chart.labels))]
    parts = []
    for mark in marks:
        strong = "#94a3b8" if mark == 0 else "#e2e8f0"
        parts.append(f'<path d="M{_LEFT} {y(mark):.1f}H{WIDTH - _RIGHT}" stroke="{strong}"/>')
        parts.append(_text(_LEFT - 6, y(mark) + 4, f"{mark:.{digits}g}", 'text-anchor="end" fill="#475569"'))
    every = math.ceil(len(chart.labels) / _MOST_LABELS)
    for centre, label in list(zip(centres, chart.labels, strict=True))[::every]:
        place = f'text-anchor="end" fill="#475569" transform="rotate(-30 {centre:.1f} {HEIGHT - _BOTTOM + 16})"'
        parts.append(_text(centre, HEIGHT - _BOTTOM + 16, _short(label, _LABEL), place))
    base = y(min(max(0.0, bottom), top))
    for at, (name, values) in enumerate(chart.series):
        points = [None if value is None else (centre, y(value)) for centre, value in zip(centres, values, strict=True)]
        if chart.kind == "bar":
            parts += _bars(points, base, at, step * 0.8 / len(chart.series), len(chart.series))
        else:
            parts += _line(points, at)
        if len(chart.series) > 1:
            parts += _legend(at, name)
    return parts


def _bars(points: list[tuple[float, float] | None], base: float, at: int, wide: float, count: int) -> list[str]:
    return [
        f'<rect x="{point[0] + wide * (at - count / 2):.1f}" y="{min(point[1], base):.1f}" width="{wide:.1f}" '
        f'height="{abs(point[1] - base):.1f}" fill="{_COLOURS[at]}"/>'
        for point in points
        if point is not None
    ]


def _line(points: list[tuple[float, float] | None], at: int) -> list[str]:
    """Return lines between neighbours, with dots when there are few values, or where gaps on both sides would hide one."""
    path = "".join(
        f"{'L' if before is not None else 'M'}{point[0]:.1f} {point[1]:.1f}"
        for before, point in zip([None, *points], points, strict=False)
        if point is not None
    )
    few = len(points) <= _MOST_DOTS
    dots = [
        f'<circle cx="{point[0]:.1f}" cy="{point[1]:.1f}" r="2.5" fill="{_COLOURS[at]}"/>'
        for before, point, after in zip([None, *points], points, [*points[1:], None], strict=False)
        if point is not None and (few or (before is None and after is None))
    ]
    return [f'<path d="{path}" fill="none" stroke="{_COLOURS[at]}" stroke-width="2"/>', *dots] if path else []


def _pie(chart: Chart) -> list[str]:
    values = [value or 0.0 for value in chart.series[0][1]]
    # Divide by the greatest value first, so that values near the limit of numbers don't add up to infinity.
    scale = max(values)
    shares = [value / scale for value in values]
    total = sum(shares)
    x, y, radius = 230.0, HEIGHT / 2 + 20, 160.0
    parts = []
    angle = -math.pi / 2
    for at, share in enumerate(shares):
        turn = share / total * math.tau
        colour = _COLOURS[at % len(_COLOURS)]
        if share == total:
            parts.append(f'<circle cx="{x}" cy="{y}" r="{radius}" fill="{colour}"/>')
        elif share:
            start = f"{x + radius * math.cos(angle):.2f} {y + radius * math.sin(angle):.2f}"
            end = f"{x + radius * math.cos(angle + turn):.2f} {y + radius * math.sin(angle + turn):.2f}"
            arc = f"A{radius} {radius} 0 {int(turn > math.pi)} 1 {end}"
            parts.append(f'<path d="M{x} {y}L{start}{arc}Z" fill="{colour}" stroke="#ffffff"/>')
        angle += turn
        if at < _LEGEND:
            shown = f"{_short(chart.labels[at], 24)}: {values[at]:.6g} ({share / total:.1%})"
            parts.append(f'<rect x="440" y="{_TOP + 10 + at * 19}" width="11" height="11" fill="{colour}"/>')
            parts.append(_text(457, _TOP + 20 + at * 19, shown))
    if len(shares) > _LEGEND:
        parts.append(_text(457, _TOP + 20 + _LEGEND * 19, f"and {len(shares) - _LEGEND} more"))
    return parts


def _legend(at: int, name: str) -> list[str]:
    x, y = _LEFT + (at % 4) * 155, HEIGHT - 28 + (at // 4) * 15
    return [f'<rect x="{x}" y="{y}" width="10" height="10" fill="{_COLOURS[at]}"/>', _text(x + 15, y + 9, _short(name, 20))]


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{" " if attributes else ""}{attributes}>{escape(_FORBIDDEN.sub("�", text))}</text>'


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
