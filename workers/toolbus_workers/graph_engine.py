"""Run the program that holds a graph: Ladybug in its own process, which ``graph_store.embedded`` starts.

Ladybug has no switch for files and networks. While a caller's statement runs, the process may open no further file and no
socket (RLIMIT_NOFILE), and the transaction is read-only. The gate before that only gives better error messages. Imports are
statements of this module, with the callers' values as parameters.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import resource
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import ladybug

from toolbus_workers.confined import Refused, answers_stream, confine, cut, serve
from toolbus_workers.graph_gate import ALLOWED, check

MAX_LABELS = 200
MAX_COLUMNS = 100
MAX_CELL = 2_000
MAX_NAME = 200
MAX_MESSAGE = 500

# Address space that the database reserves, a power of two; the buffer pool limits the memory.
_ADDRESSES = 1 << 40
_IN_MEMORY = 1 << 34
_MISSING_SHOWN = 5
_TYPES = {bool: "BOOLEAN", int: "INT64", float: "DOUBLE", str: "STRING"}
# Values of every kind, so that Python has loaded the modules for converting them before files are out of reach.
_WARM_UP = (
    "RETURN 1, 1.5, 'a', true, null, date('2020-01-01'), timestamp('2020-01-01 00:00:00'), interval('1 day'), gen_random_uuid(), "
    "CAST(1.5 AS DECIMAL(5, 2)), blob('a'), [1], {a: 1}, map([1], [2]), CAST(1 AS INT128)"
)


class Engine:
    """One database.

    Attributes:
        path: path of its file; empty for one in memory.
    """

    def __init__(self, path: str, memory: int, disk: int) -> None:
        self.path = path
        self._db = ladybug.Database(
            path or ":memory:", buffer_pool_size=memory, max_num_threads=1, max_db_size=_ADDRESSES if path else _IN_MEMORY
        )
        self._connection = ladybug.Connection(self._db)
        self._rows(_WARM_UP)
        self._files = resource.getrlimit(resource.RLIMIT_NOFILE)
        confine(memory, disk if path else 0)

    def interrupt(self) -> None:
        """Stop the running statement; called from another thread."""
        self._connection.interrupt()

    def remove(self, folder: str) -> None:
        """Remove the folder of the database's file, even while a statement runs; called from another thread."""
        if folder:
            resource.setrlimit(resource.RLIMIT_NOFILE, self._files)
            shutil.rmtree(folder, ignore_errors=True)

    def opened(self) -> None:
        """Return to show that the database could be opened."""

    def query(self, query: str, parameters: dict[str, Any], max_rows: int, max_bytes: int) -> dict[str, Any]:
        """Run one statement that passes the gate, without access to files and without changes."""
        check(query)
        with self._shut(), self._transaction("READ ONLY", "ROLLBACK"):
            found = self._connection.execute(query, parameters)
            if isinstance(found, list):
                raise Refused(f"{len(found)} statements were given; run one at a time", "one_statement")
            columns = [cut(name, MAX_NAME) for name in found.get_column_names()]
            if len(columns) > MAX_COLUMNS:
                raise Refused(f"the result has {len(columns)} columns; return at most {MAX_COLUMNS}", "too_many_columns")
            rows: list[list[Any]] = []
            cuts = size = 0
            while found.has_next() and len(rows) < max_rows:
                cells = [_cell(value) for value in found.get_next()]
                size += sum(length for _, length, _ in cells)
                if size > max_bytes and rows:
                    return {"columns": columns, "rows": rows, "more": True, "cut": cuts}
                rows.append([value for value, _, _ in cells])
                cuts += sum(was_cut for _, _, was_cut in cells)
            return {"columns": columns, "rows": rows, "more": found.has_next(), "cut": cuts}

    def schema(self) -> dict[str, Any]:
        """Return every label and type, by name."""
        labels = [self._label(name, edges=kind == "REL") for name, kind in sorted(self.labels().items())]
        return {"vertices": [each for each in labels if not each["source"]], "edges": [each for each in labels if each["source"]]}

    def load(self, label: str, rows: list[dict[str, Any]], source: str, target: str) -> dict[str, Any]:
        """Add or update all rows, or none."""
        edges = bool(source)
        with self._transaction("", "COMMIT"):
            self._make_room(label, source, target)
            known = self._label(label, edges=edges)["properties"]
            names = sorted({name for row in rows for name in row} - {"id", "from", "to"})
            types = {name: self._add_property(label, name, rows, known) for name in names}
            used = [name for name in names if types[name]]
            keys = ["from", "to"] if edges else ["id"]
            given = [
                {
                    **{f"k{at}": row[key] for at, key in enumerate(keys)},
                    **{f"p{at}": _as(types[name], row.get(name)) for at, name in enumerate(used)},
                }
                for row in rows
            ]
            if edges:
                for end, key in ((source, "k0"), (target, "k1")):
                    self._check_ends(end, [row[key] for row in given])
                pattern = f"MATCH (a:`{source}` {{id: r.k0}}), (b:`{target}` {{id: r.k1}}) MERGE (a)-[x:`{label}`]->(b)"
            else:
                pattern = f"MERGE (x:`{label}` {{id: r.k0}})"
            # Properties that a row does not have keep their values.
            changes = ", ".join(f"x.`{name}` = coalesce(r.p{at}, x.`{name}`)" for at, name in enumerate(used))
            self._run(f"UNWIND $rows AS r {pattern}" + (f" SET {changes}" if changes else ""), {"rows": _uniform(given)})
            return {"rows": len(rows), "label": self._label(label, edges=edges)}

    def _make_room(self, label: str, source: str, target: str) -> None:
        """Create a label unless it exists, and check that it has the right kind."""
        there = self.labels()
        same = next((name for name in there if name.lower() == label.lower()), None)
        if same is None:
            if len(there) >= MAX_LABELS:
                raise Refused(f"the graph has {len(there)} labels and types, the most it may have", "too_many_labels")
            for end in filter(None, (source, target)):
                self._check_label(end, there)
            ends = (
                f"REL TABLE `{label}` (FROM `{source}` TO `{target}`)" if source else f"NODE TABLE `{label}` (id STRING, PRIMARY KEY (id))"
            )
            self._run(f"CREATE {ends}")
            return
        if same != label:
            raise Refused(f"{label!r} is spelled {same!r} in this graph", "bad_name")
        now = self._label(label, edges=there[label] == "REL")
        if (now["source"], now["target"]) != (source, target):
            what = f"edges from {now['source']} to {now['target']}" if now["source"] else "vertices"
            raise Refused(f"{label!r} are {what} in this graph; choose another name, or import those", "bad_kind")

    def _add_property(self, label: str, name: str, rows: list[dict[str, Any]], known: dict[str, str]) -> str:
        """Return the type of a property, and add a new one to the label; return "" when no row has a value of it."""
        kinds = {type(row[name]) for row in rows if row.get(name) is not None}
        if not kinds:
            return ""
        there = known.get(name, "")
        wanted = _TYPES[kinds.pop()] if len(kinds) == 1 else "DOUBLE" if kinds == {int, float} else "STRING"
        if not there:
            self._run(f"ALTER TABLE `{label}` ADD `{name}` {wanted}")
            return wanted
        if there not in {wanted, "STRING"} and (there, wanted) != ("DOUBLE", "INT64"):
            raise Refused(f"the property {name!r} of {label} is {there}, and {wanted} was given", "bad_type")
        return there

    def _check_ends(self, label: str, ids: list[str]) -> None:
        missing = self._rows(
            f"UNWIND $ids AS i OPTIONAL MATCH (n:`{label}` {{id: i}}) WITH i, n WHERE n IS NULL RETURN i LIMIT {_MISSING_SHOWN + 1}",
            {"ids": sorted({*ids})},
        )
        if missing:
            shown = ", ".join(repr(cut(row[0], 80)) for row in missing[:_MISSING_SHOWN])
            shown += " and more" if len(missing) > _MISSING_SHOWN else ""
            raise Refused(f"there are no {label} vertices with the ids {shown}; import them first (nothing was imported)", "no_vertex")

    def _check_label(self, label: str, there: dict[str, str]) -> None:
        if there.get(label) != "NODE":
            raise Refused(f"there are no vertices labelled {label!r}; {_known(there)}", "no_label")

    def labels(self) -> dict[str, str]:
        """Return the kinds of labels and types by name."""
        return {row[0]: row[1] for row in self._rows("CALL show_tables() RETURN name, type")}

    def _label(self, name: str, *, edges: bool) -> dict[str, Any]:
        properties = {row[0]: row[1] for row in self._rows(f"CALL table_info('{name}') RETURN name, type")}
        pattern = f"()-[x:`{name}`]->()" if edges else f"(x:`{name}`)"
        ends = self._rows(f"CALL show_connection('{name}') RETURN *")[0][:2] if edges else ("", "")
        (count,) = self._rows(f"MATCH {pattern} RETURN count(*)")[0]
        return {"name": name, "count": count, "properties": properties, "source": ends[0], "target": ends[1]}

    def _rows(self, query: str, parameters: dict[str, Any] | None = None) -> list[Any]:
        return list(self._run(query, parameters).get_all())

    def _run(self, query: str, parameters: dict[str, Any] | None = None) -> ladybug.QueryResult:
        found = self._connection.execute(query, parameters or {})
        if isinstance(found, list):
            raise TypeError("one statement has several results")
        return found

    @contextlib.contextmanager
    def _transaction(self, kind: str, end: str) -> Iterator[None]:
        try:
            self._run(f"BEGIN TRANSACTION {kind}")
            yield
            self._run(end)
        except BaseException:
            try:
                self._run("ROLLBACK")
            except Exception:  # noqa: BLE001 - for whatever reason, the next caller must not be in this one's transaction
                self._connect_again()
            raise

    def _connect_again(self) -> None:
        """Replace the connection, which ends its transaction if it still has one."""
        before, self._connection = self._connection, ladybug.Connection(self._db)
        before.close()

    @contextlib.contextmanager
    def _shut(self) -> Iterator[None]:
        """Keep the process from opening any file or socket."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, self._files[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, self._files)


def _uniform(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows sorted so that the first has as many values as possible, since the types are taken from it."""
    return sorted(rows, key=lambda row: sum(value is None for value in row.values()))


def _as(kind: str, value: Any) -> Any:
    if value is None or not kind:
        return None
    if kind == "STRING":
        return value if isinstance(value, str) else json.dumps(value)
    return float(value) if kind == "DOUBLE" else value


def _cell(value: Any) -> tuple[Any, int, bool]:
    """Return a value as JSON, its length, and whether it was cut."""
    plain = _plain(value)
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    return (cut(text, MAX_CELL), MAX_CELL, True) if len(text) > MAX_CELL else (plain, len(text), False)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return str(value)
    if "_NODES" in value and "_RELS" in value:
        return {"vertices": _plain(value["_NODES"]), "edges": _plain(value["_RELS"])}
    if "_LABEL" in value:
        # Keep what identifies a vertex or edge; a match of several labels gives each the properties of all.
        return {"label": value["_LABEL"], **{name: _plain(each) for name, each in value.items() if name[0] != "_" and each is not None}}
    return {str(name): _plain(each) for name, each in value.items()}


def _known(labels: dict[str, str]) -> str:
    return f"the graph has: {cut(', '.join(sorted(labels)), 300)}" if labels else "the graph is empty: graph_import puts data into it"


def _failure(error: BaseException, engine: Engine) -> dict[str, str]:
    """Return the error for a model, short and without file names."""
    if isinstance(error, Refused):
        return error.as_error()
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "bad_alloc" in text or "Buffer manager" in text:
        message = "the statement needs more memory than the graph has; narrow it, bound paths (*1..3), or aggregate earlier"
        return {"type": "tool_error", "code": "out_of_memory", "message": message}
    if text.startswith("Interrupted"):
        return {"type": "deadline_exceeded", "code": "interrupted", "message": "the statement was interrupted"}
    if "Too many open files" in text or "read-only transaction" in text or "establish connection" in text:
        message = f"a statement reaches no file and no network here, and changes nothing; {ALLOWED}"
        return {"type": "forbidden", "code": "no_access", "message": message}
    if engine.path:
        text = text.replace(engine.path, "the graph")
    text = cut(re.sub(r"^\w+ exception: ", "", text), MAX_MESSAGE)
    if re.search(r"Table \S+ does not exist", text):
        text = f"{text} {_known(engine.labels())}"
    return {"type": "invalid_arguments", "code": "bad_query", "message": text}


def _answer(engine: Engine, request: dict[str, Any]) -> dict[str, Any]:
    operation = request.pop("do")
    try:
        return {"ok": getattr(engine, operation)(**request)}
    except Exception as error:  # noqa: BLE001 - a failing statement must not end the process for the others
        return {"error": _failure(error, engine)}


def main(path: str, memory: int, disk: int, folder: str) -> None:
    """Serve requests from standard input until it ends; then the worker is gone, so remove ``folder`` if there is one."""
    answers = answers_stream()
    try:
        engine = Engine(path, memory, disk)
    except RuntimeError as error:
        failure = {
            "type": "unavailable",
            "code": "not_opened",
            "message": f"the graph can't be opened: {cut(' '.join(str(error).split()), MAX_MESSAGE)}",
        }
        serve(answers, lambda request: {"error": failure}, lambda: None)
    serve(answers, lambda request: _answer(engine, request), engine.interrupt, lambda: engine.remove(folder))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
