"""The tools for uv projects."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.coding.workspace.places import needs_namespaces, workspace
from tests.servers import eventually
from toolbus.bus.local import ToolRegistry
from toolbus.bus.values.results import ToolResult
from toolbus.platform.backends.confinement import READABLE
from toolbus.platform.coding.run import TaskTools
from toolbus.platform.coding.workspace import Workspace

pytestmark = pytest.mark.anyio

SERVER = """
import http.server, sys
print("serving", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
CLIENT = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8123/hello.txt').read().decode())"


async def run(tools: ToolRegistry, command: str = "", **more: Any) -> ToolResult:
    return await tools.execute("run_in_uv", {"project": "stitcher", "command": command, **more})


@pytest.fixture
async def project(tools: ToolRegistry) -> str:
    """A project without packages."""
    made = await tools.execute("create_uv_project", {"name": "stitcher"})
    assert made.success, made.error
    return "stitcher"


@pytest.mark.usefixtures("slow")
async def test_commands_run_in_the_project(tools: ToolRegistry, project: str, place: Workspace) -> None:
    """The project's own Python runs, and what is printed and how it ended is told."""
    await tools.execute("write_file", {"path": "stitcher/main.py", "content": "import sys; print(sys.prefix); sys.exit(3)"})
    result = await run(tools, "python main.py")
    assert result.output.startswith(f"{place.files.path}/stitcher/.venv\n\n[exit status 3, ")
    assert (result.data["status"], result.data["ended"]) == (3, "")
    assert "version_info" not in (await run(tools, "uv run python -c 'import sys; print(sys.prefix)'")).output
    assert (await run(tools, "uv run python -c 'print(6 * 7)'")).output.startswith("42\n")
    assert sys.prefix not in result.output


@pytest.mark.usefixtures("slow")
async def test_a_program_in_the_background_is_read_and_stopped(tools: ToolRegistry, project: str) -> None:
    """A handle gives what is new of the output, programs of the task reach each other, and the handle ends it."""
    await tools.execute("write_file", {"path": "stitcher/serve.py", "content": SERVER})
    await tools.execute("write_file", {"path": "stitcher/hello.txt", "content": "hello there"})
    started = await run(tools, "python serve.py 8123", mode="background")
    handle = started.data["handle"]

    async def serves() -> bool:
        return "serving" in (await run(tools, mode="read", handle=handle)).output

    await eventually(serves, timeout=30)
    assert (await run(tools, f'python -c "{CLIENT}"')).output.startswith("hello there\n")
    read = await run(tools, mode="read", handle=handle)
    assert "GET /hello.txt" in read.output
    assert read.data == {"handle": handle, "running": True}
    stopped = await run(tools, mode="stop", handle=handle)
    assert stopped.data["running"] is False
    assert (await run(tools, mode="read", handle=handle)).data["status"] == stopped.data["status"]
    unknown = await run(tools, mode="read", handle="run_00000000")
    assert (unknown.error.type, unknown.error.code) == ("not_found", "no_handle")
    assert handle in unknown.error.message


async def test_only_so_many_run_in_the_background(tools: ToolRegistry, project: str) -> None:
    """One more is refused, until one is stopped."""
    handles = [(await run(tools, "sleep 60", mode="background")).data["handle"] for _ in range(2)]
    refused = await run(tools, "sleep 60", mode="background")
    assert refused.error.code == "too_many_programs"
    await run(tools, mode="stop", handle=handles[0])
    assert (await run(tools, "sleep 60", mode="background")).success


@pytest.mark.usefixtures("slow")
async def test_what_takes_too_long_is_told(tools: ToolRegistry, project: str) -> None:
    """Output until the end is kept, and the reason said."""
    result = await run(tools, "echo begun; sleep 60", seconds=0.5)
    assert result.output.startswith("begun\n")
    assert "[it was ended: it took longer than 0." in result.output
    assert result.data["ended"] == "time"
    long = await run(tools, "seq 100000; exit 1")
    assert len(long.output) < 5_000
    assert "characters left out" in long.output


# Calls with a mistake, each with the code of its error.
MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("create_uv_project", {"name": "../x"}, "bad_name"),
    ("create_uv_project", {"name": "-x"}, "bad_name"),
    ("create_uv_project", {"name": "stitcher"}, "exists"),
    ("create_uv_project", {"name": "other", "dependencies": ["--index=http://evil"]}, "bad_package"),
    ("uv_add_dependency", {"project": "nothing", "packages": ["six"]}, "no_project"),
    ("uv_add_dependency", {"project": "stitcher", "packages": []}, "no_packages"),
    ("uv_add_dependency", {"project": "stitcher", "packages": ["x @ http://169.254.169.254/x.whl"]}, "bad_package"),
    ("uv_add_dependency", {"project": "stitcher", "packages": ["./local"]}, "bad_package"),
    ("uv_add_dependency", {"project": "stitcher", "packages": ["toolbus-no-such-package"]}, "uv_failed"),
    ("run_in_uv", {"project": "../..", "command": "ls"}, "no_project"),
    ("run_in_uv", {"project": "stitcher", "command": " "}, "no_command"),
]


async def test_mistakes_are_told(tools: ToolRegistry, project: str) -> None:
    """Names, requirements and folders that are none are errors that a model can act upon."""
    for tool, arguments, code in MISTAKES:
        result = await tools.execute(tool, arguments)
        assert result.error.code == code, (tool, arguments)
        if code == "uv_failed":
            assert "this deployment gives no network" in result.error.message


@pytest.mark.usefixtures("slow")
async def test_packages_are_added_from_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel is installed where the deployment lets uv reach an index, with its cache out of reach of the task's programs."""
    needs_namespaces()
    monkeypatch.setenv("UV_DEFAULT_INDEX", (tmp_path / "index").as_uri())
    wheel(tmp_path / "index" / "greeter")
    monkeypatch.setattr("toolbus.platform.backends.confinement.READABLE", (*READABLE, str(tmp_path / "index")))
    async with workspace(tmp_path, network="packages") as place, ToolRegistry(*TaskTools(place).functions.values()) as tools:
        made = await tools.execute("create_uv_project", {"name": "stitcher", "dependencies": ["greeter>=1"]})
        assert made.success, made.error
        ran = await run(
            tools,
            f"python -c 'import greeter; print(greeter.HELLO)'; ls -A {tmp_path}/tasks/create_00000001/cache; env | grep INDEX; exit 1",
        )
        lines = ran.output.splitlines()
        assert lines[0] == "hello from a wheel"
        assert not any(each for each in lines[1:-1] if "cannot access" not in each)
        missing = await tools.execute("uv_add_dependency", {"project": "stitcher", "packages": ["toolbus-no-such-package"]})
        assert missing.error.code == "uv_failed"
        assert "toolbus-no-such-package" in missing.error.message


def wheel(folder: Path) -> None:
    """Write an index's page with one wheel."""
    import zipfile

    folder.mkdir(parents=True)
    info = "greeter-1.0.dist-info"
    with zipfile.ZipFile(folder / "greeter-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("greeter.py", "HELLO = 'hello from a wheel'\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: greeter\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"greeter.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    (folder / "index.html").write_text('<a href="greeter-1.0-py3-none-any.whl">greeter-1.0-py3-none-any.whl</a>')
