"""Workers in Node.js and in Python serve one service together, while both kinds are killed."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from tests.servers import eventually
from toolbus import Settings, ToolBus
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.server.scripts import write_scripts
from toolbus.bus.broker.transport.embedded import EmbeddedServer

NODE = shutil.which("node")
WORKER = Path(__file__).parent.parent.parent / "examples" / "node" / "worker.mjs"
CALLS, KILLS, SEED = 150, 8, 2011

pytestmark = [
    pytest.mark.usefixtures("slow"),
    pytest.mark.anyio,
    pytest.mark.skipif(NODE is None, reason="there is no Node.js on this machine: mixed workers were not run"),
]


class Pool:
    """Two workers of each kind; whoever is killed is started again."""

    def __init__(self, url: str, scripts: Path) -> None:
        environment = {"TOOLBUS_URL": url, "TOOLBUS_LEASE": "2", "TOOLBUS_SERVICE": "conformance", "TOOLBUS_SCRIPTS": str(scripts)}
        self._environment = {**os.environ, **environment, "TOOLBUS_OWNER": "node"}
        self._commands = [
            [str(NODE), str(WORKER)],
            [sys.executable, "-m", "toolbus", "worker", "toolbus.operations.conformance.checks"],
        ] * 2
        self._running = [self._start(command) for command in self._commands]

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    async def kill(self, number: int) -> None:
        """Kill one without a warning, and start another of its kind."""
        self._running[number].kill()
        await asyncio.to_thread(self._running[number].wait)
        self._running[number] = self._start(self._commands[number])

    def close(self) -> None:
        for process in self._running:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def __len__(self) -> int:
        return len(self._running)


async def test_calls_survive_kills_of_both_kinds(tmp_path: Path) -> None:
    """Every stream is whole and every text comes back, with workers of two languages that are killed in turns."""
    write_scripts(tmp_path)
    chance = random.Random(SEED)
    with EmbeddedServer() as server:
        pool = Pool(server.url, tmp_path)
        try:
            async with ToolBus(settings=Settings.load({}, url=server.url, lease=2.0, max_deliveries=20)) as bus:
                for name in ("conformance-echo", "conformance-count"):
                    await bus.wait_for_tool(name, 60.0)

                async def call(number: int) -> None:
                    await asyncio.sleep(chance.random() * 8)
                    text = f"text {number} é𝄞"
                    echoed = await bus.call("conformance-echo", {"text": text}, timeout=90.0)
                    assert (echoed.error, echoed.output) == (None, text)
                    counted = await bus.call("conformance-count", {"to": 20, "delay": 0.05}, timeout=90.0)
                    assert (counted.error, counted.output) == (None, "".join(f"{each} " for each in range(1, 21)))

                def alive() -> set[bytes]:
                    with redis.Redis.from_url(server.url) as client:
                        members: list[bytes] = client.zrange(Keys("default").live, 0, -1)
                    return {each for each in members if each.startswith(b"conformance/")}

                await eventually(lambda: len(alive()) == len(pool), timeout=60.0)

                async def kill() -> None:
                    for _ in range(KILLS):
                        known = alive()
                        await pool.kill(chance.randrange(len(pool)))
                        # With the next one killed before, there could be a moment without any worker, in which calls are refused.
                        await eventually(lambda known=known: alive() - known, timeout=60.0)
                        await asyncio.sleep(1.0)

                async with asyncio.TaskGroup() as group:
                    group.create_task(kill())
                    for number in range(CALLS):
                        group.create_task(call(number))
        finally:
            pool.close()
