"""Clients of the TypeScript SDKs, the older Python SDK and the inspector, where ``make mcp-conformance`` has fetched them."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.mcp.conftest import listed
from tests.mcp.node import FOLDER, environment, older_python
from tests.mcp.site import Proxy, Site
from tests.servers import eventually

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not older_python().exists(), reason="the official programs are not here: make mcp-conformance"),
]

OLDER_CLIENT = """
import asyncio
import json
import sys
from typing import Any

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client


async def main(name: str, url: str) -> None:
    changed = asyncio.Event()
    heard: list[str] = []
    failed: list[str] = []
    calls = 0

    async def note(message: Any) -> None:
        if getattr(getattr(message, "root", message), "method", "") == "notifications/tools/list_changed":
            changed.set()

    async def hear(done: float, total: float | None, message: str | None) -> None:
        if not heard:
            print("begun", flush=True)
        heard.append(message or "")

    async with streamablehttp_client(url) as (read, write, _), ClientSession(read, write, message_handler=note) as session:
        await session.initialize()
        job = asyncio.create_task(session.call_tool("once_job", {"name": name}, progress_callback=hear))
        async with asyncio.timeout(60):
            while not changed.is_set():
                for tool, arguments in (("echo", {"text": "x"}), ("pay", {"amount": 1})):
                    try:
                        result = await session.call_tool(tool, arguments)
                    except Exception as error:
                        failed.append(repr(error))
                    else:
                        failed += [str(result)] * result.isError
                        calls += 1
        print("changed", flush=True)
        text = (await job).content[0].text
        late = any(tool.name == "late" for tool in (await session.list_tools()).tools)
        print(json.dumps({"name": name, "calls": calls, "failed": failed, "heard": "".join(heard), "job": text, "late": late}), flush=True)


asyncio.run(main(*sys.argv[1:]))
"""
"""A client of version 1 of the Python SDK that calls until the list of tools changes. Its last line says what it saw."""


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


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("name", ["sdk", "client", "python"])
async def test_a_gateway_that_is_killed_fails_no_call(own_site: Site, name: str) -> None:
    """No SDK loses a call, a piece of a stream or a change of the list; version 2 of Python's is tried where sessions are."""
    (own_site.folder / "late.py").write_text('from toolbus import tool\n@tool\ndef late() -> str:\n    "Late."\n    return ""\n')
    own_site.worker()
    gateways = [own_site.gateway() for _ in range(2)]
    for _, url in gateways:
        await listed(url, "echo")
    script = Path(shutil.copy(Path(__file__).with_name("failover.mjs"), FOLDER))
    program = ["node", script, name] if name != "python" else [older_python(), "-c", OLDER_CLIENT, name]
    variables = {key: value for key, value in environment().items() if key != "PYTHONPATH"}
    async with Proxy(*(url for _, url in gateways)) as proxy:
        client = await asyncio.create_subprocess_exec(*program, proxy.url, env=variables, stdout=asyncio.subprocess.PIPE)
        assert client.stdout is not None
        try:
            async with asyncio.timeout(90):
                assert await client.stdout.readline() == b"begun\n"
                # The connection of the long call, too, may be to the first one or to the other.
                gateways[0][0].send_signal(signal.SIGKILL)
                own_site.worker("late.py")
                assert await client.stdout.readline() == b"changed\n"
                (own_site.folder / f"{name}.go").touch()
                seen = json.loads(await client.stdout.readline())
                assert await client.wait() == 0
        finally:
            if client.returncode is None:
                client.kill()
                await client.wait()
    assert seen.pop("calls") > 0
    assert seen == {"name": name, "failed": [], "heard": "begun done", "job": "begun done", "late": True}
    assert (own_site.folder / f"{name}.runs").read_text() == "x"
