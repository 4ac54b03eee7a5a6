"""``Pool``: worker processes that serve the worlds, one of which ends now and then."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.peers import environment
from benchmarks.processes import Child
from toolbus import Settings

_COMMAND = str(Path(sys.executable).with_name("toolbus"))
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.05


class Pool:
    """Workers as users start them, for ``async with``.

    Attributes:
        kills: processes that were ended so far.
    """

    def __init__(self, settings: Settings, workers: int, options: tuple[str, ...], variables: dict[str, str]) -> None:
        self.kills = 0
        self._workers = workers
        self._options = options
        self._env = environment("quiet", settings.url) | {"TOOLBUS_NAMESPACE": settings.namespace} | variables
        self._folder = tempfile.TemporaryDirectory(prefix="toolbus-episodes-")
        self._ready: dict[int, Path] = {}
        self._children: list[Child] = []
        self._ended: list[Child] = []

    async def __aenter__(self) -> Self:
        self._children = [self._start() for _ in range(self._workers)]
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._whole()
        except BaseException:
            self._stop()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    async def end_every(self, seconds: float, number: signal.Signals, chance: random.Random) -> None:
        """Send a worker a signal that ends it, and start another one, until cancelled.

        So many seconds lie between two signals, and more where a worker takes longer to start.
        """
        while True:
            await asyncio.gather(asyncio.sleep(seconds), self._whole())
            index = chance.randrange(len(self._children))
            victim = self._children[index]
            os.killpg(victim.pid, number)
            self.kills += 1
            self._children[index] = self._start()
            self._ended.append(victim)

    async def stop_every(self, seconds: float, silent: float, chance: random.Random) -> None:
        """Stop a worker every so many seconds and let it go on after ``silent`` seconds, until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            victim = chance.choice(self._children)
            self.kills += 1
            os.killpg(victim.pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(silent)
            finally:
                os.killpg(victim.pid, signal.SIGCONT)

    async def _whole(self) -> None:
        """Wait until every worker serves.

        Raises:
            ChildError: one ended by itself.
        """
        while not all(self._ready[child.pid].exists() for child in self._children):
            for child in self._children:
                if child.process.poll() is not None:
                    child.wait(1)
            await asyncio.sleep(_LOOK_SECONDS)

    def _start(self) -> Child:
        file = Path(self._folder.name, str(len(self._ready)))
        words = ["worker", "benchmarks.episodes.services:SERVICES", "--health-file", str(file), *self._options]
        child = Child("a worker", [_COMMAND, *words], self._env)
        self._ready[child.pid] = file
        return child

    def _stop(self) -> None:
        for child in self._children:
            child.process.terminate()
        for child in (*self._children, *self._ended):
            child.stop()
        self._folder.cleanup()
