"""A runner whose programs do what a test says, on a clock that needs no waiting."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Self

from tests.virtual_time import VirtualLoop
from toolbus.bus.values.results import Blob, Progress, ToolResult
from toolbus.platform.backends.runner import CannotStart, Instance, Line, Output, Runner
from toolbus.platform.host.pool import Pool
from toolbus.platform.records import RecordedTool, Running, ToolMeta, ToolRoute, ToolSource

Answer = Callable[["FakeInstance", dict[str, Any], Output], Awaitable[ToolResult]]


async def echo(instance: FakeInstance, arguments: dict[str, Any], output: Output) -> ToolResult:
    """Answer with the arguments and the number of the instance."""
    return ToolResult.ok({"arguments": arguments, "instance": instance.pid})


class FakeInstance(Instance):
    """An instance that answers as its runner's script says; ``die`` ends it."""

    def __init__(self, runner: FakeRunner, source: ToolSource, pid: int) -> None:
        self.runner = runner
        self.source = source
        self.pid = pid
        self.port = 20_000 + pid
        self.flaw = ""
        self.goes_on = 0
        self.stops = 0
        self.stopped = False
        self.calls = 0
        self.most_calls = 0
        self.deadline = 0.0
        self._death: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def alive(self) -> bool:
        return not self._death.done() and not self.stops

    def die(self, reason: str = "exit status 1") -> None:
        """End the program."""
        if not self._death.done():
            self._death.set_result(reason)

    async def call(self, arguments: dict[str, Any], output: Output, *, user: str = "", deadline: float = 0.0) -> ToolResult:
        self.calls, self.deadline = self.calls + 1, deadline
        self.most_calls = max(self.most_calls, self.calls)
        self.runner.called += 1
        try:
            return await self.runner.answer(self, arguments, output)
        finally:
            self.calls -= 1

    async def health(self, *, answered: bool = False) -> str:
        return self.flaw

    async def unfinished(self) -> int:
        return self.goes_on

    async def ended(self) -> str:
        return await asyncio.shield(self._death)

    async def stop(self, within: float) -> None:
        self.stops += 1
        await asyncio.sleep(self.runner.stopping)
        self.stopped = True


class FakeRunner(Runner):
    """Starts instances after ``delay`` seconds; ``flaws`` are the errors of the next starts, empty for one that works."""

    def __init__(self, *, delay: float = 1.0, answer: Answer = echo, stopping: float = 0.0) -> None:
        self.delay = delay
        self.answer = answer
        self.stopping = stopping
        self.flaws: list[str] = []
        self.broken: set[str] = set()
        self.permanent = False
        self.begun = 0
        self.starting = 0
        self.most_starting = 0
        self.called = 0
        self.started: list[FakeInstance] = []
        self._pids = itertools.count(1)

    @property
    def alive(self) -> list[FakeInstance]:
        """The instances that were not stopped."""
        return [each for each in self.started if not each.stops]

    async def start(self, tool: RecordedTool, source: ToolSource, line: Line) -> FakeInstance:
        self.begun += 1
        self.starting += 1
        self.most_starting = max(self.most_starting, self.starting)
        try:
            line("hello")
            await asyncio.sleep(self.delay)
            flaw = self.flaws.pop(0) if self.flaws else ""
            if flaw or source.host_dir in self.broken:
                raise CannotStart(flaw or f"{source.host_dir} is broken", permanent=self.permanent)
            instance = FakeInstance(self, source, next(self._pids))
            self.started.append(instance)
            return instance
        finally:
            self.starting -= 1


class Heard:
    """Remembers what a call was told."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.news: list[str] = []

    async def __call__(self, item: str | Blob | Progress) -> None:
        if isinstance(item, Progress):
            self.news.append(item.message)
        else:
            self.texts.append(item if isinstance(item, str) else item.media_type)


class Scene:
    """A pool with a fake runner, and everything that it told."""

    def __init__(self, runner: FakeRunner, *, sources: tuple[str, ...] = ("a",), **running: Any) -> None:
        self.runner = runner
        self.routes: list[ToolRoute] = []
        self.lines: list[str] = []
        record = RecordedTool(
            meta=ToolMeta(tool_id="image_stitcher"),
            sources=tuple(ToolSource(type="local", host_dir=each) for each in sources),
            running=Running(**running),
        )
        self.pool = Pool(record, runner, "host-1", self.routes.append, self.lines.append)

    async def __aenter__(self) -> Self:
        await self.pool.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.pool.aclose()
        assert not self.runner.alive, "an instance was left"
        assert not self.runner.starting
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not [task for task in others if "pool" in task.get_name() or "instance" in task.get_name()]

    @property
    def states(self) -> list[str]:
        """The states that it went through."""
        return [state for state, _ in itertools.groupby(route.state for route in self.routes)]

    async def until(self, condition: Callable[[], bool]) -> float:
        """Wait until something holds; return the seconds that it took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not condition():
            assert loop.time() - began < 1_000
            await asyncio.sleep(0.01)
        return loop.time() - began

    async def call(self, heard: Heard | None = None, within: float = 0.0, **arguments: Any) -> ToolResult:
        """Call the tool."""
        deadline = asyncio.get_running_loop().time() + within if within else 0.0
        return await self.pool.call(arguments, heard or Heard(), deadline=deadline)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test on a clock that jumps."""
    loop = VirtualLoop()
    try:
        loop.run_until_complete(test())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
