"""``Tree``: the commands of one platform as processes, each kept alive, and ended in order."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from toolbus.cli.output import say
from toolbus.worker.process.lifeline import Told
from toolbus.worker.process.supervisor import Supervisor


class Part(msgspec.Struct, frozen=True):
    """One command of the tree.

    Attributes:
        name: for people.
        words: the command and its arguments, after ``toolbus``.
        descriptors: files that it inherits.
        environment: variables of its own.
    """

    name: str
    words: tuple[str, ...]
    descriptors: tuple[int, ...] = ()
    environment: dict[str, str] = {}


class Ended(Exception):
    """A part of the tree can't serve; the text says which one and why."""


class Tree:
    """Keeps each part alive: one that has served and dies is started again, after a pause that grows.

    A part that refuses to serve from the start ends all, since the same start would be refused again.

    Args:
        environment: of every part.
        grace: seconds that a part may take to finish its work.
        retire: gives what a dead part held to others, by the ids that it has told.
    """

    def __init__(self, environment: Mapping[str, str], *, grace: float, retire: Callable[[Told], Awaitable[object]]) -> None:
        self._environment = environment
        self._grace = grace
        self._retire = retire
        self._running: list[tuple[Part, Supervisor, asyncio.Task[int]]] = []
        self._complaints: dict[str, str] = {}
        self._failed = asyncio.Event()

    async def start(self, parts: Sequence[Part]) -> None:
        """Start parts, and return when all of them serve.

        Raises:
            Ended: one can't.
        """
        serving = [self._begin(part) for part in parts]
        failing = asyncio.create_task(self._failed.wait())
        try:
            for each in serving:
                await asyncio.wait({asyncio.ensure_future(each.wait()), failing}, return_when=asyncio.FIRST_COMPLETED)
                self._check()
        finally:
            failing.cancel()

    async def until_failed(self) -> None:
        """Wait until a part can't serve any more.

        Raises:
            Ended: says why.
        """
        await self._failed.wait()
        self._check()

    async def stop(self) -> None:
        """End the parts, the latest first; each ends before the next one is told."""
        while self._running:
            _, supervisor, task = self._running.pop()
            supervisor.stop()
            await task

    def _begin(self, part: Part) -> asyncio.Event:
        serving = asyncio.Event()
        supervisor = Supervisor(
            [sys.executable, "-m", "toolbus", *part.words],
            {**self._environment, **part.environment},
            processes=1,
            grace=self._grace,
            retire=self._retire,
            complain=lambda text: self._complain(part, text, is_known=serving.is_set()),
            on_serving=serving.set,
            descriptors=part.descriptors,
        )
        task = asyncio.create_task(supervisor.supervise(), name=part.name)
        task.add_done_callback(lambda _: self._failed.set())
        self._running.append((part, supervisor, task))
        return serving

    def _complain(self, part: Part, text: str, *, is_known: bool) -> None:
        self._complaints[part.name] = text
        if is_known:
            say(f"the {part.name} can't start again, and is tried further: {text}", fg="red", err=True)

    def _check(self) -> None:
        for part, _, task in self._running:
            if task.done():
                raise Ended(self._complaints.get(part.name) or f"the {part.name} has ended; its output says why")
