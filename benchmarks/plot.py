"""Draw charts as SVG by hand: nothing to install, and the same on every machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from benchmarks.summary import Row

WIDTH, BAR, GAP, LEFT, RIGHT, HEAD = 860, 16, 5, 120, 190, 46
COLOURS = {"toolbus": "#c2410c", "floor": "#64748b", "nats-py": "#15803d"}
OTHER = "#2563eb"
LINES = ("#c2410c", "#15803d", "#2563eb", "#7c3aed", "#0e7490", "#be185d", "#64748b")


def bars(title: str, unit: str, rows: list[Row]) -> str:
    """Return rates per number of callers on a logarithmic axis, with the spread of the rounds as a line."""
    levels = sorted({row.concurrency for row in rows})
    top = max((row.high for row in rows), default=1.0)
    bottom = max(1.0, min((row.low for row in rows), default=1.0) / 2)
    span = math.log10(max(top / bottom, 10.0))

    def place(rate: float) -> float:
        return LEFT + max(0.0, math.log10(max(rate, bottom) / bottom)) / span * (WIDTH - LEFT - RIGHT)

    stroke = 'stroke="#111" stroke-width="1.5"'
    parts: list[str] = []
    y = HEAD
    for level in levels:
        parts.append(f'<text x="10" y="{y + 12}" font-weight="600">{level} concurrent</text>')
        y += BAR + GAP
        for row in (row for row in rows if row.concurrency == level):
            colour = COLOURS.get(row.peer, OTHER)
            middle = y + BAR / 2
            note = f"{row.rate:,.0f} {unit}/s" + (f" · p50 {row.p50:.2f} ms" if row.p50 is not None else "")
            parts += [
                f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(row.peer)}</text>',
                f'<rect x="{LEFT}" y="{y}" width="{max(1.0, place(row.rate) - LEFT):.1f}" height="{BAR}" rx="2" fill="{colour}"/>',
                f'<line x1="{place(row.low):.1f}" x2="{place(row.high):.1f}" y1="{middle}" y2="{middle}" {stroke}/>',
                f'<text x="{place(row.high) + 6:.1f}" y="{y + 12}">{escape(note)}</text>',
            ]
            y += BAR + GAP
        y += 2 * GAP
    head = f'<text x="10" y="20" font-size="15" font-weight="600">{escape(title)}: {unit}/s, logarithmic; lines span the rounds</text>'
    return _picture(y + 8, [head, *parts])


def lines(title: str, names: list[str], series: Mapping[str, Sequence[float | None]]) -> str:
    """Return how values changed from one name to the next, on a logarithmic axis; a line breaks where a value is missing."""
    known = [value for values in series.values() for value in values if value]
    top, bottom = max(known, default=1.0) * 1.2, min(known, default=1.0) / 1.2
    foot, right = 380, WIDTH - RIGHT - 60

    def across(index: int) -> float:
        return 50 + (right - 50) * index / max(1, len(names) - 1)

    def down(value: float) -> float:
        return foot - (foot - HEAD) * math.log(value / bottom) / math.log(top / bottom)

    parts = [f'<path d="M50 {HEAD}V{foot}H{right}" fill="none" stroke="#111"/>']
    for power in range(math.floor(math.log10(bottom)), math.ceil(math.log10(top)) + 1):
        for value in (each * 10.0**power for each in (1, 2, 5)):
            if bottom <= value <= top:
                parts.append(f'<text x="44" y="{down(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
                parts.append(f'<path d="M50 {down(value):.1f}H{right}" stroke="#ddd"/>')
    labels = 0.0
    for number, (name, values) in sorted(enumerate(series.items()), key=lambda each: -(_last(each[1][1]) or 0.0)):
        colour = LINES[number % len(LINES)]
        points = [None if value is None else (across(index), down(value)) for index, value in enumerate(values)]
        path = "".join(
            f"{'L' if index and points[index - 1] else 'M'}{point[0]:.1f} {point[1]:.1f}" for index, point in enumerate(points) if point
        )
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{point[0]:.1f}" cy="{point[1]:.1f}" r="2" fill="{colour}"/>' for point in points if point]
        last = _last(values)
        if last is not None:
            # Names of lines that end close to each other stand below each other.
            labels = max(down(last) + 4, labels + 15)
            parts.append(f'<text x="{right + 8}" y="{labels:.1f}" fill="{colour}">{last:.2f} {escape(name)}</text>')
    if names:
        parts.append(f'<text x="50" y="{foot + 18}">{escape(names[0])}</text>')
        parts.append(f'<text x="{right}" y="{foot + 18}" text-anchor="end">{escape(names[-1])}</text>')
    head = f'<text x="10" y="20" font-size="15" font-weight="600">{escape(title)}</text>'
    return _picture(foot + 30, [head, *parts])


def _last(values: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(values) if value), None)


def _picture(height: float, parts: list[str]) -> str:
    style = 'font-family="system-ui, sans-serif" font-size="12" fill="#111"'
    back = '<rect width="100%" height="100%" fill="#fff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {style}>{back}{"".join(parts)}</svg>\n'
