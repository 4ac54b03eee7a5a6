"""A pool of real worker processes, as ``toolbus worker`` starts them, whose size is set from outside."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple, Self

from toolbus.bus.worker.process.lifeline import Lifeline

SERVICE = "autoscaled"
TOOL = "work"
_TOOLS = f'''
import asyncio

from toolbus import ToolService, tool


class Autoscaled(ToolService):
    """Work that takes a while."""

    id = "{SERVICE}"
    scale_to_zero = True

    @tool(name="{TOOL}", effect="once")
    async def work(self, seconds: float) -> float:
        """Take a number of seconds."""
        await asyncio.sleep(seconds)
        return seconds
'''
_GRACE = 30.0
# Seconds beyond the grace after which a worker that does not end is killed, which counts as a mistake.
_MARGIN = 15.0


class Life(NamedTuple):
    """The times of one worker process, by the monotonic clock: begun, first served, ended; and its exit code."""

    began: float
    served: float
    ended: float
    code: int

    @property
    def killed(self) -> bool:
        """True when it ended in another way than by draining; one that SIGTERM meets while it loads has nothing to drain."""
        return self.code != 0 and (self.served > 0 or self.code != -signal.SIGTERM)


class Pool:
    """Starts and drains worker processes; use it with ``async with``.

    Args:
        url: the server's.
        slots: calls that one worker runs at once.
        folder: for the tool's file and the logs.
    """

    def __init__(self, url: str, slots: int, folder: Path) -> None:
        self._command = [sys.executable, "-m", "toolbus", "worker", str(folder / "work.py"), "--concurrency", str(slots)]
        self._environment = {**os.environ, "TOOLBUS_URL": url, "TOOLBUS_LOG_LEVEL": "warning", "TOOLBUS_GRACE": str(_GRACE)}
        self._folder = folder
        self._running: list[asyncio.Event] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: dict[int, float] = {}
        self._number = 0
        self.lives: list[Life] = []
        (folder / "work.py").write_text(_TOOLS)

    @property
    def size(self) -> int:
        """The number of workers that should run."""
        return len(self._running)

    @property
    def serving(self) -> int:
        """The number of workers that serve, with those that drain."""
        return len(self._serving)

    def resize(self, size: int) -> None:
        """Start workers, or let the newest ones drain and end."""
        while len(self._running) < size:
            ending = asyncio.Event()
            self._running.append(ending)
            task = asyncio.create_task(self._live(self._number, ending))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self._number += 1
        while len(self._running) > size:
            self._running.pop().set()

    async def settled(self, size: int, within: float = 120.0) -> None:
        """Set the size, and wait until as many serve.

        Raises:
            TimeoutError: they did not.
        """
        self.resize(size)
        async with asyncio.timeout(within):
            while len(self._serving) != size:  # noqa: ASYNC110 - processes, which set no event
                await asyncio.sleep(0.02)

    async def _live(self, number: int, ending: asyncio.Event) -> None:
        loop, began = asyncio.get_running_loop(), time.monotonic()
        with Lifeline() as line, (self._folder / f"worker-{number}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *self._command, *line.words, env=self._environment, pass_fds=(line.theirs,), stdout=log, stderr=log, start_new_session=True
            )
            line.started()

            def hear() -> None:
                if line.read().instance and number not in self._serving:
                    self._serving[number] = time.monotonic()
                if line.ended:
                    loop.remove_reader(line.fileno())

            loop.add_reader(line.fileno(), hear)
            ended = asyncio.create_task(process.wait())
            stopping = asyncio.create_task(ending.wait())
            try:
                await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
                await _end(process, ended)
            finally:
                stopping.cancel()
                loop.remove_reader(line.fileno())
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        served = self._serving.pop(number, 0.0)
        self.lives.append(Life(began, served, time.monotonic(), process.returncode or 0))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.resize(0)
        if self._tasks:
            await asyncio.wait(self._tasks)


async def _end(process: asyncio.subprocess.Process, ended: asyncio.Task[int]) -> None:
    if ended.done():
        return
    process.terminate()
    done, _ = await asyncio.wait({ended}, timeout=_GRACE + _MARGIN)
    if not done:
        process.kill()
        await ended
