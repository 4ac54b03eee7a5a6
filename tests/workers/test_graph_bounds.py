"""The graph store: statements that it refuses, and those that are meant to last or to hurt."""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time

import pytest
from toolbus_workers import graph_engine
from toolbus_workers.graph_gate import check
from toolbus_workers.graph_store.embedded import EmbeddedGraph, Limits
from toolbus_workers.graph_store.tools import MAX_QUERY

from tests.servers import elapse, eventually
from tests.workers.outcomes import failed
from toolbus import ToolError

pytestmark = pytest.mark.anyio

UNSTOPPABLE = "RETURN levenshtein(repeat('a', 100000), repeat('b', 100000))"
ENDLESS = "UNWIND range(1, 10000) AS x UNWIND range(1, 10000) AS y UNWIND range(1, 10000) AS z RETURN sum(x * y * z)"


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
async def test_other_statements_are_refused_by_name(same_people, tmp_path, statement, word):
    """Statements that write, load, attach, install or set are refused by name and leave nothing behind."""
    (tmp_path / "in.csv").write_text("a\n1\n")
    told = failed(await same_people.query(statement.format(tmp_path)), "forbidden", "statement_refused")
    assert told.startswith(f"{word} is not allowed here; allowed is one reading statement")
    assert [each.name for each in tmp_path.iterdir()] == ["in.csv"]
    assert await same_people.rows("MATCH (n) RETURN count(*)") == [[3]]


@pytest.mark.usefixtures("slow")
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
async def test_no_construct_ends_the_process_by_its_depth(same_people, name):
    """As long as a statement may be, every construct is refused or answered, by the process that the others use."""
    start, unit, end = CHAINS[name]
    process = same_people.store._program._process.pid
    result = await same_people.query(start + unit * ((MAX_QUERY - len(start) - len(end)) // len(unit)) + end, timeout=30)
    # A process that dies of depth is `session_lost`, and what takes too long `too_slow`.
    assert result.error is None or result.error.type == "invalid_arguments" or result.error.code == "out_of_memory"
    assert same_people.store._program._process.pid == process
    assert same_people.store._program.alive


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


@pytest.mark.usefixtures("slow")
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
async def test_a_greedy_statement_ends_in_an_error(same_people, statement):
    """A statement that needs too much memory fails alone, and the graph stays."""
    assert "more memory" in failed(await same_people.query(statement), "tool_error", "out_of_memory")
    assert await same_people.rows("MATCH (n) RETURN count(*)") == [[3]]


@pytest.mark.usefixtures("slow")
async def test_what_can_not_be_interrupted_ends_with_its_process_and_says_so(people):
    """The caller is told in time that the statement was stopped, and the others' graph is there for the next call."""
    began = time.monotonic()
    told = failed(await people.query(UNSTOPPABLE, timeout=4), "deadline_exceeded", "too_slow")
    assert time.monotonic() - began < 4
    assert "What had been imported is kept" in told
    assert await people.rows("MATCH (p:Person)-[:KNOWS]->(q:Person) RETURN p.id, q.id ORDER BY p.id") == [["ann", "bob"], ["bob", "cid"]]


@pytest.mark.usefixtures("slow")
async def test_a_process_that_dies_is_started_again(people):
    """A call in the middle is told so, and later ones find the graph as it was, and can add to it."""
    for deaths in range(3):
        call = asyncio.ensure_future(people.query(ENDLESS))
        await eventually(people.store._turn.locked)
        people.store._program._process.kill()
        assert "What had been imported is kept" in failed(await call, "tool_error", "session_lost")
        assert await people.rows("MATCH (p:Person) RETURN count(*)") == [[3 + deaths]]
        assert (await people.load("vertices", "Person", rows=[{"id": f"new-{deaths}"}])).success


@pytest.mark.usefixtures("slow")
async def test_an_import_that_dies_in_the_middle_took_nothing(people):
    """A process that is killed while it imports leaves all rows of the import or none, and the graph can be used."""
    rows = [{"id": f"p{number}", "age": number} for number in range(5_000)]
    call = asyncio.ensure_future(people.load("vertices", "Person", rows=rows))
    await eventually(people.store._turn.locked)
    await elapse(0.05)
    people.store._program._process.kill()
    result = await call
    (((count,),), there) = await people.rows("MATCH (p:Person) RETURN count(*)"), 5_003 if result.success else 3
    assert count == there


@pytest.mark.usefixtures("slow")
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
