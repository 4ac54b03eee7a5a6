"""Answers: the last frame of a run, and the frames before it."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from tests.servers import eventually
from tests.virtual_time import NOW
from tests.worker.unit.fakes import Bench, echo, handlers, hold, lines
from toolbus import Blob, ErrorInfo, Progress, ToolError, ToolResult, invocation, tool
from toolbus.bus.broker.take.requests import Delivery

pytestmark = pytest.mark.anyio


@tool(service="unit", replace=True)
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


@tool(service="unit", replace=True)
async def answer(kind: str) -> ToolResult:
    """Return one of several results."""
    return {
        "failure": ToolResult(success=False),
        "error": ToolResult.fail(ErrorInfo("tool_error", "bad", "it failed")),
        "data": ToolResult(data={"a": 1}),
        "long": ToolResult(output="x" * 600, data=["y" * 600]),
        "blobs": ToolResult(output="o", content=(Blob("image/png", b"12"),)),
    }[kind]


@tool(service="unit", replace=True)
async def report_progress() -> str:
    """Report progress, and ask."""
    invocation().progress(1, 2, "half")
    await invocation().confirm("sure?")
    handlers.seen.append(invocation().deadline)
    return "done"


async def test_a_call_that_returns_sends_one_frame() -> None:
    """The frame ends the stream, carries the output, and says who ran it and how long it waited; no key is freed."""
    end = await (bench := Bench(echo)).run("echo", {"text": "hi"}, epoch=4, attempt=2)
    frame = end.frame
    assert (frame.kind, frame.response, frame.error, frame.end_of_stream, frame.seq) == ("end", "hi", None, True, 0)
    assert (frame.id, frame.run, frame.attempt, frame.epoch) == ("call-1", "run-1", 2, 4)
    assert (frame.worker, frame.queued_ms) == ("worker-1", 12.3)
    assert not end.frees
    assert bench.broker.frames == []


async def test_a_caller_that_wants_events_is_sent_a_start() -> None:
    """The start is the first frame, and the only one that names the worker."""
    end = await (bench := Bench(echo)).run("echo", {"text": "hi"}, events=True)
    [start] = bench.broker.frames
    assert (start.kind, start.seq, start.worker, start.end_of_stream) == ("start", 0, "worker-1", False)
    assert (end.frame.seq, end.frame.worker, end.frame.queued_ms) == (1, "", 0.0)


async def test_failures_become_errors() -> None:
    """An exception of a handler is answered by its type; a run that failed frees its idempotency key."""
    bench = Bench(fail)
    for kind, expected in [
        ("crash", ("tool_error", "ValueError")),
        ("exit", ("tool_error", "SystemExit")),
        ("cancelled", ("tool_error", "CancelledError")),
        ("plain", ("tool_error", "refused")),
        ("unencodable", ("tool_error", "unencodable_error")),
    ]:
        bench.broker.ends.clear()
        end = await bench.run("fail", {"kind": kind})
        assert end.frame.error is not None
        assert (end.frame.error.type, end.frame.error.code) == expected
        assert end.frees


async def test_a_handler_that_lets_a_cancellation_out_is_told_from_a_stopped_one() -> None:
    """The message says that the cancellation came from within."""
    end = await Bench(fail).run("fail", {"kind": "cancelled"})
    assert end.frame.error is not None
    assert end.frame.error.message == "the handler was cancelled from within"


async def test_results_of_every_kind_are_answered() -> None:
    """A failure without a reason gets one; an error, data and blobs arrive as they are."""
    bench = Bench(answer)
    end = await bench.run("answer", {"kind": "failure"})
    assert end.frame.error == ErrorInfo("tool_error", message="the tool reported a failure without a reason", origin="tool")
    assert end.frees
    bench.broker.ends.clear()
    end = await bench.run("answer", {"kind": "error"})
    assert end.frame.error == ErrorInfo("tool_error", "bad", "it failed", origin="tool")
    bench.broker.ends.clear()
    end = await bench.run("answer", {"kind": "data"})
    assert end.frame.data == {"a": 1}
    bench.broker.ends.clear()
    end = await bench.run("answer", {"kind": "blobs"})
    [blob] = bench.broker.frames
    assert (blob.kind, blob.blob, blob.more, blob.seq) == ("blob", Blob("image/png", b"12"), False, 0)
    assert (end.frame.response, end.frame.seq) == ("o", 1)


async def test_a_long_result_is_sent_in_pieces() -> None:
    """Output and data over a frame's limit go in frames of their own, and not in the last one."""
    end = await (bench := Bench(answer, max_frame=256)).run("answer", {"kind": "long"})
    kinds = [frame.kind for frame in bench.broker.frames]
    assert set(kinds) == {"text", "data"}
    assert "".join(frame.response or "" for frame in bench.broker.frames if frame.kind == "text") == "x" * 600
    assert "".join(frame.response or "" for frame in bench.broker.frames if frame.kind == "data") == '["' + "y" * 600 + '"]'
    assert (end.frame.response, end.frame.data) == (None, None)


async def test_a_result_of_exactly_a_frame_is_not_cut() -> None:
    """The limit itself still fits."""
    end = await (bench := Bench(echo, max_frame=256)).run("echo", {"text": "x" * 256})
    assert end.frame.response == "x" * 256
    assert bench.broker.frames == []
    bench.broker.ends.clear()
    end = await bench.run("echo", {"text": "x" * 257})
    assert end.frame.response is None
    assert "".join(frame.response or "" for frame in bench.broker.frames) == "x" * 257


async def test_an_end_is_logged_with_its_time(caplog: pytest.LogCaptureFixture) -> None:
    """A success is info, an expected failure a warning, a crash an error with its traceback."""
    caplog.set_level(logging.INFO, logger="toolbus")
    await (bench := Bench(echo, fail)).run("echo", {"text": "secret"}, user="u", attempt=2)
    for kind in ("plain", "crash"):
        bench.broker.ends.clear()
        await bench.run("fail", {"kind": kind})
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "ERROR"]
    assert [record.getMessage().split()[0] for record in caplog.records] == ["call.finished", "call.failed", "call.crashed"]
    assert "attempt=2" in caplog.text
    assert "ms=0.0" in caplog.text
    assert "secret" not in caplog.text
    assert caplog.records[1].exc_info is None
    assert caplog.records[2].exc_info is not None


async def test_the_logged_time_is_the_handlers(gate: asyncio.Event) -> None:
    """A run's time counts from its first step, by the injected clock."""
    bench = Bench(hold)
    held = await bench.begin("hold")
    await asyncio.sleep(2)
    assert bench.loop.time() - held.began == pytest.approx(2.0)
    gate.set()
    await bench.settle()


async def test_a_failure_without_a_caller_becomes_a_dead_letter() -> None:
    """It is set aside with its reason; a success without a caller is answered as any other."""
    bench = Bench(fail, echo)
    bench.slots.start(bench.delivery("fail", {"kind": "plain"}, replies=""))
    await bench.settle()
    [letter] = bench.broker.buried
    assert (letter.reason, letter.error) == ("failed", "tool_error: no")
    assert letter.frame.error == ErrorInfo("tool_error", "refused", "no", origin="tool")
    assert (letter.frame.kind, letter.frame.end_of_stream) == ("end", True)
    assert bench.broker.ends == []
    assert not (await bench.run("echo", {"text": "x"}, replies="")).frees


async def test_progress_and_questions_reach_the_caller(seen: list[Any]) -> None:
    """Progress is a frame; a question tells the caller twice, and moves the deadline by the time it took."""
    bench = Bench(report_progress)
    await bench.run("report_progress")
    assert [frame.kind for frame in bench.broker.frames] == ["progress", "confirm", "confirm"]
    assert bench.broker.frames[0].progress == Progress(1, 2, "half")
    asked, answered = bench.broker.frames[1].confirm, bench.broker.frames[2].confirm
    assert asked is not None
    assert answered is not None
    assert (asked.question, answered.allowed) == ("sure?", True)
    assert seen == [pytest.approx(NOW + 10.0, abs=1)]


@pytest.mark.parametrize("size", [10, 1_000])
async def test_data_of_any_size_is_in_the_last_frame(size: int) -> None:
    """Small and large data reach the caller unchanged in the last frame."""

    @tool(service="unit", replace=True)
    async def collect() -> list[str]:
        """Return data."""
        return ["y" * size]

    assert (await Bench(collect).run("collect")).frame.data == ["y" * size]


async def test_progress_of_a_thread_reaches_the_caller_too() -> None:
    """A text that is too long is cut, and that is said."""

    @tool(service="unit", replace=True)
    def report() -> str:
        """Report progress."""
        invocation().progress(1, 2, "x" * 9_000)
        return "done"

    bench = Bench(report)
    bench.slots.start(bench.delivery("report"))
    await eventually(lambda: bench.broker.ends)
    [frame] = bench.broker.frames
    assert frame.progress == Progress(1, 2, "x" * 8_000 + "… (9,000 characters, shortened)")


async def test_a_bug_in_answering_still_answers(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """When what a handler raised can't be turned into an error, the caller is told so much, and the slot is freed."""
    bench = Bench(fail)

    def broken(self: object, error: BaseException) -> ErrorInfo:
        raise KeyError("bug")

    monkeypatch.setattr("toolbus.bus.worker.run.Run.error_info", broken)
    end = await bench.run("fail", {"kind": "crash"})
    assert end.frame.error == ErrorInfo("tool_error", "ValueError", "what the handler raised can't be told", origin="tool")
    assert [line.split()[0] for line in lines(caplog)] == ["run.bug", "call.failed"]


async def test_data_of_exactly_a_frame_is_not_cut() -> None:
    """As JSON, a text has two quotes more."""

    @tool(service="unit", replace=True)
    async def data(size: int) -> ToolResult:
        """Return a text as data."""
        return ToolResult(data="x" * size)

    bench = Bench(data, max_frame=256)
    assert (await bench.run("data", {"size": 254})).frame.data == "x" * 254
    bench.broker.ends.clear()
    assert (await bench.run("data", {"size": 255})).frame.data is None
    assert [len(frame.response or "") for frame in bench.broker.frames] == [256, 1]


async def test_arguments_that_another_descriptor_allowed_are_refused_with_both_digests() -> None:
    """The caller is told that it knows another revision of the tool, and may call again."""
    bench = Bench(echo)
    end = await bench.run("echo", {}, digest="other")
    assert end.frame.error is not None
    assert (end.frame.error.code, end.frame.error.retryable) == ("other_revision", True)
    assert bench.slots._served["unit"].publication.digest in end.frame.error.message
    assert [each.request.id for each in bench.broker.offered] == [end.frame.id], "it was first offered to others"


async def test_a_question_shows_its_data() -> None:
    """Data over the limit of a request are refused, since a person could not see them."""

    @tool(service="unit", replace=True)
    async def ask(size: int) -> str:
        """Ask, with data."""
        await invocation().confirm("sure?", {"text": "x" * size})
        return "done"

    bench = Bench(ask, max_request=1024)
    assert (await bench.run("ask", {"size": 10})).frame.response == "done"
    [question] = bench.broker.questions
    assert json.loads(question.arguments) == {"text": "x" * 10}
    bench.broker.ends.clear()
    end = await bench.run("ask", {"size": 1024})
    assert end.frame.error is not None
    assert (end.frame.error.type, end.frame.error.code) == ("invalid_arguments", "unreadable")


async def test_a_broker_that_fails_leaves_no_run_behind(caplog: pytest.LogCaptureFixture) -> None:
    """The last frame is tried once; the failure is logged with the call, and the slot is freed."""
    bench = Bench(fail)
    tried: list[str] = []

    def finish(delivery: Delivery, frame: bytes, *, frees: bool = False, forgets: bool = False) -> None:
        tried.append(delivery.run)
        raise RuntimeError("broken")

    bench.broker.finish = finish  # type: ignore[method-assign]
    bench.slots.start(bench.delivery("fail", {"kind": "crash"}))
    task = bench.slots._runs["run-1"].task
    assert task is not None
    await task
    assert (tried, bench.slots.running) == (["run-1"], 0)
    assert [line.split()[0] for line in lines(caplog)] == ["run.bug", "call.failed"]
