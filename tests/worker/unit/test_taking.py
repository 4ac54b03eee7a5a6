"""Taking: what a worker does about further requests, state by state."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.worker.unit.fakes import Bench, flaky, handlers, hold, stubborn
from toolbus import BrokerError, ErrorInfo, tool
from toolbus.bus.broker.take.requests import Delivery
from toolbus.bus.worker.transitions import TakingState

pytestmark = pytest.mark.anyio


@tool(service="unit", replace=True)
async def nap(name: str) -> str:
    """Take a second."""
    handlers.seen.append(name)
    await asyncio.sleep(1)
    handlers.seen.append(f"{name} ended")
    return name


def state(bench: Bench) -> TakingState:
    """Return the state that taking is in."""
    return bench.slots._taking.state


async def test_a_worker_asks_for_as_many_requests_as_it_has_slots(gate: asyncio.Event) -> None:
    """It polls for two, then for one, then waits for a slot, and polls again."""
    bench = Bench(hold)
    assert state(bench) is TakingState.READY
    bench.serve()
    await bench.settle()
    assert (state(bench), bench.broker.asked_for) == (TakingState.POLLING, [2])
    bench.broker.arrive(bench.delivery("hold", {"name": "a"}))
    await bench.settle()
    assert (state(bench), bench.broker.asked_for) == (TakingState.POLLING, [2, 1])
    bench.broker.arrive(bench.delivery("hold", {"name": "b"}))
    await bench.settle()
    assert (state(bench), bench.broker.asked_for, bench.slots.free_slots()) == (TakingState.FULL, [2, 1], 0)
    gate.set()
    await bench.settle()
    assert (state(bench), bench.broker.asked_for) == (TakingState.POLLING, [2, 1, 2])
    await bench.drained()
    assert (state(bench), bench.slots.free_slots()) == (TakingState.STOPPED, 0)


async def test_what_takes_the_last_slot_interrupts_polling(gate: asyncio.Event) -> None:
    """A recovered delivery fills the worker while it waits for requests; one that leaves a slot free does not interrupt."""
    bench = Bench(hold)
    bench.serve()
    await bench.settle()
    bench.slots.on_recovered([bench.delivery("hold", {"name": "a"})])
    assert bench.broker.interrupts == 0
    bench.slots.on_recovered([bench.delivery("hold", {"name": "b"})])
    assert bench.broker.interrupts == 1
    await bench.settle()
    assert state(bench) is TakingState.FULL
    gate.set()
    await bench.drained()


async def test_deadlines_of_taken_requests_are_watched() -> None:
    """A taken request expires."""
    bench = Bench(hold)
    bench.serve()
    bench.broker.arrive(bench.delivery("hold", {"name": "a"}))
    await asyncio.sleep(11)
    assert bench.broker.errors() == [("deadline_exceeded", "not_finished")]
    await bench.drained()


async def test_stopping_is_final() -> None:
    """A second time, and left-over requests, change nothing."""
    bench = Bench(hold)
    bench.serve()
    await bench.settle()
    bench.slots.stop()
    bench.slots.stop()
    bench.slots.on_room_wanted()
    await bench.drained()
    assert state(bench) is TakingState.STOPPED
    assert bench.broker.asked_for == [2]


# -- suspects -----------------------------------------------------------------------------------------


async def test_a_suspect_runs_alone(caplog: pytest.LogCaptureFixture, seen: list[Any]) -> None:
    """It waits until nothing runs, nothing starts beside it, and then requests are taken again."""
    caplog.set_level(logging.INFO, logger="toolbus")
    bench = Bench(nap, max_deliveries=5)
    assert bench.settings.alone_from == 4
    bench.serve()
    await bench.settle()
    bench.broker.arrive(bench.delivery("nap", {"name": "a"}), bench.delivery("nap", {"name": "s"}, attempt=4))
    await bench.settle()
    assert (state(bench), seen, bench.slots.free_slots(), bench.slots.busy()) == (TakingState.CLEARING, ["a"], 0, True)
    await asyncio.sleep(1.1)
    assert (state(bench), seen, bench.slots.free_slots()) == (TakingState.ALONE, ["a", "a ended", "s"], 0)
    assert "call.alone id=call-2 tool=nap attempt=4" in caplog.text
    await asyncio.sleep(1.1)
    assert (state(bench), seen[-1], bench.slots.free_slots()) == (TakingState.POLLING, "s ended", 2)
    assert bench.broker.asked_for[-1] == 2
    await bench.drained()


async def test_an_earlier_attempt_is_no_suspect(seen: list[Any]) -> None:
    """The third of five runs beside others."""
    bench = Bench(hold)
    bench.slots.start_all([bench.delivery("hold", {"name": name}, attempt=3) for name in ("a", "b")])
    await bench.settle()
    assert seen == ["a", "b"]


async def test_suspects_run_one_after_the_other(seen: list[Any]) -> None:
    """Also when no other run keeps them waiting."""
    bench = Bench(nap)
    bench.serve()
    bench.broker.arrive(*(bench.delivery("nap", {"name": name}, attempt=4) for name in ("s", "t")))
    await asyncio.sleep(3)
    assert seen == ["s", "s ended", "t", "t ended"]
    await bench.drained()


async def test_a_suspect_runs_in_the_last_second_before_its_deadline(seen: list[Any]) -> None:
    """Nothing else runs by then, so its time is used."""
    bench = Bench(nap)
    bench.serve()
    bench.broker.arrive(bench.delivery("nap", {"name": "a"}), bench.delivery("nap", {"name": "s"}, attempt=4, deadline=1001.5))
    await asyncio.sleep(0.8)
    bench.slots.stopped(bench.slots._runs["run-1"])
    await asyncio.sleep(0.3)
    assert seen == ["a", "a ended", "s"]
    await bench.drained()


async def test_a_suspect_waits_no_longer_than_its_deadline(gate: asyncio.Event, seen: list[Any]) -> None:
    """When other runs go on and on, it is answered that its time is up, and a second later the worker takes again."""
    bench = Bench(hold)
    bench.serve()
    bench.broker.arrive(
        bench.delivery("hold", {"name": "a"}, deadline=1100.0), bench.delivery("hold", {"name": "s"}, attempt=4, deadline=1003.0)
    )
    await asyncio.sleep(4.2)
    assert bench.broker.errors() == [("deadline_exceeded", "not_taken")]
    assert (seen, state(bench)) == (["a"], TakingState.POLLING)
    gate.set()
    await bench.drained()


async def test_a_suspect_that_can_not_be_stopped_does_not_hold_the_worker(gate: asyncio.Event) -> None:
    """A second after its deadline the worker takes again."""
    bench = Bench(stubborn)
    bench.serve()
    bench.broker.arrive(bench.delivery("stubborn", attempt=4, deadline=1003.0))
    await asyncio.sleep(2.9)
    assert state(bench) is TakingState.ALONE
    await asyncio.sleep(0.5)
    assert state(bench) is TakingState.POLLING
    assert bench.slots.running == 1
    gate.set()
    await bench.drained()


async def test_a_suspect_that_is_cancelled_while_it_waits_never_runs(seen: list[Any]) -> None:
    """The worker takes again when it looks the next time; the call was told that it did not begin."""
    bench = Bench(nap)
    bench.serve()
    bench.broker.arrive(bench.delivery("nap", {"name": "a"}), bench.delivery("nap", {"name": "s"}, id="s", attempt=4))
    await bench.settle()
    bench.slots.on_cancelled("s")
    assert bench.broker.errors() == [("cancelled", "not_begun")]
    await asyncio.sleep(1.1)
    assert (state(bench), seen) == (TakingState.POLLING, ["a", "a ended"])
    await bench.drained()


async def test_a_suspect_of_a_caller_that_is_gone_never_runs() -> None:
    """It is answered with the reason."""
    bench = Bench(nap)
    bench.slots.start(bench.delivery("nap", {"name": "s"}, attempt=4, replies="gone"))
    bench.slots.on_replies_gone("gone", ErrorInfo("cancelled", "caller_gone"))
    assert bench.broker.errors() == [("cancelled", "caller_gone")]
    assert not bench.slots.busy()


async def test_no_retry_starts_beside_a_suspect(seen: list[Any]) -> None:
    """A failed request whose time has come waits until the suspect has ended."""
    bench = Bench(flaky, nap)
    bench.serve()
    bench.broker.arrive(bench.delivery("flaky"))
    await asyncio.sleep(0.5)
    bench.broker.arrive(bench.delivery("nap", {"name": "s"}, attempt=4))
    await asyncio.sleep(0.8)
    assert (seen, len(bench.broker.retried)) == (["tried", "s"], 1)
    await asyncio.sleep(0.5)
    assert seen == ["tried", "s", "s ended", "tried"]
    await bench.drained()


async def test_no_retry_starts_before_a_suspect(gate: asyncio.Event, seen: list[Any]) -> None:
    """A suspect that waits for others to end is not overtaken."""

    @tool(service="unit", replace=True)
    async def both(name: str) -> str:
        """Note the beginning and the end."""
        seen.append(name)
        await gate.wait()
        seen.append(f"{name} ended")
        return name

    bench = Bench(flaky, both, concurrency=3)
    bench.serve()
    bench.broker.arrive(bench.delivery("flaky"), bench.delivery("both", {"name": "a"}), bench.delivery("both", {"name": "s"}, attempt=4))
    await asyncio.sleep(2)
    assert seen == ["tried", "a"]
    gate.set()
    await bench.settle()
    assert seen[:5] == ["tried", "a", "a ended", "s", "s ended"]
    await bench.drained()


async def test_a_worker_that_leaves_hands_its_suspect_back(seen: list[Any]) -> None:
    """It never ran here, whether others were running or not."""
    bench = Bench(nap)
    bench.serve()
    suspect = bench.delivery("nap", {"name": "s"}, attempt=4)
    bench.broker.arrive(bench.delivery("nap", {"name": "a"}), suspect)
    await bench.settle()
    await bench.drained()
    assert bench.broker.handed_back == [suspect]
    assert seen == ["a", "a ended"]


async def test_a_worker_can_leave_while_a_suspect_runs(seen: list[Any]) -> None:
    """The suspect ends as any run does."""
    bench = Bench(nap)
    bench.serve()
    bench.broker.arrive(bench.delivery("nap", {"name": "s"}, attempt=4))
    await bench.settle()
    assert state(bench) is TakingState.ALONE
    await bench.drained()
    assert seen == ["s", "s ended"]
    assert state(bench) is TakingState.STOPPED


# -- making room --------------------------------------------------------------------------------------


async def test_a_worker_makes_room_for_what_must_run_alone(seen: list[Any]) -> None:
    """It takes nothing until its runs have ended, looks for the left-over request, runs it alone, looks again and goes on."""
    bench = Bench(nap)
    bench.serve()
    bench.broker.arrive(bench.delivery("nap", {"name": "a"}))
    await bench.settle()
    assert bench.slots.flexible()
    bench.slots.on_room_wanted()
    assert (bench.slots.flexible(), bench.slots.free_slots(), bench.broker.interrupts) == (False, 0, 1)
    await bench.settle()
    assert (state(bench), bench.broker.recoveries) == (TakingState.MAKING_ROOM, 0)
    bench.broker.left_over = [[bench.delivery("nap", {"name": "s"}, attempt=4)], [bench.delivery("nap", {"name": "t"}, attempt=4)]]
    await asyncio.sleep(1.1)
    assert (state(bench), seen) == (TakingState.ALONE, ["a", "a ended", "s"])
    await asyncio.sleep(2)
    assert seen == ["a", "a ended", "s", "s ended", "t", "t ended"]
    assert (state(bench), bench.broker.recoveries, bench.slots.free_slots()) == (TakingState.POLLING, 3, 2)
    assert bench.slots.flexible()
    await bench.drained()


async def test_a_worker_makes_room_for_a_bounded_time_and_not_soon_again(gate: asyncio.Event) -> None:
    """Three leases after it began it looks all the same and takes again; for as long it makes no room, and then it could."""
    bench = Bench(hold, lease=2.0)
    bench.serve()
    bench.broker.arrive(bench.delivery("hold", {"name": "a"}, deadline=2000.0))
    await bench.settle()
    bench.slots.on_room_wanted()
    await asyncio.sleep(5.9)
    assert (state(bench), bench.broker.recoveries) == (TakingState.MAKING_ROOM, 0)
    await asyncio.sleep(0.2)
    assert (state(bench), bench.broker.recoveries) == (TakingState.POLLING, 1)
    assert not bench.slots.flexible()
    await asyncio.sleep(5.7)
    assert not bench.slots.flexible()
    await asyncio.sleep(0.3)
    assert bench.slots.flexible()
    gate.set()
    await bench.drained()


async def test_a_worker_that_made_room_in_time_can_do_so_again() -> None:
    """Nothing ran when it looked, so no call was kept waiting in vain."""
    bench = Bench(nap)
    bench.serve()
    bench.slots.on_room_wanted()
    await bench.settle()
    assert (bench.broker.recoveries, bench.slots.flexible()) == (1, True)
    await bench.drained()


async def test_a_worker_makes_room_until_nothing_waits_for_its_next_attempt(seen: list[Any]) -> None:
    """A worker that is asked while it runs nothing, but holds a failed call, looks when that has ended, and the suspect does not starve."""
    bench = Bench(flaky, nap, lease=2.0)
    bench.serve()
    bench.broker.arrive(bench.delivery("flaky"))
    await asyncio.sleep(0.5)
    bench.slots.on_room_wanted()
    bench.broker.left_over = [[bench.delivery("nap", {"name": "s"}, attempt=4)]]
    await asyncio.sleep(1.4)
    assert (state(bench), bench.broker.recoveries, seen) == (TakingState.MAKING_ROOM, 0, ["tried", "tried"])
    await asyncio.sleep(1.4)
    assert seen == ["tried", "tried", "tried", "s"]
    await bench.drained()


async def test_a_call_whose_next_attempt_is_being_counted_keeps_a_worker_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """It neither runs nor waits then, but a suspect might take it along all the same."""
    bench, counted = Bench(flaky), asyncio.Event()

    async def retry(_: Delivery) -> None:
        await counted.wait()

    monkeypatch.setattr(bench.broker, "retry", retry)
    bench.slots.start(bench.delivery("flaky"))
    await asyncio.sleep(1.5)
    assert (bench.slots.idle(), bench.slots.busy()) == (True, True)
    counted.set()
    await bench.settle()
    assert not bench.slots.busy()


async def test_a_worker_that_leaves_hands_back_a_call_whose_next_attempt_is_being_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the server's answer, for a bounded time: a call that it held on to would cost a lease and another attempt."""
    bench, counted = Bench(flaky), asyncio.Event()
    count = bench.broker.retry

    async def retry(delivery: Delivery) -> Delivery | None:
        await counted.wait()
        return await count(delivery)

    monkeypatch.setattr(bench.broker, "retry", retry)
    bench.serve()
    bench.broker.arrive(bench.delivery("flaky"))
    await asyncio.sleep(1.5)
    bench.slots.stop()
    leaving = asyncio.create_task(bench.drained())
    await asyncio.sleep(0.5)
    assert (leaving.done(), bench.broker.handed_back) == (False, [])
    counted.set()
    await leaving
    assert [delivery.attempt for delivery in bench.broker.handed_back] == [2]


@pytest.mark.parametrize("how", ["cancelled", "caller gone", "lost", "lost while it is counted", "not counted in time"])
async def test_a_worker_that_makes_room_looks_when_the_last_failed_call_goes(how: str) -> None:
    """It does not wait for the end of its time when nothing is left that could end."""
    bench = Bench(flaky, lease=2.0)
    bench.serve()
    failed = bench.delivery("flaky", id="f", replies="caller", deadline=1003.0)
    bench.broker.arrive(failed)
    await asyncio.sleep(0.5)
    bench.slots.on_room_wanted()
    await asyncio.sleep(0.2)
    assert (state(bench), bench.broker.recoveries) == (TakingState.MAKING_ROOM, 0)
    if how == "cancelled":
        bench.slots.on_cancelled("f")
    elif how == "caller gone":
        bench.slots.on_replies_gone("caller", ErrorInfo("cancelled", "caller_gone"))
    elif how == "lost":
        failed.queue.lose(failed)
    else:
        bench.broker.retry_answers = [None if how == "lost while it is counted" else BrokerError("refused")] * 5
        await asyncio.sleep(2.5)
    await bench.settle()
    assert (state(bench), bench.broker.recoveries) == (TakingState.POLLING, 1)
    await bench.drained()


async def test_a_stuck_run_does_not_keep_a_worker_from_making_room(gate: asyncio.Event) -> None:
    """A handler that can't be stopped was answered, and counts as nothing."""
    bench = Bench(stubborn)
    bench.serve()
    delivery = bench.delivery("stubborn")
    bench.broker.arrive(delivery)
    await bench.settle()
    bench.slots.on_cancelled(delivery.request.id)
    bench.slots.on_room_wanted()
    await bench.settle()
    assert (bench.broker.recoveries, bench.slots.flexible(), bench.slots.idle(), bench.slots.busy()) == (1, True, True, False)
    gate.set()
    await bench.drained()


async def test_a_worker_that_runs_a_suspect_makes_room_afterwards() -> None:
    """The wish is not forgotten."""
    bench = Bench(nap)
    bench.serve()
    bench.broker.arrive(bench.delivery("nap", {"name": "s"}, attempt=4))
    await bench.settle()
    bench.slots.on_room_wanted()
    assert state(bench) is TakingState.ALONE
    assert bench.broker.recoveries == 0
    await asyncio.sleep(1.1)
    assert bench.broker.recoveries == 1
    await bench.drained()


async def test_a_worker_can_leave_while_it_makes_room(seen: list[Any]) -> None:
    """It waits for its run, and looks for nothing to run alone."""
    bench = Bench(nap)
    bench.serve()
    bench.broker.arrive(bench.delivery("nap", {"name": "a"}))
    await bench.settle()
    bench.slots.on_room_wanted()
    await bench.settle()
    bench.broker.left_over = [[bench.delivery("nap", {"name": "s"}, attempt=4)]]
    await bench.drained()
    assert "s" not in seen
    assert len(bench.broker.handed_back) == 1
