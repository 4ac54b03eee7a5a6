"""The whole story with a scripted model and real processes, undisturbed and with each process killed once."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.coding.story import Story, story
from tests.coding.workspace.places import needs_namespaces
from toolbus.bus.broker.transport.embedded import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("slow"), pytest.mark.timeout(400)]


@pytest.fixture(autouse=True)
def confined() -> None:
    """Commands of tasks are confined."""
    needs_namespaces()


@pytest.mark.usefixtures("slow")
async def test_a_task_becomes_a_tool_that_is_served_and_repaired(url: str, namespace: str, tmp_path: Path) -> None:
    """Task, code, trial, approval, calls, a killed program, broken code, repair, approval, calls."""
    async with story(url, namespace, tmp_path) as told:
        await told.tell()


class Disturbed:
    """Kills each process once: the worker and the server at requests to the model, the host at points of the story, by a seed."""

    def __init__(self, seed: int, server: EmbeddedServer) -> None:
        chance = random.Random(seed)
        self.requests = {chance.randint(1, 6): "worker"}
        self.requests[chance.choice([each for each in range(1, 9) if each not in self.requests])] = "server"
        self.point = chance.choice(["after the task", "before the first call", "before the code is broken", "during the repair"])
        self.delay = chance.uniform(0.0, 1.0)
        self.server = server
        self.told: Story | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def on_request(self, count: int) -> None:
        """Kill what is to be killed at this request to the model."""
        name = self.requests.pop(count, "")
        if name:
            self._start(self._kill(name))

    async def on_point(self, point: str) -> None:
        """Kill the host, somewhat later."""
        if point == self.point:
            self._start(self._kill("host", self.delay))

    async def _kill(self, name: str, delay: float = 0.0) -> None:
        await asyncio.sleep(delay)
        assert self.told is not None
        if name == "server":
            self.told.processes.killed.append(name)
            await asyncio.to_thread(self.server.kill)
            await asyncio.to_thread(self.server.start)
        else:
            await self.told.processes.kill(name)

    def _start(self, killing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(killing)
        self._tasks.add(task)

    async def done(self) -> None:
        """Wait until all that was killed runs again."""
        await asyncio.gather(*self._tasks)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("seed", [int(each) for each in os.environ.get("TOOLBUS_STORY_SEEDS", "1").split(",")])
async def test_the_story_goes_on_when_each_process_is_killed_once(fresh_server: Any, tmp_path: Path, seed: int) -> None:
    """Worker, host and server are killed at random points; nothing is done twice, and nothing is lost."""
    folder = tmp_path / "server"
    server = fresh_server(appendonly=True, data_dir=folder, config={"appendfsync": "always"})
    disturbed = Disturbed(seed, server)
    async with story(server.url, "story", tmp_path, on_request=disturbed.on_request, on_point=disturbed.on_point) as told:
        disturbed.told = told
        await told.tell()
        await disturbed.done()
        assert sorted(told.processes.killed) == ["host", "server", "worker"]
