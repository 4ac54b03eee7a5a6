"""``once`` work: it begins at most once, and its outcome is told only when it is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.servers import eventually
from tests.worker.unit.fakes import Bench, echo, hold, pay
from toolbus import ErrorInfo, ToolResult, tool
from toolbus.bus.broker.take.requests import Delivery
from toolbus.bus.middleware import Next, ToolCall
from toolbus.bus.values.results import BrokerUnavailable
from toolbus.bus.worker.transitions import RunState

pytestmark = pytest.mark.anyio


async def test_once_work_is_marked_before_it_begins(gate: asyncio.Event, seen: list[Any]) -> None:
    """The handler is called only when the server has marked it, and a success frees nothing."""
    bench = Bench(pay)
    bench.broker.begin_gate = asyncio.Event()
    paying = await bench.begin("pay")
    assert (paying.state, seen) == (RunState.MARKED, [])
    assert bench.broker.begun == [paying.delivery]
    bench.broker.begin_gate.set()
    await bench.settle()
    assert (paying.state, seen) == (RunState.ENTERED, ["began"])
    gate.set()
    await bench.settle()
    [end] = bench.broker.ends
    assert (end.frame.response, end.frees) == ("paid", False)


@pytest.mark.parametrize("effect", ["", "once"])
async def test_nothing_comes_between_the_mark_and_the_handler(effect: str, seen: list[Any]) -> None:
    """Middleware has had its time when the mark is set; until then another worker may run the call."""

    async def slow(call: ToolCall, following: Next) -> ToolResult:
        await asyncio.sleep(0.01)
        seen.append(len(bench.broker.begun))
        return await following(call)

    bench = Bench(hold if effect else pay, middleware=(slow,))
    held = await bench.begin("hold" if effect else "pay", effect=effect)
    assert held.state < RunState.MARKED
    await eventually(lambda: held.state is RunState.ENTERED)
    assert (seen[0], len(bench.broker.begun)) == (0, 1)
    held = await bench.begin("hold" if effect else "pay", effect=effect, id="other")
    assert held.interrupt(), "another worker may run it"
    await bench.settle()
    assert len(bench.broker.begun) == 1


async def test_a_request_may_make_work_once() -> None:
    """The request's effect counts as much as the tool's."""
    bench = Bench(echo, hold)
    await bench.run("echo", {"text": "x"}, effect="once")
    assert len(bench.broker.begun) == 1
    held = await bench.begin("hold", effect="once")
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
async def test_once_work_that_must_not_begin_is_refused(
    beginning: Any, expected: tuple[str, str], retryable: bool, seen: list[Any]
) -> None:
    """An earlier attempt may have taken effect, or too few replicas know of this one: the handler is not called."""
    bench = Bench(pay)
    bench.broker.beginning = beginning
    end = await bench.run("pay")
    assert end.frame.error is not None
    assert (end.frame.error.type, end.frame.error.code, end.frame.error.retryable) == (*expected, retryable)
    assert end.frame.error.message
    assert end.frees
    assert seen == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"attempt": 1},
            ErrorInfo("unavailable", "not_begun", "the tool did not begin, since the server did not take the note of it: gone", True),
        ),
        ({"attempt": 2}, ErrorInfo("outcome_unknown", "", "an earlier attempt may have begun, and the server did not say: gone")),
        ({"server": b"other"}, ErrorInfo("outcome_unknown", "", "an earlier attempt may have begun, and the server did not say: gone")),
    ],
)
async def test_once_work_without_a_mark_does_not_begin(changes: dict[str, Any], expected: ErrorInfo, seen: list[Any]) -> None:
    """When its start can't be noted, a first attempt ends as unavailable; a later one, or on another server process, as outcome_unknown."""
    bench = Bench(pay)

    async def refuse(_: Any) -> Any:
        raise BrokerUnavailable("gone")

    bench.broker.begin = refuse  # type: ignore[method-assign, assignment]
    end = await bench.run("pay", **changes)
    assert end.frame.error == expected
    assert seen == []


def _cancel_early(bench: Bench, delivery: Delivery) -> None:
    bench.slots.on_cancelled(delivery.request.id)
    bench.slots.start(delivery)


def _come_late(bench: Bench, delivery: Delivery) -> None:
    delivery.deadline = 0.0
    bench.slots.start(delivery)


def _serve_nothing(bench: Bench, delivery: Delivery) -> None:
    bench.slots._served = {}
    bench.slots.start(delivery)


def _cancel_before_its_first_step(bench: Bench, delivery: Delivery) -> None:
    bench.slots.start(delivery)
    bench.slots.on_cancelled(delivery.request.id)


def _expire_before_its_first_step(bench: Bench, delivery: Delivery) -> None:
    bench.slots.start(delivery)
    bench.slots._runs[delivery.run].expire()


@pytest.mark.parametrize(
    ("give_up", "error"),
    [
        (_cancel_early, "cancelled"),
        (_come_late, "deadline_exceeded"),
        (_serve_nothing, "not_found"),
        (_cancel_before_its_first_step, "cancelled"),
        (_expire_before_its_first_step, "deadline_exceeded"),
    ],
)
async def test_once_work_that_is_not_run_again_may_have_begun(
    give_up: Callable[[Bench, Delivery], None], error: str, seen: list[Any]
) -> None:
    """After a lost attempt, or on another server process, it ends as outcome_unknown; else with what happened, as other work does."""
    bench = Bench(pay, hold, concurrency=8)
    bench.stream.server = b"this"
    for changes in ({"attempt": 2}, {"server": b"other"}, {"attempt": 2, "excused_attempts": 1}, {"server": b"this"}, {"attempt": 1}):
        give_up(bench, bench.delivery("pay", effect="once", **changes))
    give_up(bench, bench.delivery("hold", attempt=2))
    await bench.settle()
    ends = [end.frame.error for end in bench.broker.ends]
    assert [end.type for end in ends if end is not None] == ["outcome_unknown", "outcome_unknown", error, error, error, error]
    for unknown in ends[:2]:
        assert unknown is not None
        assert (unknown.code, "an earlier attempt may have begun" in unknown.message, unknown.retryable) == (error, True, False)
    assert seen == []


@pytest.mark.parametrize(
    ("generation", "entry", "unfinished", "error"),
    [
        (b"1.r.5-1", b"5-1", False, "outcome_unknown"),
        (b"1.r.5-1", b"5-2", False, "deadline_exceeded"),
        (b"1.r", b"5-1", False, "deadline_exceeded"),
        (b"1.r.nonsense", b"5-1", False, "deadline_exceeded"),
        (b"0.r", b"5-1", True, "outcome_unknown"),
    ],
)
async def test_once_work_may_have_begun_before_its_group_was_made_anew(
    generation: bytes, entry: bytes, unfinished: bool, error: str
) -> None:
    """A group counts deliveries anew, so what was there when it was made may have had an attempt, as has what was let go here."""
    bench = Bench(pay)
    bench.stream.fence_is(generation, b"1")
    if unfinished:
        bench.stream.unfinished[entry] = True
    _come_late(bench, bench.delivery("pay", effect="once", entry=entry))
    await bench.settle()
    assert [kind for kind, _ in bench.broker.errors()] == [error]


async def test_once_work_that_another_worker_has_is_not_answered(seen: list[Any]) -> None:
    """The delivery was lost before the handler began."""
    bench = Bench(pay)
    bench.broker.beginning = "lost"
    bench.slots.start(bench.delivery("pay"))
    await bench.settle()
    assert (bench.broker.ends, seen, bench.slots.running) == ([], [], 0)
    assert [each.cancelled for each in bench.slots.counts()] == [1]


async def test_once_work_that_was_entered_has_an_unknown_outcome() -> None:
    """Cancelled, timed out or stopped with its worker, it may have taken effect, and its answer is kept for callers with its key."""
    bench = Bench(pay)
    for end in ("cancel", "expire", "interrupt"):
        getattr(await bench.begin("pay"), end)()
        await bench.settle()
    assert bench.broker.errors() == [
        ("outcome_unknown", "cancelled"),
        ("outcome_unknown", "deadline_exceeded"),
        ("outcome_unknown", "worker_stopped"),
    ]
    assert [end.frees for end in bench.broker.ends] == [False, False, False]


async def test_once_work_that_raises_keeps_its_answer() -> None:
    """A crash after the handler began may have taken effect: the key is not freed, and it is not tried again."""

    @tool(service="unit", replace=True, effect="once")
    async def lose() -> str:
        """Fail with an effect."""
        raise ValueError("lost")

    @tool(service="unit", replace=True, effect="once")
    async def refuse() -> ToolResult:
        """Fail by its result."""
        return ToolResult.fail(ErrorInfo("tool_error", "bad", "it failed", retryable=True))

    bench = Bench(lose, refuse)
    assert not (await bench.run("lose")).frees
    bench.broker.ends.clear()
    assert not (await bench.run("refuse")).frees
    assert bench.broker.retried == []


async def test_once_work_whose_arguments_do_not_fit_never_begins(seen: list[Any]) -> None:
    """They are refused while the run is only marked, so the key is freed."""

    @tool(service="unit", replace=True, effect="once")
    async def pick(number: int) -> str:
        """Take a number."""
        seen.append(number)
        return ""

    end = await Bench(pick).run("pick", {"number": "seven"})
    assert end.frame.error is not None
    assert end.frame.error.type == "invalid_arguments"
    assert end.frees
    assert seen == []


@pytest.mark.parametrize("effect", ["", "once"])
async def test_once_work_that_is_cancelled_before_its_first_step_has_not_begun(effect: str) -> None:
    """The caller is told that it may call again; the effect of the tool counts as much as the request's."""
    bench = Bench(hold if effect else pay)
    delivery = bench.delivery("hold" if effect else "pay", effect=effect)
    bench.slots.start(delivery)
    bench.slots.on_cancelled(delivery.request.id)
    assert bench.broker.errors() == [("cancelled", "not_begun")]
