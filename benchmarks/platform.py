"""Measure recorded tools: a call to a local program through a host, beside direct HTTP calls to the same program.

    python -m benchmarks.platform [--seconds N] [--at-once N]

Everything runs on this machine: a server, one host (`toolbus platform host`), its program, and this client. The program is ASGI,
served by uvicorn, and answers with the body of its request. Rounds of direct calls and of calls through the host take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.gateway import Process
from toolbus import Settings, ToolBus
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.platform.backends.api import ApiSender
from toolbus.platform.backends.http import Endpoint, HttpCalls
from toolbus.platform.host.host import make_runner
from toolbus.platform.records import RecordedTool, Running, ToolMeta, ToolSource
from toolbus.platform.store import Records

_PROGRAM = """
import argparse, uvicorn

async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
uvicorn.run(app, port=parser.parse_args().port, log_level="warning", lifespan="off")
"""
_ARGUMENTS = {"text": "x" * 200}
_TOOL = "echo_program"

Call = Callable[[], Awaitable[Any]]


async def one_by_one(call: Call, seconds: float) -> float:
    """Return the median of the seconds that a call takes, one after another."""
    times: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        await call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


async def at_once(call: Call, number: int, seconds: float) -> float:
    """Return calls per second, with so many at once."""
    done, until = 0, time.perf_counter() + seconds

    async def loop() -> None:
        nonlocal done
        while time.perf_counter() < until:
            await call()
            done += 1

    await asyncio.gather(*(loop() for _ in range(number)))
    return done / seconds


async def compare(ways: dict[str, Call], number: int, seconds: float, rounds: int) -> None:
    """Measure each way in turns, and print medians of all rounds."""
    alone: dict[str, list[float]] = {name: [] for name in ways}
    crowd: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, call in ways.items():
            await one_by_one(call, seconds / 5)
            alone[name].append(await one_by_one(call, seconds) * 1e3)
            crowd[name].append(await at_once(call, number, seconds))
    first = next(iter(ways))
    for name in ways:
        p50, rate = statistics.median(alone[name]), statistics.median(crowd[name])
        more, share = p50 - statistics.median(alone[first]), rate / statistics.median(crowd[first])
        print(f"{name}: p50 {p50:.2f} ms ({more:+.2f} ms), {number} at once {rate:,.0f} calls/s ({share:.0%})", flush=True)


class Host(Process):
    """A host as it is shipped, whose log goes into a file."""

    def __init__(self, url: str, log: Path) -> None:
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "toolbus", "platform", "host"], env={**os.environ, "TOOLBUS_URL": url}, stderr=file, text=True
            )
        self.pid = self._process.pid


def record(folder: Path, number: int) -> RecordedTool:
    """Return the record of the program in a folder."""
    (folder / "main.py").write_text(_PROGRAM)
    command = (sys.executable, "main.py", "--port", "{port}")
    return RecordedTool(
        meta=ToolMeta(tool_id=_TOOL, description="Return the arguments.", input_schema={"type": "object"}),
        sources=(ToolSource(type="local", host_dir=str(folder), command=command),),
        running=Running(effect="read", concurrency=number, keep_warm=1),
    )


async def measure(folder: Path, number: int, seconds: float, rounds: int) -> None:
    """Measure a runner alone, and then a host as it is shipped."""
    tool = record(folder, number)
    runner = await make_runner("local", "benchmark")
    instance = await runner.start(tool, tool.sources[0], print)
    base = f"http://127.0.0.1:{instance.port}"
    direct = HttpCalls(Endpoint(base=base), ApiSender(base, aiohttp.ThreadedResolver(), lambda address, port: None))
    quiet: Any = None
    ways: dict[str, Call] = {
        "direct HTTP by aiohttp": lambda: direct.call(_ARGUMENTS, quiet),
        "a runner of this process": lambda: instance.call(_ARGUMENTS, quiet),
    }
    with EmbeddedServer() as server, contextlib.ExitStack() as stack:
        async with Admin(Settings(url=server.url)) as admin:
            await Records(admin).put(tool)
        host = Host(server.url, folder / "host.log")
        stack.callback(host.stop)
        async with ToolBus(server.url) as bus:
            await bus.wait_for_tool(_TOOL, timeout=60)
            result = await bus.call(_TOOL, _ARGUMENTS)
            if not result.success:
                raise SystemExit(str(result.error))
            ways["through `toolbus platform host`"] = lambda: bus.call(_TOOL, _ARGUMENTS)
            await compare(ways, number, seconds, rounds)
            used, done = host.seconds(), await at_once(ways["through `toolbus platform host`"], number, seconds)
            print(f"the host: {(host.seconds() - used) / (done * seconds) * 1e6:.0f} µs of processor a call")
            used, began = host.seconds(), time.monotonic()
            await asyncio.sleep(2 * seconds)
            print(f"the host when idle: {(host.seconds() - used) / (time.monotonic() - began):.2%} of a core")
    await direct.aclose()
    await instance.stop(5)
    await runner.aclose()


def main() -> None:
    """Measure, and print the figures."""
    given = argparse.ArgumentParser(prog="python -m benchmarks.platform", description=__doc__)
    given.add_argument("--seconds", type=float, default=3.0, help="length of each measurement (%(default)s)")
    given.add_argument("--at-once", type=int, default=64, help="calls at once (%(default)s)")
    given.add_argument("--rounds", type=int, default=3, help="rounds, in turns (%(default)s)")
    options = given.parse_args()
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), options.at_once, options.seconds, options.rounds))


if __name__ == "__main__":
    main()
