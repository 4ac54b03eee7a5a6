"""The tools for files."""

from __future__ import annotations

import pytest

from toolbus.bus.local import ToolRegistry
from toolbus.platform.coding.workspace import Workspace

pytestmark = pytest.mark.anyio


async def test_files_are_written_and_read(tools: ToolRegistry) -> None:
    """A file is written, grows, and is read in parts, with what follows said."""
    text = "".join(f"line {n}\n" for n in range(1, 11))
    assert (await tools.execute("write_file", {"path": "a/b.txt", "content": text})).data == {"path": "a/b.txt", "bytes": 71}
    assert (await tools.execute("write_file", {"path": "a/b.txt", "content": "end", "mode": "append"})).data["bytes"] == 74
    part = await tools.execute("read_file", {"path": "a/b.txt", "first_line": 2, "lines": 2})
    assert part.output == "line 2\nline 3\n[… lines 4 to 11 follow …]"
    assert part.data == {"path": "a/b.txt", "bytes": 74, "first_line": 2, "last_line": 3, "lines": 11}
    assert (await tools.execute("read_file", {"path": "a/b.txt", "first_line": 11})).output == "end"
    assert (await tools.execute("read_file", {"path": "a/b.txt", "first_line": 99})).output == "[it has 11 lines, so none from 99 on]"
    await tools.execute("write_file", {"path": "empty", "content": ""})
    assert (await tools.execute("read_file", {"path": "empty"})).output == "[it is empty]"


async def test_long_and_binary_files_are_told(tools: ToolRegistry, place: Workspace) -> None:
    """Files that are no text, or too long for a model, are told of instead of shown."""
    place.files.write("data", b"\x89PNG\0\0")
    assert (await tools.execute("read_file", {"path": "data"})).error.code == "no_text"
    place.files.write("wide", b"x" * 100_000 + b"\nlast\n")
    wide = (await tools.execute("read_file", {"path": "wide"})).output
    assert len(wide) < 61_000
    assert wide.endswith("[… the rest is left out: ask for fewer lines …]")
    place.files.write("latin", b"gr\xfc\xdf")
    assert (await tools.execute("read_file", {"path": "latin"})).output == "gr\ufffd\ufffd"


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("write_file", {"path": "../x", "content": ""}, "outside"),
        ("write_file", {"path": "/etc/passwd", "content": ""}, "outside"),
        ("write_file", {"path": "", "content": ""}, "is_folder"),
        ("read_file", {"path": "nothing"}, "no_file"),
        ("read_file", {"path": "/proc/self/environ"}, "outside"),
    ],
)
async def test_bad_paths_are_told(tools: ToolRegistry, name: str, arguments: dict[str, object], code: str) -> None:
    """A path that leads out, or to nothing, is an error that a model can act upon."""
    result = await tools.execute(name, arguments)
    assert result.error.code == code
    assert len(result.error.message) < 300
