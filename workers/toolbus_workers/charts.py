"""Draw charts as SVG, and write findings as one Markdown or HTML report.

``toolbus worker charts`` serves ``draw_chart`` and ``write_report``. Neither reads anything except its arguments. A chart
is put into a report by reference: ``{"$from": "draw_chart", "path": "svg"}``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from toolbus import Blob, ToolError, ToolResult, tool
from toolbus_workers.plotting import Chart, plot
from toolbus_workers.reporting import MAX_SECTIONS, Problem, Section, html_report, markdown_report

MAX_SERIES = 8
MAX_POINTS = 1_000
MAX_TEXT = 200
MAX_REPORT = 1 << 20


class Series(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named series of numbers, one for each label; null leaves a gap."""

    name: str
    values: list[float | None]


@tool(effect="read", timeout=30.0, category="data", groups=["charts"])
def draw_chart(
    kind: Literal["bar", "line", "pie"],
    title: Annotated[str, Meta(max_length=MAX_TEXT)],
    labels: Annotated[list[str | int | float], Meta(min_length=1, max_length=MAX_POINTS)],
    series: Annotated[list[Series], Meta(min_length=1, max_length=MAX_SERIES)],
) -> Iterator[Blob | ToolResult]:
    """Draw a bar, line or pie chart as SVG; a report takes it as {"$from": "draw_chart", "path": "svg"}.

    Args:
        kind: bar compares, line shows a course, pie shows shares of one series
        title: above the chart
        labels: what the values belong to, e.g. ["north", "south"]
        series: names with values, one value for each label, e.g. [{"name": "sales", "values": [15, 20]}]
    """
    names = [str(label)[:MAX_TEXT] for label in labels]
    for at, each in enumerate(series):
        if len(each.values) != len(names):
            raise _wrong(f"series[{at}] has {len(each.values)} values for {len(names)} labels", "bad_length")
    if len(names) * len(series) > MAX_POINTS:
        raise _wrong(
            f"there are {len(names) * len(series):,} values; at most {MAX_POINTS:,} can be drawn: aggregate them first", "too_many"
        )
    if kind == "pie" and (len(series) > 1 or any((value or 0) < 0 for value in series[0].values) or not any(series[0].values)):
        raise _wrong("a pie has one series, none of its values is negative, and their sum is more than 0", "bad_pie")
    if any(abs(value or 0) > 1e300 for each in series for value in each.values):
        raise _wrong("values are at most 1e300", "too_large")
    svg = plot(Chart(kind, title, names, [(each.name[:MAX_TEXT], each.values) for each in series]))
    yield Blob("image/svg+xml", svg.encode())
    summary = "; ".join(_summary(each, names) for each in series)
    yield ToolResult.ok(
        {"kind": kind, "title": title, "svg": svg},
        output=f'Drew the {kind} chart "{title}": {summary}. For write_report it is {{"$from": "draw_chart", "path": "svg"}}.',
    )


@tool(effect="read", timeout=30.0, category="data", groups=["charts"])
def write_report(
    title: Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)],
    sections: Annotated[list[Section], Meta(min_length=1, max_length=MAX_SECTIONS)],
    format: Literal["markdown", "html"] = "markdown",
) -> Iterator[Blob | ToolResult]:
    """Write a report of sections, each with text, a table or a chart, as one Markdown or HTML document.

    Earlier results are taken by reference: a table as {"$from": "data_analysis"}, a chart as {"$from": "draw_chart", "path": "svg"}.

    Args:
        title: of the report
        sections: heading, text (paragraphs), table (columns and rows), chart (SVG)
        format: markdown, or html for a page that opens in a browser
    """
    try:
        text = (html_report if format == "html" else markdown_report)(title, sections)
    except Problem as problem:
        raise _wrong(str(problem), problem.code) from None
    content = text.encode("utf-8", "replace")
    if len(content) > MAX_REPORT:
        raise _wrong(f"the report has {len(content):,} bytes; at most {MAX_REPORT:,} are allowed: leave tables or charts out", "too_large")
    yield Blob("text/html" if format == "html" else "text/markdown", content)
    data: dict[str, Any] = {"title": title, "format": format, "bytes": len(content), "sections": [each.heading for each in sections]}
    headings = ", ".join(each.heading for each in sections)
    yield ToolResult.ok(data, output=f'Wrote the report "{title}" ({format}, {len(content):,} bytes) with the sections: {headings}.')


def _summary(series: Series, names: list[str]) -> str:
    """Return the least and the greatest value, for a model that sees no picture."""
    known = [(value, name) for value, name in zip(series.values, names, strict=True) if value is not None]
    if not known:
        return f"{series.name}: no values"
    low, high = min(known), max(known)
    return f"{series.name}: {len(known)} values from {low[0]:g} ({low[1]}) to {high[0]:g} ({high[1]})"


def _wrong(message: str, code: str) -> ToolError:
    return ToolError(message, type="invalid_arguments", code=code)
