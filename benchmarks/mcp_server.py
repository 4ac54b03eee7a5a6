"""Measure the MCP server: tools/call over HTTP, through a real gateway, worker and server, each a process of its own.

The clients write requests by hand, so that the gateway is the slowest part. Beside the rate stands the processor time that the gateway
took for a call, which says what a whole core would do where several processes share one.

    python -m benchmarks.mcp_server [--connections 64] [--seconds 5] [--profile]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from toolbus.bus.broker.transport.embedded import EmbeddedServer

NAMESPACE = "mcp-benchmark"
MODERN, OLDER = "2026-07-28", "2025-11-25"
_META = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
_ACCEPT = "Accept: application/json, text/event-stream\r\n"
_INFO = {"name": "benchmark", "version": "1"}


def main() -> None:
    """Start everything, measure, and print a line for each revision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=["worker", "gateway"])
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--plugs", type=int, default=20, help="How often a service is started to see when subscribers hear of it.")
    parser.add_argument("--profile", action="store_true", help="Print what the gateway's time goes to.")
    options = parser.parse_args()
    if options.part == "worker":
        asyncio.run(_worker())
    elif options.part == "gateway":
        _gateway(profile=options.profile)
    else:
        _measure(options)


def _measure(options: argparse.Namespace) -> None:
    with EmbeddedServer() as server:
        environment = {**os.environ, "TOOLBUS_URL": server.url, "TOOLBUS_NAMESPACE": NAMESPACE}
        command = [sys.executable, "-m", "benchmarks.mcp_server"]
        worker = subprocess.Popen([*command, "worker"], env=environment)
        words = ["gateway", "--profile"] if options.profile else ["gateway"]
        gateway = subprocess.Popen([*command, *words], env=environment, stdout=subprocess.PIPE, text=True)
        other = subprocess.Popen([*command, "gateway"], env=environment, stdout=subprocess.PIPE, text=True)
        try:
            assert gateway.stdout is not None
            assert other.stdout is not None
            port, second = int(gateway.stdout.readline()), int(other.stdout.readline())
            for revision in (MODERN, OLDER):
                # The first requests load what serves them.
                asyncio.run(_load(port, 8, 1.0, revision))
                before = _cpu(gateway.pid)
                calls, took, delays = asyncio.run(_load(port, options.connections, options.seconds, revision))
                cpu = _cpu(gateway.pid) - before
                delays.sort()
                print(
                    f"{revision}: {calls / took:,.0f} calls/s at {options.connections} connections, "
                    f"p50 {delays[len(delays) // 2] * 1000:.1f} ms, p99 {delays[int(len(delays) * 0.99)] * 1000:.1f} ms; "
                    f"gateway {cpu / calls * 1e6:,.0f} µs of a core per call: {calls / cpu:,.0f} calls/s of a whole core"
                )
            for name, heard in zip(
                ("one gateway", "the other"), asyncio.run(_plug(server.url, (port, second), options.plugs)), strict=True
            ):
                heard.sort()
                half, most = heard[len(heard) // 2] * 1000, heard[-1] * 1000
                print(f"list changes at {name}: p50 {half:.0f} ms, most {most:.0f} ms after a registration, of {len(heard)}")
        finally:
            for process in (gateway, other):
                process.send_signal(signal.SIGINT)
            worker.terminate()
            worker.wait(20)
            for process in (gateway, other):
                process.wait(20)


async def _plug(url: str, ports: tuple[int, int], times: int) -> list[list[float]]:
    """Return the seconds from each registration of a new service until a subscriber of each gateway hears of it."""
    from toolbus import ToolService, Worker

    loop = asyncio.get_running_loop()
    heard: list[asyncio.Queue[float]] = [asyncio.Queue() for _ in ports]

    async def listen(port: int, into: asyncio.Queue[float]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        params = {"notifications": {"toolsListChanged": True}, "_meta": _META}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}).encode()
        head = (
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
            f"MCP-Protocol-Version: {MODERN}\r\nMcp-Method: subscriptions/listen\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        try:
            while line := await reader.readline():
                if b"acknowledged" in line or b"list_changed" in line:
                    into.put_nowait(loop.time())
        finally:
            writer.close()

    async def invoke(self: Any, user: str, config: Any, arguments: Any) -> str:
        return ""

    listening = [asyncio.create_task(listen(port, into)) for port, into in zip(ports, heard, strict=True)]
    for into in heard:
        await into.get()
    delays: list[list[float]] = [[] for _ in ports]
    for number in range(times):
        tools = [{"name": f"plug_{number}", "description": "One of many.", "arguments": []}]
        service = type("Plug", (ToolService,), {"id": f"plug-{number}", "tools": tools, "invoke": invoke})()
        async with Worker([service], url=url, namespace=NAMESPACE):
            registered = loop.time()
            for into, found in zip(heard, delays, strict=True):
                found.append(max(0.0, await into.get() - registered))
        for into in heard:
            await into.get()
    for task in listening:
        task.cancel()
    await asyncio.gather(*listening, return_exceptions=True)
    return delays


async def _load(port: int, connections: int, seconds: float, revision: str) -> tuple[int, float, list[float]]:
    delays: list[float] = []
    start = time.perf_counter()
    await asyncio.gather(*(_client(port, start + seconds, revision, delays) for _ in range(connections)))
    return len(delays), time.perf_counter() - start, delays


async def _client(port: int, until: float, revision: str, delays: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    session = ""
    if revision == OLDER:
        session = await hello(reader, writer, revision)
    more = session or f"{_ACCEPT}MCP-Protocol-Version: {MODERN}\r\nMcp-Method: tools/call\r\nMcp-Name: echo\r\n"
    params: dict[str, Any] = {"name": "echo", "arguments": {"text": "hello"}}
    if not session:
        params["_meta"] = _META
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    while (begin := time.perf_counter()) < until:
        _, body = await post(reader, writer, request, more)
        assert b"hello" in body, body
        delays.append(time.perf_counter() - begin)
    writer.close()


async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, revision: str, path: str = "/mcp", more: str = "") -> str:
    """Begin a session, or only shake hands with a server that keeps none; return the header lines of what follows."""
    params = {"protocolVersion": revision, "capabilities": {}, "clientInfo": _INFO}
    lines = f"{_ACCEPT}MCP-Protocol-Version: {revision}\r\n"
    headers, _ = await post(reader, writer, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}, more + lines, path)
    if session := headers.get("mcp-session-id"):
        lines += f"Mcp-Session-Id: {session}\r\n"
    await post(reader, writer, {"jsonrpc": "2.0", "method": "notifications/initialized"}, more + lines, path)
    return lines


async def post(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: Any, more: str, path: str = "/mcp"
) -> tuple[dict[str, str], bytes]:
    """Send a message; return the headers and the body of the answer."""
    body = json.dumps(message).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    writer.write(head.encode() + body)
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
    assert first.split()[1] in {"200", "202"}, first
    if headers.get("transfer-encoding") == "chunked":
        return headers, await _chunks(reader)
    return headers, await reader.readexactly(int(headers.get("content-length", "0")))


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    found = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        found += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return found


def _cpu(pid: int) -> float:
    """Return the seconds of processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _worker() -> None:
    from toolbus import ToolService, Worker, tool

    class Echo(ToolService):
        id = "mcp-benchmark"

        @tool(effect="read")
        def echo(self, text: str) -> str:
            """Return the text."""
            return text

    await Worker([Echo()]).run()


def _gateway(*, profile: bool) -> None:
    import cProfile
    import pstats
    import socket

    import uvicorn

    from toolbus import ToolBus
    from toolbus.edges.gateway.app import application
    from toolbus.edges.gateway.gateway import Gateway
    from toolbus.edges.gateway.options import Everyone

    async def serve() -> None:
        async with ToolBus() as bus:
            await bus.wait_for_tool("echo", 30)
            listening = socket.create_server(("127.0.0.1", 0), backlog=512)
            print(listening.getsockname()[1], flush=True)
            config = uvicorn.Config(application(Gateway(bus, Everyone())), log_level="error", access_log=False, timeout_graceful_shutdown=1)
            await uvicorn.Server(config).serve(sockets=[listening])

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(serve())
        except KeyboardInterrupt:
            pass

    if not profile:
        run()
        return
    profiler = cProfile.Profile()
    profiler.runcall(run)
    pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(35)


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
