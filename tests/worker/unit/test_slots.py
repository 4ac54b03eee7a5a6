"""Slots: deadlines of what runs, runs that do not end at theirs, and what the worker tells of them."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
import socket
from typing import Any

import pytest

from tests.virtual_time import NOW
from tests.worker.unit.fakes import Bench, echo, flaky, handlers, hold, stubborn
from toolbus import ToolService, tool
from toolbus.bus.broker.statistics.answers import InstanceAnswer, OpenSession, RunningCall, ServedService

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


async def test_a_call_that_another_one_joins_has_the_later_time(seen: list[Any]) -> None:
    """A later deadline counts for a call that runs, waits or is on its way; of those told on the way, the last one counts."""
    bench = Bench(hold, flaky, echo, concurrency=4)
    running, waiting, coming = bench.delivery("hold"), bench.delivery("flaky"), bench.delivery("hold", {"name": "came"})
    others = [bench.delivery("hold"), bench.delivery("flaky")]
    before = running.deadline
    bench.slots.start_all([running, waiting, *others])
    bench.slots.watch_deadlines()
    await bench.settle()
    for later in (2.0, 3.0, 1.0):
        for each in (running, waiting, coming):
            bench.slots.on_extended(each.request.id, before + later)
    bench.slots.start(coming)
    bench.slots.watch_deadlines()
    assert [each.deadline for each in (running, waiting)] == [before + 3.0] * 2
    assert coming.deadline == before + 1.0, "of those that came before it, the last one is remembered"
    assert [each.deadline for each in others] == [before] * 2
    await asyncio.sleep(12)
    assert [end.frame.id for end in bench.broker.ends if end.frame.error and end.frame.error.code == "not_finished"] == [
        others[0].request.id,
        coming.request.id,
    ]
    assert bench.slots.running == 1
    bench.slots.on_extended(coming.request.id, before + 9.0)
    bench.slots.start(again := bench.delivery("echo", {"text": ""}, id=coming.request.id))
    assert again.deadline == before + 12.0


async def test_what_was_answered_is_given_no_more_time(gate: asyncio.Event) -> None:
    """A cancelled call keeps its deadline, since its handler has been told to stop."""
    bench = Bench(stubborn)
    run = await bench.begin("stubborn")
    before = run.delivery.deadline
    bench.slots.on_cancelled(run.delivery.request.id)
    bench.slots.on_extended(run.delivery.request.id, before + 5.0)
    assert run.delivery.deadline == before
    gate.set()
    await bench.settle()


class Desk(ToolService):
    """Has sessions."""

    id = "desk"
    sticky_sessions = True

    @tool
    async def stay(self) -> str:
        """Wait for the gate."""
        await handlers.gate.wait()
        return "stayed"


async def test_a_worker_tells_what_it_serves_and_runs(gate: asyncio.Event) -> None:
    """Long names are shortened, and a handler that was told to stop and still runs is marked, and not counted as running."""
    bench = Bench(stubborn, flaky, Desk, concurrency=4)
    stuck = bench.delivery("stubborn", service="unit", user="u" * 300, attempt=2)
    waiting = bench.delivery("flaky", service="unit")
    staying = bench.delivery("stay", user="v", session="s" * 300)
    bench.slots.start_all([stuck, waiting, staying])
    await bench.settle()
    bench.slots.on_cancelled(stuck.request.id)
    told = bench.slots.answer()
    cut = "… (300 characters, shortened)"
    assert told == InstanceAnswer(
        instance="",
        host=socket.gethostname(),
        pid=os.getpid(),
        version=importlib.metadata.version("toolbus"),
        python=platform.python_version(),
        slots=4,
        running=2,
        waiting=1,
        services=tuple(
            ServedService(name, each.publication.service.queue, each.publication.digest, sessions=int(name == "desk"))
            for name, each in bench.slots._served.items()
        ),
        tools=told.tools,
        sessions=(OpenSession("desk", "v", "s" * 300, 1, 0.0),),
        calls=(
            RunningCall(stuck.request.id, "stubborn", "unit", "u" * 256 + cut, "", attempt=2, since=NOW, stopped=True),
            RunningCall(staying.request.id, "stay", "desk", "v", "s" * 256 + cut, since=NOW),
        ),
    )
    assert [(each.service, each.tool, each.started, each.running, each.cancelled) for each in told.tools] == [
        ("desk", "stay", 1, 1, 0),
        ("unit", "flaky", 1, 0, 0),
        ("unit", "stubborn", 1, 0, 1),
    ]
    assert told.tools[1].failed == {"tool_error": 1}
    assert bench.slots.answer(()).tools == ()
    gate.set()
    await bench.settle()


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
