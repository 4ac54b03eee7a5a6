"""Write reports as Markdown and HTML. All input becomes plain text in them, and charts are images, which can't run scripts."""

from __future__ import annotations

import base64
import json
import re
from html import escape
from typing import Any

import msgspec

MAX_SECTIONS = 50
MAX_ROWS = 500
MAX_COLUMNS = 50
MAX_TEXT = 50_000
MAX_CHART = 200_000

# Characters that are markup in a cell or heading of Markdown; paragraphs keep their emphasis.
_MARKUP = re.compile(r"([\\`*_\[\]<>|#])")
# Characters of a paragraph that begin tags, links and fences, and the one that would escape their escapes.
_TAGS = re.compile(r"[\\<\[\]]|`{3,}|~{3,}")
_STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:50rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}th,td{border:1px solid #cbd5e1;padding:.2rem .6rem;text-align:left}img{max-width:100%}"
)


class Problem(Exception):
    """A section can't be written; ``code`` is the error's code."""

    def __init__(self, message: str, code: str) -> None:
        self.code = code
        super().__init__(message)


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a report.

    Attributes:
        heading: heading of the section.
        text: paragraphs, separated by empty lines.
        table: ``columns`` (names, or objects with a name) and ``rows`` (lists), as data_analysis and graph_query return them.
        chart: SVG, as draw_chart returns it.
    """

    heading: str
    text: str = ""
    table: dict[str, Any] | None = None
    chart: str = ""


class Table(msgspec.Struct, frozen=True):
    """A section's table as it is written; ``left_out`` is the number of missing rows."""

    columns: list[str]
    rows: list[list[str]]
    left_out: int


def markdown_report(title: str, sections: list[Section]) -> str:
    """Return the report as Markdown; charts are embedded images.

    Raises:
        Problem: a table or chart is invalid, or something is too long.
    """
    lines = [f"# {_plain(title)}", ""]
    for at, section in enumerate(sections):
        lines += [f"## {_plain(section.heading)}", ""]
        lines += [_TAGS.sub(_escaped, paragraph) + "\n" for paragraph in _paragraphs(at, section)]
        table = _table(at, section)
        if table is not None:
            lines += [_line(table.columns), "|" + "---|" * len(table.columns), *map(_line, table.rows), ""]
            lines += [f"({table.left_out:,} more rows are left out)", ""] if table.left_out else []
        if section.chart:
            lines += [f"![{_plain(section.heading)}]({_image(at, section)})", ""]
    return "\n".join(lines)


def html_report(title: str, sections: list[Section]) -> str:
    """Return the report as one HTML page that needs no other file and runs no script.

    Raises:
        Problem: see ``markdown_report``.
    """
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    lines = [
        f'<!DOCTYPE html>\n<html><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n<h1>{escape(title)}</h1>",
    ]
    for at, section in enumerate(sections):
        lines.append(f"<h2>{escape(section.heading)}</h2>")
        lines += [f"<p>{escape(paragraph).replace(chr(10), '<br>')}</p>" for paragraph in _paragraphs(at, section)]
        table = _table(at, section)
        if table is not None:
            lines.append(f"<table>\n<tr>{''.join(f'<th>{escape(name)}</th>' for name in table.columns)}</tr>")
            lines += [f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows]
            lines.append("</table>" + (f"\n<p>({table.left_out:,} more rows are left out)</p>" if table.left_out else ""))
        if section.chart:
            lines.append(f'<p><img alt="{escape(section.heading)}" src="{_image(at, section)}"></p>')
    return "\n".join([*lines, "</body></html>", ""])


def _paragraphs(at: int, section: Section) -> list[str]:
    if len(section.text) > MAX_TEXT:
        raise Problem(f"sections[{at}].text has {len(section.text):,} characters; at most {MAX_TEXT:,} are allowed", "too_long")
    return [paragraph.strip() for paragraph in re.split(r"\n[ \t]*\n", section.text) if paragraph.strip()]


def _table(at: int, section: Section) -> Table | None:
    if section.table is None:
        return None
    columns, rows = section.table.get("columns"), section.table.get("rows")
    if not isinstance(columns, list) or not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise Problem(f'sections[{at}].table must have "columns" (a list of names) and "rows" (a list of lists)', "bad_table")
    if not 1 <= len(columns) <= MAX_COLUMNS or any(len(row) != len(columns) for row in rows):
        raise Problem(f"sections[{at}].table must have 1 to {MAX_COLUMNS} columns, and rows as long as that", "bad_table")
    names = [_shown(each.get("name", "") if isinstance(each, dict) else each) for each in columns]
    return Table(names, [[_shown(cell) for cell in row] for row in rows[:MAX_ROWS]], max(0, len(rows) - MAX_ROWS))


def _image(at: int, section: Section) -> str:
    """Return a chart as the address of an image, in which browsers run no script and load nothing."""
    if "<svg" not in section.chart[:1_000] or len(section.chart) > MAX_CHART:
        what = f'SVG of at most {MAX_CHART:,} characters, as {{"$from": "draw_chart", "path": "svg"}} gives it'
        raise Problem(f"sections[{at}].chart must be {what}", "bad_chart")
    return f"data:image/svg+xml;base64,{base64.b64encode(section.chart.encode('utf-8', 'replace')).decode()}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"\\{character}" for character in found[0])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(map(_plain, cells))} |"


def _plain(text: str) -> str:
    """Return a text on one line of Markdown, in which nothing is markup."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))
