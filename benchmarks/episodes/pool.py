"""``Pool``: worker processes that serve the worlds, one of which is killed now and then."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.episodes.services import DECLARED
from benchmarks.episodes.worlds.every import WORLDS
from benchmarks.peers import environment
from benchmarks.processes import Child
from toolbus import Settings
from toolbus.broker.admin import Admin

_COMMAND = str(Path(sys.executable).with_name("toolbus"))
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.05


class Pool:
    """Workers as users start them, for ``async with``.

    Attributes:
        kills: processes that were killed so far.
    """

    def __init__(self, settings: Settings, *, workers: int, declared: bool, lease: float) -> None:
        self.kills = 0
        self._settings = settings
        self._workers = workers
        self._lease = lease
        self._env = environment("quiet", settings.url) | {"TOOLBUS_NAMESPACE": settings.namespace}
        if declared:
            self._env[DECLARED] = "1"
        self._children: list[Child] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._children = [self._start() for _ in range(self._workers)]
        try:
            async with asyncio.timeout(_START_SECONDS), Admin(self._settings) as admin:
                while not self._complete({each.publication.service.id: each.workers for each in await admin.services()}):
                    self._check()
                    await asyncio.sleep(_LOOK_SECONDS)
        except BaseException:
            self._stop()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    async def kill_every(self, seconds: float, chance: random.Random) -> None:
        """Kill a worker every so many seconds and start another one, until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            index = chance.randrange(len(self._children))
            victim = self._children[index]
            os.killpg(victim.pid, signal.SIGKILL)
            self.kills += 1
            self._children[index] = self._start()
            await asyncio.to_thread(victim.stop, 0.0)

    def _complete(self, workers: dict[str, int]) -> bool:
        return all(workers.get(name, 0) >= self._workers for name in WORLDS)

    def _start(self) -> Child:
        command = [_COMMAND, "worker", "benchmarks.episodes.services:SERVICES", "--lease", str(self._lease)]
        return Child("a worker", command, self._env)

    def _check(self) -> None:
        for child in self._children:
            if child.process.poll() is not None:
                child.wait(1)

    def _stop(self) -> None:
        for child in self._children:
            child.process.terminate()
        for child in self._children:
            child.stop()
