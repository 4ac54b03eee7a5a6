"""The SQL tools under statements, uploads and users that are meant to last, to grow or to crowd out others."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from toolbus_workers.data_analysis import DataAnalysis
from toolbus_workers.data_engine import MAX_TABLES
from toolbus_workers.data_sessions import Limits
from toolbus_workers.operations import load_limits

from tests.servers import eventually
from tests.tiers import some
from tests.workers.data_client import SALES, Client, serving
from tests.workers.outcomes import failed
from toolbus import ConfigurationError, ToolBus, Worker

pytestmark = pytest.mark.anyio
LINUX = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at processes through /proc")
# Interrupting them takes DuckDB ten seconds and more, if it does it at all.
UNSTOPPABLE = "SELECT levenshtein(repeat('a', 400000), repeat('b', 400000))"
ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range + b.range < 0"


# -- what it bounds -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("statement", [ENDLESS, "WITH RECURSIVE r AS (SELECT 1 a UNION ALL SELECT a + 1 FROM r) SELECT count(*) FROM r"])
async def test_an_endless_statement_is_interrupted_in_time_and_keeps_the_session(sales, statement):
    """It ends before its caller's deadline with what to do, and the tables are still there."""
    started = time.monotonic()
    message = failed(await sales.sql(statement, timeout=3), "deadline_exceeded", "too_slow")
    assert time.monotonic() - started < 3
    assert "narrow it" in message
    assert (await sales.sql("SELECT count(*) FROM sales")).data["rows"] == [[3]]


@pytest.mark.usefixtures("slow")
@LINUX
async def test_a_statement_that_cannot_be_interrupted_ends_with_its_session(sales):
    """A statement that can't be interrupted is ended with its process, the error says so, and the next call is answered."""
    # DuckDB may notice an interruption before its first row, a stopped process never does.
    for child in filter(_is_engine, _children()):
        os.kill(child, signal.SIGSTOP)
    started = time.monotonic()
    message = failed(await sales.sql("SELECT 1", timeout=4), "deadline_exceeded", "too_slow")
    assert time.monotonic() - started < 4
    assert "upload the tables again" in message
    assert (await sales.call("data_tables")).data == {"tables": []}


@pytest.mark.parametrize("statement", [ENDLESS, UNSTOPPABLE])
async def test_a_cancelled_statement_runs_no_longer(client, statement):
    """A caller that leaves stops its statement, and the same session answers at once."""
    await client.sql("SELECT 1")
    async with client.bus.stream("data_analysis", {"sql": statement}, timeout=60, **client.who):
        await eventually(lambda: client.service.statistics().busy == 1, 20.0)
    await eventually(lambda: client.service.statistics().busy == 0)
    assert (await client.sql("SELECT 42", timeout=10)).data["rows"] == [[42]]


GREEDY = [
    "SELECT repeat('x', 4000000000)",
    "SELECT len(range(1000000000))",
    "CREATE TEMP TABLE t AS SELECT range a, repeat('y', 100) b FROM range(1000000000)",
    "SELECT sum(a) FROM (SELECT unnest(range(2000000000)) a)",
    "SELECT list(range) FROM range(1000000000)",
    "SELECT string_agg(repeat('x', 1000000), '') FROM range(100000)",
    "SELECT array_agg(x) FROM (SELECT range(1000000) x FROM range(100000))",
]


@LINUX
@pytest.mark.parametrize("statement", some(GREEDY[:3], GREEDY))
async def test_a_statement_that_eats_memory_fails_within_its_limit(namespace, statement):
    """It ends in an error, its process never grew beyond its share, and the worker serves on."""
    async with serving(namespace=namespace, memory=64 << 20) as client:
        await client.sql("SELECT 1")
        children = _children()
        assert children
        result = await client.sql(statement, timeout=20)
        assert not result.success
        assert result.error.code in {"out_of_memory", "session_lost", "too_slow"}
        assert all(_peak(child) < (64 + 256 + 200) << 20 for child in children)
        assert (await client.sql("SELECT 42")).data["rows"] == [[42]]


def _children(process="self"):
    found = set()
    for task in Path(f"/proc/{process}/task").iterdir():
        # A thread may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found |= set(map(int, (task / "children").read_text().split()))
    return found


def _is_engine(process):
    return b"data_engine" in Path(f"/proc/{process}/cmdline").read_bytes()


def _peak(process):
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{process}/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
    return 0


@pytest.mark.usefixtures("slow")
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


@pytest.mark.usefixtures("slow")
async def test_a_slow_session_holds_up_no_other(client):
    """Another session is answered while one runs an endless statement."""
    async with client.bus.stream("data_analysis", {"sql": ENDLESS}, timeout=60, **client.who):
        await eventually(lambda: client.service.statistics().busy == 1, 20.0)
        assert (await client.other(session="two").sql("SELECT 42", timeout=10)).data["rows"] == [[42]]


@pytest.mark.usefixtures("slow")
@LINUX
async def test_an_idle_session_goes_with_its_tables(namespace):
    """After the idle time its process is gone, and a later call starts an empty one."""
    async with serving(namespace=namespace, idle=0.3) as client:
        others = _children()
        assert (await client.upload("t", "a\n1\n")).success
        children = _children() - others
        assert len(children) == 1
        await eventually(lambda: client.service.statistics().sessions == 0, 20.0)
        await eventually(lambda: not any(Path(f"/proc/{child}").exists() for child in children), 20.0)
        assert (await client.call("data_tables")).data == {"tables": []}


@pytest.mark.usefixtures("slow")
async def test_sessions_are_bounded_in_all_and_per_user(namespace):
    """Beyond the bound a call is refused with when to try again, and what lives stays."""
    async with serving(namespace=namespace, sessions=3, sessions_per_user=2) as client:
        assert (await client.upload("t", "a\n1\n")).success
        assert (await client.other(session="two").sql("SELECT 1")).success
        refused = await client.other(session="three").sql("SELECT 1")
        assert "2 sessions of yours" in failed(refused, "overloaded", "too_many_sessions")
        assert refused.error.retryable
        assert refused.error.retry_after > 0
        assert (await client.other(user="bob").sql("SELECT 1")).success
        assert "3 sessions" in failed(await client.other(user="carol").sql("SELECT 1"), "overloaded", "too_many_sessions")
        assert (await client.sql("FROM t")).data["rows"] == [[1]]


@pytest.mark.usefixtures("slow")
async def test_an_idle_session_makes_room_for_another(namespace):
    """The one that was used longest ago goes when it was not used for a while."""
    async with serving(namespace=namespace, sessions=1, idle=0.4) as client:
        assert (await client.upload("t", "a\n1\n")).success

        async def served() -> bool:
            return (await client.other(user="bob").sql("SELECT 1")).success

        await eventually(served, 20.0)
        assert client.service.statistics().sessions <= 1


@pytest.mark.usefixtures("slow")
async def test_calls_of_one_session_at_once_take_turns(sales):
    """Concurrent statements of a session are all answered, one after the other."""
    results = await asyncio.gather(*(sales.sql(f"SELECT {number} + count(*) FROM sales") for number in range(20)))
    assert [result.data["rows"] for result in results] == [[[number + 3]] for number in range(20)]


@pytest.mark.usefixtures("slow")
async def test_tables_are_bounded_in_number(client):
    """A session has so many tables and no more, and one that is dropped makes room."""
    for number in range(MAX_TABLES):
        assert (await client.sql(f"CREATE TEMP TABLE t{number} AS SELECT 1")).success
    for refused in (await client.upload("more", "a\n1\n"), await client.sql("CREATE OR REPLACE TEMP VIEW more AS SELECT 1")):
        assert "DROP TABLE" in failed(refused, "invalid_arguments", "too_many_tables")
    await client.sql("DROP TABLE t0")
    assert (await client.upload("more", "a\n1\n")).success


async def test_an_upload_is_bounded_in_bytes_and_may_come_in_parts(server, namespace, put):
    """Too much at once is refused with how to send it, and parts make one table."""
    async with serving(server, namespace) as client:
        await put(server, namespace, "small", "data_analysis", operation="data_upload", max_upload=20)
        await client.bus.wait_for_tool("small", 10)
        for content, encoding in (("a\n" + "1\n" * 10, "text"), ("YQox" * 10, "base64")):
            refused = await client.call("small", table="t", content=content, encoding=encoding)
            assert "data_append" in failed(refused, "invalid_arguments", "too_large")
        assert (await client.call("small", table="t", content="a\n1\n")).success
        assert (await client.call("data_append", table="t", content="a\n2\n")).data["total"] == 2
        assert (await client.sql("FROM t")).data["rows"] == [[1], [2]]


@pytest.mark.usefixtures("slow")
async def test_several_workers_serve_a_namespace(server, namespace):
    """Each session's tables are found again, whichever worker takes the call, and go when the session is closed."""
    services = [DataAnalysis(Limits()) for _ in range(3)]
    workers = [Worker(service, url=server, namespace=namespace, concurrency=2) for service in services]
    async with workers[0], workers[1], workers[2], ToolBus(server, namespace=namespace) as bus:
        await bus.wait_for_tool("data_analysis", 10)
        clients = [Client(bus, None, user=f"u{number % 2}", session=f"s{number // 2}") for number in range(6)]

        async def use(client, number):
            assert (await client.upload("t", f"a\n{number}\n")).success
            for _ in range(3):
                assert (await client.sql("FROM t")).data["rows"] == [[number]]

        await asyncio.gather(*(use(client, number) for number, client in enumerate(clients)))
        assert sum(service.statistics().sessions for service in services) == 6
        await bus.bind(user="u0", session="s0").close_session()
        await eventually(lambda: sum(service.statistics().sessions for service in services) == 5, 20.0)
        assert (await clients[1].sql("FROM t")).data["rows"] == [[1]]
        failed(await clients[0].sql("FROM t"), "invalid_arguments", "bad_sql")


@pytest.mark.usefixtures("slow")
@LINUX
async def test_one_command_serves_it_and_a_killed_worker_leaves_no_process(server, namespace):
    """The processes of its sessions end with the worker, even in the middle of a statement."""
    command = ["-m", "toolbus", "--url", server, "--namespace", namespace, "worker", "toolbus_workers.data_analysis"]
    worker = await asyncio.create_subprocess_exec(sys.executable, *command)
    try:
        async with ToolBus(server, namespace=namespace) as bus:
            await bus.wait_for_tool("data_analysis", 30)
            client = Client(bus, None)
            assert (await client.upload("sales", SALES)).success
            children = _children(worker.pid)
            assert len(children) == 1
            async with bus.stream("data_analysis", {"sql": UNSTOPPABLE}, timeout=60, **client.who):
                await eventually(lambda: all(_cpu(child) > 0.5 for child in children), 20.0)
                worker.kill()
                await eventually(lambda: not any(Path(f"/proc/{child}").exists() for child in children), 20.0)
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
