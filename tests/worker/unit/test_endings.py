"""Endings: a run that its handler does not end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.worker.unit.fakes import Bench, handlers, lines, pay
from toolbus import Blob, Progress, Retry, ToolResult, invocation, tool
from toolbus.bus.values.envelope import Confirm
from toolbus.bus.worker.run import Run
from toolbus.bus.worker.transitions import RunState

pytestmark = pytest.mark.anyio


@tool(service="unit", replace=True)
async def hold_and_tell() -> str:
    """Wait for the gate, and note why it was stopped."""
    handlers.seen.append("began")
    try:
        await handlers.gate.wait()
    except asyncio.CancelledError:
        handlers.seen.append(str(invocation()._run.stopped))
        raise
    return "held"


@tool(service="unit", replace=True)
async def clean_up_slowly() -> str:
    """Take a while to stop."""
    try:
        await handlers.gate.wait()
    finally:
        await asyncio.sleep(3)
    return "held"


async def test_a_run_whose_time_is_up_is_answered_at_once(seen: list[Any]) -> None:
    """The caller is told, the handler is cancelled and learns why, and its slot is free when it has ended."""
    bench = Bench(hold_and_tell)
    await bench.begin("hold_and_tell", deadline=bench.loop.time() + 4.0)
    await asyncio.sleep(4.1)
    [end] = bench.broker.ends
    assert bench.broker.errors() == [("deadline_exceeded", "not_finished")]
    assert end.frees
    assert end.frame.error is not None
    assert "did not finish within" in end.frame.error.message
    assert seen == ["began", str(end.frame.error)]
    assert (bench.slots.free, bench.slots.running) == (2, 0)


async def test_a_cancelled_run_is_answered_once(gate: asyncio.Event) -> None:
    """A second cancellation, the deadline and the handler's own end add nothing."""
    bench = Bench(clean_up_slowly)
    held = await bench.begin("clean_up_slowly", deadline=bench.loop.time() + 1.0)
    held.cancel()
    held.cancel()
    assert bench.broker.errors() == [("cancelled", "")]
    await asyncio.sleep(5)
    gate.set()
    await bench.settle()
    assert len(bench.broker.ends) == 1
    assert held.state is RunState.ENDED
    assert held.task is None


async def test_a_lost_run_says_nothing_more(gate: asyncio.Event) -> None:
    """Another worker has the delivery: nothing is sent, and text that gathered is dropped."""

    @tool(service="unit", replace=True)
    async def stream() -> AsyncIterator[str]:
        """Yield, and wait."""
        yield "a"
        await gate.wait()

    bench = Bench(stream)
    delivery = bench.delivery("stream")
    bench.slots.start(delivery)
    bench.slots.on_lost(delivery)
    await bench.settle()
    assert (bench.broker.frames, bench.broker.ends) == ([], [])
    assert bench.slots.running == 0
    again = await bench.begin("stream")
    assert [frame.response for frame in bench.broker.frames] == ["a"]
    again._stream.send_text("late")
    again.stop(None)
    await bench.settle()
    assert [frame.response for frame in bench.broker.frames] == ["a"]
    assert bench.broker.ends == []


async def test_a_stopped_run_that_swallows_it_is_stuck_until_it_ends() -> None:
    """It holds its slot, and counts as stuck; before it was told to stop it does not."""
    bench = Bench(clean_up_slowly)
    held = await bench.begin("clean_up_slowly")
    assert not held.stuck
    held.cancel()
    await bench.settle()
    assert held.stuck
    assert bench.slots.running == 1
    await asyncio.sleep(4)
    assert not held.stuck
    assert bench.slots.running == 0


async def test_a_run_stopped_before_its_first_step_never_runs(seen: list[Any]) -> None:
    """It is answered, leaves its slot at once, and its handler is not called."""
    bench = Bench(hold_and_tell)
    delivery = bench.delivery("hold_and_tell")
    bench.slots.start(delivery)
    bench.slots._runs[delivery.run].cancel()
    assert (bench.slots.free, bench.slots.running) == (2, 0)
    await bench.settle()
    assert bench.broker.errors() == [("cancelled", "")]
    assert seen == []


async def test_an_abandoned_run_ends_without_an_answer(seen: list[Any]) -> None:
    """Its task is cancelled; one that had not begun leaves at once, and one without a task can't be abandoned."""
    bench = Bench(hold_and_tell)
    held = await bench.begin("hold_and_tell")
    task = held.abandon()
    await asyncio.wait([task])
    assert seen == ["began", "cancelled: the worker is going away"]
    assert bench.broker.ends == []
    assert held.state is RunState.ENDED
    delivery = bench.delivery("hold_and_tell")
    bench.slots.start(delivery)
    unbegun = bench.slots._runs[delivery.run]
    unbegun.abandon()
    assert bench.slots.running == 0
    with pytest.raises(RuntimeError, match=r"^the run has not begun$"):
        unbegun.abandon()
    await bench.settle()


async def test_interrupt_says_whether_another_worker_may_run_the_request() -> None:
    """A running call may; ``once`` work may not from its mark on, and a call that was answered may not."""
    bench = Bench(hold_and_tell, pay)
    held = await bench.begin("hold_and_tell")
    assert held.interrupt() is True
    assert bench.broker.ends == []
    assert held.interrupt() is False
    await bench.settle()
    paying = await bench.begin("pay")
    assert paying.interrupt() is False
    await bench.settle()
    bench.broker.begin_gate = asyncio.Event()
    marked = await bench.begin("pay")
    assert marked.interrupt() is False
    await bench.settle()
    assert bench.broker.errors() == [("outcome_unknown", "worker_stopped"), ("unavailable", "worker_stopped")]
    last = bench.broker.ends[-1]
    assert last.frame.error is not None
    assert last.frame.error.retryable
    assert last.frees


async def test_an_answered_run_sends_nothing_more() -> None:
    """Progress and questions of a handler that still runs are dropped."""
    bench = Bench(clean_up_slowly)
    held = await bench.begin("clean_up_slowly")
    held.cancel()
    held.emit(Progress(1))
    held.tell(Confirm("id", "sure?", 1.0))
    assert bench.broker.frames == []
    await asyncio.sleep(4)


@pytest.mark.parametrize("fails", [False, True])
async def test_what_a_stopped_handler_still_produces_is_dropped(fails: bool, gate: asyncio.Event, caplog: pytest.LogCaptureFixture) -> None:
    """A result or failure after its answer is not sent, tried again or logged."""

    @tool(service="unit", replace=True, retry=Retry(attempts=2, delay=1.0, jitter=0.0))
    async def late() -> ToolResult:
        """Swallow the cancellation, and answer in several frames."""
        with contextlib.suppress(asyncio.CancelledError):
            await gate.wait()
        if fails:
            raise ValueError("late")
        return ToolResult(output="late" * 1000, content=(Blob("image/png", b"12"),))

    bench = Bench(late, max_frame=256)
    held = await bench.begin("late")
    held.cancel()
    await bench.settle()
    assert (bench.broker.errors(), bench.broker.frames, bench.broker.buried) == ([("cancelled", "")], [], [])
    assert (held.state, bench.slots.running, bench.slots.busy()) == (RunState.ENDED, 0, False)
    assert lines(caplog) == []


async def test_a_handler_may_raise_what_closes_a_generator() -> None:
    """In its own task it is a failure as any other."""

    @tool(service="unit", replace=True)
    async def close() -> str:
        """Raise GeneratorExit."""
        raise GeneratorExit

    end = await Bench(close).run("close")
    assert end.frame.error is not None
    assert (end.frame.error.type, end.frame.error.code) == ("tool_error", "GeneratorExit")


@pytest.mark.parametrize("in_loop", [False, True])
async def test_a_run_that_is_closed_from_outside_is_not_answered(in_loop: bool) -> None:
    """Its worker's event loop is gone, or goes: another worker takes the request over."""
    bench = Bench(hold_and_tell)
    held = await bench.begin("hold_and_tell")
    served = bench.slots._served["unit"]
    delivery = bench.delivery("hold_and_tell")
    run = Run(bench.slots, bench.loop, delivery, served, served.handler(delivery.request), task=held.task)
    bench.slots._runs[delivery.run] = run
    stepped = run.execute()
    stepped.send(None)
    assert run.state is RunState.RUNNING
    if in_loop:
        stepped.close()
    else:
        await asyncio.to_thread(stepped.close)
    assert list(bench.slots._runs.values()) == [held]
    assert bench.broker.ends == []
    held.stop(None)
    await bench.settle()


@pytest.mark.parametrize("goes_down", [False, True])
async def test_a_cancellation_that_nobody_explains_is_answered_unless_the_worker_goes_down(goes_down: bool) -> None:
    """A worker that goes down abandons its runs shortly afterwards, and another one takes their requests over."""
    bench = Bench(hold_and_tell)
    held = await bench.begin("hold_and_tell")
    assert held.task is not None
    held.task.cancel()
    await bench.settle()
    assert bench.slots.running == 1
    if goes_down:
        held.abandon()
    await asyncio.sleep(1)
    assert bench.broker.errors() == ([] if goes_down else [("tool_error", "CancelledError")])
    assert bench.slots.running == 0
