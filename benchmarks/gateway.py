"""Measure the gateway: calls per second, what HTTP adds to a call, and many streams of events.

    python -m benchmarks.gateway [--seconds N] [--streams N] [--for N]

Everything runs on this machine: a server, workers, one gateway (`toolbus serve`), and this client.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from toolbus import ToolBus, tool
from toolbus.bus.broker.transport.embedded import EmbeddedServer

_TEXT = re.compile(rb'^data: \{"text":"(\d+)\\n"\}', re.MULTILINE)
_HOST = "127.0.0.1"


@tool(effect="read")
async def nothing(number: int) -> int:
    """Return a number."""
    return number


@tool(effect="read")
async def ticks(count: int, pause: float) -> AsyncIterator[str]:
    """Yield numbers, one a line.

    Args:
        count: how many
        pause: seconds between them
    """
    began = time.monotonic()
    for number in range(count):
        yield f"{number}\n"
        await asyncio.sleep(max(0.0, began + (number + 1) * pause - time.monotonic()))


class Process:
    """A process of toolbus."""

    def __init__(self, url: str, *words: str) -> None:
        environment = {**os.environ, "TOOLBUS_URL": url, "TOOLBUS_LOG_FORMAT": "json", "TOOLBUS_LOG_LEVEL": "info"}
        command = [sys.executable, "-m", "toolbus", *words]
        self._process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        self.pid = self._process.pid

    def logged(self, event: str) -> dict[str, Any]:
        """Read the log until an event."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if f'"{event}"' in line:
                return dict(json.loads(line))
        raise SystemExit(f"a process ended without {event}")

    def seconds(self) -> float:
        """Return the processor time used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def megabytes(self) -> float:
        """Return the memory that it holds now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def stop(self) -> None:
        """Stop it."""
        self._process.terminate()
        self._process.communicate()


@contextmanager
def running(workers: int) -> Iterator[tuple[str, Process, int]]:
    """Start everything; yields the server's URL, the gateway and its port."""
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer())
        for _ in range(workers):
            worker = Process(server.url, "worker", str(Path(__file__).resolve()), "--concurrency", "1000")
            stack.callback(worker.stop)
            worker.logged("service.registered")
        gateway = Process(server.url, "serve", "--port", "0")
        stack.callback(gateway.stop)
        port = int(gateway.logged("gateway.serving")["url"].rpartition(":")[2])
        yield server.url, gateway, port


def request(tool: str, params: dict[str, Any], *, events: bool = False) -> bytes:
    """Return a request to call a tool."""
    body = json.dumps({"tool_id": tool, "params": params}).encode()
    accept = b"Accept: text/event-stream\r\n" if events else b""
    head = b"POST /run_tool HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head + accept + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


async def _calls(port: int, until: float, times: list[float]) -> None:
    reader, writer = await asyncio.open_connection(_HOST, port)
    data = request("nothing", {"number": 1})
    while time.perf_counter() < until:
        began = time.perf_counter()
        writer.write(data)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 200"):
            raise SystemExit(f"not answered with 200: {head!r}")
        at = head.index(b"content-length:") + 15
        await reader.readexactly(int(head[at : head.index(b"\r\n", at)]))
        times.append(time.perf_counter() - began)
    writer.close()


async def calls(port: int, connections: int, seconds: float, gateway: Process) -> dict[str, float]:
    """Call as quickly as answers come, on so many connections."""
    times: list[float] = []
    used, began = gateway.seconds(), time.perf_counter()
    await asyncio.gather(*(_calls(port, began + seconds, times) for _ in range(connections)))
    took = time.perf_counter() - began
    return _row(times, took) | {"gateway, µs of processor a call": (gateway.seconds() - used) / len(times) * 1e6}


async def direct(url: str, seconds: float) -> dict[str, float]:
    """Call on a bus of this process, one call after another."""
    times: list[float] = []
    async with ToolBus(url) as bus:
        await bus.wait_for_tool("nothing")
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            began = time.perf_counter()
            await bus.call("nothing", {"number": 1})
            times.append(time.perf_counter() - began)
    return _row(times, seconds)


def _row(times: list[float], took: float) -> dict[str, float]:
    times.sort()
    return {"calls/s": len(times) / took, "p50, ms": times[len(times) // 2] * 1e3, "p99, ms": times[int(len(times) * 0.99)] * 1e3}


async def _stream(port: int, count: int, pause: float) -> tuple[int, bool]:
    """Return how many chunks of a stream came, and whether they came in order."""
    reader, writer = await asyncio.open_connection(_HOST, port)
    # A call may take longer than it should on a machine that has other work.
    data = request("ticks", {"count": count, "pause": pause}, events=True)
    writer.write(data.replace(b"\r\n\r\n", b"\r\nToolbus-Timeout: 600\r\n\r\n", 1))
    found: list[int] = []
    rest, ended = b"", False
    while not ended:
        piece = await reader.read(65_536)
        if not piece:
            break
        events, _, rest = (rest + piece).rpartition(b"\n\n")
        found += map(int, _TEXT.findall(events))
        ended = b"event: end" in events
    writer.close()
    return len(found), found == list(range(len(found)))


async def streams(port: int, number: int, seconds: float, gateway: Process) -> dict[str, float]:
    """Read so many streams of ten chunks a second at once."""
    count = int(seconds * 10)
    used = gateway.seconds()
    reading = asyncio.gather(*(_stream(port, count, 0.1) for _ in range(number)))
    sizes = []
    began = time.monotonic()
    while not reading.done():
        await asyncio.sleep(1)
        sizes.append(gateway.megabytes())
    took = time.monotonic() - began
    found = reading.result()
    settled = sizes[min(len(sizes) - 1, 5)]
    return {
        "chunks": sum(chunks for chunks, _ in found),
        "chunks lost": number * count - sum(chunks for chunks, _ in found),
        "streams out of order": sum(not in_order for _, in_order in found),
        "seconds": took,
        "gateway, % of a core": (gateway.seconds() - used) / took * 100,
        "gateway, MB after 5 s": settled,
        "gateway, MB at the end": sizes[-1],
    }


def main() -> None:
    """Measure, and print the figures."""
    given = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=__doc__)
    given.add_argument("--seconds", type=float, default=5.0, help="length of each measurement of calls (%(default)s)")
    given.add_argument("--streams", type=int, default=500, help="streams at once (%(default)s)")
    given.add_argument("--for", dest="length", type=float, default=60.0, help="seconds that they last (%(default)s)")
    given.add_argument("--workers", type=int, default=1, help="worker processes (%(default)s)")
    options = given.parse_args()
    with running(options.workers) as (url, gateway, port):
        _show("a bus, one call at a time", asyncio.run(direct(url, options.seconds)))
        _show("HTTP, 1 connection", asyncio.run(calls(port, 1, options.seconds, gateway)))
        _show("HTTP, 64 connections", asyncio.run(calls(port, 64, options.seconds, gateway)))
        if options.streams:
            found = asyncio.run(streams(port, options.streams, options.length, gateway))
            _show(f"{options.streams} streams of 10 chunks/s", found)


def _show(title: str, row: dict[str, float]) -> None:
    print(f"{title}: " + ", ".join(f"{name} {value:,.2f}" for name, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
