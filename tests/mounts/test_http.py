"""MCP servers at an address: calls, secrets, and servers that go and come back."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.contract import Place
from tests.listening import Listening
from tests.mounts.api import Answer, Asked, api, as_json
from tests.mounts.programs import program
from tests.servers import eventually
from toolbus import Progress
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.values.secrets import Secret, secret
from toolbus.edges.mounts import Address, MountedServer, Options, serve
from toolbus.edges.mounts.options import check_address

pytestmark = pytest.mark.anyio

BODY = '''
@mcp.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
async def header(name: str, ctx: Context) -> str:
    """Show a header of the request."""
    await ctx.report_progress(1, 2, "half")
    return str(ctx.request_context.request.headers.get(name))

@mcp.tool(structured_output=False)
def long(size: int) -> str:
    """Say much."""
    return "x" * size
'''
QUICK = Options(first_delay=0.05, longest_delay=0.2, patience=20.0, most_bytes=100_000)


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@asynccontextmanager
async def running(file: Path, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A server program that listens."""
    child = await asyncio.create_subprocess_exec(sys.executable, str(file), stderr=asyncio.subprocess.DEVNULL)

    async def listens() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    try:
        await eventually(listens, timeout=60.0)
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


@pytest.mark.usefixtures("slow")
async def test_a_server_at_an_address(valkey: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tools are called with progress and headers from their sources; one that was away is found again."""
    monkeypatch.setenv("MCP_TOKEN", "s3cret")
    port = free_port()
    file = program(tmp_path, BODY, run=f'mcp.run("streamable-http", host="127.0.0.1", port={port})')
    address = Address(f"http://127.0.0.1:{port}/mcp", {"Authorization": Secret("env:MCP_TOKEN", "Bearer ")})
    async with running(file, port) as child:
        mount = MountedServer("remote", address, QUICK)
        async with serve(mount, settings=valkey.settings), valkey.bus() as bus:
            async with bus.stream("header", {"name": "authorization"}) as call:
                told = [event async for event in call.events()]
            assert (await call.result()).output == "Bearer s3cret"
            assert Progress(1, 2, "half") in told
            long = await bus.call("long", {"size": 200_000})
            assert not long.success
            assert (await bus.call("long", {"size": 3})).output == "xxx"
            child.kill()
            await child.wait()
            async with running(file, port):
                monkeypatch.setenv("MCP_TOKEN", "rotated")

                async def answered() -> str:
                    return (await bus.call("header", {"name": "authorization"}, timeout=30.0)).output or ""

                assert await eventually(answered, timeout=60.0) == "Bearer rotated"


async def test_an_address_that_cannot_be_mounted_says_why(tmp_path: Path) -> None:
    """Nothing that listens, something that is no MCP server, no address, and a secret without a value are one sentence each."""
    with pytest.raises(ConfigurationError, match=r"http://127\.0\.0\.1:\d+/mcp could not be mounted"):
        await MountedServer("m", Address(f"http://127.0.0.1:{free_port()}/mcp?key=secret")).__aenter__()

    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0\r\n\r\n")

    async with Listening(speak) as listening:
        with pytest.raises(ConfigurationError, match="could not be mounted"):
            await MountedServer("m", Address(f"http://127.0.0.1:{listening.port}/mcp"), Options(start=5.0)).__aenter__()
    with pytest.raises(ConfigurationError, match="UNSET_VARIABLE has no value"):
        await MountedServer("m", Address("http://127.0.0.1:1/", {"X": Secret("env:UNSET_VARIABLE")})).__aenter__()
    for wrong in ("ftp://host/", "https://", "https://user:secret@host/"):
        with pytest.raises(ConfigurationError) as raised:
            check_address(wrong)
        assert "secret" not in str(raised.value)
    with pytest.raises(ConfigurationError) as raised:
        secret("my-s3cret-token")
    assert "s3cret" not in str(raised.value)
    assert json.dumps(Address("https://user:pw@host/path?key=1").shown) == '"https://host/path"'


@pytest.mark.parametrize("result", [b"null", b"[]", b"5", b'{"content": [{"type": "text", "text": "\\ud800"}]}'])
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_unreadable_result_is_a_bad_answer(valkey: Place, result: bytes, *, streamed: bool) -> None:
    """Its caller is answered at once, in a response of JSON as in one of events."""

    def answer(asked: Asked) -> Answer:
        if asked.method != "POST":
            return 405, {}, b""
        message = json.loads(asked.body)
        info = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "n", "version": "1"}}
        results = {"initialize": info, "tools/list": {"tools": [{"name": "do", "inputSchema": {"type": "object"}}]}}
        if message.get("method") == "tools/call":
            body = b'{"jsonrpc": "2.0", "id": %d, "result": %s}' % (message["id"], result)
            if streamed:
                return 200, {"Content-Type": "text/event-stream"}, b"event: message\ndata: %s\n\n" % body
            return 200, {"Content-Type": "application/json"}, body
        if "id" not in message:
            return 202, {}, b""
        if message["method"] not in results:
            return as_json({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "unknown"}})
        return as_json({"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]})

    async with api(answer) as served:
        mount = MountedServer("remote", Address(f"{served.address}/mcp"), QUICK)
        async with serve(mount, settings=valkey.settings), valkey.bus() as bus:
            failed = (await bus.call("do", timeout=100.0)).error
            assert failed is not None
            assert (failed.type, failed.code) == ("tool_error", "bad_answer")


async def test_a_server_that_forgets_its_session_is_connected_anew(valkey: Place) -> None:
    """A call in a session that is over was not run: it is unavailable, and later ones run in a new session."""
    sessions: list[str] = []

    def answer(asked: Asked) -> Answer:
        if asked.method != "POST":
            return 405, {}, b""
        message = json.loads(asked.body)
        if asked.headers.get("mcp-session-id", "") not in {*sessions[-1:], ""}:
            return 404, {}, b""
        if message.get("method") == "initialize":
            sessions.append(f"s{len(sessions)}")
            info = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "n", "version": "1"}}
            status, headers, body = as_json({"jsonrpc": "2.0", "id": message["id"], "result": info})
            return status, {**headers, "Mcp-Session-Id": sessions[-1]}, body
        results = {
            "tools/list": {"tools": [{"name": "do", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": sessions[-1] if sessions else ""}]},
        }
        if "id" not in message:
            return 202, {}, b""
        if message["method"] not in results:
            return as_json({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "unknown"}})
        return as_json({"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]})

    async with api(answer) as served:
        mount = MountedServer("remote", Address(f"{served.address}/mcp"), QUICK)
        async with serve(mount, settings=valkey.settings), valkey.bus() as bus:
            assert (await bus.call("do")).output == "s0"
            sessions.append("another")
            over = (await bus.call("do")).error
            assert over is not None
            assert (over.type, over.code) == ("unavailable", "mount_down")
            assert (await bus.call("do", timeout=30.0)).output == "s2"
