"""Stores of executions: both formats, crashes, other writers, bounds and corrupt records."""

from __future__ import annotations

import errno
import logging
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.learning.samples import execution
from toolbus import ConfigurationError
from toolbus.toolkit.learning import Execution, ExecutionStore, RecordError, copy, open_store
from toolbus.toolkit.learning.stores import JsonlStore, SqliteStore

NAMES = ("log.jsonl", "log.db")

# Appends for ever, three records at a time, and says how many are safe.
WRITER = """
import sys
from tests.learning.samples import execution
from toolbus.toolkit.learning import open_store
name, path, most = sys.argv[1], sys.argv[2], int(sys.argv[3])
with open_store(path) as store:
    for number in range(0, most, 3):
        store.append([execution(number + each, id=f"{name}-{number + each}", query="q" * 2000) for each in range(3)])
        print(number + 3, flush=True)
"""


def corrupt(path: Path, number: int) -> str:
    """Break one record of a store, and return the place that its error names."""
    if path.suffix == ".jsonl":
        lines = path.read_bytes().splitlines(keepends=True)
        lines[number - 1] = lines[number - 1].replace(b'"outcome":"success"', b'"outcome":7')
        path.write_bytes(b"".join(lines))
        return f"{path}:{number}"
    with sqlite3.connect(path) as database:
        database.execute("UPDATE executions SET document = '{\"v\":1}' WHERE number = ?", (number,))
    database.close()
    return f"{path}: row {number}"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_appended_is_read_in_order_once(tmp_path: Path, name: str) -> None:
    """A store keeps the order across openings, and one record of an id."""
    with open_store(tmp_path / name) as store:
        assert store.append([execution(2), execution(1)]) == 2
        assert store.append([]) == 0
    with open_store(tmp_path / name) as store:
        store.append([execution(1, tool="another"), execution(3)])
        found = [*store.read()]
    assert [(each.id, each.tool) for each in found] == [("x2", "sql"), ("x1", "sql"), ("x3", "sql")]


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_written_whole_or_not_at_all(tmp_path: Path, name: str) -> None:
    """One bad record keeps its whole batch out."""
    with open_store(tmp_path / name) as store:
        store.append([execution(1)])
        with pytest.raises(RecordError, match=r"\$\.ms"):
            store.append([execution(2), execution(3, ms=-1.0)])
        assert [each.id for each in store.read()] == ["x1"]


@pytest.mark.parametrize("name", NAMES)
def test_a_corrupt_record_is_named_and_may_be_left_out(tmp_path: Path, name: str) -> None:
    """Reading stops at a record that can't be read and says where it stands; with a listener it goes on without it."""
    told: list[RecordError] = []
    with open_store(tmp_path / name) as store:
        store.append([execution(number) for number in range(5)])
        place = corrupt(tmp_path / name, 3)
        with pytest.raises(RecordError) as refused:
            [*store.read()]
        assert refused.value.place == place
        assert [each.id for each in store.read(told.append)] == ["x0", "x1", "x3", "x4"]
    assert [error.place for error in told] == [place]


@pytest.mark.parametrize(("name", "other"), [NAMES, NAMES[::-1]])
def test_logs_are_copied_between_formats(tmp_path: Path, name: str, other: str) -> None:
    """A copy has the same records, a second one adds nothing, and a corrupt source leaves the target as it was."""
    with open_store(tmp_path / name) as source, open_store(tmp_path / other) as target:
        source.append([execution(number, shown={"sql": 0.5}) for number in range(2500)])
        target.append([execution(7, shown={"sql": 0.5})])
        assert copy(source, target) == 2499
        assert copy(source, target) == 0
        assert {each.id: each for each in target.read()} == {each.id: each for each in source.read()}
        source.append([execution(3000), execution(3001)])
        corrupt(tmp_path / name, 2501)
        with pytest.raises(RecordError):
            copy(source, target)
        assert len([*target.read()]) == 2500
        assert copy(source, target, lambda _: None) == 1


def test_a_torn_line_is_left_out_and_then_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A line that a crash cut off is skipped with a warning, and the next writer goes on after the last whole line."""
    path = tmp_path / "log.jsonl"
    store = JsonlStore(path)
    store.append([execution(1), execution(2)])
    path.write_bytes(path.read_bytes()[:-10])
    with caplog.at_level(logging.WARNING, "toolbus"):
        assert [each.id for each in store.read()] == ["x1"]
        store.append([execution(3)])
    assert [record.message.split()[0] for record in caplog.records] == ["executions.torn_line"] * 2
    assert [each.id for each in store.read()] == ["x1", "x3"]


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("name", NAMES)
def test_a_killed_writer_loses_nothing_that_was_safe(tmp_path: Path, name: str) -> None:
    """After SIGKILL at any moment each append that returned is there, and what is there besides is whole batches or a torn line."""
    path = tmp_path / name
    writer = subprocess.Popen([sys.executable, "-c", WRITER, "w", str(path), "3000000"], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    safe = [int(writer.stdout.readline()) for _ in range(20)][-1]
    writer.send_signal(signal.SIGKILL)
    safe = max([safe, *map(int, writer.communicate()[0].split())])
    with open_store(path) as store:
        found = [each.id for each in store.read()]
        store.append([execution(1)])
        assert [each.id for each in store.read()][-1] == "x1"
    assert found == [f"w-{number}" for number in range(len(found))]
    assert len(found) >= safe


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("name", NAMES)
def test_processes_write_together(tmp_path: Path, name: str) -> None:
    """Four processes append to one log at the same time, and every record of each is there, in its order."""
    path = tmp_path / name
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, writer, str(path), "60"], stdout=subprocess.DEVNULL) for writer in "abcd"]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    with open_store(path) as store:
        found = [each.id for each in store.read()]
    for writer in "abcd":
        assert [each for each in found if each.startswith(writer)] == [f"{writer}-{number}" for number in range(60)]


def test_lines_are_bounded_by_rotation(tmp_path: Path) -> None:
    """Files rotate when they are full, the oldest go, and what is left is read from the oldest to the newest."""
    store = JsonlStore(tmp_path / "log.jsonl", max_bytes=1000, files=3)
    for number in range(60):
        store.append([execution(number)])
    names = sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("."))
    assert names == ["log.jsonl", "log.jsonl.1", "log.jsonl.2"]
    found = [each.id for each in store.read()]
    assert found == [f"x{number}" for number in range(60 - len(found), 60)]
    assert 10 < len(found) < 60


def test_rows_are_bounded(tmp_path: Path) -> None:
    """A database deletes its oldest records beyond its bound."""
    with SqliteStore(tmp_path / "log.db", max_records=10) as store:
        for number in range(0, 40, 4):
            store.append([execution(number + each) for each in range(4)])
        assert [each.id for each in store.read()] == [f"x{number}" for number in range(30, 40)]


@pytest.mark.usefixtures("slow")
def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    """A write that fails half-way is taken back, and the error names the file."""
    script = (
        "import resource, signal, sys\n"
        "from tests.learning.samples import execution\n"
        "from toolbus.toolkit.learning.stores import JsonlStore\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "store = JsonlStore(sys.argv[1])\n"
        "store.append([execution(1)])\n"
        "store.append([execution(number) for number in range(2, 40)])\n"
    )
    path = tmp_path / "log.jsonl"
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert f"ConfigurationError: {path} can't be written: File too large" in done.stderr
    assert [each.id for each in JsonlStore(path).read()] == ["x1"]


def test_an_endless_line_is_refused(tmp_path: Path) -> None:
    """A line beyond the limit costs no memory, is named, and what follows it is read."""
    path = tmp_path / "log.jsonl"
    store = JsonlStore(path)
    store.append([execution(1)])
    with path.open("ab") as file:
        file.write(b"[" * 3_000_000 + b"\n")
    store.append([execution(2)])
    told: list[RecordError] = []
    assert [each.id for each in store.read(told.append)] == ["x1", "x2"]
    assert [str(error) for error in told] == [f"{path}:2: the record is longer than 262144 bytes"]


def _newer(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 9")
    database.close()


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda path: path.write_text("not a database, but long enough to be read as one" * 40), "not a usable log of executions"),
        (_newer, "has format 9; this release reads format 1"),
        (lambda path: path.mkdir(), "not a usable log of executions"),
    ],
)
def test_a_file_that_is_no_log_is_refused(tmp_path: Path, prepare: Callable[[Path], object], said: str) -> None:
    """Files that are no database, or of a newer release, are left alone, with one clear error."""
    prepare(tmp_path / "log.db")
    with pytest.raises(ConfigurationError, match=said):
        open_store(tmp_path / "log.db")


def test_names_decide_the_format(tmp_path: Path) -> None:
    """An unknown suffix, a missing log and a missing folder are errors that say what to do."""
    with pytest.raises(ConfigurationError, match=r"ends in \.jsonl, \.db"):
        open_store(tmp_path / "log.csv")
    with pytest.raises(ConfigurationError, match="there is no log"):
        open_store(tmp_path / "log.jsonl", must_exist=True)
    with pytest.raises(ConfigurationError, match="can't be locked"):
        open_store(tmp_path / "missing" / "log.jsonl").append([execution(1)])


def test_a_log_that_can_only_be_read_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When no lock can be made, readers go on without it, and writers get an error."""
    store: ExecutionStore = JsonlStore(tmp_path / "log.jsonl")
    store.append([execution(1)])

    def refuse(path: Path, *_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("toolbus.toolkit.learning.stores.os.open", refuse)
    found: list[Execution] = [*store.read()]
    assert [each.id for each in found] == ["x1"]
    with pytest.raises(ConfigurationError, match="can't be locked: Permission denied"):
        store.append([execution(2)])
