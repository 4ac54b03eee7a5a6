"""One tool's instances: lazy starts, restarts, failover, idle stops, and what callers hear of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.host.fakes import FakeInstance, FakeRunner, Heard, Scene, run
from toolbus.bus.values.results import ToolError, ToolResult
from toolbus.platform.backends.runner import Line, Output
from toolbus.platform.records import RecordedTool, ToolSource


def test_a_hundred_calls_start_one_instance() -> None:
    """100 calls at once to a stopped tool cause one start, hear of it, and are all answered."""

    async def story() -> None:
        async with Scene(runner := FakeRunner()) as scene:
            heard = [Heard() for _ in range(100)]
            results = await asyncio.gather(*(scene.call(each, number=number) for number, each in enumerate(heard)))
            assert [result.data["arguments"]["number"] for result in results] == list(range(100))
            assert all(each.news == ["starting image_stitcher"] for each in heard)
            assert runner.begun == 1
            assert scene.states == ["starting", "running"]
            assert scene.pool.route().pid == 1

    run(story)


def test_a_caller_that_leaves_ends_nobody_elses_start() -> None:
    """When one caller is cancelled while the tool starts, the others are answered by the same start."""

    async def story() -> None:
        async with Scene(runner := FakeRunner()) as scene:
            first, second = asyncio.create_task(scene.call()), asyncio.create_task(scene.call())
            await asyncio.sleep(0.5)
            first.cancel()
            assert (await second).success
            assert runner.begun == 1

    run(story)


def test_an_instance_without_calls_is_stopped() -> None:
    """A tool that nobody calls for ``idle_stop`` seconds has no instance, and the next call starts one."""

    async def story() -> None:
        async with Scene(runner := FakeRunner(), idle_stop=30.0) as scene:
            await scene.call()
            await asyncio.sleep(29)
            assert len(runner.alive) == 1
            await scene.call()
            await asyncio.sleep(29)
            assert len(runner.alive) == 1
            await asyncio.sleep(2)
            assert not runner.alive
            assert scene.pool.route().state == "stopped"
            assert scene.lines[-1] == "toolbus: the instance is stopped: nobody called it for 30 s"
            await scene.call()
            assert runner.begun == 2
        assert "this host leaves" in scene.lines[-1]

    run(story)


def test_instances_are_kept_warm() -> None:
    """``keep_warm`` instances run without a call, beyond ``idle_stop``, and take the place of one that died."""

    async def story() -> None:
        async with Scene(runner := FakeRunner(), keep_warm=2, instances=2, idle_stop=10.0) as scene:
            await asyncio.sleep(60)
            assert len(runner.alive) == 2
            assert scene.pool.route().instances == 2
            runner.started[0].die()
            await asyncio.sleep(5)
            assert len(runner.alive) == 2
            assert runner.begun == 3

    run(story)


def test_the_next_source_is_used_when_one_cannot_start() -> None:
    """A source that can't be started is passed over, and ``active_source`` says which one runs."""

    async def story() -> None:
        runner = FakeRunner()
        runner.broken = {"a"}
        async with Scene(runner, sources=("a", "b")) as scene:
            assert (await scene.call()).success
            assert scene.pool.route().active_source == 1
            assert runner.started[0].source.host_dir == "b"
            assert scene.pool.route().last_error == "source 0 (local): a is broken"
            await asyncio.sleep(30)
            assert scene.pool.route().active_source == 1

    run(story)


def test_the_next_source_is_used_when_one_is_unhealthy() -> None:
    """An instance that fails its health checks is stopped, and the next source takes its place."""

    async def story() -> None:
        async with Scene(runner := FakeRunner(), sources=("a", "b")) as scene:
            await scene.call()
            runner.started[0].flaw = "it answers 503"
            await asyncio.sleep(20)
            assert runner.started[0].stops
            assert scene.pool.route().state == "running"
            assert scene.pool.route().active_source == 1

    run(story)


def test_a_tool_that_never_starts_has_failed() -> None:
    """After ``restarts`` failures the tool has failed: its callers are told why, later ones at once, until its backoff is over."""

    async def story() -> None:
        runner = FakeRunner(delay=0.1)
        runner.flaws = ["no pyproject.toml in /x"] * 4
        async with Scene(runner, restarts=3) as scene:
            loop = asyncio.get_running_loop()
            with pytest.raises(ToolError, match=r"image_stitcher can't be started now \(no pyproject.toml in /x\)") as failed:
                await scene.call()
            assert failed.value.error.type == "unavailable"
            assert failed.value.error.retry_after
            assert runner.begun == 3
            route = scene.pool.route()
            assert (route.state, route.restarts, route.last_error) == ("failed", 3, "no pyproject.toml in /x")
            began = loop.time()
            with pytest.raises(ToolError):
                await scene.call()
            assert loop.time() == began
            assert "hello" in scene.lines
            await asyncio.sleep(2)
            with pytest.raises(ToolError):
                await scene.call()
            assert runner.begun == 4
            await asyncio.sleep(5)
            assert (await scene.call()).success
            await asyncio.sleep(15)
            assert scene.pool.route().restarts == 0

    run(story)


def test_what_no_further_try_can_help_fails_at_once() -> None:
    """A start that fails for good is tried once, again by the first call after its backoff, and works as soon as it is mended."""

    async def story() -> None:
        runner = FakeRunner(delay=0.1)
        runner.broken, runner.permanent = {"a"}, True
        async with Scene(runner) as scene:
            for begun in (1, 2, 3):
                for _ in range(3):
                    with pytest.raises(ToolError, match=r"image_stitcher can't be started \(a is broken\)$") as failed:
                        await scene.call()
                    error = failed.value.error
                    assert (error.type, error.code, error.retryable, error.retry_after) == ("unavailable", "tool_failed", False, None)
                    assert (runner.begun, scene.pool.route().state) == (begun, "failed")
                await asyncio.sleep(2)
            runner.broken = set()
            assert (await scene.call()).success
            assert runner.begun == 4
            runner.alive[0].die()
            await scene.until(lambda: scene.pool.route().state == "running" and runner.begun == 5)

    run(story)


def test_one_source_that_may_start_later_is_tried_again() -> None:
    """A tool is tried again as long as trying again can help for one of its sources."""

    async def story() -> None:
        class Mixed(FakeRunner):
            async def start(self, tool: RecordedTool, source: ToolSource, line: Line) -> FakeInstance:
                self.permanent = source.host_dir == "a"
                return await super().start(tool, source, line)

        runner = Mixed(delay=0.0)
        runner.broken = {"a"}
        runner.flaws = ["", "busy", "", "busy"]
        async with Scene(runner, sources=("a", "b")) as scene:
            assert (await scene.call()).success
            assert [each.source.host_dir for each in runner.started] == ["b"]
            assert runner.begun == 6

    run(story)


def test_a_program_that_dies_again_and_again_has_failed() -> None:
    """A program that dies soon after each start is restarted with growing pauses, and has failed in the end."""

    async def story() -> None:
        async with Scene(runner := FakeRunner(delay=0.0), restarts=4) as scene:
            await scene.call()
            times = []
            for _ in range(4):
                runner.alive[0].die()
                await scene.until(lambda: scene.pool.route().state != "running")
                times.append(await scene.until(lambda: scene.pool.route().state in {"running", "failed"}))
            assert scene.pool.route().state == "failed"
            assert scene.pool.route().last_error == "exit status 1"
            assert times[0] < times[2]

    run(story)


def test_more_instances_start_when_all_are_busy() -> None:
    """A second instance takes calls when the first one has all that it may have, and no third one does."""

    async def slow(instance: FakeInstance, arguments: dict[str, Any], output: Output) -> ToolResult:
        await asyncio.sleep(10)
        return ToolResult.ok(instance.pid)

    async def story() -> None:
        async with Scene(runner := FakeRunner(answer=slow), instances=2, concurrency=2) as scene:
            results = await asyncio.gather(*(scene.call() for _ in range(8)))
            assert {result.data for result in results} == {1, 2}
            assert runner.begun == 2
            assert [each.most_calls for each in runner.started] == [2, 2]

    run(story)


def test_a_deadline_bounds_the_wait() -> None:
    """A call that has no instance at its deadline fails then, and so does one that the program does not answer."""

    async def never(instance: FakeInstance, arguments: dict[str, Any], output: Output) -> ToolResult:
        await asyncio.Event().wait()
        raise AssertionError

    async def story() -> None:
        async with Scene(FakeRunner(delay=5, answer=never)) as scene:
            with pytest.raises(ToolError) as late:
                await scene.call(within=1)
            assert (late.value.error.type, late.value.error.code) == ("deadline_exceeded", "not_started")
            with pytest.raises(ToolError) as slow:
                await scene.call(within=10)
            assert (slow.value.error.type, slow.value.error.code) == ("deadline_exceeded", "")

    run(story)


def test_another_source_takes_over_from_one_whose_programs_die() -> None:
    """A source whose programs die again and again soon after their start is left for the next one."""

    async def story() -> None:
        async with Scene(runner := FakeRunner(delay=0.0), sources=("a", "b"), restarts=9) as scene:
            await scene.call()
            for deaths in range(3):
                assert runner.alive[0].source.host_dir == "a"
                runner.alive[0].die()
                await scene.until(lambda deaths=deaths: runner.begun == deaths + 2 and bool(runner.alive))
            assert runner.alive[0].source.host_dir == "b"
            assert scene.pool.route().active_source == 1

    run(story)


def test_a_busy_program_is_not_taken_for_a_dead_one() -> None:
    """A program that computes and misses its health checks is left alone while its caller waits, and given up when nobody does."""

    async def long(instance: FakeInstance, arguments: dict[str, Any], output: Output) -> ToolResult:
        instance.flaw = "it did not answer"
        await asyncio.sleep(arguments["seconds"])
        instance.flaw = ""
        return ToolResult.ok("computed")

    async def story() -> None:
        async with Scene(runner := FakeRunner(answer=long), health_every=1.0) as scene:
            assert (await scene.call(seconds=120)).data == "computed"
            assert runner.begun == 1
            with pytest.raises(ToolError, match="did not answer within"):
                await scene.call(within=10, seconds=1_000)
            await scene.until(lambda: runner.begun == 2)
            assert runner.started[0].stops

    run(story)


def test_a_tool_without_a_source_for_this_host_says_so() -> None:
    """A record of which no source may run here fails with a reason."""

    async def story() -> None:
        async with Scene(FakeRunner(), sources=(), restarts=1) as scene:
            with pytest.raises(ToolError, match="no source of it may run at this host"):
                await scene.call()

    run(story)
