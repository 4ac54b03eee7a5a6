"""Slots: deadlines of what runs, and runs that do not end at theirs."""

from __future__ import annotations

import asyncio

import pytest

from tests.worker.unit.fakes import Bench, hold, stubborn
from toolbus import tool

pytestmark = pytest.mark.anyio


async def test_deadlines_are_those_of_runs_that_have_not_ended(gate: asyncio.Event) -> None:
    """A run that ended in its first steps gets no timer, and an ended run's timer is gone."""

    @tool(service="unit", replace=True)
    async def quick() -> str:
        """Return."""
        return ""

    bench = Bench(hold, quick)
    bench.slots.start(bench.delivery("quick"))
    await bench.settle()
    bench.slots.watch_deadlines()
    assert len(bench.slots.deadlines) == 0
    bench.slots.start(bench.delivery("hold"))
    bench.slots.watch_deadlines()
    assert len(bench.slots.deadlines) == 1
    gate.set()
    await bench.settle()
    assert len(bench.slots.deadlines) == 0


async def test_an_extended_run_expires_at_its_later_deadline() -> None:
    """Its timer moves, once: there is still one."""
    bench = Bench(hold)
    delivery = bench.delivery("hold")
    bench.slots.start(delivery)
    bench.slots.watch_deadlines()
    await bench.settle()
    run = bench.slots._runs[delivery.run]
    run.extend(delivery.deadline + 5)
    assert len(bench.slots.deadlines) == 1
    await asyncio.sleep(11)
    assert bench.broker.ends == []
    await asyncio.sleep(5)
    assert bench.broker.errors() == [("deadline_exceeded", "not_finished")]
    run.extend(delivery.deadline + 50)
    await asyncio.sleep(6)
    assert len(bench.slots.deadlines) == 0


async def test_an_extended_run_that_ends_has_no_deadline(gate: asyncio.Event) -> None:
    """Its later timer is gone as well."""
    bench = Bench(hold)
    held = await bench.begin("hold")
    held.extend(held.delivery.deadline + 5)
    gate.set()
    await bench.settle()
    assert len(bench.slots.deadlines) == 0


async def test_handlers_that_can_not_be_stopped_make_a_worker_leave(caplog: pytest.LogCaptureFixture, gate: asyncio.Event) -> None:
    """Some seconds after half of the slots are held by such, the worker says so, once."""
    bench = Bench(stubborn, concurrency=4)
    deliveries = [bench.delivery("stubborn") for _ in range(3)]
    bench.slots.start_all(deliveries)
    await bench.settle()
    bench.slots.on_cancelled(deliveries[0].request.id)
    await asyncio.sleep(5.5)
    assert not bench.slots.overgrown.is_set()
    bench.slots.on_cancelled(deliveries[1].request.id)
    await asyncio.sleep(4)
    assert not bench.slots.overgrown.is_set()
    await asyncio.sleep(1.5)
    assert bench.slots.overgrown.is_set()
    bench.slots.on_cancelled(deliveries[2].request.id)
    await asyncio.sleep(5.5)
    assert [record.getMessage() for record in caplog.records] == ["worker.stuck runs=2 concurrency=4"]
    gate.set()
    await bench.settle()


async def test_sessions_of_nested_calls_end_with_the_session() -> None:
    """The bus for nested calls is told the user and the session."""
    bench = Bench(hold)
    bench.slots.sessions.closed("other", "u", "s")
    await bench.settle()
    assert bench.nested_ended == [("u", "s")]


async def test_less_than_half_of_the_slots_may_be_stuck(gate: asyncio.Event) -> None:
    """A worker of three slots goes on with one stuck run, and leaves with two."""
    bench = Bench(stubborn, concurrency=3)
    deliveries = [bench.delivery("stubborn") for _ in range(2)]
    bench.slots.start_all(deliveries)
    await bench.settle()
    for delivery, leaves in zip(deliveries, (False, True), strict=True):
        bench.slots.on_cancelled(delivery.request.id)
        await asyncio.sleep(5.5)
        assert bench.slots.overgrown.is_set() is leaves
    gate.set()
    await bench.settle()
