"""Draw a bar chart as SVG by hand: nothing to install, and the same on every machine."""

from __future__ import annotations

import math
from html import escape

from benchmarks.summary import Row

WIDTH, BAR, GAP, LEFT, RIGHT, HEAD = 860, 16, 5, 120, 190, 46
COLOURS = {"toolbus": "#c2410c", "floor": "#64748b", "nats-py": "#15803d"}
OTHER = "#2563eb"


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
    style = 'font-family="system-ui, sans-serif" font-size="12" fill="#111"'
    back = '<rect width="100%" height="100%" fill="#fff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 8}" {style}>{back}{head}{"".join(parts)}</svg>\n'
