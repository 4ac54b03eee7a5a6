"""Reading files: lines and bytes of them, and paths, links, files and races that are meant to get out or to hurt."""

import contextlib
import os
import resource
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toolbus_workers.file_read import FileRead, Limits
from toolbus_workers.sandbox import Root, date, split

from tests.workers import outcomes
from toolbus import ToolBus, ToolError, Worker

SECRET = "hunter2"
pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def serving(root, address="memory://", namespace="default"):
    async with Worker(FileRead(Limits(root=str(root))), url=address, namespace=namespace), ToolBus(address, namespace=namespace) as bus:
        await bus.wait_for_tool("file_read", 10)
        yield bus


@pytest.fixture
def root(tmp_path):
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "note.txt").write_text(SECRET)
    made = tmp_path / "root"
    (made / "notes").mkdir(parents=True)
    (made / "notes" / "note.txt").write_text("one\ntwo\nthree\nfour\n")
    (made / "empty.txt").write_text("")
    return made


@pytest.fixture
async def bus(root):
    async with serving(root) as opened:
        yield opened


async def read(bus, path, **arguments):
    return await bus.call("file_read", {"path": path, **arguments}, timeout=20)


def failed(result, type, code):
    """Return the message of a result that must be this failure and must not reveal protected content."""
    assert SECRET not in str(result)
    return outcomes.failed(result, type, code)


async def test_a_file_is_listed_and_read(root, server, namespace):
    """A listing names what can be read."""
    async with serving(root, server, namespace) as bus:
        listed = await bus.call("file_list", {})
        assert listed.output == "notes/\nempty.txt (0 bytes)"
        assert [entry["path"] for entry in (await bus.call("file_list", {"path": "notes"})).data["entries"]] == ["notes/note.txt"]
        result = await read(bus, "notes/note.txt")
        assert result.output == "one\ntwo\nthree\nfour\n"
        assert (result.data["lines"], result.data["next_offset"], result.data["bytes"]) == (4, None, 19)


@pytest.mark.parametrize(
    ("arguments", "text", "note"),
    [
        ({"start_line": 2, "lines": 2}, "two\nthree\n", "go on with start_line=4"),
        ({"start_line": 3}, "three\nfour\n", ""),
        ({"offset": 4, "lines": 1}, "two\n", "go on with offset=8"),
        ({"offset": 4, "start_line": 2}, "three\nfour\n", ""),
        ({"offset": 19}, "", ""),
        ({"start_line": 5}, "", ""),
    ],
)
async def test_ranges_of_lines_are_read_and_lead_on(bus, arguments, text, note):
    """Lines are counted from the place asked for, and an answer that leaves some out says how to go on."""
    result = await read(bus, "notes/note.txt", **arguments)
    assert result.data["text"] == text
    assert note in result.output


async def test_a_large_file_is_read_piece_by_piece_without_loss(bus, root):
    """Following next_offset gives the whole file, however long its lines are and whatever its characters."""
    content = "".join(f"line {n} {'ä€𝄞' * (n % 50)}\n" for n in range(3_000)) + "x€" * 60_000 + "\nend"
    (root / "large.txt").write_text(content, "utf-8")
    pieces, offset = [], 0
    while offset is not None:
        result = await read(bus, "large.txt", offset=offset, lines=10_000)
        assert len(result.data["text"].encode()) <= 50_000
        pieces.append(result.data["text"])
        offset = result.data["next_offset"]
    assert "".join(pieces) == content


async def test_encodings_and_line_ends_are_mended(bus, root):
    """UTF-16, byte order marks, old encodings and carriage returns come out as text."""
    for name, content in {
        "a.txt": "grüß\r\ndich".encode("utf-16"),
        "b.txt": "grüß\r\ndich".encode("utf-8-sig"),
        "c.txt": "grüß\r\ndich".encode("cp1252"),
    }.items():
        (root / name).write_bytes(content)
        assert (await read(bus, name)).data["text"] == "grüß\ndich"
    assert (await read(bus, "empty.txt")).data["lines"] == 0


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("encoding", ["gbk", "shift_jis", "windows-1251"])
async def test_a_file_that_is_not_utf_8_is_read_alike_in_all_its_parts(bus, root, encoding):
    """The answer says what was assumed, no part cuts a character, and what can't be told is refused until it is named."""
    text = {"gbk": "今天天气很好，", "shift_jis": "今日はとても天気が", "windows-1251": "Сегодня хорошая "}[encoding] * 20_000
    (root / "old.txt").write_bytes(text.encode(encoding))
    for name in ("", encoding):
        read_parts, offset = [], 0
        while offset is not None:
            part = await read(bus, "old.txt", offset=offset, encoding=name)
            assert bool(part.data["assumed_encoding"]) == (not name)
            read_parts.append(part.data["text"])
            offset = part.data["next_offset"]
        assert len(read_parts) > 1
        assert "".join(read_parts) == text
    (root / "unsure.txt").write_bytes("José García".encode("cp1252"))
    assert (await read(bus, "unsure.txt")).error.code == "bad_encoding"
    assert (await read(bus, "unsure.txt", encoding="windows-1252")).data["text"] == "José García"


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0", "a PNG image"),
        (b"%PDF-1.7\nabc", "a PDF document"),
        (b"\x1f\x8b\x08\0", "a gzip archive"),
        (b"PK\x03\x04\x14\0", "a zip archive or an office document"),
        (b"\x7fELF\x02\0", "a program"),
        (b"text\0text", "binary data"),
        (b"text\n" * 5_000 + b"\0", "binary data"),
    ],
)
async def test_binary_files_are_refused_with_what_they_are(bus, root, content, kind):
    """The error says what the file is instead of text."""
    (root / "file").write_bytes(content)
    assert f"the file is {kind}, not text" in failed(await read(bus, "file", lines=10_000), "invalid_arguments", "binary")


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("path", "type", "code"),
    [
        ("../secret.txt", "forbidden", "outside"),
        ("notes/../../secret.txt", "forbidden", "outside"),
        ("notes/..", "forbidden", "outside"),
        ("/etc/passwd", "forbidden", "outside"),
        ("~/.bashrc", "forbidden", "outside"),
        ("./../secret.txt", "forbidden", "outside"),
        ("notes//..//..//secret.txt", "forbidden", "outside"),
        ("..\\secret.txt", "not_found", "no_file"),
        ("%2e%2e/secret.txt", "not_found", "no_file"),
        ("notes/note.txt/x", "not_found", "no_file"),
        ("missing.txt", "not_found", "no_file"),
        ("notes", "invalid_arguments", "is_folder"),
        ("", "invalid_arguments", "is_folder"),
        (".", "invalid_arguments", "is_folder"),
        ("a\0b", "invalid_arguments", "bad_path"),
        ("x" * 300, "invalid_arguments", "bad_path"),
        ("x" * 2_000, "invalid_arguments", "bad_path"),
        ("a/" * 100, "invalid_arguments", "bad_path"),
    ],
)
async def test_paths_that_lead_out_or_nowhere_are_refused(bus, path, type, code):
    """Each is an error that says what to give instead, for reading and for listing."""
    failed(await read(bus, path), type, code)
    if code in {"outside", "bad_path"}:
        failed(await bus.call("file_list", {"path": path}), type, code)


@pytest.mark.parametrize("target", ["../../secret.txt", "absolute", "../notes/note.txt"])
async def test_a_link_is_not_followed(bus, root, tmp_path, target):
    """A symbolic link is refused wherever it leads, and a listing says that it can't be read."""
    (root / "notes" / "link").symlink_to(tmp_path / "secret.txt" if target == "absolute" else target)
    failed(await read(bus, "notes/link"), "forbidden", "not_a_file")
    assert "notes/link (a symbolic link, which can't be read)" in (await bus.call("file_list", {"path": "notes"})).output


async def test_a_linked_folder_is_not_entered(bus, root, tmp_path):
    """A link to a folder is no way out either, also in the middle of a path."""
    (root / "door").symlink_to(tmp_path / "outside")
    (root / "notes" / "self").symlink_to("..")
    for path in ("door/note.txt", "notes/self/notes/note.txt"):
        failed(await read(bus, path), "forbidden", "not_a_file")
    failed(await bus.call("file_list", {"path": "door"}), "forbidden", "not_a_file")


@pytest.mark.usefixtures("slow")
async def test_a_folder_that_becomes_a_link_while_it_is_opened_leads_nowhere(bus, root, tmp_path):
    """Only files inside the root are ever read, even when a folder and a link to the outside keep changing places."""
    stop = threading.Event()
    inside, door = root / "notes", root / "door"
    door.symlink_to(tmp_path / "outside")

    def swap():
        while not stop.is_set():
            inside.rename(root / "aside")
            door.rename(inside)
            inside.rename(door)
            (root / "aside").rename(inside)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        seen = set()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and not (len(seen) >= 2 and "" in seen):
            for _ in range(50):
                result = await read(bus, "notes/note.txt")
                assert SECRET not in str(result)
                assert SECRET not in str(await bus.call("file_list", {"path": "notes"}))
                seen.add(result.error.code if result.error else "")
        assert seen <= {"", "no_file", "not_a_file"}
        assert "" in seen
    finally:
        stop.set()
        thread.join(10)


async def test_pipes_sockets_and_devices_are_not_opened(bus, root):
    """A path that is no regular file is refused at once, and nothing waits for it."""
    os.mkfifo(root / "pipe")
    started = time.monotonic()
    assert "a pipe" in failed(await read(bus, "pipe"), "forbidden", "not_a_file")
    assert time.monotonic() - started < 2
    async with serving("/dev", namespace="devices") as devices:
        assert "a device" in failed(await read(devices, "zero"), "forbidden", "not_a_file")


async def test_a_gigabyte_costs_neither_memory_nor_time(bus, root):
    """A sparse file is refused as what it is, and the end of a huge text is read by its place in bytes."""
    with (root / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    with (root / "huge.txt").open("wb") as file:
        file.write(b"first\n")
        file.truncate(1 << 30)
        file.seek(1 << 30)
        file.write(b"\nlast line\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    failed(await read(bus, "sparse"), "invalid_arguments", "binary")
    failed(await read(bus, "huge.txt"), "invalid_arguments", "binary")
    failed(await read(bus, "huge.txt", start_line=9), "invalid_arguments", "binary")
    assert time.monotonic() - started < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


async def test_lines_far_into_a_file_are_read_by_offset(bus, root, monkeypatch):
    """Lines are counted to a bound; beyond it the error names offset, which has none."""
    monkeypatch.setattr("toolbus_workers.file_read.MAX_SCAN", 1_000_000)
    (root / "long.txt").write_text("0123456789\n" * 200_000)
    assert "offset" in failed(await read(bus, "long.txt", start_line=190_000), "invalid_arguments", "too_far")
    assert (await read(bus, "long.txt", offset=11 * 199_999)).data["text"] == "0123456789\n"
    assert (await read(bus, "long.txt", start_line=50_000, lines=1)).data["text"] == "0123456789\n"
    (root / "short.txt").write_text("a\nb")
    assert "ends with line 2" in failed(await read(bus, "short.txt", start_line=4), "invalid_arguments", "beyond_end")
    failed(await read(bus, "short.txt", offset=4), "invalid_arguments", "beyond_end")


async def test_a_listing_is_bounded(root, bus):
    """Of a large folder, the first entries are listed and the others counted."""
    for number in range(600):
        (root / f"f{number:03}").touch()
    result = await bus.call("file_list", {})
    assert (len(result.data["entries"]), result.data["total"]) == (500, 602)
    assert "(102 more entries are not listed" in result.output


@pytest.mark.usefixtures("slow")
async def test_an_operators_tool_begins_at_its_folder(root, server, namespace, put):
    """The config's folder is the root of that tool's paths, and no config leads out of the service's root."""
    async with serving(root, server, namespace) as bus:
        await put(server, namespace, "read-note", "file_read", operation="file_read", folder="notes", max_bytes=100)
        await put(server, namespace, "list-notes", "file_read", operation="file_list", folder="notes")
        await put(server, namespace, "escape", "file_read", operation="file_read", folder="..")
        for name in ("read-note", "list-notes", "escape"):
            await bus.wait_for_tool(name, 10)
        assert (await bus.call("list-notes", {})).data["entries"][0]["path"] == "note.txt"
        assert (await bus.call("read-note", {"path": "note.txt"})).data["lines"] == 4
        failed(await bus.call("read-note", {"path": "../empty.txt"}), "forbidden", "outside")
        failed(await bus.call("escape", {"path": "secret.txt"}), "forbidden", "outside")


async def test_a_missing_root_is_an_error_of_the_operators(tmp_path):
    """Without a root, or with one that is gone, the call says who can mend it."""
    async with serving(tmp_path / "nowhere") as bus:
        failed(await read(bus, "a"), "unavailable", "no_root")
    async with serving("") as bus:
        assert "TOOLBUS_FILES_ROOT" in failed(await read(bus, "a"), "unavailable", "no_root")


NAMES = st.sampled_from(["..", ".", "", "a", "secret.txt", "door", "~", "\\..", "...", "\u2025", "．．", "notes"]) | st.text(max_size=5)


@settings(deadline=None)
@given(st.lists(NAMES, max_size=8).map("/".join) | st.text(max_size=50))
def test_no_path_is_outside_of_its_root(path):
    """Every path is refused, or made of names that each stay where they are."""
    try:
        parts = split(path)
    except ToolError as failure:
        assert failure.error.type in {"forbidden", "invalid_arguments"}  # noqa: PT017
    else:
        assert not {"", ".", ".."} & set(parts)
        assert not any("/" in part or "\0" in part for part in parts)


def test_a_root_may_itself_be_reached_through_a_link(tmp_path):
    """The root itself may be a link, since the operator chose it."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.txt").write_text("text")
    (tmp_path / "link").symlink_to("real")
    with Root(str(tmp_path / "link")).open("a.txt") as (file, status):
        assert (file.read(), status.st_size) == (b"text", 4)


@pytest.mark.parametrize(("seconds", "told"), [(0, "1970-01-01T00:00:00+00:00"), (1 << 43, ""), (-(1 << 60), ""), (1 << 80, "")])
def test_a_date_beyond_the_calendar_is_none(seconds, told):
    """A file system may give a file a date that no calendar has, which ends no listing of its folder."""
    assert date(seconds) == told
