"""Pools under everything at once: starts fail, programs die and hang, health flips, callers leave; nothing is leaked or lost."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from tests.examples import examples
from tests.host.fakes import FakeInstance, FakeRunner, Heard, Scene, run
from toolbus.bus.values.results import ToolError, ToolResult
from toolbus.platform.backends.runner import CONNECTION_LOST, NOT_REACHED, CannotStart, Output

_CALLS = 120


class ChanceRunner(FakeRunner):
    """A runner whose programs do what a seed says."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(stopping=chance.choice([0.0, 0.5]))
        self.chance = chance
        self.runs: Counter[int] = Counter()
        self.most_alive = 0
        self.overfull = 0
        self.fails = chance.choice([0.0, 0.1, 0.5])
        self.dies = chance.choice([0.0, 0.05, 0.3])
        self.hangs = chance.choice([0.0, 0.05])

    async def start(self, *given: Any) -> FakeInstance:
        self.delay = self.chance.choice([0.0, 0.1, 2.0])
        self._count(1)
        self.flaws = ["it does not start"] if self.chance.random() < self.fails else []
        if self.chance.random() < 0.02:
            raise RuntimeError("a bug")
        instance = await super().start(*given)
        if self.chance.random() < self.dies:
            asyncio.get_running_loop().call_later(self.chance.uniform(0, 20), instance.die)
        self._count(0)
        return instance

    def _count(self, more: int) -> None:
        self.most_alive = max(self.most_alive, len([each for each in self.started if not each.stopped]) + more)

    async def answer_by_chance(self, instance: FakeInstance, arguments: dict[str, Any], output: Output) -> ToolResult:
        """Answer, fail, die, hang, or flip the health."""
        if not instance.alive:
            raise ToolError("connection refused", type="unavailable", code=NOT_REACHED)
        number = arguments["number"]
        self.runs[number] += 1
        chance = self.chance
        if chance.random() < 0.1:
            await output("some")
        await asyncio.sleep(chance.choice([0.0, 0.01, 1.0]))
        what = chance.random()
        if what < self.dies:
            instance.die()
            if chance.random() < 0.5:
                await asyncio.Event().wait()
            raise ToolError("the connection ended", code=CONNECTION_LOST)
        if what < self.dies + self.hangs:
            instance.flaw = chance.choice(["", "hangs"])
            await asyncio.Event().wait()
        if what > 0.97:
            instance.flaw = chance.choice(["", "it answers 503"])
        if what > 0.95:
            raise ToolError("no such image")
        return ToolResult.ok(number)


async def simulate(seed: int) -> None:
    """Run one made-up story, and check what must hold in each."""
    chance = random.Random(seed)
    runner = ChanceRunner(chance)
    runner.answer = runner.answer_by_chance
    effect = chance.choice(["", "read", "idempotent", "once"])
    instances, concurrency, keep_warm = chance.randint(1, 3), chance.randint(1, 4), chance.choice([0, 0, 1, 2])
    scene = Scene(
        runner,
        sources=("a", "b", "c")[: chance.randint(1, 3)],
        effect=effect,
        instances=instances,
        concurrency=concurrency,
        keep_warm=keep_warm,
        restarts=chance.randint(1, 5),
        idle_stop=chance.choice([0.0, 2.0, 60.0]),
        health_every=chance.choice([0.0, 1.0, 10.0]),
    )
    ended: Counter[str] = Counter()

    async def call(number: int) -> None:
        try:
            result = await scene.call(Heard(), within=chance.choice([0.05, 5.0, 90.0]), number=number)
            assert result.data == number
            ended["success"] += 1
        except ToolError as error:
            ended[error.error.type if error.error.message else "without a message"] += 1
        except asyncio.CancelledError:
            ended["cancelled"] += 1

    async with scene:
        calls = []
        for number in range(_CALLS):
            calls.append(asyncio.create_task(call(number)))
            await asyncio.sleep(chance.choice([0.0, 0.0, 0.0, 0.3, 3.0]))
            if chance.random() < 0.1:
                chance.choice(calls).cancel()
        if chance.random() < 0.5:
            await asyncio.wait(calls)
        closing = asyncio.create_task(scene.pool.aclose(chance.choice([0.0, 1.0])))
        await closing
        _, left = await asyncio.wait(calls, timeout=100)
        assert not left
    assert ended.keys() <= {"success", "cancelled", "unavailable", "outcome_unknown", "deadline_exceeded", "tool_error"}
    assert ended.total() + sum(each.cancelled() for each in calls) == _CALLS
    assert runner.most_starting <= 1
    assert runner.most_alive <= max(instances, keep_warm)
    assert all(each.most_calls <= concurrency for each in runner.started)
    assert all(each.calls == 0 and each.stopped for each in runner.started)
    assert max(runner.runs.values(), default=0) <= (1 if effect == "once" else 2)
    assert scene.pool.route().state == "stopped"
    assert scene.pool.route().pid == 0


@pytest.mark.few(8)
@pytest.mark.parametrize("seed", range(examples(60)))
def test_a_pool_keeps_its_promises(seed: int) -> None:
    """Every call ends with its own answer or a clear error; no program is leaked, and none starts beside another start."""
    run(lambda: simulate(seed))


def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    """Closing a pool at any moment of a start, however it goes on, leaves no program."""

    async def story() -> None:
        for step in range(30):
            async with Scene(FakeRunner(delay=0.2), keep_warm=1) as scene:
                for _ in range(step):
                    await asyncio.sleep(0)
            async with Scene(FakeRunner(delay=0.0), keep_warm=1) as scene:
                for _ in range(step):
                    await asyncio.sleep(0)
                assert scene.pool.route().host == "host-1"

    run(story)


def test_a_runner_that_raises_anything_fails_the_tool() -> None:
    """A bug in a kind of source is a failure of the tool, not of the host."""

    class Broken(FakeRunner):
        async def start(self, *given: Any) -> FakeInstance:
            raise RuntimeError("a bug\nin two lines")

    class Refusing(FakeRunner):
        async def start(self, *given: Any) -> FakeInstance:
            raise CannotStart("no such folder")

    async def story() -> None:
        for runner, said in ((Broken(), "RuntimeError: a bug in two lines"), (Refusing(), "no such folder")):
            async with Scene(runner, restarts=2) as scene:
                with pytest.raises(ToolError, match=said):
                    await scene.call()
                assert scene.pool.route().state == "failed"

    run(story)
