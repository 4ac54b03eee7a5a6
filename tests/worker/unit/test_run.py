"""One run: how it is answered, and how it ends when its handler does not end it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.servers import eventually
from tests.worker.unit.fakes import NOW, Bench, End
from toolbus import Blob, ErrorInfo, Progress, Retry, ToolError, ToolResult, invocation, tool
from toolbus.envelope import Confirm
from toolbus.middleware.chain import Next, ToolCall
from toolbus.worker.run.states import RunState

pytestmark = pytest.mark.anyio

gate: asyncio.Event
seen: list[Any]


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Give each test a gate and a list of its own."""
    global gate, seen
    gate, seen = asyncio.Event(), []


@tool(service="unit_run", replace=True)
async def echo(text: str) -> str:
    """Return a text."""
    return text


@tool(service="unit_run", replace=True)
async def hold() -> str:
    """Wait for the gate."""
    seen.append("began")
    try:
        await gate.wait()
    except asyncio.CancelledError:
        seen.append(str(invocation()._run.stopped))
        raise
    return "held"


@tool(service="unit_run", replace=True)
async def clean_up_slowly() -> str:
    """Take a while to stop."""
    try:
        await gate.wait()
    finally:
        await asyncio.sleep(3)
    return "held"


@tool(service="unit_run", replace=True, effect="once")
async def pay() -> str:
    """Wait for the gate, and have an effect."""
    seen.append("began")
    await gate.wait()
    return "paid"


@tool(service="unit_run", replace=True)
async def fail(kind: str) -> str:
    """Fail in some way."""
    if kind == "crash":
        raise ValueError("broken")
    if kind == "exit":
        raise SystemExit(3)
    if kind == "cancelled":
        raise asyncio.CancelledError
    if kind == "unencodable":
        raise ToolError(ErrorInfo("tool_error", "odd", details=object()))
    raise ToolError("no", code="refused", retryable=kind == "retryable")


@tool(service="unit_run", replace=True, retry=Retry(attempts=2, delay=1.0, jitter=0.0))
async def flaky() -> str:
    """Fail."""
    seen.append(asyncio.get_running_loop().time())
    raise ValueError("broken")


@tool(service="unit_run", replace=True)
async def answer(kind: str) -> ToolResult:
    """Return one of several results."""
    return {
        "failure": ToolResult(success=False),
        "error": ToolResult.fail(ErrorInfo("tool_error", "bad", "it failed")),
        "data": ToolResult(data={"a": 1}),
        "long": ToolResult(output="x" * 600, data=["y" * 600]),
        "blobs": ToolResult(output="o", content=(Blob("image/png", b"12"),)),
    }[kind]


@tool(service="unit_run", replace=True)
async def report_progress() -> str:
    """Report progress, and ask."""
    invocation().progress(1, 2, "half")
    await invocation().confirm("sure?")
    seen.append(invocation().deadline)
    return "done"


@tool(service="unit_run", replace=True, isolation="process")
def apart(number: int) -> str:
    """Run in a child process."""
    return str(number)


async def run(bench: Bench, name: str, arguments: dict[str, Any] | None = None, **changes: Any) -> End:
    """Run one call to its end, and return its last frame."""
    bench.slots.start(bench.delivery(name, arguments, **changes))
    await bench.settle()
    [end] = bench.broker.ends
    assert bench.slots.running == 0
    return end


async def begin(bench: Bench, name: str, **changes: Any) -> Any:
    """Start a call and let its handler begin."""
    delivery = bench.delivery(name, **changes)
    bench.slots.start(delivery)
    bench.slots.watch_deadlines()
    await bench.settle()
    return bench.slots._runs[delivery.run]


# -- answers ------------------------------------------------------------------------------------------


async def test_a_call_that_returns_sends_one_frame() -> None:
    """The frame ends the stream, carries the output, and says who ran it and how long it waited; no key is freed."""
    end = await run(bench := Bench(echo), "echo", {"text": "hi"}, epoch=4, attempt=2)
    frame = end.frame
    assert (frame.kind, frame.response, frame.error, frame.end_of_stream, frame.seq) == ("end", "hi", None, True, 0)
    assert (frame.id, frame.run, frame.attempt, frame.epoch) == ("call-1", "run-1", 2, 4)
    assert (frame.worker, frame.queued_ms) == ("worker-1", 12.3)
    assert not end.frees
    assert bench.broker.frames == []


async def test_a_caller_that_wants_events_is_sent_a_start() -> None:
    """The start is the first frame, and the only one that names the worker."""
    end = await run(bench := Bench(echo), "echo", {"text": "hi"}, events=True)
    [start] = bench.broker.frames
    assert (start.kind, start.seq, start.worker, start.end_of_stream) == ("start", 0, "worker-1", False)
    assert (end.frame.seq, end.frame.worker, end.frame.queued_ms) == (1, "", 0.0)


async def test_failures_become_errors() -> None:
    """What a handler raises is answered by its type; a run that failed frees its idempotency key."""
    bench = Bench(fail)
    for kind, expected in [
        ("crash", ("tool_error", "ValueError")),
        ("exit", ("tool_error", "SystemExit")),
        ("cancelled", ("tool_error", "CancelledError")),
        ("plain", ("tool_error", "refused")),
        ("unencodable", ("tool_error", "unencodable_error")),
    ]:
        bench.broker.ends.clear()
        end = await run(bench, "fail", {"kind": kind})
        assert end.frame.error is not None
        assert (end.frame.error.type, end.frame.error.code) == expected
        assert end.frees


async def test_a_handler_that_lets_a_cancellation_out_is_told_from_a_stopped_one() -> None:
    """The message says that the cancellation came from within."""
    end = await run(Bench(fail), "fail", {"kind": "cancelled"})
    assert end.frame.error is not None
    assert end.frame.error.message == "the handler was cancelled from within"


async def test_results_of_every_kind_are_answered() -> None:
    """A failure without a reason gets one; an error, data and blobs arrive as they are."""
    bench = Bench(answer)
    end = await run(bench, "answer", {"kind": "failure"})
    assert end.frame.error == ErrorInfo("tool_error", message="the tool reported a failure without a reason")
    assert end.frees
    bench.broker.ends.clear()
    end = await run(bench, "answer", {"kind": "error"})
    assert end.frame.error == ErrorInfo("tool_error", "bad", "it failed")
    bench.broker.ends.clear()
    end = await run(bench, "answer", {"kind": "data"})
    assert end.frame.data == {"a": 1}
    bench.broker.ends.clear()
    end = await run(bench, "answer", {"kind": "blobs"})
    [blob] = bench.broker.frames
    assert (blob.kind, blob.blob, blob.more, blob.seq) == ("blob", Blob("image/png", b"12"), False, 0)
    assert (end.frame.response, end.frame.seq) == ("o", 1)


async def test_a_long_result_is_sent_in_pieces() -> None:
    """Output and data over a frame's limit go in frames of their own, and not in the last one."""
    end = await run(bench := Bench(answer, max_frame=256), "answer", {"kind": "long"})
    kinds = [frame.kind for frame in bench.broker.frames]
    assert set(kinds) == {"text", "data"}
    assert "".join(frame.response or "" for frame in bench.broker.frames if frame.kind == "text") == "x" * 600
    assert "".join(frame.response or "" for frame in bench.broker.frames if frame.kind == "data") == '["' + "y" * 600 + '"]'
    assert (end.frame.response, end.frame.data) == (None, None)


async def test_a_result_of_exactly_a_frame_is_not_cut() -> None:
    """The limit itself still fits."""
    end = await run(bench := Bench(echo, max_frame=256), "echo", {"text": "x" * 256})
    assert end.frame.response == "x" * 256
    assert bench.broker.frames == []
    bench.broker.ends.clear()
    end = await run(bench, "echo", {"text": "x" * 257})
    assert end.frame.response is None
    assert "".join(frame.response or "" for frame in bench.broker.frames) == "x" * 257


async def test_an_end_is_logged_with_its_time(caplog: pytest.LogCaptureFixture) -> None:
    """A success is info, an expected failure a warning, a crash an error with its traceback."""
    caplog.set_level(logging.INFO, logger="toolbus")
    await run(bench := Bench(echo, fail), "echo", {"text": "secret"}, user="u", attempt=2)
    for kind in ("plain", "crash"):
        bench.broker.ends.clear()
        await run(bench, "fail", {"kind": kind})
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "ERROR"]
    assert [record.getMessage().split()[0] for record in caplog.records] == ["call.finished", "call.failed", "call.crashed"]
    assert "attempt=2" in caplog.text
    assert "ms=0.0" in caplog.text
    assert "secret" not in caplog.text
    assert caplog.records[1].exc_info is None
    assert caplog.records[2].exc_info is not None


async def test_the_logged_time_is_the_handlers() -> None:
    """A run's time counts from its first step, by the injected clock."""
    bench = Bench(hold)
    held = await begin(bench, "hold")
    await asyncio.sleep(2)
    assert bench.loop.time() - held._started == pytest.approx(2.0)
    gate.set()
    await bench.settle()


async def test_a_failure_without_a_caller_becomes_a_dead_letter() -> None:
    """It is set aside with its reason; a success without a caller is answered as any other."""
    bench = Bench(fail, echo)
    bench.slots.start(bench.delivery("fail", {"kind": "plain"}, replies=""))
    await bench.settle()
    [letter] = bench.broker.buried
    assert (letter.reason, letter.error) == ("failed", "tool_error: no")
    assert (letter.frame.kind, letter.frame.end_of_stream) == ("end", True)
    assert bench.broker.ends == []
    assert not (await run(bench, "echo", {"text": "x"}, replies="")).frees


async def test_progress_and_questions_reach_the_caller() -> None:
    """Progress is a frame; a question tells the caller twice, and moves the deadline by the time it took."""
    bench = Bench(report_progress)
    await run(bench, "report_progress")
    assert [frame.kind for frame in bench.broker.frames] == ["progress", "confirm", "confirm"]
    assert bench.broker.frames[0].progress == Progress(1, 2, "half")
    asked, answered = bench.broker.frames[1].confirm, bench.broker.frames[2].confirm
    assert asked is not None
    assert answered is not None
    assert (asked.question, answered.allowed) == ("sure?", True)
    assert seen == [pytest.approx(NOW + 10.0, abs=1)]


# -- ends from outside --------------------------------------------------------------------------------


async def test_a_run_whose_time_is_up_is_answered_at_once() -> None:
    """The caller is told, the handler is cancelled and learns why, and its slot is free when it has ended."""
    bench = Bench(hold)
    await begin(bench, "hold", deadline=bench.loop.time() + 4.0)
    await asyncio.sleep(4.1)
    [end] = bench.broker.ends
    assert bench.broker.errors() == [("deadline_exceeded", "")]
    assert end.frees
    assert end.frame.error is not None
    assert "did not finish within" in end.frame.error.message
    assert seen == ["began", str(end.frame.error)]
    assert (bench.slots.free, bench.slots.running) == (2, 0)


async def test_a_cancelled_run_is_answered_once() -> None:
    """A second cancellation, the deadline and the handler's own end add nothing."""
    bench = Bench(clean_up_slowly)
    held = await begin(bench, "clean_up_slowly", deadline=bench.loop.time() + 1.0)
    held.cancel()
    held.cancel()
    assert bench.broker.errors() == [("cancelled", "")]
    await asyncio.sleep(5)
    gate.set()
    await bench.settle()
    assert len(bench.broker.ends) == 1
    assert held.state is RunState.ENDED
    assert held.task is None


async def test_a_lost_run_says_nothing_more() -> None:
    """Another worker has the delivery: nothing is sent, and text that gathered is dropped."""

    @tool(service="unit_run", replace=True)
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
    again = await begin(bench, "stream")
    assert [frame.response for frame in bench.broker.frames] == ["a"]
    again._stream.send_text("late")
    again.stop(None)
    await bench.settle()
    assert [frame.response for frame in bench.broker.frames] == ["a"]
    assert bench.broker.ends == []


async def test_a_stopped_run_that_swallows_it_is_stuck_until_it_ends() -> None:
    """It holds its slot, and counts as stuck; before it was told to stop it does not."""
    bench = Bench(clean_up_slowly)
    held = await begin(bench, "clean_up_slowly")
    assert not held.stuck
    held.cancel()
    await bench.settle()
    assert held.stuck
    assert bench.slots.running == 1
    await asyncio.sleep(4)
    assert not held.stuck
    assert bench.slots.running == 0


async def test_a_run_stopped_before_its_first_step_never_runs() -> None:
    """It is answered, leaves its slot at once, and its handler is not called."""
    bench = Bench(hold)
    delivery = bench.delivery("hold")
    bench.slots.start(delivery)
    bench.slots._runs[delivery.run].cancel()
    assert (bench.slots.free, bench.slots.running) == (2, 0)
    await bench.settle()
    assert bench.broker.errors() == [("cancelled", "")]
    assert seen == []


async def test_an_abandoned_run_ends_without_an_answer() -> None:
    """Its task is cancelled; one that had not begun leaves at once, and one without a task can't be abandoned."""
    bench = Bench(hold)
    held = await begin(bench, "hold")
    task = held.abandon()
    await asyncio.wait([task])
    assert seen == ["began", "cancelled: the worker is going away"]
    assert bench.broker.ends == []
    assert held.state is RunState.ENDED
    delivery = bench.delivery("hold")
    bench.slots.start(delivery)
    unbegun = bench.slots._runs[delivery.run]
    unbegun.abandon()
    assert bench.slots.running == 0
    with pytest.raises(RuntimeError, match=r"^the run has not begun$"):
        unbegun.abandon()
    await bench.settle()


# -- once ---------------------------------------------------------------------------------------------


async def test_once_work_is_marked_before_it_begins() -> None:
    """The handler is called only when the server has marked it, and a success frees nothing."""
    bench = Bench(pay)
    bench.broker.begin_gate = asyncio.Event()
    paying = await begin(bench, "pay")
    assert (paying.state, seen) == (RunState.MARKED, [])
    bench.broker.begin_gate.set()
    await bench.settle()
    assert (paying.state, seen) == (RunState.ENTERED, ["began"])
    gate.set()
    await bench.settle()
    [end] = bench.broker.ends
    assert (end.frame.response, end.frees) == ("paid", False)


async def test_a_request_may_make_work_once() -> None:
    """The request's effect counts as much as the tool's."""
    bench = Bench(echo, hold)
    await run(bench, "echo", {"text": "x"}, effect="once")
    assert len(bench.broker.begun) == 1
    held = await begin(bench, "hold", effect="once")
    bench.broker.ends.clear()
    held.state = RunState.MARKED
    held.cancel()
    assert bench.broker.errors() == [("cancelled", "not_begun")]


@pytest.mark.parametrize(
    ("beginning", "expected", "retryable"),
    [
        ("began", ("outcome_unknown", ""), False),
        ("unsure", ("outcome_unknown", ""), False),
        ("unconfirmed", ("unavailable", "not_replicated"), True),
    ],
)
async def test_once_work_that_must_not_begin_is_refused(beginning: Any, expected: tuple[str, str], retryable: bool) -> None:
    """An earlier attempt may have taken effect, or too few replicas know of this one: the handler is not called."""
    bench = Bench(pay)
    bench.broker.beginning = beginning
    end = await run(bench, "pay")
    assert end.frame.error is not None
    assert (end.frame.error.type, end.frame.error.code, end.frame.error.retryable) == (*expected, retryable)
    assert end.frame.error.message
    assert end.frees
    assert seen == []


async def test_once_work_that_another_worker_has_is_not_answered() -> None:
    """The delivery was lost before the handler began."""
    bench = Bench(pay)
    bench.broker.beginning = "lost"
    bench.slots.start(bench.delivery("pay"))
    await bench.settle()
    assert (bench.broker.ends, seen, bench.slots.running) == ([], [], 0)


async def test_once_work_that_was_entered_has_an_unknown_outcome() -> None:
    """Cancelled, timed out or stopped with its worker, it may have taken effect, and its answer is kept for callers with its key."""
    bench = Bench(pay)
    for end in ("cancel", "expire", "interrupt"):
        getattr(await begin(bench, "pay"), end)()
        await bench.settle()
    assert bench.broker.errors() == [
        ("outcome_unknown", "cancelled"),
        ("outcome_unknown", "deadline_exceeded"),
        ("outcome_unknown", "worker_stopped"),
    ]
    assert [end.frees for end in bench.broker.ends] == [False, False, False]


async def test_once_work_that_raises_keeps_its_answer() -> None:
    """A crash after the handler began may have taken effect: the key is not freed, and it is not tried again."""

    @tool(service="unit_run", replace=True, effect="once")
    async def lose() -> str:
        """Fail with an effect."""
        raise ValueError("lost")

    @tool(service="unit_run", replace=True, effect="once")
    async def refuse() -> ToolResult:
        """Fail by its result."""
        return ToolResult.fail(ErrorInfo("tool_error", "bad", "it failed", retryable=True))

    bench = Bench(lose, refuse)
    assert not (await run(bench, "lose")).frees
    bench.broker.ends.clear()
    assert not (await run(bench, "refuse")).frees
    assert bench.broker.retried == []


async def test_once_work_whose_arguments_do_not_fit_never_begins() -> None:
    """They are refused while the run is only marked, so the key is freed."""

    @tool(service="unit_run", replace=True, effect="once")
    async def pick(number: int) -> str:
        """Take a number."""
        seen.append(number)
        return ""

    end = await run(Bench(pick), "pick", {"number": "seven"})
    assert end.frame.error is not None
    assert end.frame.error.type == "invalid_arguments"
    assert end.frees
    assert seen == []


async def test_interrupt_says_whether_another_worker_may_run_the_request() -> None:
    """A running call may; ``once`` work may not from its mark on, and a call that was answered may not."""
    bench = Bench(hold, pay)
    held = await begin(bench, "hold")
    assert held.interrupt() is True
    assert bench.broker.ends == []
    assert held.interrupt() is False
    await bench.settle()
    paying = await begin(bench, "pay")
    assert paying.interrupt() is False
    await bench.settle()
    bench.broker.begin_gate = asyncio.Event()
    marked = await begin(bench, "pay")
    assert marked.interrupt() is False
    await bench.settle()
    assert bench.broker.errors() == [("outcome_unknown", "worker_stopped"), ("unavailable", "worker_stopped")]
    last = bench.broker.ends[-1]
    assert last.frame.error is not None
    assert last.frame.error.retryable
    assert last.frees


# -- retries ------------------------------------------------------------------------------------------


async def test_a_failed_run_is_run_again_after_its_delay() -> None:
    """The second attempt comes a second later, and its failure becomes a dead letter."""
    bench = Bench(flaky)
    bench.slots.start(bench.delivery("flaky"))
    await bench.settle()
    assert (bench.broker.ends, bench.broker.buried, bench.slots.running, bench.slots.busy()) == ([], [], 0, True)
    await asyncio.sleep(0.9)
    assert bench.broker.retried == []
    await asyncio.sleep(0.2)
    assert seen == [NOW, pytest.approx(NOW + 1.0, abs=0.05)]
    assert [delivery.attempt for delivery in bench.broker.retried] == [1]
    [letter] = bench.broker.buried
    assert (letter.reason, letter.error, letter.frame.attempt) == ("retries_exhausted", "tool_error: broken", 2)
    assert not bench.slots.busy()


async def test_once_work_is_never_run_again() -> None:
    """A tool with a retry policy, called as ``once`` work, is answered with its first failure."""
    end = await run(bench := Bench(flaky), "flaky", effect="once")
    assert end.frame.error is not None
    assert end.frame.error.code == "ValueError"
    assert not bench.slots.busy()


async def test_only_what_may_succeed_later_is_run_again() -> None:
    """A ToolError is run again when it is retryable, and answered when it is not."""

    @tool(service="unit_run", replace=True, retry=Retry(attempts=2, delay=1.0, jitter=0.0))
    async def refuse(retryable: bool) -> str:
        """Fail."""
        raise ToolError("no", code="refused", retryable=retryable)

    bench = Bench(refuse)
    bench.slots.start(bench.delivery("refuse", {"retryable": True}))
    await bench.settle()
    assert bench.slots.busy()
    bench.slots.start(bench.delivery("refuse", {"retryable": False}))
    await bench.settle()
    assert bench.broker.errors() == [("tool_error", "refused")]


# -- kinds of handlers --------------------------------------------------------------------------------


async def test_middleware_may_call_a_handler_again_within_one_run() -> None:
    """``once`` work enters once, and the second result is the answer."""

    async def twice(call: ToolCall, following: Next) -> ToolResult:
        await following(call)
        return await following(call)

    @tool(service="unit_run", replace=True, effect="once")
    async def count() -> str:
        """Count its calls."""
        seen.append(len(seen))
        return str(len(seen))

    end = await run(Bench(count, middleware=(twice,)), "count")
    assert (end.frame.response, seen) == ("2", [0, 1])


async def test_middleware_that_gives_a_handler_up_stops_it() -> None:
    """The handler is told, and the middleware's own result is the answer."""

    async def impatient(call: ToolCall, following: Next) -> ToolResult:
        try:
            async with asyncio.timeout(1):
                return await following(call)
        except TimeoutError:
            return ToolResult(output="gave up")

    bench = Bench(hold, middleware=(impatient,))
    held = await begin(bench, "hold")
    await asyncio.sleep(1.1)
    await bench.settle()
    assert [end.frame.response for end in bench.broker.ends] == ["gave up"]
    assert str(held.stopped) == "cancelled: the middleware around the handler gave it up"


async def test_plain_functions_and_generators_run_in_threads() -> None:
    """Their results and items arrive as those of coroutines do."""

    @tool(service="unit_run", replace=True)
    def plain() -> str:
        """Return."""
        return "plain"

    @tool(service="unit_run", replace=True)
    def items() -> Iterator[str]:
        """Yield."""
        yield "a"
        yield "b"

    bench = Bench(plain, items)
    for name in ("plain", "items"):
        bench.slots.start(bench.delivery(name))
    await eventually(lambda: len(bench.broker.ends) == 2)
    assert "plain" in {end.frame.response for end in bench.broker.ends}
    texts = [text for frame in bench.broker.frames for text in (frame.texts or [frame.response])]
    assert "".join(filter(None, texts)) == "ab"
    await bench.settle()
    assert bench.slots.running == 0


async def test_a_bug_in_answering_still_answers(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """When what a handler raised can't be turned into an error, the caller is told so much, and the slot is freed."""
    bench = Bench(fail)

    def broken(self: object, error: BaseException) -> ErrorInfo:
        raise KeyError("bug")

    monkeypatch.setattr("toolbus.worker.run.run.Run.error_info", broken)
    end = await run(bench, "fail", {"kind": "crash"})
    assert end.frame.error == ErrorInfo("tool_error", "ValueError", "what the handler raised can't be told")
    assert "run.bug" in caplog.text


async def test_an_answered_run_sends_nothing_more() -> None:
    """Progress and questions of a handler that still runs are dropped."""
    bench = Bench(clean_up_slowly)
    held = await begin(bench, "clean_up_slowly")
    held.cancel()
    held.emit(Progress(1))
    held.tell(Confirm("id", "sure?", 1.0))
    assert bench.broker.frames == []
    await asyncio.sleep(4)


@pytest.mark.parametrize("effect", ["", "once"])
async def test_an_isolated_tool_runs_in_the_pool(effect: str) -> None:
    """The pool is given the request and its limits; ``once`` work enters when a process is ready, and refused arguments take none."""
    bench = Bench(apart)
    asked: list[dict[str, Any]] = []

    async def pooled(made: Any, request: Any, *, enter: Any, **limits: Any) -> AsyncIterator[str]:
        asked.append({"name": made.name, "id": request.id, **limits})
        if enter is not None:
            seen.append(bench.slots._runs["run-1"].state)
            enter()
            seen.append(bench.slots._runs["run-1"].state)
        yield "apart"

    bench.slots.isolation.run = pooled  # type: ignore[method-assign, assignment]
    await run(bench, "apart", {"number": 1}, attempt=2, effect=effect)
    assert asked == [{"name": "apart", "id": "call-1", "attempt": 2, "deadline": NOW + 10.0}]
    assert seen == ([RunState.MARKED, RunState.ENTERED] if effect else [])
    bench.broker.ends.clear()
    end = await run(bench, "apart", {"number": "one"}, effect=effect)
    assert end.frame.error is not None
    assert end.frame.error.type == "invalid_arguments"
    assert len(asked) == 1
