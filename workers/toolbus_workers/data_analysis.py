"""Query uploaded tables (CSV, JSON and Parquet) with SQL in DuckDB, in a sandbox for each session.

``toolbus worker data_analysis`` serves ``data_upload``, ``data_append``, ``data_tables``, ``data_describe`` and
``data_analysis``. Tables belong to the user and session of the call, live in the memory of a separate process, and are
dropped with the session, or when it was idle for a while. Statements can't reach files, the network or settings. Calls of
a session go to the worker that has its tables, so any number of workers may serve a namespace.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import re
from typing import Annotated, Any, Literal

from msgspec import Meta

from toolbus import Session, ToolError, ToolResult, invocation
from toolbus_workers.charset import read_text
from toolbus_workers.data_sessions import Key, Limits, Sessions, Statistics
from toolbus_workers.operations import Config, OperationService, load_limits, operation

SETTINGS = {
    "TOOLBUS_DATA_SESSIONS": "most sessions at once (16)",
    "TOOLBUS_DATA_SESSIONS_PER_USER": "most sessions of one user (4)",
    "TOOLBUS_DATA_RUNNING": "most statements that run at once (4)",
    "TOOLBUS_DATA_IDLE": "seconds after its last call when a session's tables go (900)",
    "TOOLBUS_DATA_MEMORY": "bytes of a session's tables and intermediate results (268435456)",
}

MAX_SQL = 20_000
MAX_UPLOAD = 8 << 20

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}\Z")
# Seconds before the caller's deadline at which a statement is stopped, so that the answer can still give the reason.
_MARGIN = 1.5

Format = Literal["csv", "json", "parquet"]


class DataConfig(Config, frozen=True, kw_only=True):
    """The limits that a tool's descriptor may set.

    Attributes:
        max_rows, max_bytes: most rows of a result, and about how many bytes they may have.
        max_upload: most bytes of one upload.
        seconds: most seconds that a statement may run.
    """

    max_rows: Annotated[int, Meta(ge=1, le=10_000)] = 200
    max_bytes: Annotated[int, Meta(ge=1_000, le=4_000_000)] = 100_000
    max_upload: Annotated[int, Meta(ge=1, le=MAX_UPLOAD)] = MAX_UPLOAD
    seconds: Annotated[float, Meta(gt=0, le=600)] = 20.0


class DataAnalysis(OperationService, config=DataConfig):
    """SQL over uploaded tables, in a sandbox for each session."""

    id = "data_analysis"
    sticky_sessions = True

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = load_limits(Limits, "TOOLBUS_DATA_") if limits is None else limits
        self.session_idle = self._limits.idle
        self._sessions: Sessions | None = None
        self._sweeping: asyncio.Task[None] | None = None

    async def startup(self) -> None:
        """Start looking for idle sessions, since sessions of calls that name neither a user nor a session end in no other way."""
        self._sessions = Sessions(self._limits)
        self._sweeping = asyncio.create_task(self._sessions.sweep(), name="data-analysis-sweep")

    async def cleanup(self, session: Session | None = None) -> None:
        """End a session with its tables, or all sessions."""
        if session is not None:
            if self._sessions is not None:
                await self._sessions.end(Key(*session))
            return
        if self._sweeping is not None:
            self._sweeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeping
        if self._sessions is not None:
            await self._sessions.aclose()

    def statistics(self) -> Statistics:
        """Return the number of live sessions and busy calls."""
        return Statistics(0, 0) if self._sessions is None else self._sessions.statistics()

    @operation(group="data_analysis", effect="idempotent", timeout=60.0)
    async def data_analysis(self, config: DataConfig, sql: str) -> ToolResult:
        """Run one SQL statement (DuckDB's dialect) on the session's tables and return the rows.

        Reading statements are allowed, and CREATE TEMP TABLE or VIEW … AS for intermediate results, which DROP removes.
        Uploaded tables can't be changed.
        Files, networks and settings can't be reached; data comes in by data_upload.

        Args:
            sql: one statement, e.g. "SELECT region, sum(amount) FROM sales GROUP BY ALL ORDER BY 2 DESC"
        """
        if len(sql) > MAX_SQL:
            raise _fail(f"the statement has {len(sql):,} characters; at most {MAX_SQL:,} are allowed", "too_long")
        if "\0" in sql:
            raise _fail("the statement holds a NUL character; remove it", "bad_sql")
        _check_characters(sql)
        found = await self._ask(config, {"do": "query", "sql": sql, "max_rows": config.max_rows, "max_bytes": config.max_bytes})
        notes = []
        if found["more"]:
            notes.append(f"only the first {len(found['rows'])} rows are shown; aggregate, filter, or page with LIMIT and OFFSET")
        if found["cut"]:
            notes.append(f"{found['cut']} long values are cut short; use substring() to see more of one")
        data = {"columns": found["columns"], "rows": found["rows"], "truncated": bool(notes), "notes": notes}
        text = _table(found) if found["columns"] else f"{found['text']}\n"
        return ToolResult.ok(data, output=text + "".join(f"({note})\n" for note in notes))

    @operation(group="data_analysis", effect="idempotent", timeout=60.0)
    async def data_upload(
        self,
        config: DataConfig,
        table: str,
        content: str,
        format: Format = "csv",
        encoding: Literal["text", "base64"] = "text",
        charset: str = "",
    ) -> ToolResult:
        """Make a table of CSV, JSON (an array of objects, or one object a line) or Parquet data, for SQL in data_analysis.

        Args:
            table: the table's name: letters, digits and _; an existing table of that name is replaced
            content: the data, as text or in base64; Parquet is always in base64
            format: csv, json or parquet
            encoding: how content is written
            charset: encoding of base64 text, e.g. windows-1251 or gbk; when empty, it is UTF-8 or found out, and the answer says so
        """
        return await self._load(config, table, _payload(content, format, encoding, config.max_upload), format, charset, append=False)

    @operation(group="data_analysis", effect="once", timeout=60.0)
    async def data_append(
        self,
        config: DataConfig,
        table: str,
        content: str,
        format: Format = "csv",
        encoding: Literal["text", "base64"] = "text",
        charset: str = "",
    ) -> ToolResult:
        """Add rows to a table that data_upload made, matching columns by name; a second run would add them again.

        Args:
            table: the table's name
            content: the rows, as for data_upload; each part of a CSV has its header
            format: csv, json or parquet
            encoding: how content is written
            charset: encoding of base64 text; when empty, it is UTF-8 or found out, and the answer says so
        """
        return await self._load(config, table, _payload(content, format, encoding, config.max_upload), format, charset, append=True)

    async def _load(self, config: DataConfig, table: str, payload: bytes, format: Format, charset: str, *, append: bool) -> ToolResult:
        if not _NAME.match(table):
            raise _fail("the table's name must be letters, digits and _, at most 63, and begin with no digit", "bad_name")
        assumed = ""
        if format != "parquet":
            text, assumed = read_text(payload, charset)
            if "\0" in text:
                raise _fail("the content is binary, not text; is its format right?", "binary")
            payload = text.encode()
        found = await self._ask(config, {"do": "load", "table": table, "format": format, "append": append}, payload)
        columns = ", ".join(f"{column['name']} {column['type']}" for column in found["columns"])
        note = f"(the content is not UTF-8; it was read as {assumed}, so give its charset if that looks wrong)\n" if assumed else ""
        output = f"Table {table}: {found['total']} rows; columns: {columns}\n{note}"
        return ToolResult.ok({**found, "assumed_charset": assumed}, output=output)

    @operation(group="data_analysis")
    async def data_tables(self, config: DataConfig) -> ToolResult:
        """List the session's tables and views, with their numbers of rows and columns."""
        found = await self._ask(config, {"do": "tables"})
        lines = [
            f"{each['name']}: {'a view' if each['rows'] is None else str(each['rows']) + ' rows'}, {each['columns']} columns"
            for each in found["tables"]
        ]
        return ToolResult.ok(found, output="\n".join(lines) or "The session has no tables; upload one with data_upload.")

    @operation(group="data_analysis")
    async def data_describe(self, config: DataConfig, table: str) -> ToolResult:
        """Show a table's columns with their types, its number of rows, and its first rows.

        Args:
            table: the table's or view's name
        """
        found = await self._ask(config, {"do": "describe", "table": table})
        data = {key: found[key] for key in ("table", "total", "columns", "rows")}
        columns = "".join(f"  {column['name']} {column['type']}\n" for column in found["columns"])
        return ToolResult.ok(data, output=f"{found['table']}: {found['total']} rows\n{columns}First rows:\n{_table(found)}")

    async def _ask(self, config: DataConfig, request: dict[str, Any], upload: bytes | None = None) -> dict[str, Any]:
        if self._sessions is None:
            raise ToolError("the service has not been started", type="unavailable", code="not_started", retryable=True)
        call = invocation()
        seconds = min(config.seconds, max(call.remaining - _MARGIN, call.remaining / 3))
        return await self._sessions.ask(Key(call.user, call.session), request, seconds, upload)


def _payload(content: str, format: Format, encoding: str, limit: int) -> bytes:
    """Return the bytes of an upload.

    Raises:
        ToolError: the content is empty, too large, or not base64.
    """
    if len(content) > limit * 4 // 3 + 4:
        raise _too_large(len(content), limit)
    if encoding == "base64" or format == "parquet":
        try:
            payload = base64.b64decode("".join(content.split()), validate=True)
        except (binascii.Error, ValueError):
            hint = "Parquet is always given in it" if format == "parquet" else "say encoding=text for plain text"
            raise _fail(f"the content is not base64, or parts of it are missing; {hint}", "bad_base64") from None
    else:
        _check_characters(content)
        payload = content.encode()
    if not payload.strip():
        raise _fail("the content is empty; give the rows of the table", "empty")
    if len(payload) > limit:
        raise _too_large(len(payload), limit)
    return payload


def _table(found: dict[str, Any]) -> str:
    """Return rows as lines with values separated by bars, which costs a model the fewest tokens."""
    lines = [" | ".join(column["name"] for column in found["columns"])]
    lines += [" | ".join(_shown(value) for value in row) for row in found["rows"]]
    return "\n".join([*lines, ""]) if found["rows"] else f"{lines[0]}\n(no rows)\n"


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value.replace("\n", "\\n").replace("|", "\\|")
    return "NULL" if value is None else json.dumps(value, ensure_ascii=False)


def _check_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _fail("the text holds half a character (a lone surrogate); remove it", "bad_character") from None


def _too_large(size: int, limit: int) -> ToolError:
    return _fail(
        f"the content has {size:,} bytes; at most {limit:,} go in one upload, so send the further parts with data_append", "too_large"
    )


def _fail(message: str, code: str) -> ToolError:
    return ToolError(message, type="invalid_arguments", code=code)
