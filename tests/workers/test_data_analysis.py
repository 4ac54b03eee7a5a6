"""The SQL tools: what they answer, and statements and uploads that are meant to get out, to last or to hurt."""

import base64

import duckdb
import pytest
from toolbus_workers.data_engine import MAX_CELL

from tests.workers.data_client import SALES, serving
from tests.workers.outcomes import failed

pytestmark = pytest.mark.anyio


def parquet(tmp_path, query):
    path = tmp_path / "made.parquet"
    duckdb.sql(query).write_parquet(str(path))
    return base64.b64encode(path.read_bytes()).decode()


# -- what it does -------------------------------------------------------------------------------------


async def test_uploaded_rows_are_queried(server, namespace):
    """An upload makes a table that is listed, described and queried."""
    async with serving(server, namespace) as client:
        made = await client.upload("sales", SALES)
        assert made.output == "Table sales: 3 rows; columns: region VARCHAR, amount BIGINT\n"
        assert (await client.call("data_tables")).data == {"tables": [{"name": "sales", "rows": 3, "columns": 2, "temporary": False}]}
        described = await client.call("data_describe", table="sales")
        assert described.data["columns"] == [{"name": "region", "type": "VARCHAR"}, {"name": "amount", "type": "BIGINT"}]
        assert (described.data["total"], described.data["rows"][0]) == (3, ["north", 10])
        result = await client.sql("SELECT region, sum(amount)::BIGINT AS total FROM sales GROUP BY ALL ORDER BY total -- done\n;")
        assert result.data["rows"] == [["north", 15], ["south", 20]]
        assert result.output == "region | total\nnorth | 15\nsouth | 20\n"


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("content", "arguments"),
    [
        ('[{"a": 1, "b": "x"}, {"a": 2, "b": "ü"}]', {"format": "json"}),
        ('{"a": 1, "b": "x"}\n{"a": 2, "b": "ü"}', {"format": "json"}),
        ("\ufeffa;b\n1;x\n2;ü\n", {}),
        (base64.b64encode("a,b\n1,x\n2,ü\n".encode("utf-16")).decode(), {"encoding": "base64"}),
        (base64.b64encode("a,b\n1,x\n2,ü\n".encode("cp1252")).decode(), {"encoding": "base64", "charset": "windows-1252"}),
    ],
)
async def test_text_formats_are_read_in_their_usual_shapes_and_encodings(shared_client, content, arguments):
    """JSON arrays and lines, other separators, byte order marks and old encodings all make the same table."""
    result = await shared_client.upload("t", content, **arguments)
    assert result.success, result.error
    assert (await shared_client.sql("SELECT * FROM t ORDER BY a")).data["rows"] == [[1, "x"], [2, "ü"]]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("charset", "word"),
    [
        ("gbk", "今天天气很好"),
        ("big5", "今天天氣很好"),
        ("shift_jis", "今日はとても"),
        ("euc-kr", "오늘은 날씨가"),
        ("windows-1251", "Москва"),
    ],
)
async def test_an_upload_says_which_charset_was_assumed(shared_client, charset, word):
    """Text in other encodings is read as what it is, and named; what can't be told is refused until it is named."""
    content = base64.b64encode(f"a,b\n1,{word}\n".encode(charset)).decode()
    found = await shared_client.upload("t", content, encoding="base64")
    assert found.data["assumed_charset"]
    assert f"was read as {found.data['assumed_charset']}" in found.output
    given = await shared_client.upload("u", content, encoding="base64", charset=charset)
    assert given.data["assumed_charset"] == ""
    for table in "tu":
        assert (await shared_client.sql(f"SELECT b FROM {table}")).data["rows"] == [[word]]
    unsure = base64.b64encode("name\nJosé García\n".encode("cp1252")).decode()
    assert (await shared_client.upload("v", unsure, encoding="base64")).error.code == "bad_encoding"
    assert (await shared_client.upload("v", unsure, encoding="base64", charset="windows-1252")).success


async def test_parquet_is_read_and_appended_to(client, tmp_path):
    """Parquet comes in base64, and more rows are matched by their columns' names."""
    assert (await client.upload("t", parquet(tmp_path, "SELECT 1 AS a, DATE '2024-01-02' AS d"), format="parquet")).success
    result = await client.call("data_append", table="t", content="d,a\n2024-02-03,2\n")
    assert result.data["total"] == 2
    assert (await client.sql("FROM t ORDER BY a")).data["rows"] == [[1, "2024-01-02"], [2, "2024-02-03"]]


async def test_every_type_arrives_as_json(shared_client):
    """Values that JSON lacks arrive as text, and no package is needed for any type."""
    result = await shared_client.sql(
        "SELECT 1::HUGEINT, 1.5::DECIMAL(9,2), 'nan'::DOUBLE, NULL, TIMESTAMPTZ '2024-01-02 03:04:05+00', INTERVAL 3 DAY, "
        "[1, 2], {'k': 'v'}, MAP {'m': 1}, 'x'::BLOB, true, TIME '10:00'"
    )
    row = result.data["rows"][0]
    assert row == [1, 1.5, "NaN", None, "2024-01-02 03:04:05+00", "3 days", [1, 2], {"k": "v"}, {"m": 1}, "x", True, "10:00:00"]


@pytest.mark.few(5)
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
        "DROP TABLE IF EXISTS t",
        "/* first */ SELECT ';' AS \"a;b\" -- ;\n ; ;",
    ],
)
async def test_reading_statements_and_temporary_tables_are_allowed(shared_sales, statement):
    """The gate lets through what reads, and what only the session sees."""
    result = await shared_sales.sql(statement)
    assert result.success, result.error


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE sales",
        "DROP TABLE main.sales",
        "CREATE TEMP TABLE sales AS SELECT 3",
        "CREATE OR REPLACE TEMP TABLE SALES AS SELECT 3",
        'CREATE OR REPLACE TEMP VIEW temp.main."sales" AS SELECT 3',
        "CREATE TEMP VIEW Sales AS SELECT 3",
    ],
)
async def test_an_uploaded_table_can_be_neither_changed_nor_hidden(shared_sales, statement):
    """Statements that would drop, replace or cover it are refused, and it stays as it was uploaded."""
    failed(await shared_sales.sql(statement), "forbidden", "uploaded")
    assert (await shared_sales.sql("SELECT count(*), sum(amount)::BIGINT FROM sales")).data["rows"] == [[3, 35]]
    assert len((await shared_sales.call("data_tables")).data["tables"]) == 1


@pytest.mark.few(2)
@pytest.mark.parametrize("reading", ["t", "seen", '"T"', "sales WHERE amount IN (SELECT amount FROM t)"])
async def test_a_statement_that_would_change_more_each_time_is_refused(shared_sales, reading):
    """A statement that reads the table it replaces, also through a view, is refused: it would give 2, 4, 8 rows."""
    for statement in ("CREATE TEMP TABLE t AS FROM sales", "CREATE TEMP VIEW seen AS FROM t"):
        assert (await shared_sales.sql(statement)).success
    refused = await shared_sales.sql(f"CREATE OR REPLACE TEMP TABLE t AS FROM sales UNION ALL FROM {reading}")
    failed(refused, "invalid_arguments", "reads_itself")
    for _ in range(2):
        assert (await shared_sales.sql("CREATE OR REPLACE TEMP TABLE t AS FROM sales UNION ALL FROM sales")).success
        assert (await shared_sales.sql("SELECT count(*) FROM seen")).data["rows"] == [[6]]
    failed(await shared_sales.upload("T", "a\n1\n"), "invalid_arguments", "derived")


async def test_a_result_is_bounded_in_rows_and_says_what_was_left_out(shared_client):
    """The first rows come with a note on how to see the others."""
    result = await shared_client.sql("FROM range(1000000) ORDER BY 1")
    assert [row[0] for row in result.data["rows"]] == list(range(200))
    assert result.data["truncated"]
    assert "only the first 200 rows are shown" in result.output


async def test_a_result_is_bounded_in_bytes(shared_client):
    """Long values are cut, and long rows fewer, with a note for each."""
    result = await shared_client.sql("SELECT range, repeat('x', 5000) FROM range(150)")
    assert 1 <= len(result.data["rows"]) < 150
    assert len(result.output) < 120_000
    assert all(len(text) == MAX_CELL for _, text in result.data["rows"])
    assert "long values are cut short" in result.output
    assert "rows are shown" in result.output


@pytest.mark.usefixtures("slow")
async def test_an_operator_adds_a_tool_with_tighter_limits(server, namespace, put):
    """Config params of a further tool bound its results, and its arguments are checked all the same."""
    async with serving(server, namespace) as client:
        await put(server, namespace, "few-rows", "data_analysis", operation="data_analysis", max_rows="2")
        await put(server, namespace, "broken", "data_analysis", operation="data_analysis", max_rows="many")
        await put(server, namespace, "nothing", "data_analysis", operation="drop_everything")
        for name in ("few-rows", "broken", "nothing"):
            await client.bus.wait_for_tool(name, 10)
        assert (await client.call("few-rows", sql="FROM range(9)")).data["rows"] == [[0], [1]]
        failed(await client.call("few-rows", statement="FROM range(9)"), "invalid_arguments", "")
        assert "max_rows" in failed(await client.call("broken", sql="FROM range(9)"), "tool_error", "bad_config")
        assert "data_analysis, data_append, data_describe" in failed(
            await client.call("nothing", sql="FROM range(9)"), "tool_error", "bad_config"
        )


# -- what it refuses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 42'))",
        "SELECT * FROM main.JSON_Execute_Serialized_SQL /* so */ (json_serialize_sql('SELECT 42'))",
        "FROM \"json_execute_serialized_sql\"('{}')",
        "EXPLAIN SELECT * FROM json_execute_serialized_sql('{}')",
        "CREATE TEMP TABLE t AS SELECT * FROM json_execute_serialized_sql('{}')",
        "FROM query('SELECT 42')",
        "FROM query_table('sales')",
    ],
)
async def test_statements_in_values_are_refused(shared_sales, statement):
    """A function that runs the statement in its argument is refused by name: nothing has looked at that statement."""
    assert "is not allowed here: write its statement itself" in failed(await shared_sales.sql(statement), "forbidden", "statement_refused")
    assert (await shared_sales.sql("SELECT query FROM (SELECT 1 AS query)")).success


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
async def test_other_statements_are_refused_by_name(shared_sales, tmp_path, statement, word):
    """Statements that write, attach, install or set are refused by name, with the allowed ones, and leave nothing behind."""
    message = failed(await shared_sales.sql(statement.format(tmp_path / "out")), "forbidden", "statement_refused")
    assert message.startswith(f"{word} is not allowed here; allowed are one SELECT")
    assert list(tmp_path.iterdir()) == []
    assert (await shared_sales.sql("SELECT count(*) FROM sales")).data["rows"] == [[3]]


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
async def test_no_file_and_no_address_can_be_read(shared_client, tmp_path, statement):
    """Functions that read files or the network are refused, and nothing of the file is told."""
    secret = tmp_path / "secret.csv"
    secret.write_text("password\nhunter2\n")
    result = await shared_client.sql(statement.format(secret))
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
async def test_what_only_looks_like_reading_changes_nothing(shared_sales, tmp_path, statement):
    """Statements that pass as SELECT reach no file, variable or setting, and delete nothing."""
    target = tmp_path / "made"
    assert not (await shared_sales.sql(statement.format(target))).success
    assert not target.exists()
    assert (await shared_sales.sql("SELECT count(*) FROM sales")).data["rows"] == [[3]]


@pytest.mark.usefixtures("slow")
async def test_an_upload_leaves_nothing_to_read_behind(client):
    """The one file that the sandbox may read is empty again once its table is made."""
    await client.upload("t", "a\nhunter2\n")
    for number in range(10):
        result = await client.sql(f"SELECT * FROM read_text('/dev/fd/{number}')")
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
async def test_wrong_statements_say_what_is_wrong(shared_sales, statement, code):
    """Each is the caller's to mend, with a short message, and the session goes on."""
    result = await shared_sales.bus.call("data_analysis", {"sql": statement}, timeout=30, **shared_sales.who)
    failed(result, "invalid_arguments", code)
    assert (await shared_sales.sql("SELECT count(*) FROM sales")).data["rows"] == [[3]]


@pytest.mark.usefixtures("slow")
async def test_an_unknown_table_is_answered_with_the_known_ones(sales):
    """The model sees which tables there are."""
    assert "the session has: sales" in failed(await sales.sql("FROM nowhere"), "invalid_arguments", "bad_sql")
    assert "the session has: sales" in failed(await sales.call("data_describe", table="x"), "invalid_arguments", "no_table")
    empty = sales.other(session="empty")
    assert "upload one with data_upload" in failed(await empty.sql("FROM nowhere"), "invalid_arguments", "bad_sql")


@pytest.mark.few(4)
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
    ],
)
async def test_broken_uploads_make_no_table(shared_client, arguments, code):
    """Broken, empty or misnamed data is refused with what is wrong with it, and the path of no file is told."""
    message = failed(await shared_client.call("data_upload", **{"table": "t", **arguments}), "invalid_arguments", code)
    assert "/dev/fd" not in message
    failed(await shared_client.call("data_append", table="t", content="a\n1"), "invalid_arguments", "no_table")
    assert (await shared_client.call("data_tables")).data == {"tables": []}


@pytest.mark.usefixtures("slow")
async def test_damaged_parquet_never_takes_the_worker_with_it(client, tmp_path):
    """For any damage to a Parquet file, the answer is an error or a table, and the next call is served."""
    whole = base64.b64decode(parquet(tmp_path, "SELECT i, 'value ' || i AS s FROM range(1000) t(i)"))
    for place in range(4, len(whole), max(1, len(whole) // 25)):
        damaged = whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :]
        result = await client.upload("t", base64.b64encode(damaged).decode(), format="parquet", encoding="base64")
        assert result.success or result.error.type in {"invalid_arguments", "tool_error"}
        failed(
            await client.upload("u", base64.b64encode(whole[:place]).decode(), format="parquet", encoding="base64"),
            "invalid_arguments",
            "bad_sql",
        )
    assert (await client.sql("SELECT 1")).success
