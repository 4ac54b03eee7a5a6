"""The SQL tools: what they answer, and statements and uploads that are meant to get out, to last or to hurt."""

import asyncio
import base64
import contextlib
import os
import sys
import time
from pathlib import Path

import duckdb
import pytest

from tests.workers.operator import put
from toolbus import ConfigurationError, ToolBus, Worker
from workers.data_analysis import DataAnalysis
from workers.data_engine import MAX_CELL, MAX_TABLES
from workers.data_sessions import Limits
from workers.operations import load_limits

pytestmark = pytest.mark.anyio

SALES = "region,amount\nnorth,10\nsouth,20\nnorth,5\n"
LINUX = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at processes through /proc")
# Interrupting them takes DuckDB ten seconds and more, if it does it at all.
UNSTOPPABLE = "SELECT levenshtein(repeat('a', 400000), repeat('b', 400000))"
ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range + b.range < 0"


class Desk:
    """A bus with the service behind it, as one user in one session."""

    def __init__(self, bus, service, user="alice", session="one"):
        self.bus = bus
        self.service = service
        self.who = {"user": user, "session": session}

    def other(self, **who):
        return Desk(self.bus, self.service, **{**self.who, **who})

    async def call(self, tool, timeout=30, **arguments):
        return await self.bus.call(tool, arguments, timeout=timeout, **self.who)

    async def sql(self, statement, timeout=30):
        return await self.call("data_analysis", timeout, sql=statement)

    async def upload(self, table, content, **arguments):
        return await self.call("data_upload", table=table, content=content, **arguments)


@contextlib.asynccontextmanager
async def serving(address="memory://", namespace="default", **limits):
    service = DataAnalysis(Limits(**limits))
    async with Worker(service, url=address, namespace=namespace), ToolBus(address, namespace=namespace) as bus:
        await bus.wait_for_tool("data_analysis", 10)
        yield Desk(bus, service)
    assert service.statistics() == (0, 0)


@pytest.fixture
async def desk(namespace):
    async with serving(namespace=namespace) as opened:
        yield opened


@pytest.fixture
async def sales(desk):
    result = await desk.upload("sales", SALES)
    assert result.success, result.error
    return desk


def failed(result, type, code):
    assert not result.success
    assert (result.error.type, result.error.code) == (type, code), result.error
    assert len(result.error.message) < 1_000
    return result.error.message


async def until(condition, seconds=20):
    """Wait for a condition, with a bound."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def parquet(tmp_path, query):
    path = tmp_path / "made.parquet"
    duckdb.sql(query).write_parquet(str(path))
    return base64.b64encode(path.read_bytes()).decode()


# -- what it does -------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["memory", "server"])
async def test_uploaded_rows_are_queried_in_process_and_over_a_server(transport, request, namespace):
    """An upload makes a table that is listed, described and queried, whatever the transport."""
    address = "memory://" if transport == "memory" else request.getfixturevalue("valkey_server")
    async with serving(address, namespace) as desk:
        made = await desk.upload("sales", SALES)
        assert made.output == "Table sales: 3 rows; columns: region VARCHAR, amount BIGINT\n"
        assert (await desk.call("data_tables")).data == {"tables": [{"name": "sales", "rows": 3, "columns": 2, "temporary": False}]}
        described = await desk.call("data_describe", table="sales")
        assert described.data["columns"] == [{"name": "region", "type": "VARCHAR"}, {"name": "amount", "type": "BIGINT"}]
        assert (described.data["total"], described.data["rows"][0]) == (3, ["north", 10])
        result = await desk.sql("SELECT region, sum(amount)::BIGINT AS total FROM sales GROUP BY ALL ORDER BY total -- done\n;")
        assert result.data["rows"] == [["north", 15], ["south", 20]]
        assert result.output == "region | total\nnorth | 15\nsouth | 20\n"


@pytest.mark.parametrize(
    ("content", "arguments"),
    [
        ('[{"a": 1, "b": "x"}, {"a": 2, "b": "ü"}]', {"format": "json"}),
        ('{"a": 1, "b": "x"}\n{"a": 2, "b": "ü"}', {"format": "json"}),
        ("\ufeffa;b\n1;x\n2;ü\n", {}),
        (base64.b64encode("a,b\n1,x\n2,ü\n".encode("utf-16")).decode(), {"encoding": "base64"}),
        (base64.b64encode("a,b\n1,x\n2,ü\n".encode("cp1252")).decode(), {"encoding": "base64"}),
    ],
)
async def test_text_formats_are_read_in_their_usual_shapes_and_encodings(desk, content, arguments):
    """JSON arrays and lines, other separators, byte order marks and old encodings all make the same table."""
    result = await desk.upload("t", content, **arguments)
    assert result.success, result.error
    assert (await desk.sql("SELECT * FROM t ORDER BY a")).data["rows"] == [[1, "x"], [2, "ü"]]


async def test_parquet_is_read_and_appended_to(desk, tmp_path):
    """Parquet comes in base64, and more rows are matched by their columns' names."""
    assert (await desk.upload("t", parquet(tmp_path, "SELECT 1 AS a, DATE '2024-01-02' AS d"), format="parquet")).success
    result = await desk.upload("t", "d,a\n2024-02-03,2\n", append=True)
    assert result.data["total"] == 2
    assert (await desk.sql("FROM t ORDER BY a")).data["rows"] == [[1, "2024-01-02"], [2, "2024-02-03"]]


async def test_every_type_arrives_as_json(desk):
    """Values that JSON lacks arrive as text, and no package is needed for any type."""
    result = await desk.sql(
        "SELECT 1::HUGEINT, 1.5::DECIMAL(9,2), 'nan'::DOUBLE, NULL, TIMESTAMPTZ '2024-01-02 03:04:05+00', INTERVAL 3 DAY, "
        "[1, 2], {'k': 'v'}, MAP {'m': 1}, 'x'::BLOB, true, TIME '10:00'"
    )
    row = result.data["rows"][0]
    assert row == [1, 1.5, "NaN", None, "2024-01-02 03:04:05+00", "3 days", [1, 2], {"k": "v"}, {"m": 1}, "x", True, "10:00:00"]


@pytest.mark.parametrize(
    "statement",
    [
        "FROM sales",
        "TABLE sales",
        "VALUES (1)",
        "WITH s AS (FROM sales) FROM s",
        "DESCRIBE sales",
        "SUMMARIZE sales",
        "SHOW TABLES",
        "PIVOT sales ON region IN ('north', 'south') USING sum(amount)",
        "EXPLAIN SELECT * FROM sales",
        "explain /* why */ analyze FROM sales",
        "CREATE TEMP TABLE t AS FROM sales",
        "CREATE /* as */ TEMP TABLE \"as\" AS WITH s AS (FROM sales) SELECT 'as' AS x, s.* FROM s -- as",
        "CREATE TEMP TABLE IF NOT EXISTS t AS (SELECT 1)",
        "CREATE TEMP VIEW v (a, b) AS FROM sales",
        "create or replace temporary view v as from sales",
        "DROP TABLE sales",
        "/* first */ SELECT ';' AS \"a;b\" -- ;\n ; ;",
    ],
)
async def test_reading_statements_and_temporary_tables_are_allowed(sales, statement):
    """The gate lets through what reads, and what only the session sees."""
    result = await sales.sql(statement)
    assert result.success, result.error


async def test_a_result_is_bounded_in_rows_and_says_what_was_left_out(desk):
    """The first rows come with a note on how to see the others."""
    result = await desk.sql("FROM range(1000000) ORDER BY 1")
    assert [row[0] for row in result.data["rows"]] == list(range(200))
    assert result.data["truncated"]
    assert "only the first 200 rows are shown" in result.output


async def test_a_result_is_bounded_in_bytes(desk):
    """Long values are cut, and long rows fewer, with a note for each."""
    result = await desk.sql("SELECT range, repeat('x', 5000) FROM range(150)")
    assert 1 <= len(result.data["rows"]) < 150
    assert len(result.output) < 120_000
    assert all(len(text) == MAX_CELL for _, text in result.data["rows"])
    assert "long values are cut short" in result.output
    assert "rows are shown" in result.output


async def test_an_operator_adds_a_tool_with_tighter_limits(valkey_server, namespace):
    """Config params of a further tool bound its results, and its arguments are checked all the same."""
    async with serving(valkey_server, namespace) as desk:
        await put(valkey_server, namespace, "few-rows", "data_analysis", operation="data_analysis", max_rows="2")
        await put(valkey_server, namespace, "broken", "data_analysis", operation="data_analysis", max_rows="many")
        await put(valkey_server, namespace, "nothing", "data_analysis", operation="drop_everything")
        for name in ("few-rows", "broken", "nothing"):
            await desk.bus.wait_for_tool(name, 10)
        assert (await desk.call("few-rows", sql="FROM range(9)")).data["rows"] == [[0], [1]]
        failed(await desk.call("few-rows", statement="FROM range(9)"), "invalid_arguments", "")
        assert "max_rows" in failed(await desk.call("broken", sql="FROM range(9)"), "tool_error", "bad_config")
        assert "data_analysis, data_describe" in failed(await desk.call("nothing", sql="FROM range(9)"), "tool_error", "bad_config")


# -- what it refuses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("COPY sales TO '{}'", "COPY"),
        ("EXPLAIN ANALYZE COPY sales TO '{}'", "COPY"),
        ("EXPLAIN /* x */ ANALYZE CREATE TABLE t AS SELECT 1", "CREATE TABLE"),
        ("EXPORT DATABASE '{}'", "EXPORT"),
        ("ATTACH '{}' AS other", "ATTACH"),
        ("ATTACH ':memory:' AS other", "ATTACH"),
        ("INSTALL httpfs", "INSTALL"),
        ("LOAD httpfs", "LOAD"),
        ("SET memory_limit = '100GB'", "SET"),
        ("SET lock_configuration = false", "SET"),
        ("RESET enable_external_access", "RESET"),
        ("PRAGMA memory_limit = '100GB'", "PRAGMA"),
        ("CALL enable_logging()", "CALL"),
        ("CREATE TABLE t AS SELECT 1", "CREATE TABLE"),
        ("CREATE SECRET s (TYPE s3)", "CREATE SECRET"),
        ("CREATE MACRO m() AS 1", "CREATE MACRO"),
        ("CREATE TEMP MACRO m() AS 1", "CREATE TEMP"),
        ("INSERT INTO sales VALUES ('x', 1)", "INSERT"),
        ("DELETE FROM sales", "DELETE"),
        ("UPDATE sales SET amount = 0", "UPDATE"),
        ("DROP SCHEMA main CASCADE", "DROP SCHEMA"),
        ("BEGIN", "BEGIN"),
        ("PREPARE p AS SELECT 1", "PREPARE"),
        ("PIVOT sales ON region USING sum(amount)", "PIVOT without IN"),
        ("USE temp", "USE"),
        ("CHECKPOINT", "CHECKPOINT"),
        ("VACUUM", "VACUUM"),
    ],
)
async def test_other_statements_are_refused_by_name(sales, tmp_path, statement, word):
    """What writes, attaches, installs or sets is refused, named, and answered with what is allowed; nothing is left behind."""
    message = failed(await sales.sql(statement.format(tmp_path / "out")), "forbidden", "statement_refused")
    assert message.startswith(f"{word} is not allowed here; allowed are one SELECT")
    assert list(tmp_path.iterdir()) == []
    assert (await sales.sql("SELECT count(*) FROM sales")).data["rows"] == [[3]]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_csv('{}')",
        "SELECT * FROM read_text('{}')",
        "SELECT * FROM read_blob('{}')",
        "SELECT * FROM read_json('{}')",
        "SELECT * FROM read_parquet('{}')",
        "SELECT * FROM glob('{}')",
        "SELECT * FROM sniff_csv('{}')",
        "SELECT * FROM parquet_metadata('{}')",
        "SELECT * FROM read_csv('/dev/fd/0')",
        "SELECT * FROM read_text('/proc/self/environ')",
        "SELECT * FROM read_text('/proc/self/fd/0')",
        "SELECT * FROM read_csv('https://127.0.0.1:1/x.csv')",
        "SELECT * FROM read_parquet('s3://bucket/x')",
        "CREATE TEMP TABLE t AS SELECT * FROM read_text('{}')",
        "CREATE TEMP VIEW t AS SELECT * FROM read_text('{}')",
        "SELECT * FROM query('SELECT * FROM read_text(''{}'')')",
    ],
)
async def test_no_file_and_no_address_can_be_read(desk, tmp_path, statement):
    """Functions that read files or the network are refused, and nothing of the file is told."""
    secret = tmp_path / "secret.csv"
    secret.write_text("password\nhunter2\n")
    result = await desk.sql(statement.format(secret))
    assert not result.success
    assert result.error.type in {"forbidden", "invalid_arguments"}
    assert "hunter2" not in str(result)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM '{}'",
        "SELECT getenv('HOME')",
        "SELECT * FROM enable_logging(storage='file', storage_path='{}')",
        "SELECT * FROM enable_profiling(format='json', save_location='{}')",
        "WITH gone AS (DELETE FROM sales RETURNING *) SELECT * FROM gone",
        "SELECT * FROM query('COPY (SELECT 1) TO ''{}''')",
        "CREATE TEMP TABLE t AS WITH gone AS (DELETE FROM sales RETURNING *) SELECT * FROM gone",
        "EXPLAIN ANALYZE WITH gone AS (DELETE FROM sales RETURNING *) SELECT * FROM gone",
        "CREATE TEMP TABLE t AS DELETE FROM sales RETURNING *",
        "CREATE TEMP TABLE t (a INTEGER)",
        "EXPLAIN ANALYZE INSERT INTO sales VALUES ('x', 1)",
    ],
)
async def test_what_only_looks_like_reading_changes_nothing(sales, tmp_path, statement):
    """Statements that pass as SELECT reach no file, variable or setting, and delete nothing."""
    target = tmp_path / "made"
    assert not (await sales.sql(statement.format(target))).success
    assert not target.exists()
    assert (await sales.sql("SELECT count(*) FROM sales")).data["rows"] == [[3]]


async def test_an_upload_leaves_nothing_to_read_behind(desk):
    """The one file that the sandbox may read is empty again once its table is made."""
    await desk.upload("t", "a\nhunter2\n")
    for number in range(10):
        result = await desk.sql(f"SELECT * FROM read_text('/dev/fd/{number}')")
        assert "hunter2" not in str(result)


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("", "one_statement"),
        (" ; -- nothing\n", "one_statement"),
        ("SELECT 1; SELECT 2", "one_statement"),
        ("SELECT 1; DROP TABLE sales", "one_statement"),
        ("SELECT 1) UNION ALL (SELECT 2", "bad_sql"),
        ("SELEC 1", "bad_sql"),
        ("SELECT 'open", "bad_sql"),
        ("SELECT nothing FROM sales", "bad_sql"),
        ("SELECT * FROM nowhere", "bad_sql"),
        ("SELECT 'x'::INTEGER", "bad_sql"),
        ("SELECT a\0b", "bad_sql"),
        ("SELECT " + "(" * 5000 + "1" + ")" * 5000, "bad_sql"),
        ("SELECT " + ", ".join(f"{n} AS c{n}" for n in range(600)), "too_many_columns"),
        ("SELECT " + "1 + " * 6000 + "1", "too_long"),
    ],
)
async def test_wrong_statements_say_what_is_wrong(sales, statement, code):
    """Each is the caller's to mend, with a short message, and the session goes on."""
    result = await sales.bus.call("data_analysis", {"sql": statement}, timeout=30, **sales.who)
    failed(result, "invalid_arguments", code)
    assert (await sales.sql("SELECT count(*) FROM sales")).data["rows"] == [[3]]


async def test_an_unknown_table_is_answered_with_the_known_ones(sales):
    """The model sees which tables there are."""
    assert "the session has: sales" in failed(await sales.sql("FROM nowhere"), "invalid_arguments", "bad_sql")
    assert "the session has: sales" in failed(await sales.call("data_describe", table="x"), "invalid_arguments", "no_table")
    empty = sales.other(session="empty")
    assert "upload one with data_upload" in failed(await empty.sql("FROM nowhere"), "invalid_arguments", "bad_sql")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"content": ""}, "empty"),
        ({"content": " \n"}, "empty"),
        ({"content": 'a,b\n1,2\n"x,,,\n3'}, "bad_csv"),
        ({"content": ",".join(f"c{n}" for n in range(600)) + "\n" + ",".join(["1"] * 600)}, "too_many_columns"),
        ({"content": "a\0b"}, "binary"),
        ({"content": "not base64!", "encoding": "base64"}, "bad_base64"),
        ({"content": '{"a": [1, 2', "format": "json"}, "bad_sql"),
        ({"content": "[" * 50_000, "format": "json"}, "bad_sql"),
        ({"content": "PAR1", "format": "parquet"}, "bad_sql"),
        ({"content": "PAR1 \x15", "format": "parquet"}, "bad_base64"),
        ({"content": base64.b64encode(b"").decode(), "format": "parquet", "encoding": "base64"}, "empty"),
        ({"content": base64.b64encode(b"PAR1" + b"\xff" * 100 + b"PAR1").decode(), "format": "parquet", "encoding": "base64"}, "bad_sql"),
        ({"content": base64.b64encode(b"PAR1\0\0").decode(), "format": "parquet", "encoding": "base64"}, "bad_sql"),
        ({"content": "a\n1", "table": "bad name"}, "bad_name"),
        ({"content": "a\n1", "table": 'x"; DROP TABLE y; --'}, "bad_name"),
        ({"content": "a\n1", "append": True}, "no_table"),
    ],
)
async def test_broken_uploads_make_no_table(desk, arguments, code):
    """Broken, empty or misnamed data is refused with what is wrong with it, and the path of no file is told."""
    message = failed(await desk.call("data_upload", **{"table": "t", **arguments}), "invalid_arguments", code)
    assert "/dev/fd" not in message
    assert (await desk.call("data_tables")).data == {"tables": []}


async def test_damaged_parquet_never_takes_the_worker_with_it(desk, tmp_path):
    """However a Parquet file is damaged, the answer is an error or a table, and the next call is served."""
    whole = base64.b64decode(parquet(tmp_path, "SELECT i, 'value ' || i AS s FROM range(1000) t(i)"))
    for place in range(4, len(whole), max(1, len(whole) // 25)):
        damaged = whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :]
        result = await desk.upload("t", base64.b64encode(damaged).decode(), format="parquet", encoding="base64")
        assert result.success or result.error.type in {"invalid_arguments", "tool_error"}
        failed(
            await desk.upload("u", base64.b64encode(whole[:place]).decode(), format="parquet", encoding="base64"),
            "invalid_arguments",
            "bad_sql",
        )
    assert (await desk.sql("SELECT 1")).success


# -- what it bounds -----------------------------------------------------------------------------------


@pytest.mark.parametrize("statement", [ENDLESS, "WITH RECURSIVE r AS (SELECT 1 a UNION ALL SELECT a + 1 FROM r) SELECT count(*) FROM r"])
async def test_an_endless_statement_is_interrupted_in_time_and_keeps_the_session(sales, statement):
    """It ends before its caller's deadline with what to do, and the tables are still there."""
    started = time.monotonic()
    message = failed(await sales.sql(statement, timeout=3), "deadline_exceeded", "too_slow")
    assert time.monotonic() - started < 3
    assert "narrow it" in message
    assert (await sales.sql("SELECT count(*) FROM sales")).data["rows"] == [[3]]


async def test_a_statement_that_cannot_be_interrupted_ends_with_its_session(sales):
    """What does not heed an interruption is ended with its process, says so, and the next call is answered."""
    started = time.monotonic()
    message = failed(await sales.sql(UNSTOPPABLE, timeout=4), "deadline_exceeded", "too_slow")
    assert time.monotonic() - started < 4
    assert "upload the tables again" in message
    assert (await sales.call("data_tables")).data == {"tables": []}


@pytest.mark.parametrize("statement", [ENDLESS, UNSTOPPABLE])
async def test_a_cancelled_statement_runs_no_longer(desk, statement):
    """Whoever leaves stops the statement, and the same session answers at once."""
    await desk.sql("SELECT 1")
    async with desk.bus.stream("data_analysis", {"sql": statement}, timeout=60, **desk.who):
        await until(lambda: desk.service.statistics().busy == 1)
    await until(lambda: desk.service.statistics().busy == 0, 5)
    assert (await desk.sql("SELECT 42", timeout=10)).data["rows"] == [[42]]


@LINUX
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT repeat('x', 4000000000)",
        "SELECT len(range(1000000000))",
        "SELECT sum(a) FROM (SELECT unnest(range(2000000000)) a)",
        "SELECT list(range) FROM range(1000000000)",
        "SELECT string_agg(repeat('x', 1000000), '') FROM range(100000)",
        "SELECT array_agg(x) FROM (SELECT range(1000000) x FROM range(100000))",
        "CREATE TEMP TABLE t AS SELECT range a, repeat('y', 100) b FROM range(1000000000)",
    ],
)
async def test_a_statement_that_eats_memory_fails_within_its_limit(namespace, statement):
    """It ends in an error, its process never grew beyond its share, and the worker serves on."""
    async with serving(namespace=namespace, memory=64 << 20) as desk:
        await desk.sql("SELECT 1")
        children = _children()
        result = await desk.sql(statement, timeout=20)
        assert not result.success
        assert result.error.code in {"out_of_memory", "session_lost", "too_slow"}
        assert all(_peak(child) < (64 + 256 + 200) << 20 for child in children)
        assert (await desk.sql("SELECT 42")).data["rows"] == [[42]]


def _children(process="self"):
    return {int(child) for task in Path(f"/proc/{process}/task").iterdir() for child in (task / "children").read_text().split()}


def _peak(process):
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{process}/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
    return 0


async def test_sessions_and_users_do_not_see_each_other(sales):
    """A table belongs to its user and session: another session, and another user with that session's name, have their own."""
    assert (await sales.sql("CREATE TEMP TABLE mine AS SELECT 1 AS a")).success
    for other in (sales.other(session="two"), sales.other(user="mallory"), sales.other(session="")):
        assert (await other.call("data_tables")).data == {"tables": []}
        for name in ("mine", "sales", "main.sales", "memory.main.sales", "temp.main.mine"):
            failed(await other.sql(f"SELECT * FROM {name}"), "invalid_arguments", "bad_sql")
        assert (await other.upload("sales", "a\n99\n")).success
    assert (await sales.sql("SELECT count(*) FROM sales")).data["rows"] == [[3]]
    assert (await sales.sql("FROM mine")).data["rows"] == [[1]]


async def test_a_slow_session_holds_up_no_other(desk):
    """Another session is answered while one runs an endless statement."""
    async with desk.bus.stream("data_analysis", {"sql": ENDLESS}, timeout=60, **desk.who):
        await until(lambda: desk.service.statistics().busy == 1)
        assert (await desk.other(session="two").sql("SELECT 42", timeout=10)).data["rows"] == [[42]]


@LINUX
async def test_an_idle_session_goes_with_its_tables(namespace):
    """After the idle time its process is gone, and a later call starts an empty one."""
    async with serving(namespace=namespace, idle=0.3) as desk:
        others = _children()
        assert (await desk.upload("t", "a\n1\n")).success
        children = _children() - others
        assert len(children) == 1
        await until(lambda: desk.service.statistics().sessions == 0)
        await until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
        assert (await desk.call("data_tables")).data == {"tables": []}


async def test_sessions_are_bounded_in_all_and_per_user(namespace):
    """Beyond the bound a call is refused with when to try again, and what lives stays."""
    async with serving(namespace=namespace, sessions=3, sessions_per_user=2) as desk:
        assert (await desk.upload("t", "a\n1\n")).success
        assert (await desk.other(session="two").sql("SELECT 1")).success
        refused = await desk.other(session="three").sql("SELECT 1")
        assert "2 sessions of yours" in failed(refused, "overloaded", "too_many_sessions")
        assert refused.error.retryable
        assert refused.error.retry_after > 0
        assert (await desk.other(user="bob").sql("SELECT 1")).success
        assert "3 sessions" in failed(await desk.other(user="carol").sql("SELECT 1"), "overloaded", "too_many_sessions")
        assert (await desk.sql("FROM t")).data["rows"] == [[1]]


async def test_an_idle_session_makes_room_for_another(namespace):
    """The one that was used longest ago goes when it was not used for a while."""
    async with serving(namespace=namespace, sessions=1, idle=0.4) as desk:
        assert (await desk.upload("t", "a\n1\n")).success
        deadline = time.monotonic() + 20
        while not (await desk.other(user="bob").sql("SELECT 1")).success:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert desk.service.statistics().sessions <= 1


async def test_calls_of_one_session_at_once_take_turns(sales):
    """Concurrent statements of a session are all answered, one after the other."""
    results = await asyncio.gather(*(sales.sql(f"SELECT {number} + count(*) FROM sales") for number in range(20)))
    assert [result.data["rows"] for result in results] == [[[number + 3]] for number in range(20)]


async def test_tables_are_bounded_in_number(desk):
    """A session has so many tables and no more, and one that is dropped makes room."""
    for number in range(MAX_TABLES):
        assert (await desk.sql(f"CREATE TEMP TABLE t{number} AS SELECT 1")).success
    for refused in (await desk.upload("more", "a\n1\n"), await desk.sql("CREATE OR REPLACE TEMP VIEW more AS SELECT 1")):
        assert "DROP TABLE" in failed(refused, "invalid_arguments", "too_many_tables")
    await desk.sql("DROP TABLE t0")
    assert (await desk.upload("more", "a\n1\n")).success


async def test_an_upload_is_bounded_in_bytes_and_may_come_in_parts(valkey_server, namespace):
    """Too much at once is refused with how to send it, and parts make one table."""
    async with serving(valkey_server, namespace) as desk:
        await put(valkey_server, namespace, "small", "data_analysis", operation="data_upload", max_upload=20)
        await desk.bus.wait_for_tool("small", 10)
        for content, encoding in (("a\n" + "1\n" * 10, "text"), ("YQox" * 10, "base64")):
            refused = await desk.call("small", table="t", content=content, encoding=encoding)
            assert "append=true" in failed(refused, "invalid_arguments", "too_large")
        assert (await desk.call("small", table="t", content="a\n1\n")).success
        assert (await desk.call("small", table="t", content="a\n2\n", append=True)).data["total"] == 2
        assert (await desk.sql("FROM t")).data["rows"] == [[1], [2]]


async def test_several_workers_serve_a_namespace(valkey_server, namespace):
    """Each session's tables are found again, whichever worker takes the call, and go when the session is closed."""
    services = [DataAnalysis(Limits()) for _ in range(3)]
    workers = [Worker(service, url=valkey_server, namespace=namespace, concurrency=2) for service in services]
    async with workers[0], workers[1], workers[2], ToolBus(valkey_server, namespace=namespace) as bus:
        await bus.wait_for_tool("data_analysis", 10)
        desks = [Desk(bus, None, user=f"u{number % 2}", session=f"s{number // 2}") for number in range(6)]

        async def use(desk, number):
            assert (await desk.upload("t", f"a\n{number}\n")).success
            for _ in range(3):
                assert (await desk.sql("FROM t")).data["rows"] == [[number]]

        await asyncio.gather(*(use(desk, number) for number, desk in enumerate(desks)))
        assert sum(service.statistics().sessions for service in services) == 6
        await bus.bind(user="u0", session="s0").close_session()
        await until(lambda: sum(service.statistics().sessions for service in services) == 5)
        assert (await desks[1].sql("FROM t")).data["rows"] == [[1]]
        failed(await desks[0].sql("FROM t"), "invalid_arguments", "bad_sql")


@LINUX
async def test_one_command_serves_it_and_a_killed_worker_leaves_no_process(valkey_server, namespace):
    """The processes of its sessions end with the worker, even in the middle of a statement."""
    command = ["-m", "toolbus", "--url", valkey_server, "--namespace", namespace, "worker", "workers.data_analysis"]
    worker = await asyncio.create_subprocess_exec(sys.executable, *command)
    try:
        async with ToolBus(valkey_server, namespace=namespace) as bus:
            await bus.wait_for_tool("data_analysis", 30)
            desk = Desk(bus, None)
            assert (await desk.upload("sales", SALES)).success
            children = _children(worker.pid)
            assert len(children) == 1
            async with bus.stream("data_analysis", {"sql": UNSTOPPABLE}, timeout=60, **desk.who):
                await until(lambda: all(_cpu(child) > 0.5 for child in children))
                worker.kill()
                await until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
    finally:
        with contextlib.suppress(ProcessLookupError):
            worker.kill()
        await worker.wait()


def _cpu(process):
    """Seconds of processor time."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_limits_come_from_the_environment():
    """Each limit has a variable, and a wrong one is named."""
    assert load_limits(Limits, "TOOLBUS_DATA_", {"TOOLBUS_DATA_SESSIONS": "3", "TOOLBUS_DATA_IDLE": "1.5"}) == Limits(sessions=3, idle=1.5)
    with pytest.raises(ConfigurationError, match="TOOLBUS_DATA_SESSIONS is wrong"):
        load_limits(Limits, "TOOLBUS_DATA_", {"TOOLBUS_DATA_SESSIONS": "none"})
