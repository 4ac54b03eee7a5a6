"""Instances that go on with calls which nobody waits for any more."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.host.fakes import FakeInstance, FakeRunner, Scene, run
from toolbus.bus.values.results import ToolResult
from toolbus.platform.backends.runner import Output


async def going_on(instance: FakeInstance, arguments: dict[str, Any], output: Output) -> ToolResult:
    """Take the seconds that a call says, and go on when it is cancelled."""
    try:
        await asyncio.sleep(arguments.get("seconds", 0.0))
    except asyncio.CancelledError:
        instance.goes_on += 1
        raise
    return ToolResult.ok(instance.pid)


async def given_up(scene: Scene) -> None:
    """Make a call, and cancel it while it runs."""
    runner = scene.runner
    call, before = asyncio.create_task(scene.call(seconds=1_000.0)), runner.called
    await scene.until(lambda: runner.called > before)
    call.cancel()
    await asyncio.wait([call])


def test_an_instance_that_lets_go_stays() -> None:
    """One that ends its work within the time goes on, and takes calls again as soon as it has."""

    async def story() -> None:
        async with Scene(runner := FakeRunner(answer=going_on), concurrency=1, stop_within=5.0) as scene:
            await given_up(scene)
            waiting = asyncio.create_task(scene.call())
            await asyncio.sleep(3)
            assert not waiting.done()
            runner.started[0].goes_on = 0
            assert (await waiting).data == 1
            await asyncio.sleep(30)
            assert len(runner.alive) == 1

    run(story)


def test_an_instance_without_other_calls_is_ended() -> None:
    """One that goes on for ``stop_within`` seconds is ended; that is no failure, and another one answers who waits."""

    async def story() -> None:
        async with Scene(runner := FakeRunner(answer=going_on), concurrency=1, stop_within=5.0, sources=("a", "b")) as scene:
            await given_up(scene)
            assert (await scene.call()).data == 2
            assert [each.stops for each in runner.started] == [1, 0]
            assert (scene.pool.route().active_source, scene.pool.route().restarts) == (0, 0)

    run(story)


def test_an_instance_with_other_calls_is_ended_after_them() -> None:
    """A call that runs beside the one that was given up is not hurt."""

    async def story() -> None:
        async with Scene(runner := FakeRunner(answer=going_on), concurrency=2, stop_within=5.0) as scene:
            await given_up(scene)
            assert (await scene.call(seconds=60.0)).data == 1
            await scene.until(lambda: not runner.started[0].alive)

    run(story)
