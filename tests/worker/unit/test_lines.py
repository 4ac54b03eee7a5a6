"""Lines: the calls of sticky sessions, which run one after another."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import UserString
from collections.abc import Callable
from typing import Any

import pytest

from tests.worker.unit.fakes import Bench, echo, flaky, handlers, hold, stubborn
from toolbus import ErrorInfo, ToolError, tool
from toolbus.bus.broker.take.requests import Delivery

pytestmark = pytest.mark.anyio


class Text(UserString):
    """A text that can be watched."""


def of_session(bench: Bench, name: str, arguments: dict[str, Any] | None = None, **changes: Any) -> Delivery:
    """A call that keeps its place in its session."""
    return bench.delivery(name, arguments, ordered=True, **{"user": "u", "session": "s", **changes})


def _let_expire(bench: Bench, delivery: Delivery) -> None:
    delivery.deadline = 0.0


def _cancel(bench: Bench, delivery: Delivery) -> None:
    bench.slots.on_cancelled(delivery.request.id)


def _forget_replies(bench: Bench, delivery: Delivery) -> None:
    bench.slots.on_replies_gone("gone", ErrorInfo("cancelled", "caller_gone"))


def _lose(bench: Bench, delivery: Delivery) -> None:
    bench.stream.lose(delivery)


def _bury(bench: Bench, delivery: Delivery) -> None:
    delivery.attempt = bench.settings.max_deliveries + 1


def _take_service(bench: Bench, delivery: Delivery) -> None:
    served = bench.slots._served[bench.service]
    bench.slots._served = {}  # The call is refused when its slot is free, and the service is back for those after it.
    refuse = bench.slots._refuse

    def and_restore(refused: Delivery, error: ErrorInfo | None) -> None:
        bench.slots._served = {bench.service: served}
        refuse(refused, error)

    bench.slots._refuse = and_restore  # type: ignore[assignment, method-assign]


def _take_handler(bench: Bench, delivery: Delivery) -> None:
    served = bench.slots._served[bench.service]
    find = served.handler

    def gone(request: Any) -> Any:
        if request.tool == "flaky":
            raise ToolError("gone", code="gone")
        return find(request)

    served.handler = gone  # type: ignore[method-assign]


ENDINGS: list[Callable[[Bench, Delivery], None]] = [
    _let_expire,
    _cancel,
    _forget_replies,
    _lose,
    _bury,
    _take_service,
    _take_handler,
]


@pytest.mark.parametrize("end", ENDINGS)
async def test_a_session_goes_on_after_a_retry_that_ended_while_it_waited_for_a_slot(
    end: Callable[[Bench, Delivery], None], gate: asyncio.Event, seen: list[Any]
) -> None:
    """However the waiting attempt ends, the calls behind it run, and nothing is remembered of the line."""
    bench = Bench(flaky, hold, echo, concurrency=1)
    bench.slots.start(of_session(bench, "flaky", replies="gone", deadline=2000.0))
    await bench.settle()
    bench.slots.start(bench.delivery("hold", deadline=2000.0))
    await asyncio.sleep(2)
    [again] = bench.slots._waiting.due
    assert (seen, again.attempt) == (["tried", ""], 2)
    bench.slots.start(behind := of_session(bench, "echo", {"text": "behind"}, deadline=2000.0))
    end(bench, again)
    gate.set()
    await asyncio.sleep(2)
    assert seen == ["tried", ""]
    bench.slots.start(later := of_session(bench, "echo", {"text": "later"}))
    await bench.settle()
    assert [end.frame.id for end in bench.broker.ends][-2:] == [behind.request.id, later.request.id]
    assert (len(bench.slots._lines), bench.slots.busy()) == (0, False)


async def test_a_session_goes_on_after_a_retry_that_was_cancelled_while_it_was_counted(seen: list[Any]) -> None:
    """It is refused once it is counted, and the calls behind it run."""
    bench = Bench(flaky, echo)
    counted, retry = asyncio.Event(), bench.broker.retry

    async def slowly(delivery: Delivery) -> Delivery | None:
        await counted.wait()
        return await retry(delivery)

    bench.broker.retry = slowly  # type: ignore[method-assign]
    bench.slots.start(first := of_session(bench, "flaky"))
    await asyncio.sleep(2)
    bench.slots.start(behind := of_session(bench, "echo", {"text": "behind"}))
    bench.slots.on_cancelled(first.request.id)
    counted.set()
    await bench.settle()
    assert seen == ["tried"]
    assert [end.frame.id for end in bench.broker.ends] == [first.request.id, behind.request.id]
    assert len(bench.slots._lines) == 0


async def test_an_attempt_that_was_lost_does_not_end_the_turn_of_its_next_one(gate: asyncio.Event) -> None:
    """A call that comes back while its lost run still cleans up keeps the calls behind it waiting."""

    @tool(service="unit", replace=True)
    async def slow() -> str:
        """Clean up for a second."""
        handlers.seen.append("began")
        try:
            await handlers.gate.wait()
        finally:
            await asyncio.sleep(1)
        return "slow"

    bench = Bench(slow, echo, concurrency=3)
    bench.slots.start(first := of_session(bench, "slow"))
    await bench.settle()
    bench.stream.lose(first)
    bench.stream.held[first.entry] = again = first.again(1, "run-again")
    bench.slots.start(again)
    bench.slots.start(behind := of_session(bench, "echo", {"text": "behind"}))
    await asyncio.sleep(2)
    assert (handlers.seen, bench.slots.running) == (["began", "began"], 1)
    assert behind.request.id not in [end.frame.id for end in bench.broker.ends]
    gate.set()
    await asyncio.sleep(2)
    assert [end.frame.id for end in bench.broker.ends][-2:] == [first.request.id, behind.request.id]


@pytest.mark.parametrize("end", [_let_expire, _cancel, _forget_replies, _lose])
async def test_a_call_that_ended_while_it_waited_for_its_turn_is_let_go_of(
    end: Callable[[Bench, Delivery], None], gate: asyncio.Event
) -> None:
    """Its request is not kept until the calls before it have ended, and those that stay run in their order."""
    bench = Bench(hold, echo)
    bench.slots.start(of_session(bench, "hold", deadline=2000.0))
    await bench.settle()
    before = of_session(bench, "echo", {"text": "before"}, deadline=2000.0)
    ended = of_session(bench, "echo", {"text": Text("ended")}, replies="gone")
    kept = weakref.ref(ended.request.arguments["text"])
    after = of_session(bench, "echo", {"text": "after"}, deadline=2000.0)
    for delivery in (before, ended, after):
        bench.slots.start(delivery)
    end(bench, ended)
    if end is _let_expire:
        await asyncio.sleep(11)
    del ended, delivery
    gc.collect()
    assert kept() is None
    gate.set()
    await bench.settle()
    assert [end.frame.id for end in bench.broker.ends][-2:] == [before.request.id, after.request.id]
    assert len(bench.slots._lines) == 0


@pytest.mark.parametrize("first", ["echo", "refused", "buried"])
async def test_the_next_call_begins_when_the_server_has_accepted_the_end_of_the_one_before(first: str, seen: list[Any]) -> None:
    """Until then another worker may take that one over and run it again; a call of another session does not wait."""
    bench = Bench(echo, hold, concurrency=5)
    bench.broker.accepts = False
    ends = {"refused": {"deadline": 0.0}, "buried": {"attempt": bench.settings.max_deliveries + 1}}
    bench.slots.start(before := of_session(bench, "echo", {"text": "first"}, **ends.get(first, {})))
    await bench.settle()
    assert len(bench.broker.ends) + len(bench.broker.buried) == 1
    bench.broker.left = [before.entry]
    bench.slots.start(of_session(bench, "hold", {"name": "second"}, after=before.entry))
    bench.slots.start(of_session(bench, "hold", {"name": "other"}, session="other"))
    await asyncio.sleep(5)
    assert seen == ["other"]
    bench.broker.left = []
    bench.broker.accept()
    await asyncio.sleep(1)
    assert seen == ["other", "second"]


async def test_an_accepted_end_does_not_end_the_turn_of_a_handler_that_still_runs(gate: asyncio.Event, seen: list[Any]) -> None:
    """A cancelled call is answered at once, and the next one begins when its handler has stopped, too."""
    bench = Bench(stubborn, hold)
    bench.slots.start(first := of_session(bench, "stubborn", deadline=2000.0))
    bench.slots.start(of_session(bench, "hold", {"name": "second"}, deadline=2000.0))
    await bench.settle()
    bench.slots.on_cancelled(first.request.id)
    await bench.settle()
    assert (bench.stream.held.get(first.entry), seen) == (None, ["refused"])
    gate.set()
    await bench.settle()
    assert seen == ["refused", "second"]


async def test_a_call_whose_end_was_refused_is_waited_for_where_it_goes_on(seen: list[Any]) -> None:
    """The next one begins when the server says that nothing before it is left."""
    bench = Bench(echo, hold)
    bench.broker.accepts = False
    bench.slots.start(first := of_session(bench, "echo", {"text": "first"}))
    bench.slots.start(second := of_session(bench, "hold", {"name": "second"}, after=first.entry))
    await bench.settle()
    bench.broker.left = [first.entry]
    bench.broker.accept(ended=False)
    await asyncio.sleep(5)
    assert (bench.broker.asked_before[0], seen) == ([second.entry], [])
    bench.broker.left = []
    await asyncio.sleep(1)
    assert seen == ["second"]
