"""``toolbus mcp``: one client over standard input and output."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters

from tests.mcp.site import Site
from tests.servers import eventually

WORDS = ["-m", "toolbus", "mcp"]


@pytest.fixture
def parameters(site: Site, url: str) -> StdioServerParameters:
    """Return the parameters with which a client starts the command."""
    return StdioServerParameters(command=sys.executable, args=WORDS, env=site.environment, cwd=site.folder)


@pytest.mark.parametrize("mode", ["auto", pytest.param("legacy", marks=pytest.mark.slow)])
@pytest.mark.anyio
async def test_a_client_lists_calls_and_cancels(site: Site, parameters: StdioServerParameters, mode: Any) -> None:
    """Lists, results, progress and cancellation work as over HTTP."""
    heard: list[str] = []

    async def hear(done: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")

    name = f"stdio-{mode}"
    async with Client(parameters, mode=mode) as client:
        assert "echo" in {tool.name for tool in (await client.list_tools()).tools}
        assert (await client.call_tool("echo", {"text": "x"})).content[0].text == "x"  # type: ignore[union-attr]
        await client.call_tool("count", {"to": 3}, progress_callback=hear)
        await eventually(lambda: "at 2" in heard)
        task = asyncio.create_task(client.call_tool("wait", {"name": name}))
        await eventually((site.folder / f"{name}.began").exists, timeout=20)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await eventually((site.folder / f"{name}.cancelled").exists, timeout=20)


@pytest.mark.usefixtures("slow")
@pytest.mark.anyio
async def test_a_client_hears_of_new_tools(site: Site, parameters: StdioServerParameters) -> None:
    """A worker that starts is announced to a client that listens."""
    (site.folder / "plugged.py").write_text('from toolbus import tool\n@tool\ndef plugged() -> str:\n    "Come late."\n    return "in"\n')
    async with Client(parameters) as client, client.listen(tools_list_changed=True) as events:
        worker = site.worker("plugged.py")
        await anext(aiter(events))
        result = await client.call_tool("plugged", {})
        assert result.content[0].text == "in"  # type: ignore[union-attr]
        worker.terminate()
        worker.wait()


@pytest.mark.usefixtures("slow")
@pytest.mark.anyio
async def test_fastmcp_uses_it_for_one_user(site: Site, url: str) -> None:
    """Options say the user and the tools that are served."""
    from fastmcp import Client as FastClient
    from fastmcp.client.transports import StdioTransport

    words = [*WORDS, "--user", "alice", "--tool", "echo", "--tool", "secret_of_alice"]
    async with FastClient(StdioTransport(sys.executable, words, env=site.environment, cwd=str(site.folder))) as client:
        assert {tool.name for tool in await client.list_tools()} == {"echo", "secret_of_alice"}
        assert (await client.call_tool("secret_of_alice", {})).content[0].text == "hers"


@pytest.mark.usefixtures("slow")
def test_junk_on_standard_input_ends_nothing(site: Site) -> None:
    """Lines that are no requests are answered or skipped, the next request is served, and the end of input ends the command."""
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    lines = [
        "junk", "", "{}", "[]", '{"jsonrpc": "2.0", "id": 1, "method": "\\ud800"}', "[" * 5000, "\x00\x1b[2J",
        json.dumps({"jsonrpc": "2.0", "id": 2, "method": "initialize", "params": hello}),
        json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json.dumps({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "still here"}}}),
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, *WORDS], cwd=site.folder, env=site.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n".join(lines) + "\n")
    process.stdin.flush()
    while "still here" not in (line := process.stdout.readline()):
        assert line
    process.stdin.close()
    assert process.wait(20) == 0
    process.stdout.close()


@pytest.mark.usefixtures("slow")
def test_without_a_server_it_says_so(site: Site) -> None:
    """The command ends with one line on standard error when the server can't be reached."""
    environment = {**site.environment, "TOOLBUS_URL": "redis://127.0.0.1:9", "TOOLBUS_CONNECT_TIMEOUT": "1"}
    words = [sys.executable, *WORDS]
    done = subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
