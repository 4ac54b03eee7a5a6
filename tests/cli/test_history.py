"""``toolbus operate history`` and ``toolbus see calls --since``: what happened to calls, after the server has forgotten them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tests.cli.shell import Shell
from tests.cli.test_export import Collector, collector
from tests.cli.test_watching import TOOLS
from tests.servers import eventually, eventually_sync, plain_metrics
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.statistics.recent import RecentCall
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.telemetry.output import FIELDS
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.values.settings import Settings
from toolbus.operations import history
from toolbus.operations.history import KINDS, Keeper, Position, ProbedHistory, Wanted, find, open_store

__all__ = ["collector"]

SECRET = "hunter2"
FILES = [suffix for kind in KINDS for suffix in kind.suffixes[:1]]
SIZE = 1 << 20


def a_call(number: int, *, ended: float = 0.0, told: int = 0, **fields: Any) -> RecentCall:
    """Return an attempt as a worker tells of it."""
    return RecentCall(f"c{number}", entry=f"{number}-0", number=told or number, ended=ended or float(number), instance="w", **fields)


def keep(shell: Shell, *words: str) -> Any:
    """Start to keep the history, and return the process once it reads."""
    return shell.start("operate", "history", *words)


@pytest.fixture
def told(shell: Shell) -> Shell:
    """Return a shell with a worker that tells the history of all its calls."""
    (shell.folder / "loud.py").write_text(TOOLS)
    shell.environment |= {"TOOLBUS_HISTORY": "1000"}
    shell.start("worker", "loud.py")
    assert shell.run("call", "shout", f"text={SECRET}", "--user", "ann", "--wait", "20").returncode == 0
    assert shell.run("call", "stumble", "--user", "bob").returncode == 1
    return shell


def kept(shell: Shell, place: str, *words: str) -> list[dict[str, Any]]:
    """Return what is found in a history."""
    found: list[dict[str, Any]] = shell.json("see", "calls", "--since", "1h", "--history", place, *words)
    return found


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("suffix", FILES)
def test_calls_are_found_when_the_server_has_forgotten_them(told: Shell, suffix: str) -> None:
    """By tool, user, error and outcome, though the process that keeps them was killed in between; without arguments."""
    place = f"calls{suffix}"
    first = keep(told, place)
    eventually_sync(lambda: (told.folder / place).exists() and len(kept(told, place)) == 2, timeout=60)
    first.kill()
    first.wait()
    assert told.run("call", "shout", "text=again", "--user", "ann").returncode == 0
    second = keep(told, place)
    eventually_sync(lambda: len(kept(told, place)) == 3, timeout=60)
    with redis.Redis.from_url(told.environment["TOOLBUS_URL"]) as client:
        client.delete(Keys(told.environment["TOOLBUS_NAMESPACE"]).ended)
    assert [each["tool"] for each in kept(told, place, "--user", "ann")] == ["shout", "shout"]
    assert [each["user"] for each in kept(told, place, "--error", "tool_error")] == ["bob"]
    assert [each["tool"] for each in kept(told, place, "--failed")] == ["stumble"]
    assert [each["tool"] for each in kept(told, place, "--tool", "shout", "--limit", "1")] == ["shout"]
    done = told.run("see", "calls", "--since", "1h", "--history", place)
    assert (done.returncode, done.stderr) == (0, "")
    assert SECRET not in str(kept(told, place))
    second.send_signal(signal.SIGTERM)
    assert second.wait() == 0
    files = [path for path in told.folder.iterdir() if place in path.name]
    assert f".{place}.lock" in {path.name for path in files}
    assert [path.name for path in files if path.stat().st_mode & 0o077] == []


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(("words", "found"), [((), ["", ""]), (("--arguments",), [f'{{"text":"{SECRET}"}}', "{}"])])
def test_arguments_are_kept_only_when_both_sides_ask_for_them(shell: Shell, words: tuple[str, ...], found: list[str]) -> None:
    """A worker that records them is not enough, and standard output gets a line for each attempt."""
    (shell.folder / "loud.py").write_text(TOOLS)
    shell.environment |= {"TOOLBUS_HISTORY": "1000", "TOOLBUS_RECENT": "arguments"}
    shell.start("worker", "loud.py")
    shell.run("call", "shout", f"text={SECRET}", "--wait", "20")
    shell.run("call", "stumble")
    keeper = keep(shell, "-", *words)
    assert keeper.stdout is not None
    lines = [json.loads(keeper.stdout.readline()) for _ in found]
    assert [line["arguments"] for line in lines] == found
    assert [line["outcome"] for line in lines] == ["succeeded", "failed"]


@pytest.mark.usefixtures("slow")
def test_a_collector_gets_a_log_record_of_each_attempt(told: Shell, collector: Collector) -> None:
    """By OTLP, with the fields as attributes, and none of them arguments."""
    told.environment |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        "OTEL_LOGS_EXPORTER": "none",
    }
    keep(told, "otlp")

    def records() -> list[dict[str, str]]:
        requests = map(ExportLogsServiceRequest.FromString, collector.bodies.get("/v1/logs", []))
        logged = [line for each in requests for r in each.resource_logs for s in r.scope_logs for line in s.log_records]
        return [{each.key: each.value.string_value for each in line.attributes} for line in logged if line.event_name == "call.ended"]

    eventually_sync(lambda: len(records()) == 2, timeout=60)
    assert [each["tool"] for each in records()] == ["shout", "stumble"]
    assert SECRET not in str(collector.bodies["/v1/logs"])


@pytest.mark.usefixtures("slow")
def test_workers_that_tell_nothing_are_told_of(shell: Shell) -> None:
    """Calls end, and nothing is kept: the log says what to set."""
    (shell.folder / "loud.py").write_text(TOOLS)
    shell.start("worker", "loud.py")
    keeper = keep(shell, "calls.db")
    assert keeper.stderr is not None
    eventually_sync((shell.folder / "calls.db").exists, timeout=60)
    time_is_up = time.monotonic() + 60
    assert shell.run("call", "shout", "text=hey", "--wait", "20").returncode == 0
    lines = iter(keeper.stderr.readline, "")
    assert any("history.untold" in line and "TOOLBUS_HISTORY" in line for line in lines)
    assert time.monotonic() < time_is_up


@pytest.mark.parametrize("suffix", FILES)
def test_what_is_missing_is_counted_across_restarts(tmp_path: Path, suffix: str) -> None:
    """A worker's numbers tell of attempts that were left out, dropped or trimmed, also while nobody kept them."""
    place = str(tmp_path / f"calls{suffix}")
    position = Position()
    for calls in ([a_call(1), a_call(2)], [a_call(3, told=8)]):
        store = open_store(place, SIZE)
        position, missing = store.position().after(calls, calls[-1].entry)
        store.write(calls, missing, position)
        store.close()
    assert [each.id for each in find(place, Wanted()).calls] == ["c1", "c2", "c3"]
    assert find(place, Wanted()).missing == 5
    assert find(place, Wanted(since=9.0)) == ([], 0)


def test_a_worker_that_began_before_the_history_lacks_nothing() -> None:
    """Its earlier attempts were never to be kept; of a later worker, all are missed from the first on."""
    position, missing = Position().after([a_call(1, told=500, ended=100.0, since=10.0)], "1-0")
    assert missing == 0
    assert position.after([a_call(2, told=501, ended=101.0, since=10.0)], "2-0")[1] == 0
    other = a_call(3, told=4, ended=200.0, since=150.0)
    other.instance = "another"
    assert position.after([other], "3-0")[1] == 3


@pytest.mark.parametrize("suffix", FILES)
def test_old_calls_go(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By age, and the oldest when there are too many; the newest are found, and the place stays within its size."""
    place = tmp_path / f"calls{suffix}"
    store = open_store(str(place), SIZE)
    now = time.time()
    for part in range(20):
        calls = [a_call(part * 1000 + each + 1, ended=now, message="m" * 100) for each in range(500)]
        store.write(calls, 0, Position(calls[-1].entry))
        store.prune(now - 60)
    files = [each for each in tmp_path.iterdir() if each.name.startswith("calls") and not each.name.endswith(("-wal", "-shm"))]
    assert sum(each.stat().st_size for each in files) < 2 * SIZE
    found = find(str(place), Wanted(limit=10_000)).calls
    assert 500 <= len(found) < 10_000
    assert found[-1].id == "c19500"
    store.prune(now + 60)
    store.prune(now + 60)
    store.close()
    assert find(str(place), Wanted(since=now + 1)).calls == []
    assert len(find(str(place), Wanted(limit=10_000)).calls) < len(found)


@pytest.mark.parametrize("suffix", FILES)
def test_two_processes_can_not_keep_one_history(tmp_path: Path, suffix: str) -> None:
    """The second is refused at its start; who reads is not."""
    place = str(tmp_path / f"calls{suffix}")
    store = open_store(place, SIZE)
    store.write([a_call(1)], 0, Position("1-0"))
    with pytest.raises(ConfigurationError, match="another process keeps the history"):
        open_store(place, SIZE)
    assert [each.id for each in find(place, Wanted()).calls] == ["c1"]
    store.close()


@pytest.mark.parametrize("place", ["calls.txt", "-", "otlp", "gone.db", "gone.jsonl", "torn.db"])
def test_a_place_that_can_not_be_read_is_named(tmp_path: Path, place: str) -> None:
    """Another suffix, what keeps nothing here, a missing file, and one that is no database."""
    (tmp_path / "torn.db").write_text("no database")
    with pytest.raises(ConfigurationError, match=place):
        find(place if place in {"-", "otlp"} else str(tmp_path / place), Wanted())


def _database(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as made:
        for statement in statements:
            made.execute(statement)


# What stands at a place, and words of why it is none.
STRANGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a folder": (Path.mkdir, "no regular file"),
    "a pipe, which nobody reads": (os.mkfifo, "no regular file"),
    "a device": (lambda path: path.symlink_to("/dev/full"), "no regular file"),
    "a database of something else": (lambda path: _database(path, "CREATE TABLE people (name TEXT)"), "of something else"),
    "a table with other columns": (lambda path: _database(path, "CREATE TABLE calls (entry TEXT, ended REAL)"), "another release"),
    "a database of a later release": (lambda path: _database(path, "CREATE TABLE calls (entry)", "PRAGMA user_version = 7"), "format 7"),
}


# Lines that are none of a history are passed over, those of a database as others.
@pytest.mark.parametrize(
    ("suffix", "what"), [(suffix, what) for suffix in FILES for what in STRANGE if suffix != ".jsonl" or "regular" in STRANGE[what][1]]
)
def test_a_place_where_something_else_stands_is_refused_at_the_start(tmp_path: Path, suffix: str, what: str) -> None:
    """By who would keep a history there as by who looks for calls; it is left as it is, and neither waits for it."""
    put, why = STRANGE[what]
    place = tmp_path / f"strange{suffix}"
    put(place)
    before = place.read_bytes() if place.is_file() else b""
    for use in (lambda: open_store(str(place), SIZE), lambda: find(str(place), Wanted())):
        with pytest.raises(ConfigurationError, match=why):
            use()
    assert (place.read_bytes() if place.is_file() else b"") == before


def test_lines_whose_position_can_not_be_written_are_added_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk with room for them alone is tried again each second, and would be filled by them."""
    place = tmp_path / "calls.jsonl"
    store = open_store(str(place), SIZE)
    monkeypatch.setattr(history, "replace", _full)
    for _ in range(3):
        with pytest.raises(history.StoreFailed):
            store.write([a_call(1), a_call(2)], 0, Position("2-0"))
    monkeypatch.undo()
    store.write([a_call(1), a_call(2)], 0, Position("2-0"))
    store.write([a_call(3)], 0, Position("3-0"))
    store.close()
    assert len(place.read_bytes().splitlines()) == 3
    assert [each.id for each in find(str(place), Wanted()).calls] == ["c1", "c2", "c3"]


def test_lines_that_are_no_calls_are_left_out(tmp_path: Path) -> None:
    """A line that was cut off, and what others wrote into the file."""
    place = tmp_path / "calls.jsonl"
    place.write_bytes(b'{"id":"c1","ended":5,"entry":"1-0"}\nnonsense\n[]\n{"id":"c2","ended":6,"entry":"2-0"}\n{"id":"c3"')
    assert [each.id for each in find(str(place), Wanted()).calls] == ["c1", "c2"]


@pytest.mark.parametrize("suffix", FILES)
def test_a_place_that_can_not_be_written_is_tried_again(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the write is kept then, and the position stays."""
    place = tmp_path / f"calls{suffix}"
    store = open_store(str(place), SIZE)
    store.write([a_call(1)], 0, Position("1-0"))
    if suffix == ".jsonl":
        monkeypatch.setattr(history, "append", _full)
    else:
        store._database.execute("PRAGMA max_page_count = 20")  # type: ignore[attr-defined]
    with pytest.raises(history.StoreFailed):
        store.write([a_call(2), *(a_call(each, message="m" * 400) for each in range(3, 500))], 0, Position("500-0"))
    assert store.position().entry == "1-0"
    monkeypatch.undo()
    if suffix != ".jsonl":
        store._database.execute("PRAGMA max_page_count = 20000")  # type: ignore[attr-defined]
    store.write([a_call(2)], 0, Position("2-0"))
    store.close()
    assert [each.id for each in find(str(place), Wanted()).calls] == ["c1", "c2"]


def test_a_write_that_fails_half_way_is_undone(tmp_path: Path) -> None:
    """Its rows were there and its position is refused: neither is kept, the table is not locked, and the next write succeeds."""
    place = tmp_path / "calls.db"
    store = open_store(str(place), SIZE)
    store.write([a_call(1)], 0, Position("1-0"))
    refuse = "CREATE TRIGGER refuse BEFORE INSERT ON position BEGIN SELECT RAISE(ABORT, 'refused'); END"
    with contextlib.closing(sqlite3.connect(place, timeout=1.0, isolation_level=None)) as other:
        other.execute(refuse)
        with pytest.raises(history.StoreFailed, match="refused"):
            store.write([a_call(2)], 0, Position("2-0"))
        other.execute("DROP TRIGGER refuse")
    assert store.position().entry == "1-0"
    store.write([a_call(3)], 0, Position("3-0"))
    store.close()
    assert [each.id for each in find(str(place), Wanted()).calls] == ["c1", "c3"]


def test_a_table_that_is_not_made_yet_has_no_calls(tmp_path: Path) -> None:
    """Its file is there a moment before it."""
    (tmp_path / "calls.db").touch()
    assert find(str(tmp_path / "calls.db"), Wanted()).calls == []


def _full(path: Path, lines: bytes, mode: int = 0o600) -> int:
    raise OSError(28, "No space left on device")


@pytest.mark.usefixtures("slow")
@pytest.mark.anyio
async def test_a_server_that_comes_back_is_followed_again(tmp_path: Path, fresh_server: Callable[..., EmbeddedServer]) -> None:
    """Calls that end after an outage are kept as those before it, though the server has lost its stream and its clock is behind."""
    server, place = fresh_server(), str(tmp_path / "calls.db")
    keeper = Keeper(Settings(url=server.url), open_store(place, SIZE), kept=1e9, arguments=False)

    def tell(number: int, entry: str) -> None:
        with redis.Redis.from_url(server.url) as client:
            client.xadd(Keys("default").ended, {"c": msgspec.json.encode(a_call(number, ended=time.time()))}, id=entry)

    async def told(count: int) -> None:
        await eventually(lambda: len(find(place, Wanted()).calls) == count, timeout=60)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(keeper.run())
        tell(1, "200-0")
        await told(1)
        server.kill()
        server.start()
        tell(2, "100-0")
        await told(2)
        keeper.stop()


@pytest.mark.usefixtures("slow")
@pytest.mark.anyio
async def test_a_place_that_fails_again_and_again_is_told_of_once(
    tmp_path: Path, fresh_server: Callable[..., EmbeddedServer], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until it has taken something: a disk that is full for a night leaves one line, and nothing is lost."""
    server, place = fresh_server(), str(tmp_path / "calls.jsonl")
    keeper, tried = Keeper(Settings(url=server.url), open_store(place, SIZE), kept=1e9, arguments=False), 0

    def full(path: Path, lines: bytes) -> int:
        nonlocal tried
        tried += 1
        return _full(path, lines)

    def told(event: str) -> list[str]:
        found = [getattr(record, FIELDS, {}) for record in caplog.records]
        return [fields.get("was") or fields["error"] for fields in found if fields.get("event") == event]

    caplog.set_level("INFO", "toolbus")
    probed, reason = ProbedHistory(keeper), f"{place} can't be written: No space left on device"
    probed.started = True

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(keeper.run())
        for number in (1, 2):
            with monkeypatch.context() as fault:
                fault.setattr(history, "append", full)
                with redis.Redis.from_url(server.url) as client:
                    client.xadd(Keys("default").ended, {"c": msgspec.json.encode(a_call(number, ended=time.time()))})
                await eventually(lambda number=number: tried >= 2 * number, timeout=60)
                assert await probed.unready() == reason
                assert "toolbus_up 0" in plain_metrics(await probed.metrics()).splitlines()
            await eventually(lambda number=number: Path(place).exists() and len(find(place, Wanted()).calls) == number, timeout=60)
            assert told("history.failed") == [reason] * number
            await eventually(lambda number=number: told("history.restored") == [reason] * number)
            assert await probed.unready() == ""
            assert "toolbus_up 1" in plain_metrics(await probed.metrics()).splitlines()
        keeper.stop()


def test_an_empty_list_says_which_calls_it_never_has(shell: Shell) -> None:
    """A call that no worker took looks lost otherwise: no worker could tell of it."""
    (shell.folder / "calls.jsonl").touch()
    for words in (
        (),
        ("--failed",),
        ("--since", "1d", "--history", "calls.jsonl"),
        ("--failed", "--since", "1d", "--history", "calls.jsonl"),
    ):
        done = shell.run("see", "calls", *words)
        assert "calls that no worker took are never among them" in done.stdout + done.stderr, words


def test_a_server_that_is_not_there_ends_the_start(shell: Shell) -> None:
    """In one line, and a place that is none does so, too."""
    shell.environment["TOOLBUS_URL"] = "redis://127.0.0.1:1"
    for words, said in ((("calls.db", "--connect-timeout", "0"), "can't reach"), (("calls.txt",), "is a file that ends in"), ((), "PLACE")):
        done = shell.run("operate", "history", *words)
        assert done.returncode == (1 if words else 2)
        assert said in done.stderr
