"""Files of a task: what can be written and read, and what can't."""

from __future__ import annotations

import ctypes
import os
import stat
import threading
from pathlib import Path

import pytest

from toolbus.bus.values.results import ToolError
from toolbus.platform.coding.files import Folder, WorkspaceOptions, usage


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder beside the workspace, with a secret in it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    return tmp_path / "outside"


@pytest.fixture
def inside(tmp_path: Path, outside: Path) -> Path:
    """The workspace's folder."""
    (tmp_path / "inside").mkdir()
    return tmp_path / "inside"


def folder(inside: Path, **options: int) -> Folder:
    return Folder(str(inside), WorkspaceOptions(**options))


def code(raised: pytest.ExceptionInfo[ToolError]) -> str:
    return raised.value.error.code


def test_files_are_written_appended_and_read(inside: Path) -> None:
    """Folders are made on the way, text is added at the end, and a part of a file can be read."""
    files = folder(inside)
    assert files.write("a/b/c.txt", b"one\n") == 4
    assert files.write("a/b/c.txt", b"two\n", append=True) == 8
    assert files.write("./a//b/new.txt", b"x", append=True) == 1
    assert files.read("a/b/c.txt", 100) == (b"one\ntwo\n", 8)
    assert files.read("a/b/c.txt", 2) == (b"on", 8)
    assert files.write("a/b/c.txt", b"3") == 1
    assert (inside / "a/b/c.txt").read_bytes() == b"3"
    assert files.has("a/b/c.txt")
    assert not files.has("a/b")
    assert not files.has("../outside/secret")


def test_a_file_keeps_its_mode(inside: Path) -> None:
    """A program that is written anew stays one."""
    files = folder(inside)
    files.write("run.sh", b"a")
    (inside / "run.sh").chmod(0o755)
    files.write("run.sh", b"b")
    assert stat.S_IMODE((inside / "run.sh").stat().st_mode) == 0o755


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/etc/passwd", "outside"),
        ("~/x", "outside"),
        ("../outside/secret", "outside"),
        ("a/../../outside/secret", "outside"),
        ("a/..", "outside"),
        ("", "is_folder"),
        (".", "is_folder"),
        ("nul\0", "bad_path"),
        ("half\ud800", "bad_path"),
        ("x" * 1_001, "bad_path"),
        ("x/" * 60 + "x", "bad_path"),
        ("x" * 300, "bad_path"),
    ],
)
def test_paths_lead_nowhere_else(inside: Path, path: str, expected: str) -> None:
    """Absolute paths, those that go up, and what no file can be called are refused in words for a model."""
    files = folder(inside)
    for use in (lambda: files.write(path, b"x"), lambda: files.write(path, b"x", append=True), lambda: files.read(path, 10)):
        with pytest.raises(ToolError) as raised:
            use()
        assert code(raised) == expected
        assert len(str(raised.value)) < 500


def test_links_are_not_followed(inside: Path, outside: Path) -> None:
    """A link to a file or a folder outside is neither read nor written through, wherever on the way it is."""
    files = folder(inside)
    (inside / "file").symlink_to(outside / "secret")
    (inside / "folder").symlink_to(outside)
    (inside / "proc").symlink_to(f"/proc/self/root{outside}")
    (inside / "up").symlink_to("..")
    for path in ("file", "folder/secret", "proc/secret", "up/outside/secret"):
        for use in (lambda path=path: files.read(path, 10), lambda path=path: files.write(path, b"x", append=True)):
            with pytest.raises(ToolError) as raised:
                use()
            assert raised.value.error.type == "forbidden"
    for path in ("file", "folder/new", "proc/new", "up/new"):
        with pytest.raises(ToolError):
            files.write(path, b"x")
    assert (outside / "secret").read_text() == "secret"
    assert [each.name for each in outside.iterdir()] == ["secret"]


def test_hard_links_are_left_alone(inside: Path, outside: Path) -> None:
    """A file with a second name may be one outside: it is neither read nor written."""
    files = folder(inside)
    os.link(outside / "secret", inside / "same")
    for use in (lambda: files.read("same", 10), lambda: files.write("same", b"x"), lambda: files.write("same", b"x", append=True)):
        with pytest.raises(ToolError) as raised:
            use()
        assert code(raised) == "hard_link"
    assert (outside / "secret").read_text() == "secret"


def test_only_regular_files_are_opened(inside: Path) -> None:
    """A pipe would make a reader wait for ever."""
    files = folder(inside)
    os.mkfifo(inside / "pipe")
    (inside / "folder").mkdir()
    for path, expected in (("pipe", "not_a_file"), ("folder", "is_folder")):
        for use in (
            lambda path=path: files.read(path, 10),
            lambda path=path: files.write(path, b"x"),
            lambda path=path: files.write(path, b"", append=True),
        ):
            with pytest.raises(ToolError) as raised:
                use()
            assert code(raised) == expected
    with pytest.raises(ToolError) as raised:
        files.read("nothing/here", 10)
    assert (raised.value.error.type, code(raised)) == ("not_found", "no_file")
    files.write("plain", b"")
    with pytest.raises(ToolError) as raised:
        files.write("plain/below", b"x")
    assert code(raised) == "not_a_folder"


@pytest.mark.parametrize("append", [False, True])
def test_a_link_that_is_swapped_in_meanwhile_leads_nowhere(inside: Path, outside: Path, append: bool) -> None:
    """While another thread turns a folder and a file into links and back, nothing is ever written outside."""
    files = folder(inside)
    (outside / "target").write_text("kept")
    (inside / "way").mkdir()
    (inside / "link").symlink_to(outside)
    (inside / "file").write_text("")
    (inside / "other").symlink_to(outside / "target")
    done = threading.Event()
    exchange = ctypes.CDLL(None).renameat2

    def swap() -> None:
        while not done.is_set():
            for one, other in (("way", "link"), ("file", "other")):
                exchange(-100, os.fsencode(inside / one), -100, os.fsencode(inside / other), 2)

    swapping = threading.Thread(target=swap)
    swapping.start()
    refused = written = 0
    try:
        for _ in range(10_000):
            if min(refused, written) >= 50:
                break
            for path in ("way/target", "file"):
                try:
                    files.write(path, b"written", append=append)
                    written += 1
                except ToolError:
                    refused += 1
    finally:
        done.set()
        swapping.join()
    assert min(refused, written) >= 50
    assert (outside / "target").read_text() == "kept"
    assert sorted(each.name for each in outside.iterdir()) == ["secret", "target"]


def test_no_more_is_counted_than_there_may_be(inside: Path) -> None:
    """A folder with far more files than allowed is looked at as far as the limit, whether of files or of bytes."""
    for each in range(100):
        (inside / str(each)).write_bytes(b"x" * 5_000)
    assert usage(str(inside), most_entries=10)[1] == 11
    used, entries = usage(str(inside), most_bytes=20_000)
    assert used > 20_000
    assert entries < 10
    assert usage(str(inside))[1] == 100


def test_sizes_and_numbers_are_bounded(inside: Path) -> None:
    """A file, all files together, and their number have limits, also when text is added bit by bit."""
    files = folder(inside, file_bytes=10_000, total_bytes=40_000, entries=8)
    with pytest.raises(ToolError) as raised:
        files.write("big", b"x" * 10_001)
    assert code(raised) == "workspace_full"
    files.write("grows", b"x" * 9_999)
    with pytest.raises(ToolError, match="10,000 are the most"):
        files.write("grows", b"xx", append=True)
    for each in range(2):
        files.write(f"file{each}", b"x" * 9_000)
    with pytest.raises(ToolError, match="of at most 40,000"):
        files.write("file", b"x" * 9_000)
    assert usage(str(inside))[0] <= 40_960
    for each in range(5):
        files.make(f"folder{each}")
    with pytest.raises(ToolError, match="which is the most"):
        files.make("folder")


def test_a_failed_write_leaves_the_old_text(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers see the old file or the new one, and nothing temporary stays."""
    files = folder(inside)
    files.write("kept", b"old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(ToolError, match="the disk is full"):
        files.write("kept", b"new")
    assert files.read("kept", 10) == (b"old", 3)
    assert [each.name for each in inside.iterdir()] == ["kept"]
