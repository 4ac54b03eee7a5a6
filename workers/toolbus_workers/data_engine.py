"""Run the program that holds the tables of one session: DuckDB in its own process, which ``data_sessions`` starts.

DuckDB's memory limit does not cover every function, and some functions can't be interrupted. A limit of the operating
system and a process that can be killed cover all of them. The process has no environment, writes no file, and reads
only one: the unlinked file whose descriptor it was given, where uploads are put.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import sys
from typing import Any, NamedTuple

import duckdb

from toolbus_workers.confined import Refused, answers_stream, confine, cut, serve

MAX_TABLES = 50
MAX_COLUMNS = 500
MAX_CELL = 2_000
MAX_MESSAGE = 500
SAMPLE_ROWS = 5

_DEEP = 200

_READERS = {"csv": "read_csv('{}', sample_size=-1)", "json": "read_json('{}', sample_size=-1)", "parquet": "read_parquet('{}')"}
_ALLOWED = (
    "allowed are one SELECT, FROM, VALUES, WITH … SELECT, DESCRIBE, SUMMARIZE, SHOW TABLES, PIVOT … ON … IN (…), "
    "EXPLAIN of these, CREATE [OR REPLACE] TEMP TABLE or VIEW … AS, and DROP TABLE or VIEW"
)
# They run a statement that stands in a value, which passed no gate.
_INDIRECT = frozenset({"json_execute_serialized_sql", "query", "query_table"})
_CREATE = re.compile(r"CREATE (OR REPLACE )?(TEMP|TEMPORARY) (TABLE|VIEW) ")
_DROP = re.compile(r"DROP (TABLE|VIEW) ")


class Plan(NamedTuple):
    """A statement that passed the gate.

    Attributes:
        wrapped: True when it can stand in a FROM clause.
        replaced: statement that removes what this one replaces, or empty.
    """

    sql: str
    wrapped: bool
    replaced: str = ""


class Engine:
    """One database in memory.

    Attributes:
        upload: the only path that can be read.
    """

    def __init__(self, memory: int, upload: int) -> None:
        self.upload = f"/dev/fd/{upload}"
        self._db = duckdb.connect(
            ":memory:",
            config={
                "memory_limit": f"{memory}B",
                "threads": "1",
                "temp_directory": "",
                "python_enable_replacements": "false",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "enable_external_file_cache": "false",
            },
        )
        self._db.execute(f"SET allowed_paths = ['{self.upload}']")
        self._db.execute("SET enable_external_access = false")
        self._db.execute("SET lock_configuration = true")

    def interrupt(self) -> None:
        """Stop the running statement; called from another thread."""
        self._db.interrupt()

    def tables(self) -> dict[str, Any]:
        """Return every table and view, by name."""
        found = self._db.execute(
            "SELECT table_name, estimated_size, column_count, temporary FROM duckdb_tables() UNION ALL "
            "SELECT view_name, NULL, column_count, temporary FROM duckdb_views() WHERE NOT internal ORDER BY ALL"
        )
        return {
            "tables": [
                {"name": name, "rows": rows, "columns": columns, "temporary": temporary}
                for name, rows, columns, temporary in found.fetchall()
            ]
        }

    def describe(self, table: str) -> dict[str, Any]:
        """Return a table's columns, its number of rows, and its first rows."""
        known = [each["name"] for each in self.tables()["tables"]]
        if table not in known:
            raise Refused(f"there is no table {cut(table, 64)!r}; {_known(known)}", "no_table")
        source = _quoted(table)
        sample = self._rows(f"FROM {source} LIMIT {SAMPLE_ROWS}", SAMPLE_ROWS, 20_000)
        (count,) = self._db.execute(f"SELECT count(*) FROM {source}").fetchall()[0]  # noqa: S608 - a quoted name
        return {**sample, "table": table, "total": count}

    def load(self, table: str, format: str, *, append: bool) -> dict[str, Any]:
        """Create a table from the uploaded file, or append the file to one."""
        tables = self.tables()["tables"]
        names = [each["name"] for each in tables]
        if table.lower() in {each["name"].lower() for each in tables if each["temporary"]}:
            raise Refused(f"{table!r} is a table or view that a statement derived; take another name, or drop it first", "derived")
        source = _READERS[format].format(self.upload)
        if append:
            if table not in names:
                raise Refused(f"there is no table {table!r} to append to; {_known(names)}", "no_table")
            self._db.execute(f"INSERT INTO {_quoted(table)} BY NAME SELECT * FROM {source}")  # noqa: S608 - as above
        else:
            self._check_room([name for name in names if name != table])
            self._check_columns(source)
            self._db.execute(f"CREATE OR REPLACE TABLE {_quoted(table)} AS SELECT * FROM {source}")  # noqa: S608 - as above
        described = self.describe(table)
        return {"table": table, "total": described["total"], "columns": described["columns"]}

    def query(self, sql: str, max_rows: int, max_bytes: int) -> dict[str, Any]:
        """Run one statement that passes the gate."""
        plan = self._gate(sql)
        if plan.wrapped:
            return self._rows(plan.sql, max_rows, max_bytes)
        if plan.sql.startswith("EXPLAIN"):
            found = self._db.execute(plan.sql)
            text = "\n".join(str(row[-1]) for row in found.fetchall())
            return {"columns": [], "rows": [], "more": False, "cut": int(len(text) > max_bytes), "text": text[:max_bytes]}
        self._derive(plan)
        return {"columns": [], "rows": [], "more": False, "cut": 0, "text": "Done."}

    def _derive(self, plan: Plan) -> None:
        """Create or drop a derived table or view; what was uploaded stays as it is, and a second run changes nothing more.

        Raises:
            Refused: the statement changes or hides an uploaded table, or reads what it replaces.
        """
        uploaded = self._names(temporary=False)
        known = uploaded | self._names(temporary=True)
        self._db.execute("BEGIN TRANSACTION")
        try:
            if plan.replaced:
                self._db.execute(plan.replaced)
                known -= uploaded | self._names(temporary=True)
            try:
                self._db.execute(plan.sql)
            except duckdb.CatalogException as error:
                # What a statement replaces is gone before it runs, so it can't find it.
                if plan.replaced and any(f" {name} " in str(error).lower() for name in known):
                    message = "the statement reads what it replaces, so that a second run would change it again; take another name"
                    raise Refused(message, "reads_itself") from None
                raise
            self._check_uploaded(uploaded)
        except BaseException:
            with contextlib.suppress(duckdb.Error):
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _check_uploaded(self, uploaded: set[str]) -> None:
        """Check that the uploaded tables are what they were, and that nothing derived hides one."""
        if self._names(temporary=False) != uploaded or uploaded & self._names(temporary=True):
            message = "uploaded tables can't be dropped, replaced or hidden by a statement; take another name, or upload the table again"
            raise Refused(message, "uploaded", "forbidden")

    def _names(self, *, temporary: bool) -> set[str]:
        return {each["name"].lower() for each in self.tables()["tables"] if each["temporary"] is temporary}

    def _rows(self, sql: str, max_rows: int, max_bytes: int) -> dict[str, Any]:
        """Return the first rows of a query as JSON values; changes that it makes to tables are rolled back."""
        self._db.execute("BEGIN TRANSACTION READ ONLY")
        try:
            described = self._db.execute(f"SELECT * FROM (\n{sql}\n) LIMIT 0").description or []  # noqa: S608 - it passed the gate
            if len(described) > MAX_COLUMNS:
                raise Refused(f"the result has {len(described)} columns; select at most {MAX_COLUMNS}", "too_many_columns")
            # to_json turns every type into text, so no value needs a Python type.
            found = self._db.execute(f"SELECT to_json(COLUMNS(*)) FROM (\n{sql}\n) LIMIT {max_rows + 1}")  # noqa: S608 - as above
            rows: list[list[Any]] = []
            cut = size = 0
            more = False
            while batch := found.fetchmany(50):
                for row in batch:
                    size += sum(min(len(text or ""), MAX_CELL) + 1 for text in row)
                    if len(rows) == max_rows or (size > max_bytes and rows):
                        more = True
                        break
                    cut += sum(len(text or "") > MAX_CELL for text in row)
                    rows.append([_value(text) for text in row])
                if more:
                    break
        finally:
            with contextlib.suppress(duckdb.Error):
                self._db.execute("ROLLBACK")
        return {"columns": [{"name": each[0], "type": str(each[1])} for each in described], "rows": rows, "more": more, "cut": cut}

    def _gate(self, sql: str) -> Plan:
        """Return what to run for a statement; a reading statement goes into a FROM clause, where nothing that changes data may stand.

        Raises:
            Refused: the text is not one statement, or not of an allowed kind.
        """
        sql, words = _tokens(sql)
        for (word, _), (following, _) in itertools.pairwise(words):
            if following.startswith("(") and _unquoted(word) in _INDIRECT:
                message = f"the function {_unquoted(word)} is not allowed here: write its statement itself"
                raise Refused(message, "statement_refused", "forbidden")
        statements = self._db.extract_statements(sql)
        if len(statements) != 1:
            raise Refused(f"{len(statements)} statements were given; run one at a time", "one_statement")
        kind = statements[0].type.name
        if kind == "SELECT":
            return Plan(sql, wrapped=True)
        start = " ".join(word for word, _ in words[:6]).upper() + " "
        if kind == "EXPLAIN":
            verb = "EXPLAIN ANALYZE" if start.startswith("EXPLAIN ANALYZE ") else "EXPLAIN"
            if (inner := self._inner(sql, words[verb.count(" ") :])) is not None:
                return Plan(f"{verb} {inner}", wrapped=False)
        if kind == "DROP" and _DROP.match(start):
            return Plan(sql, wrapped=False)
        if kind == "CREATE" and _CREATE.match(start):
            self._check_room([each["name"] for each in self.tables()["tables"]])
            at = next((at for at, (word, _) in enumerate(words) if word.upper() == "AS"), len(words))
            if (inner := self._inner(sql, words[at:])) is not None:
                head = sql.encode()[: words[at][1]].decode()
                return Plan(f"{head} {inner}", wrapped=False, replaced=self._removing(sql, words[:at]) if "REPLACE" in start else "")
        word = "PIVOT without IN" if kind == "MULTI" else " ".join(start.split()[: 2 if kind in {"CREATE", "DROP"} else 1])
        raise Refused(f"{cut(word, 40)} is not allowed here; {_ALLOWED}", "statement_refused", "forbidden")

    def _removing(self, sql: str, words: list[tuple[str, int]]) -> str:
        """Return the statement that drops what CREATE OR REPLACE TEMP TABLE or VIEW, given up to its AS, is going to replace."""
        name = sql.encode()[words[4][1] : words[-1][1]].decode().partition("(")[0]
        return f"DROP {words[4][0]} IF EXISTS {name}"

    def _inner(self, sql: str, words: list[tuple[str, int]]) -> str | None:
        """Return the query that starts at the first of these words, wrapped for a statement around it; None when it is no query."""
        plan = self._gate(sql.encode()[words[0][1] :].decode()) if words else None
        return f"SELECT * FROM (\n{plan.sql}\n)" if plan is not None and plan.wrapped else None  # noqa: S608 - it passed the gate

    def _check_columns(self, source: str) -> None:
        """Check that the columns were told apart: with unmatched quotes, DuckDB takes whole lines for values."""
        names = [each[0] for each in self._db.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()]  # noqa: S608 - our own path
        if source.startswith("read_csv") and len(names) == 1 and re.search(r"[,;\t|]", names[0]):
            raise Refused(
                f"the columns {cut(names[0], 80)!r} can't be told apart: rows differ in length, or a quote is not closed", "bad_csv"
            )
        if len(names) > MAX_COLUMNS:
            raise Refused(f"the table has {len(names)} columns; at most {MAX_COLUMNS} are allowed", "too_many_columns")

    def _check_room(self, names: list[str]) -> None:
        if len(names) >= MAX_TABLES:
            raise Refused(f"the session has {len(names)} tables, the most it may have; DROP TABLE removes derived ones", "too_many_tables")


def _tokens(sql: str) -> tuple[str, list[tuple[str, int]]]:
    """Return a statement without what follows its end, and its words with the byte offset at which each ends."""
    raw = sql.encode()
    tokens = [(at, kind.name) for at, kind in duckdb.tokenize(sql)]
    ends = [*(at for at, _ in tokens[1:]), len(raw)][: len(tokens)]
    words = [(raw[at:end].decode().strip(), at, end) for (at, kind), end in zip(tokens, ends, strict=True) if kind != "comment"]
    while words and words[-1][0] == ";":
        words.pop()
    if not words:
        raise Refused(f"the statement is empty; {_ALLOWED}", "one_statement")
    return raw[: words[-1][2]].decode().rstrip(), [(word, end) for word, _, end in words]


def _value(text: str | None) -> Any:
    if text is None:
        return None
    if len(text) > MAX_CELL:
        return cut(text[1:-1] if text.startswith('"') else text, MAX_CELL)
    if text.count("[") + text.count("{") > _DEEP:
        return text
    return json.loads(text, parse_constant=str)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _unquoted(word: str) -> str:
    return word.strip('"').lower()


def _known(names: list[str]) -> str:
    if not names:
        return "the session has no tables: upload one with data_upload (they go when the session is idle or ended)"
    return f"the session has: {cut(', '.join(names), 300)}"


def _failure(error: BaseException, engine: Engine) -> dict[str, str]:
    """Return the error for a model, short and without file names."""
    if isinstance(error, Refused):
        return error.as_error()
    if isinstance(error, (MemoryError, duckdb.OutOfMemoryException)):
        message = "the statement needs more memory than a session has; aggregate or filter first, or drop tables that are not needed"
        return {"type": "tool_error", "code": "out_of_memory", "message": message}
    message = str(error).replace(engine.upload, "the upload")
    message = " ".join(message.partition("Possible ")[0].partition("Candidate ")[0].split())
    # DuckDB counts lines in the wrapped statement, which the author does not see.
    message = cut(re.sub(r"^[\w ]+ Error: | LINE \d+: .*", "", message), MAX_MESSAGE)
    if isinstance(error, duckdb.InterruptException):
        return {"type": "deadline_exceeded", "code": "interrupted", "message": "the statement was interrupted"}
    if isinstance(error, duckdb.PermissionException):
        refusal = f"SQL has no access to files, networks and settings here; upload data with data_upload. {message}"
        return {"type": "forbidden", "code": "no_access", "message": refusal}
    if isinstance(error, duckdb.CatalogException) and "Table with name" in message:
        message = f"{message.partition(' Did you mean')[0]} {_known([each['name'] for each in engine.tables()['tables']])}"
    return {"type": "invalid_arguments", "code": "bad_sql", "message": message}


def _answer(engine: Engine, request: dict[str, Any]) -> dict[str, Any]:
    operation = request.pop("do")
    try:
        return {"ok": getattr(engine, operation)(**request)}
    except (duckdb.FatalException, duckdb.InternalException):
        # The database can't be trusted any more, so the session is started again.
        raise
    except (Refused, MemoryError, duckdb.Error, ValueError, RecursionError) as error:
        return {"error": _failure(error, engine)}


def main(memory: int, upload: int) -> None:
    """Serve requests from standard input until it ends."""
    answers = answers_stream()
    engine = Engine(memory, upload)
    confine(memory)
    serve(answers, lambda request: _answer(engine, request), engine.interrupt)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
