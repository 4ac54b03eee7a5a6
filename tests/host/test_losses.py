"""Calls whose program dies: they run again, or fail, by the effect of the tool."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.host.fakes import FakeInstance, FakeRunner, Heard, Scene, run
from toolbus.bus.values.results import ToolError, ToolResult
from toolbus.platform.backends.runner import CONNECTION_LOST, NOT_REACHED, Output


def dying(times: int, *, said: str = "", reached: bool = True) -> Any:
    """Return an answer whose program dies in the first calls, as one that a connection tells of."""
    left = [times]

    async def answer(instance: FakeInstance, arguments: dict[str, Any], output: Output) -> ToolResult:
        if left[0]:
            left[0] -= 1
            if said:
                await output(said)
            instance.die("exit status 139")
            if reached:
                raise ToolError("the connection ended", code=CONNECTION_LOST)
            raise ToolError("connection refused", type="unavailable", code=NOT_REACHED)
        return ToolResult.ok("fine")

    return answer


@pytest.mark.parametrize("effect", ["", "read", "idempotent"])
def test_a_call_that_may_run_twice_runs_again(effect: str) -> None:
    """The program of a call dies: unless the tool is ``once``, the call runs on a fresh instance."""

    async def story() -> None:
        async with Scene(runner := FakeRunner(answer=dying(1)), effect=effect) as scene:
            heard = Heard()
            assert (await scene.call(heard)).data == "fine"
            assert runner.begun == 2
            assert "image_stitcher did not answer; the call runs again" in heard.news

    run(story)


def test_a_call_that_may_run_once_does_not_run_again() -> None:
    """The program of a ``once`` call dies: it is unknown whether the call had its effect, and it does not run again."""

    async def story() -> None:
        async with Scene(runner := FakeRunner(answer=dying(1)), effect="once") as scene:
            with pytest.raises(ToolError) as unknown:
                await scene.call()
            assert (unknown.value.error.type, unknown.value.error.code) == ("outcome_unknown", "program_ended")
            assert runner.called == 1

    run(story)


def test_a_call_that_was_not_run_runs_again() -> None:
    """A program that was not reached can't have run the call, so even a ``once`` call goes to a fresh instance."""

    async def story() -> None:
        async with Scene(runner := FakeRunner(answer=dying(1, reached=False)), effect="once") as scene:
            assert (await scene.call()).data == "fine"
            assert runner.begun == 2

    run(story)


def test_a_call_runs_again_only_once() -> None:
    """A call whose program dies twice fails; its caller may call again."""

    async def story() -> None:
        async with Scene(runner := FakeRunner(answer=dying(9)), effect="read") as scene:
            with pytest.raises(ToolError, match="ended during the call again") as failed:
                await scene.call()
            assert (failed.value.error.type, failed.value.error.code) == ("tool_error", "program_ended")
            assert failed.value.error.retryable
            assert runner.called == 2

    run(story)


def test_a_call_that_streamed_does_not_run_again() -> None:
    """Text that was passed on can't be taken back, so the call fails instead of running again."""

    async def story() -> None:
        async with Scene(runner := FakeRunner(answer=dying(1, said="half")), effect="read") as scene:
            heard = Heard()
            with pytest.raises(ToolError, match="after a part of its answer") as failed:
                await scene.call(heard)
            assert heard.texts == ["half"]
            assert failed.value.error.retryable
            assert runner.called == 1

    run(story)


def test_a_call_that_hangs_ends_with_its_program() -> None:
    """A call that does not notice the death of its program ends all the same, and runs again."""
    hangs = [True]

    async def answer(instance: FakeInstance, arguments: dict[str, Any], output: Output) -> ToolResult:
        if hangs.pop() if hangs else False:
            instance.die()
            await asyncio.Event().wait()
        return ToolResult.ok("fine")

    async def story() -> None:
        async with Scene(runner := FakeRunner(answer=answer), effect="read") as scene:
            assert (await scene.call()).data == "fine"
            assert runner.begun == 2

    run(story)


def test_a_tools_own_failure_is_passed_on() -> None:
    """A tool that fails is neither restarted nor called again."""

    async def answer(instance: FakeInstance, arguments: dict[str, Any], output: Output) -> ToolResult:
        raise ToolError("no such image", code="no_image")

    async def story() -> None:
        async with Scene(runner := FakeRunner(answer=answer)) as scene:
            for _ in range(3):
                with pytest.raises(ToolError, match="no such image"):
                    await scene.call()
            assert (runner.begun, runner.called) == (1, 3)

    run(story)


def test_calls_end_when_the_pool_closes() -> None:
    """Closing a pool ends calls that run and calls that wait, each with an error that says why."""

    async def answer(instance: FakeInstance, arguments: dict[str, Any], output: Output) -> ToolResult:
        await asyncio.Event().wait()
        raise AssertionError

    async def story() -> None:
        async with Scene(runner := FakeRunner(answer=answer), concurrency=1) as scene:
            calls = [asyncio.create_task(scene.call()) for _ in range(3)]
            await scene.until(lambda: runner.called == 1)
            await scene.pool.aclose()
            ended = await asyncio.gather(*calls, return_exceptions=True)
            assert [each.error.code for each in ended if isinstance(each, ToolError)] == ["tool_closed"] * 3
            with pytest.raises(ToolError, match="no longer served"):
                await scene.call()
            assert scene.pool.route().state == "stopped"

    run(story)


def test_calls_that_wait_are_answered_by_a_pool_that_closes_with_a_grace() -> None:
    """A pool that is given a grace answers the calls that it has, those that wait for the start among them, and takes no others."""

    async def story() -> None:
        async with Scene(runner := FakeRunner(delay=2.0), concurrency=1) as scene:
            calls = [asyncio.create_task(scene.call(number=number)) for number in range(3)]
            await asyncio.sleep(1)
            closing = asyncio.create_task(scene.pool.aclose(60.0))
            await asyncio.sleep(0)
            with pytest.raises(ToolError, match="no longer served"):
                await scene.call()
            assert all(result.success for result in await asyncio.gather(*calls))
            await closing
            assert runner.begun == 1

    run(story)
