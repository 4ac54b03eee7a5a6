"""The graph tools: what they answer, when they are there, and statements that are meant to get out, to last or to hurt."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from toolbus_workers import charts, graph_engine
from toolbus_workers.graph_engine import MAX_CELL
from toolbus_workers.graph_gate import check
from toolbus_workers.graph_store import GraphStore, tools
from toolbus_workers.graph_store.embedded import EmbeddedGraph, Limits
from toolbus_workers.graph_store.tools import MAX_QUERY

from tests.servers import eventually
from tests.workers.outcomes import failed
from toolbus import Settings, ToolBus, ToolError, Worker
from toolbus.worker.definition.provide import Services
from toolbus.worker.serving.collect import collect

pytestmark = pytest.mark.anyio

GUIDE = Path(__file__).parents[2] / "docs" / "reference" / "data-tools.md"
TOOLS = {"graph_import", "graph_query", "graph_schema"}
PEOPLE = "id,name,age,score\nann,Ann,30,\nbob,Bob,,1.5\ncid,Cid,41,2\n"
KNOWS = [{"from": "ann", "to": "bob", "since": 2001}, {"from": "bob", "to": "cid", "since": 2010}]
UNSTOPPABLE = "RETURN levenshtein(repeat('a', 100000), repeat('b', 100000))"
ENDLESS = "UNWIND range(1, 10000) AS x UNWIND range(1, 10000) AS y UNWIND range(1, 10000) AS z RETURN sum(x * y * z)"


class Client:
    """A bus with the tools behind it, and their store."""

    def __init__(self, bus, store):
        self.bus = bus
        self.store = store

    async def call(self, tool, timeout=30, **arguments):
        return await self.bus.call(tool, arguments, timeout=timeout)

    async def query(self, query, timeout=30, **arguments):
        return await self.call("graph_query", timeout, query=query, **arguments)

    async def rows(self, query, **arguments):
        result = await self.query(query, **arguments)
        assert result.success, result.error
        return result.data["rows"]

    async def load(self, kind, label, **arguments):
        return await self.call("graph_import", kind=kind, label=label, **arguments)


@contextlib.asynccontextmanager
async def serving(namespace, address="memory://", **limits):
    async with (
        EmbeddedGraph(Limits(**{"memory": 64 << 20, **limits})) as store,
        Worker(tools, url=address, namespace=namespace, provide={GraphStore: store}),
        ToolBus(address, namespace=namespace) as bus,
    ):
        for name in TOOLS:
            await bus.wait_for_tool(name, 20)
        yield Client(bus, store)


@pytest.fixture
async def client(namespace):
    async with serving(namespace) as opened:
        yield opened


@pytest.fixture
async def people(client):
    assert (await client.load("vertices", "Person", csv=PEOPLE)).success
    assert (await client.load("edges", "KNOWS", rows=KNOWS, source="Person", target="Person")).success
    return client


# -- when they are there ------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def process(url, namespace, *targets, **options):
    command = [sys.executable, "-m", "toolbus", "--url", url, "--namespace", namespace, "worker", *map(str, targets)]
    made = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, **options)
    try:
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            made.terminate()
        await asyncio.wait_for(made.wait(), 30)


async def test_one_command_serves_them_over_a_graph_in_memory(valkey_server, namespace):
    """The package brings its own store; no schema shows it, and an argument of its name is refused."""
    async with process(valkey_server, namespace, "toolbus_workers.graph_store"), ToolBus(valkey_server, namespace=namespace) as bus:
        for name in TOOLS:
            await bus.wait_for_tool(name, 30)
        assert all("store" not in bus.tools[name].parameters.get("properties", {}) for name in TOOLS)
        client = Client(bus, None)
        assert (await client.load("vertices", "Person", csv=PEOPLE)).success
        assert await client.rows("MATCH (p:Person) RETURN count(*)") == [[3]]
        assert "store" in failed(await client.query("RETURN 1", store={"query": "mine"}), "invalid_arguments", "")


async def test_without_a_store_none_of_them_is_served(valkey_server, namespace):
    """A worker that nobody gave a store leaves them out, names what they need, and serves the rest."""
    targets = ("toolbus_workers.graph_store.tools", "toolbus_workers.joke")
    async with process(valkey_server, namespace, *targets) as worker, ToolBus(valkey_server, namespace=namespace) as bus:
        await bus.wait_for_tool("tell-pun", 30)
        assert TOOLS.isdisjoint(bus.tools)
        worker.terminate()
        _, said = await worker.communicate()
    told = [line for line in said.decode().splitlines() if "tool.left_out" in line]
    assert len(told) == 3
    assert all("GraphStore" in line for line in told)


async def test_they_appear_with_a_store_of_ones_own(valkey_server, namespace, tmp_path):
    """The store of the guide is what they ask."""
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    (tmp_path / "mystore.py").write_text(example)
    async with process(valkey_server, namespace, f"{tmp_path}/mystore.py:tools"), ToolBus(valkey_server, namespace=namespace) as bus:
        for name in TOOLS:
            await bus.wait_for_tool(name, 30)
        assert (await Client(bus, None).query("anything")).data["rows"] == [["anything"]]
        assert (await bus.call("graph_schema")).output == "(:City) 2 vertices; id text"


async def test_a_graph_in_a_file_outlives_its_worker_and_belongs_to_one(valkey_server, namespace, tmp_path):
    """Imported data is there for the next worker, also after a kill; a second worker at the same time gets an error with the reason."""
    limits = {"path": str(tmp_path / "people.graph")}
    async with serving(namespace, valkey_server, **limits) as client:
        assert (await client.load("vertices", "Person", csv=PEOPLE)).success
        with pytest.raises(ToolError, match=r"the graph can't be opened: .*[Ll]ock"):
            await EmbeddedGraph(Limits(**limits)).__aenter__()
        client.store._program._process.kill()
        await client.store._program._process.wait()
        assert await client.rows("MATCH (p:Person) RETURN count(*)") == [[3]]
    async with serving(namespace, valkey_server, **limits) as client:
        assert await client.rows("MATCH (p:Person) RETURN p.name ORDER BY p.id") == [["Ann"], ["Bob"], ["Cid"]]
        failed(await client.query("LOAD FROM 'x.csv' RETURN *"), "forbidden", "statement_refused")


def test_the_guide_lists_the_tools_and_variables():
    """Each tool stands in the guide's table with its module, and each variable with its default; arguments are described."""
    page = GUIDE.read_text("utf-8")
    for module, place in ((tools, "toolbus_workers.graph_store"), (charts, "toolbus_workers.charts")):
        (served,) = collect(module, Settings(), Services({GraphStore: EmbeddedGraph()}))
        for tool in served.publication.tools:
            assert re.search(rf"^\| `{tool.name}` \| .+ \| `{re.escape(place)}` \|$", page, re.MULTILINE), tool.name
            assert all(schema.get("description") for schema in tool.parameters["properties"].values())
    for name in Limits.__struct_fields__:
        default = str(getattr(Limits(), name))
        assert f"| `TOOLBUS_GRAPH_{name.upper()}` | {default}{' ' if default else ''}|" in page


# -- what they answer ---------------------------------------------------------------------------------


async def test_an_empty_graph_says_so(client):
    """The schema says how data comes in, and a query of a label names what there is."""
    assert "graph_import" in (await client.call("graph_schema")).output
    assert "graph_import" in failed(await client.query("MATCH (n:Person) RETURN n"), "invalid_arguments", "bad_query")


async def test_the_schema_shows_labels_types_properties_and_counts(people):
    """CSV columns have the types of their values, and edges say what they connect."""
    result = await people.call("graph_schema")
    properties = {"id": "STRING", "name": "STRING", "age": "INT64", "score": "DOUBLE"}
    assert result.data["vertices"] == [{"name": "Person", "count": 3, "properties": properties}]
    ends = {"source": "Person", "target": "Person"}
    assert result.data["edges"] == [{"name": "KNOWS", "count": 2, "properties": {"since": "INT64"}, **ends}]
    assert "(:Person)-[:KNOWS]->(:Person) 2 edges; since INT64" in result.output


async def test_a_query_with_parameters_returns_rows(people):
    """Values come by name; vertices, edges and paths are plain objects without the database's own ids."""
    query = "MATCH p = (a:Person)-[k:KNOWS*1..2]->(b) WHERE a.id = $id RETURN b.name, p ORDER BY b.id"
    result = await people.query(query, parameters={"id": "ann"})
    ann, bob = {"label": "Person", "id": "ann", "name": "Ann", "age": 30}, {"label": "Person", "id": "bob", "name": "Bob", "score": 1.5}
    assert result.data["columns"] == ["b.name", "p"]
    assert result.data["rows"][0] == ["Bob", {"vertices": [ann, bob], "edges": [{"label": "KNOWS", "since": 2001}]}]
    assert [row[0] for row in result.data["rows"]] == ["Bob", "Cid"]
    assert result.output.startswith("b.name | p\nBob | {")


async def test_importing_again_changes_nothing_and_updates_what_is_said(people):
    """Vertices and edges are found again; what a row does not say stays, and a new property is added."""
    assert (await people.load("edges", "KNOWS", rows=KNOWS, source="Person", target="Person")).data["label"]["count"] == 2
    result = await people.load("vertices", "Person", rows=[{"id": "ann", "age": 31, "nick": "A"}, {"id": 7}])
    assert result.data["imported"] == 2
    found = await people.rows("MATCH (p:Person) RETURN p.id, p.name, p.age, p.nick ORDER BY p.id")
    assert found == [["7", None, None, None], ["ann", "Ann", 31, "A"], ["bob", "Bob", None, None], ["cid", "Cid", 41, None]]


async def test_an_import_is_taken_whole_or_not_at_all(people):
    """An edge to a vertex that is not there undoes the rest of its import, its new type included."""
    rows = [{"from": "ann", "to": "cid"}, {"from": "ann", "to": "nobody"}]
    told = failed(await people.load("edges", "LIKES", rows=rows, source="Person", target="Person"), "invalid_arguments", "no_vertex")
    assert told == "there are no Person vertices with the ids 'nobody'; import them first (nothing was imported)"
    assert [each["name"] for each in (await people.call("graph_schema")).data["edges"]] == ["KNOWS"]
    failed(
        await people.load("vertices", "Person", rows=[{"id": "x", "hat": "red"}, {"id": "y", "age": "old"}]),
        "invalid_arguments",
        "bad_type",
    )
    assert await people.rows("MATCH (p:Person) RETURN count(*)") == [[3]]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"rows": []}, "no_data"),
        ({}, "no_data"),
        ({"rows": [{"id": 1}], "csv": "id\n1"}, "no_data"),
        ({"rows": [{"name": "x"}]}, "no_id"),
        ({"rows": [{"id": True}]}, "no_id"),
        ({"rows": [{"id": "x", "a b": 1}]}, "bad_name"),
        ({"rows": [{"id": "x", "ID": 1}]}, "bad_name"),
        ({"rows": [{"id": "x", "a`": 1}]}, "bad_name"),
        ({"rows": [{"id": "x", "n": 1 << 63}]}, "too_large"),
        ({"rows": [{"id": "x", "n": "y" * 10_001}]}, "too_long"),
        ({"rows": [{"id": "x", **{f"p{number}": 1 for number in range(60)}}]}, "too_many_properties"),
        ({"rows": [{"id": "x"}], "label": "A`) DETACH DELETE (n"}, "bad_name"),
        ({"rows": [{"id": "x"}], "label": "person"}, "bad_name"),
        ({"rows": [{"id": "x"}], "label": "KNOWS"}, "bad_kind"),
        ({"rows": [{"id": "x"}], "source": "Person"}, "bad_ends"),
        ({"rows": [{"from": "ann", "to": "bob"}], "kind": "edges", "label": "E"}, "bad_ends"),
        ({"rows": [{"from": "ann", "to": "x"}], "kind": "edges", "label": "E", "source": "Person", "target": "City"}, "no_label"),
        ({"csv": 'id,name\n1,"x'}, "bad_csv"),
        ({"csv": "id,name\n1"}, "bad_csv"),
        ({"csv": "id,id\n1,2"}, "bad_csv"),
        ({"csv": "id\n" + "1\n" * 5_001}, "too_many_rows"),
        ({"csv": "id\n\0"}, "bad_character"),
    ],
)
async def test_what_can_not_be_imported_is_told(people, arguments, code):
    """Each mistake has a code of its own and changes nothing."""
    failed(await people.load(**{"kind": "vertices", "label": "Person", **arguments}), "invalid_arguments", code)
    assert [each["name"] for each in (await people.call("graph_schema")).data["vertices"]] == ["Person"]
    assert await people.rows("MATCH (n) RETURN count(*)") == [[3]]


async def test_a_result_is_bounded_in_rows_and_bytes(client):
    """The first rows come, long values cut, with a note for each."""
    result = await client.query("UNWIND range(1, 1000000) AS x RETURN x", max_rows=5)
    assert result.data["rows"] == [[1], [2], [3], [4], [5]]
    assert "only the first 5 rows are shown" in result.output
    result = await client.query("UNWIND range(1, 500) AS x RETURN repeat('y', 5000)", max_rows=1000)
    assert 1 <= len(result.data["rows"]) < 500
    assert all(len(text) == MAX_CELL for (text,) in result.data["rows"])
    assert len(result.output) < 120_000
    assert "long values are cut short" in result.output


# -- what they refuse ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("COPY Person FROM '{}/in.csv'", "COPY"),
        ("COPY (MATCH (n) RETURN n.id) TO '{}/out.csv'", "COPY"),
        ("LOAD FROM '{}/in.csv' RETURN *", "LOAD"),
        ("MATCH (n) LOAD FROM '{}/in.csv' RETURN *", "LOAD"),
        ("WITH 1 AS `LOAD` load from '{}/in.csv' RETURN *", "LOAD"),
        ("EXPORT DATABASE '{}/out'", "EXPORT"),
        ("IMPORT DATABASE '{}/out'", "IMPORT"),
        ("ATTACH '{}/out' AS other (dbtype sqlite)", "ATTACH"),
        ("INSTALL httpfs", "INSTALL"),
        ("CALL threads = 8", "CALL"),
        ("MATCH (n) CALL show_tables() RETURN *", "CALL"),
        ("CREATE (:Person {{id: 'x'}})", "CREATE"),
        ("MATCH (n) CREATE (:Person {{id: 'x'}})", "CREATE"),
        ("UNWIND [1] AS x MERGE (:Person {{id: 'x'}})", "MERGE"),
        ("MATCH (n) SET n.age = 1", "SET"),
        ("MATCH (n) DETACH DELETE n", "DETACH"),
        ("DROP TABLE KNOWS", "DROP"),
        ("ALTER TABLE Person ADD x STRING", "ALTER"),
        ("BEGIN TRANSACTION", "BEGIN"),
        ("COMMIT", "COMMIT"),
        ("CHECKPOINT", "CHECKPOINT"),
        ("EXPLAIN MATCH (n) RETURN n", "EXPLAIN"),
    ],
)
async def test_other_statements_are_refused_by_name(people, tmp_path, statement, word):
    """Statements that write, load, attach, install or set are refused by name and leave nothing behind."""
    (tmp_path / "in.csv").write_text("a\n1\n")
    told = failed(await people.query(statement.format(tmp_path)), "forbidden", "statement_refused")
    assert told.startswith(f"{word} is not allowed here; allowed is one reading statement")
    assert [each.name for each in tmp_path.iterdir()] == ["in.csv"]
    assert await people.rows("MATCH (n) RETURN count(*)") == [[3]]


# -- what is meant to last or to hurt -----------------------------------------------------------------


async def test_an_endless_statement_is_interrupted_in_time_and_the_graph_stays(people):
    """The answer comes before the caller gives up, says what to do, and the next statement finds what was there."""
    began = time.monotonic()
    told = failed(await people.query(ENDLESS, timeout=3), "deadline_exceeded", "too_slow")
    assert time.monotonic() - began < 3
    assert "narrow it" in told
    assert "import it again" not in told
    assert await people.rows("MATCH (n) RETURN count(*)") == [[3]]


CHAINS = {
    "not": ("RETURN ", "NOT ", "true"),
    "minus": ("RETURN ", "- ", "1"),
    "plus": ("RETURN 1", "+1", ""),
    "power": ("RETURN 1", "^1", ""),
    "bits": ("RETURN 1", "&1|1", ""),
    "shift": ("RETURN 1", "<<1", ""),
    "property": ("WITH {a: 1} AS a RETURN a", ".a", ""),
    "index": ("RETURN [1]", "[1]", ""),
    "comparison": ("RETURN 1", "<1", ""),
    "in": ("RETURN 1", " IN [1]", ""),
    "and": ("RETURN true", " AND 1 = 1", ""),
    "or": ("RETURN true", " OR true XOR true", ""),
    "brackets": ("RETURN ", "(", "1"),
    "case": ("RETURN ", "CASE WHEN true THEN ", "1"),
    "cases in chains": ("RETURN ", "1" + "+1" * 400 + "+ CASE WHEN true THEN ", "1"),
    "brackets in chains": ("RETURN ", "1" + "+1" * 90 + "+(", "1"),
    "union": ("RETURN 1", " UNION RETURN 1", ""),
    "with": ("WITH 1 AS a", " WITH a AS a", " RETURN a"),
    "optional": ("OPTIONAL MATCH (a)", " OPTIONAL MATCH (a)", " RETURN 1"),
    "labels": ("MATCH (a", ":A", ") RETURN 1"),
}


@pytest.mark.parametrize("name", CHAINS)
async def test_no_construct_ends_the_process_by_its_depth(people, name):
    """As long as a statement may be, every construct is refused or answered, by the process that the others use."""
    start, unit, end = CHAINS[name]
    process = people.store._program._process.pid
    result = await people.query(start + unit * ((MAX_QUERY - len(start) - len(end)) // len(unit)) + end, timeout=30)
    # On a slow machine the longest one is stopped, which costs its process; a process that dies of depth is `worker_died`.
    assert result.error is None or result.error.type == "invalid_arguments" or result.error.code in {"out_of_memory", "too_slow"}
    assert people.store._program._process.pid == process or (result.error is not None and result.error.code == "too_slow")
    assert people.store._program.alive


def test_long_statements_that_are_flat_pass() -> None:
    """A condition of a hundred parts, a long list of negative numbers and a wide result are not nested."""
    for statement in (
        "MATCH (n) WHERE " + " OR ".join(f"n.a + {number} = -1 AND n.b.c < {number}" for number in range(100)) + " RETURN n",
        "RETURN [" + ", ".join(f"-{number}.5" for number in range(2_000)) + "]",
        "MATCH (n) RETURN " + ", ".join(f"n.p{number} * 2 AS p{number}" for number in range(900)),
    ):
        check(statement)


class Stuck:
    """A connection that can't roll back."""

    def __init__(self, said: list[str]) -> None:
        self.said = said

    def execute(self, query: str, _: object = None) -> str:
        """Fail where it should not."""
        self.said.append(query)
        if query in {"ROLLBACK", "wrong"}:
            raise RuntimeError("Interrupted.")
        return query

    def close(self) -> None:
        """Be closed."""
        self.said.append("closed")


def test_a_transaction_that_can_not_be_rolled_back_is_nobody_elses(monkeypatch):
    """The connection is replaced, so that the next statement begins with nothing of this one."""
    said: list[str] = []
    monkeypatch.setattr(graph_engine.ladybug, "Connection", lambda _: Stuck(said))
    engine = object.__new__(graph_engine.Engine)
    vars(engine).update(_db=None, _connection=Stuck(said))
    with pytest.raises(RuntimeError, match="Interrupted"), engine._transaction("READ ONLY", "ROLLBACK"):
        engine._run("wrong")
    assert said == ["BEGIN TRANSACTION READ ONLY", "wrong", "ROLLBACK", "closed"]


async def test_a_statement_whose_caller_leaves_is_stopped(people):
    """The next call does not wait for what nobody waits for."""
    call = asyncio.ensure_future(people.query(ENDLESS))
    await eventually(people.store._turn.locked)
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    began = time.monotonic()
    assert await people.rows("MATCH (n) RETURN count(*)") == [[3]]
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "statement",
    [
        "UNWIND range(1, 1000000000) AS x RETURN sum(x)",
        "UNWIND range(1, 3000000) AS x RETURN collect(x)",
        "RETURN size(repeat('x', 2000000000))",
    ],
)
async def test_a_greedy_statement_ends_in_an_error(people, statement):
    """A statement that needs too much memory fails alone, and the graph stays."""
    assert "more memory" in failed(await people.query(statement), "tool_error", "out_of_memory")
    assert await people.rows("MATCH (n) RETURN count(*)") == [[3]]


async def test_what_can_not_be_interrupted_ends_with_its_process_and_says_so(people):
    """The caller is told in time that the statement was stopped, and the others' graph is there for the next call."""
    began = time.monotonic()
    told = failed(await people.query(UNSTOPPABLE, timeout=4), "deadline_exceeded", "too_slow")
    assert time.monotonic() - began < 4
    assert "What had been imported is kept" in told
    assert await people.rows("MATCH (p:Person)-[:KNOWS]->(q:Person) RETURN p.id, q.id ORDER BY p.id") == [["ann", "bob"], ["bob", "cid"]]


async def test_a_process_that_dies_is_started_again(people):
    """A call in the middle is told so, and later ones find the graph as it was, and can add to it."""
    for deaths in range(3):
        call = asyncio.ensure_future(people.query(ENDLESS))
        await eventually(people.store._turn.locked)
        people.store._program._process.kill()
        assert "What had been imported is kept" in failed(await call, "tool_error", "session_lost")
        assert await people.rows("MATCH (p:Person) RETURN count(*)") == [[3 + deaths]]
        assert (await people.load("vertices", "Person", rows=[{"id": f"new-{deaths}"}])).success


async def test_an_import_that_dies_in_the_middle_took_nothing(people):
    """A process that is killed while it imports leaves all rows of the import or none, and the graph can be used."""
    rows = [{"id": f"p{number}", "age": number} for number in range(5_000)]
    call = asyncio.ensure_future(people.load("vertices", "Person", rows=rows))
    await eventually(people.store._turn.locked)
    await asyncio.sleep(0.05)
    people.store._program._process.kill()
    result = await call
    (((count,),), there) = await people.rows("MATCH (p:Person) RETURN count(*)"), 5_003 if result.success else 3
    assert count == there


async def test_a_graph_that_goes_with_its_worker_leaves_no_file(monkeypatch, tmp_path):
    """Its temporary file is gone with the store, and also when the worker was killed: the graph's process removes it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with EmbeddedGraph(Limits(memory=64 << 20)):
        assert [path.name.startswith("toolbus-graph-") for path in tmp_path.iterdir()] == [True]
    assert list(tmp_path.iterdir()) == []
    program = (
        "import asyncio, os, signal\n"
        "from toolbus_workers.graph_store.embedded import EmbeddedGraph, Limits\n"
        "async def main():\n"
        "    async with EmbeddedGraph(Limits(memory=64 << 20)) as store:\n"
        f"        call = asyncio.ensure_future(store.query({ENDLESS!r}, {{}}, max_rows=1, max_bytes=100, seconds=60))\n"
        "        await asyncio.sleep(0.5)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], env=environment, check=False, timeout=60)
    await eventually(lambda: list(tmp_path.iterdir()) == [])


async def test_without_a_place_for_a_file_the_graph_is_in_memory(monkeypatch):
    """A worker that may write nowhere serves a graph all the same, and says what became of it when its process died."""

    def refuse(**options):
        raise OSError("read-only")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    async with EmbeddedGraph(Limits(memory=64 << 20)) as store:
        assert (await store.query("RETURN 1", {}, max_rows=1, max_bytes=100, seconds=20)).rows == [[1]]
        store._program._process.kill()
        with pytest.raises(ToolError, match="is empty now: import it again"):
            await store.query("RETURN 1", {}, max_rows=1, max_bytes=100, seconds=20)


async def test_the_process_ends_with_its_store():
    """Nothing is left running when the worker is gone."""
    async with EmbeddedGraph(Limits(memory=64 << 20)) as store:
        process = store._program._process
        assert process.returncode is None
    assert process.returncode is not None
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
