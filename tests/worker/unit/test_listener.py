"""The listener: what slots do about events of the broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.worker.unit.fakes import Bench, hold, stubborn
from toolbus import ErrorInfo

pytestmark = pytest.mark.anyio

# -- cancellations ------------------------------------------------------------------------------------


async def test_a_cancellation_stops_its_call_alone(gate: asyncio.Event, seen: list[Any]) -> None:
    """Another call goes on; a run that cleans up after its end is left in peace."""
    bench = Bench(hold, stubborn)
    first, second = bench.delivery("stubborn"), bench.delivery("hold")
    bench.slots.start_all([first, second])
    await bench.settle()
    for _ in range(3):
        bench.slots.on_cancelled(first.request.id)
        await bench.settle()
    assert seen.count("refused") == 1
    assert [end.frame.id for end in bench.broker.ends] == ["call-1"]
    assert bench.slots.running == 2
    gate.set()
    await bench.settle()
    assert [end.frame.id for end in bench.broker.ends] == ["call-1", "call-2"]


async def test_a_cancelled_call_that_comes_later_does_not_start(seen: list[Any]) -> None:
    """A cancellation that arrives before its request is remembered; another call runs."""
    bench = Bench(hold)
    bench.slots.on_cancelled("early")
    bench.slots.start_all([bench.delivery("hold", id="early"), bench.delivery("hold", {"name": "other"})])
    await bench.settle()
    assert seen == ["other"]
    [end] = bench.broker.ends
    assert (end.frame.id, end.frees) == ("early", True)
    assert end.frame.error == ErrorInfo("cancelled", "not_begun", "cancelled by the caller before the tool began")
    assert (end.frame.worker, end.frame.kind, end.frame.end_of_stream) == ("worker-1", "end", True)


async def test_early_cancellations_are_bounded(monkeypatch: pytest.MonkeyPatch, seen: list[Any]) -> None:
    """The oldest is forgotten first."""
    monkeypatch.setattr("toolbus.bus.worker.lines._MOST", 2)
    bench = Bench(hold, concurrency=5)
    for call in ("one", "two", "three"):
        bench.slots.on_cancelled(call)
    for call in ("one", "two", "three"):
        bench.slots.start(bench.delivery("hold", {"name": call}, id=call))
    await bench.settle()
    assert seen == ["one"]
    assert [end.frame.id for end in bench.broker.ends] == ["two", "three"]


async def test_a_cancellation_of_a_call_that_is_here_is_not_remembered(seen: list[Any]) -> None:
    """Its later attempt, under the same id, may run here again."""
    bench = Bench(hold)
    delivery = bench.delivery("hold")
    bench.slots.start(delivery)
    await bench.settle()
    bench.slots.on_cancelled(delivery.request.id)
    await bench.settle()
    bench.slots.start(bench.delivery("hold", {"name": "again"}, id=delivery.request.id))
    await bench.settle()
    assert seen == ["", "again"]


# -- other events -------------------------------------------------------------------------------------


async def test_calls_of_a_caller_that_is_gone_end() -> None:
    """Only those; they are answered with the reason."""
    bench = Bench(hold)
    bench.slots.start_all([bench.delivery("hold", replies="gone"), bench.delivery("hold", replies="here")])
    await bench.settle()
    bench.slots.on_replies_gone("gone", ErrorInfo("cancelled", "caller_gone"))
    await bench.settle()
    assert [(end.frame.id, end.frame.error) for end in bench.broker.ends] == [("call-1", ErrorInfo("cancelled", "caller_gone"))]
    assert bench.slots.running == 1


async def test_a_lost_call_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Once for a call that ran, and for one that waited; the line says how long it ran."""
    bench = Bench(hold)
    delivery = bench.delivery("hold")
    bench.slots.start(delivery)
    await asyncio.sleep(1)
    bench.slots.on_lost(delivery)
    bench.slots.on_lost(bench.delivery("hold"))
    assert [record.getMessage().split()[0] for record in caplog.records] == ["call.lost", "call.lost"]
    assert "tool=hold" in caplog.records[0].getMessage()
    assert "id=call-1 attempt=1 ms=1000" in caplog.records[0].getMessage()
    assert "ms=0.0" in caplog.records[1].getMessage()


async def test_recovered_deliveries_run_until_their_deadlines() -> None:
    """They take slots like any other, and expire like any other."""
    bench = Bench(hold)
    bench.slots.on_recovered([bench.delivery("hold", attempt=2, deadline=1001.0)])
    await asyncio.sleep(2)
    assert bench.broker.errors() == [("deadline_exceeded", "not_finished")]
