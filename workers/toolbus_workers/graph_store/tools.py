"""The tools of the graph store; the worker gives each a ``GraphStore`` that models don't see."""

from __future__ import annotations

import csv as csv_
import io
import json
import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from toolbus import ToolError, ToolResult, invocation, tool
from toolbus_workers.graph_store.store import Batch, GraphStore, Label, Scalar

MAX_QUERY = 20_000
MAX_ROWS = 1_000
MAX_BYTES = 100_000
MAX_IMPORT = 5_000
MAX_PROPERTIES = 50
MAX_VALUE = 10_000
SECONDS = 20.0

# Seconds before the caller's deadline at which a statement is stopped, so that the answer can still give the reason.
_MARGIN = 1.5
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}\Z")
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})\Z")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?\Z")
_MOST_INT = 1 << 63


@tool(effect="read", timeout=60.0, category="data", groups=["graph"])
async def graph_query(
    query: str, store: GraphStore, parameters: dict[str, Any] | None = None, max_rows: Annotated[int, Meta(ge=1, le=MAX_ROWS)] = 100
) -> ToolResult:
    """Run one reading Cypher statement on the graph (MATCH, OPTIONAL MATCH, UNWIND, WITH, WHERE, RETURN, UNION) and return the rows.

    Call graph_schema first for labels, types and properties. Nothing can be changed; data comes in by graph_import.

    Args:
        query: one statement, e.g. "MATCH (p:Person)-[:KNOWS]->(q:Person) WHERE p.id = $id RETURN q.id, q.age ORDER BY q.age"
        parameters: values for $names in the statement
        max_rows: how many rows to return at most
    """
    if len(query) > MAX_QUERY:
        raise _wrong(f"the statement has {len(query):,} characters; at most {MAX_QUERY:,} are allowed", "too_long")
    _check_text(query)
    _check_text(json.dumps(parameters, ensure_ascii=False))
    found = await store.query(query, parameters or {}, max_rows=max_rows, max_bytes=MAX_BYTES, seconds=_seconds())
    notes = []
    if found.more:
        notes.append(f"only the first {len(found.rows)} rows are shown; aggregate, filter, or page with ORDER BY … SKIP … LIMIT")
    if found.cut:
        notes.append(f"{found.cut} long values are cut short; return less of them")
    lines = [" | ".join(found.columns), *(" | ".join(map(_shown, row)) for row in found.rows)]
    lines += [] if found.rows else ["(no rows)"]
    data = {"columns": found.columns, "rows": found.rows, "truncated": bool(notes), "notes": notes}
    return ToolResult.ok(data, output="\n".join([*lines, *(f"({note})" for note in notes)]))


@tool(effect="read", timeout=60.0, category="data", groups=["graph"])
async def graph_schema(store: GraphStore) -> ToolResult:
    """Show the graph's labels of vertices and types of edges, with their properties and counts."""
    schema = await store.schema(seconds=_seconds())
    lines = [_described(label) for label in (*schema.vertices, *schema.edges)]
    return ToolResult.ok(msgspec.to_builtins(schema), output="\n".join(lines) or "The graph is empty; graph_import puts data into it.")


@tool(effect="idempotent", timeout=60.0, category="data", groups=["graph"])
async def graph_import(
    kind: Literal["vertices", "edges"],
    label: str,
    store: GraphStore,
    rows: list[dict[str, str | int | float | bool | None]] | None = None,
    csv: str = "",
    source: str = "",
    target: str = "",
) -> ToolResult:
    """Add or update vertices or edges, all of one label, from rows or from CSV text. All rows are taken, or none.

    Vertices come before the edges between them. Those that are there (same id; same ends and type) get the new properties.

    Args:
        kind: vertices or edges
        label: the vertices' label, e.g. Person, or the edges' type, e.g. KNOWS
        rows: objects; vertices have an id, edges have from and to, which are ids; the rest are properties
        csv: the same as text, its first line being the names of columns; instead of rows
        source: for edges, the label of the vertices they lead from
        target: for edges, the label of the vertices they lead to
    """
    if (rows is None) == (not csv):
        raise _wrong("give the data as rows or as csv, one of the two", "no_data")
    batch = _batch(kind, label, _from_csv(csv) if rows is None else rows, source, target)
    loaded = await store.load(batch, seconds=_seconds())
    data = {"imported": loaded.rows, "label": msgspec.to_builtins(loaded.label)}
    return ToolResult.ok(data, output=f"Imported {loaded.rows} {kind}. Now: {_described(loaded.label)}")


def _batch(kind: str, label: str, rows: list[dict[str, Scalar]], source: str, target: str) -> Batch:
    """Return the rows as a batch that every store accepts.

    Raises:
        ToolError: a name, a size or a value is invalid; the message says where.
    """
    if not rows or len(rows) > MAX_IMPORT:
        raise _wrong(f"there are {len(rows):,} rows; give 1 to {MAX_IMPORT:,} in one import", "too_many_rows" if rows else "no_data")
    edges = kind == "edges"
    if edges != bool(source and target) or (not edges and (source or target)):
        raise _wrong("source and target are the labels of what edges lead from and to: edges need both, vertices have neither", "bad_ends")
    keys = ("from", "to") if edges else ("id",)
    for name in filter(None, (label, source, target)):
        _check_name(name)
    names = {name for row in rows for name in row}
    for name in sorted(names.difference(keys)):
        _check_name(name)
        if name.lower() in {"id", "from", "to"}:
            raise _wrong(f"a property of {kind} can't be named {name!r}; choose another name", "bad_name")
    if len(names) > MAX_PROPERTIES:
        raise _wrong(f"there are {len(names)} properties; at most {MAX_PROPERTIES} are allowed", "too_many_properties")
    made: list[dict[str, Scalar]] = []
    for at, row in enumerate(rows):
        for name, value in row.items():
            _check_value(at, name, value)
        made.append({**row, **{name: _key(at, name, row.get(name)) for name in keys}})
    return Batch(label, made, source, target)


def _key(at: int, name: str, value: Scalar) -> str:
    if isinstance(value, (bool, float)) or value in (None, ""):
        raise _wrong(f"rows[{at}] has no {name!r}: it is a text or whole number", "no_id")
    return str(value)


def _check_value(at: int, name: str, value: Scalar) -> None:
    if isinstance(value, str):
        if len(value) > MAX_VALUE:
            raise _wrong(f"rows[{at}].{name} has {len(value):,} characters; at most {MAX_VALUE:,} are allowed", "too_long")
        _check_text(value)
    elif isinstance(value, int) and not -_MOST_INT <= value < _MOST_INT:
        raise _wrong(f"rows[{at}].{name} is a whole number of more than 64 bits; write it as text", "too_large")


def _check_name(name: str) -> None:
    if not _NAME.match(name):
        raise _wrong(f"{name[:80]!r} is not a valid name: use letters, digits and _, at most 63, and a letter first", "bad_name")


def _from_csv(text: str) -> list[dict[str, Scalar]]:
    """Return rows of CSV text; a column whose values are all numbers, or all true and false, gets that type."""
    _check_text(text)
    reader = csv_.reader(io.StringIO(text.removeprefix("\ufeff")), strict=True)
    lines: list[list[str]] = []
    try:
        for line in reader:
            if line:
                lines.append(line)
            if len(lines) > MAX_IMPORT + 1:
                raise _wrong(f"the CSV has more than {MAX_IMPORT:,} rows; import it in parts, each with the first line", "too_many_rows")
    except csv_.Error as error:
        raise _wrong(f"the CSV can't be read: {error} in line {reader.line_num}", "bad_csv") from None
    if not lines:
        raise _wrong("the CSV is empty; its first line names the columns", "no_data")
    names = [name.strip() for name in lines[0]]
    if len({*names}) < len(names):
        raise _wrong("two columns of the CSV have the same name", "bad_csv")
    for at, line in enumerate(lines[1:]):
        if len(line) != len(names):
            raise _wrong(f"row {at + 1} of the CSV has {len(line)} values for {len(names)} columns", "bad_csv")
    columns = [_typed(name, [line[at].strip() for line in lines[1:]]) for at, name in enumerate(names)]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _typed(name: str, texts: list[str]) -> list[Scalar]:
    given = [text for text in texts if text]
    if name in {"id", "from", "to"}:
        return list(texts)
    if given and all(text.lower() in {"true", "false"} for text in given):
        return [text.lower() == "true" if text else None for text in texts]
    if all(map(_WHOLE.match, given)):
        return [int(text) if text else None for text in texts]
    if all(map(_NUMBER.match, given)):
        return [float(text) if text else None for text in texts]
    return [text or None for text in texts]


def _described(label: Label) -> str:
    properties = ", ".join(f"{name} {kind}" for name, kind in label.properties.items())
    place = f"(:{label.source})-[:{label.name}]->(:{label.target})" if label.source else f"(:{label.name})"
    return f"{place} {label.count} {'edges' if label.source else 'vertices'}" + (f"; {properties}" if properties else "")


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.replace("\n", "\\n").replace("|", "\\|")


def _seconds() -> float:
    left = invocation().remaining
    return min(SECONDS, max(left - _MARGIN, left / 3))


def _check_text(text: str) -> None:
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise _wrong("the text holds a NUL, or half a character (a lone surrogate); remove it", "bad_character")


def _wrong(message: str, code: str) -> ToolError:
    return ToolError(message, type="invalid_arguments", code=code)
