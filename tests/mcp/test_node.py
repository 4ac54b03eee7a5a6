"""Clients of the TypeScript SDK and of the inspector, where ``make mcp-conformance`` has fetched them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.mcp.node import FOLDER, environment
from tests.mcp.site import Site
from tests.servers import eventually

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not (FOLDER / "node_modules").is_dir(), reason="the programs of npm are not here: make mcp-conformance"),
]


async def test_the_typescript_sdk(site: Site, url: str) -> None:
    """It lists, calls, hears progress, cancels, and hears of a worker that starts."""
    script = FOLDER / "client.mjs"
    shutil.copy(Path(__file__).with_name("client.mjs"), script)
    process = subprocess.Popen(["node", str(script), url], env=environment(), stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    assert process.stdout is not None
    while "ready" not in (line := process.stdout.readline()):
        assert line
    (site.folder / "typed.py").write_text('from toolbus import tool\n@tool\ndef of_typescript() -> str:\n    "Late."\n    return ""\n')
    worker = site.worker("typed.py")
    seen = json.loads(process.stdout.readline())
    assert process.wait(20) == 0
    process.stdout.close()
    worker.terminate()
    worker.wait()
    await eventually((site.folder / "typescript.cancelled").exists, timeout=20)
    assert {"echo", "add"} <= set(seen["tools"])
    assert "of_typescript" in seen["after"]
    assert (seen["echo"], seen["sum"], seen["failed"], seen["unknown"]) == ("hello", 3, True, -32602)
    assert (seen["cancelled"], seen["changed"]) == ("stopped", True)
    assert "at 2" in seen["progress"]


async def test_the_inspector(url: str) -> None:
    """Its command line lists the tools and calls one."""
    words = ["mcp-inspector", "--cli", url, "--transport", "http", "--method"]

    def run(*more: str) -> str:
        done = subprocess.run([*words, *more], env=environment(), capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert '"echo"' in run("tools/list")
    assert "from the inspector" in run("tools/call", "--tool-name", "echo", "--tool-arg", "text=from the inspector")
