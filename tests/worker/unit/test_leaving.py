"""Leaving: how a worker ends."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.worker.unit.fakes import Bench, flaky, handlers, hold, lines, pay, stubborn
from toolbus import tool
from toolbus.bus.values.results import BrokerUnavailable, ToolbusError
from toolbus.bus.worker.slots import hand_back, sign_off
from toolbus.bus.worker.transitions import RunState

pytestmark = pytest.mark.anyio


async def test_a_drain_lets_calls_end(gate: asyncio.Event) -> None:
    """Nothing is handed back, and the worker leaves as soon as the last call has ended."""
    bench = Bench(hold)
    bench.serve()
    bench.slots.start(bench.delivery("hold"))
    await bench.settle()
    bench.loop.call_later(2, gate.set)
    before = bench.loop.time()
    await bench.drained()
    assert bench.loop.time() - before == pytest.approx(2.0, abs=0.1)
    assert (bench.broker.errors(), bench.broker.handed_back) == ([("", "")], [])
    assert bench.broker.closed == 0


async def test_a_drain_uses_the_whole_grace_period(gate: asyncio.Event) -> None:
    """A call that ends within its last second is waited for, also after another one has ended."""

    @tool(service="unit", replace=True)
    async def rest(seconds: float) -> str:
        """Take a while."""
        await asyncio.sleep(seconds)
        return "done"

    bench = Bench(rest, grace=5.0)
    bench.serve()
    bench.slots.start_all([bench.delivery("rest", {"seconds": seconds}) for seconds in (4.2, 4.7)])
    await bench.drained()
    assert (bench.broker.errors(), bench.broker.handed_back) == ([("", ""), ("", "")], [])


@pytest.mark.parametrize(("ends", "takes"), [(3.0, 3.0), (50.0, 5.0)])
async def test_the_grace_period_is_no_longer_for_what_came_before_it(ends: float, takes: float) -> None:
    """A worker that lets its last calls be taken before it stops ends when its grace period does, counted from the signal."""
    bench = Bench(hold, grace=5.0)
    bench.serve()
    bench.slots.start(bench.delivery("hold", deadline=3000.0))
    await bench.settle()
    before = bench.loop.time()
    bench.slots.stop(before + ends)
    await bench.drained()
    assert bench.loop.time() - before == pytest.approx(takes, abs=0.1)
    assert len(bench.broker.handed_back) == 1


async def test_a_drain_hands_back_what_does_not_end_in_time(caplog: pytest.LogCaptureFixture) -> None:
    """A call and a waiting retry go to other workers; entered ``once`` work is answered, since it must not run again."""
    caplog.set_level(logging.INFO, logger="toolbus")
    bench = Bench(hold, pay, flaky, concurrency=3)
    bench.serve()
    held, paying, failed = bench.delivery("hold"), bench.delivery("pay"), bench.delivery("flaky", deadline=3000.0)
    bench.slots.start_all([failed])
    await bench.settle()
    bench.slots._waiting.retries.pop(failed.run)
    bench.slots._waiting.retries[failed.run] = failed
    bench.broker.retry_answers = [None]
    bench.slots.start_all([held, paying])
    await bench.settle()
    before = bench.loop.time()
    bench.slots.stop()
    bench.slots.deadlines.close()
    await bench.drained()
    assert bench.loop.time() - before == pytest.approx(5.0, abs=0.1)
    assert bench.broker.handed_back == [failed, held], "nothing is run again in a worker that leaves"
    assert bench.broker.errors() == [("outcome_unknown", "worker_stopped")]
    assert bench.slots.running == 0
    assert "worker.grace_ended running=2" in caplog.text
    assert caplog.text.count("worker.handed_back calls=1") == 2


async def test_what_waits_is_handed_back_when_the_worker_begins_to_leave() -> None:
    """A second time there is nothing left to hand back."""
    bench = Bench(flaky)
    delivery = bench.delivery("flaky")
    bench.slots.start(delivery)
    await bench.settle()
    for _ in range(2):
        await bench.slots.hand_back_waiting()
    assert bench.broker.handed_back == [delivery]
    assert not bench.slots.busy()


async def test_what_a_reap_brings_to_a_worker_that_leaves_is_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker waits for it before it looks at what waits in it."""
    bench = Bench(flaky)
    delivery = bench.delivery("flaky")

    async def brought(seconds: float) -> None:
        assert 0 < seconds < 10
        bench.slots.start(delivery)
        await bench.settle()

    monkeypatch.setattr(bench.broker, "stop_recovering", brought)
    bench.serve()
    await bench.settle()
    await bench.drained()
    assert bench.broker.handed_back == [delivery]


@pytest.mark.parametrize("failure", [BrokerUnavailable("gone"), TimeoutError()])
async def test_a_failed_hand_back_is_logged(failure: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """The worker leaves all the same."""
    bench = Bench(flaky)
    bench.broker.hand_back_failure = failure
    bench.slots.start(bench.delivery("flaky"))
    await bench.settle()
    await bench.slots.hand_back_waiting()
    said = str(failure) or '"the server did not answer"'
    assert lines(caplog)[-1] == f"worker.hand_back_failed error={said}"


async def test_a_drain_waits_for_deliveries_that_go_back(gate: asyncio.Event) -> None:
    """Deliveries that found no slot are handed back before the worker ends."""
    bench = Bench(hold, concurrency=1)
    bench.serve()
    await bench.settle()
    extra = bench.delivery("hold")
    bench.slots.start_all([bench.delivery("hold"), extra])
    gate.set()
    await bench.drained()
    assert bench.broker.handed_back == [extra]


async def test_a_drain_does_not_wait_for_what_can_not_be_stopped(gate: asyncio.Event) -> None:
    """A second after the grace period it ends; the run is still counted."""
    bench = Bench(stubborn)
    bench.serve()
    bench.slots.start(bench.delivery("stubborn"))
    await bench.settle()
    before = bench.loop.time()
    await bench.drained()
    assert bench.loop.time() - before == pytest.approx(6.0, abs=0.1)
    assert bench.slots.running == 1
    gate.set()
    await bench.settle()
    assert bench.slots.running == 0


async def test_a_failed_broker_ends_the_worker(caplog: pytest.LogCaptureFixture, gate: asyncio.Event) -> None:
    """It signs off, lets calls end, closes the broker and raises the first error."""
    bench = Bench(hold)
    bench.serve()
    bench.slots.start(bench.delivery("hold"))
    await bench.settle()
    gate.set()
    bench.slots.on_failed(ToolbusError("first"))
    bench.slots.on_failed(ToolbusError("second"))
    assert bench.slots.failure is not None
    with pytest.raises(ToolbusError, match=r"^first$"):
        await bench.drained()
    assert (bench.broker.unregistered, bench.broker.died, bench.broker.closed) == (1, True, 1)
    assert bench.broker.errors() == [("", "")]
    assert "worker.failed error=first running=0" in caplog.text


async def test_taking_that_fails_again_and_again_ends_the_worker() -> None:
    """The error says so; before that it begins anew."""
    bench = Bench(hold)
    bench.broker.failure = ValueError("broken")
    with pytest.raises(ToolbusError, match="taking failed 12 times in a row"):
        await bench.slots.serve()
    assert bench.slots.failure is not None
    assert len(bench.broker.asked_for) == 12
    assert bench.broker.closed == 1


async def test_taking_goes_on_after_a_failure(gate: asyncio.Event, seen: list[Any]) -> None:
    """Requests are taken again when the trouble has passed."""
    bench = Bench(hold)
    bench.broker.failure = ValueError("broken")
    bench.serve()
    await bench.settle()
    bench.broker.failure = None
    bench.broker.arrive(bench.delivery("hold"))
    await asyncio.sleep(1)
    assert len(seen) == 1
    gate.set()
    await bench.drained()


async def test_a_run_that_goes_down_with_the_worker_is_not_answered() -> None:
    """When the worker's own task is cancelled, its runs are, and another worker takes them over."""
    bench = Bench(hold)
    bench.serve()
    delivery = bench.delivery("hold")
    bench.slots.start(delivery)
    await bench.settle()
    run = bench.slots._runs[delivery.run]
    serving = bench._serving
    assert serving is not None
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert bench.broker.ends == []
    assert run.state is RunState.ENDED
    assert bench.broker.closed == 1


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_worker_leaves_even_if_it_can_not_sign_off(hangs: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A refusal is logged; a server that does not answer is waited for three seconds."""
    bench = Bench(hold)

    async def unregister(*, died: bool = False) -> None:
        if not hangs:
            raise BrokerUnavailable("refused")
        await asyncio.Event().wait()

    bench.broker.unregister = unregister  # type: ignore[method-assign]
    before = bench.loop.time()
    await sign_off(bench.broker)  # type: ignore[arg-type]
    assert bench.loop.time() - before == pytest.approx(3.0 if hangs else 0.0, abs=0.01)
    said = '"the server did not answer"' if hangs else "refused"
    assert lines(caplog) == [f"worker.unregister_failed error={said}"]


@pytest.mark.parametrize("step", ["take", "recover", "retry", "hand_back", "unregister"])
async def test_a_worker_that_failed_ends_whichever_step_the_server_holds(step: str) -> None:
    """It ends in bounded time and says why, though a step that was begun is answered only when the fault is over."""
    bench = Bench(hold, flaky)

    async def hang(*_: object, **__: object) -> Any:
        await asyncio.Event().wait()

    setattr(bench.broker, step, hang)
    bench.serve()
    bench.slots.start(bench.delivery("flaky", deadline=3000.0))
    await asyncio.sleep(0.5)
    bench.slots.start(bench.delivery("flaky", deadline=3000.0))
    await asyncio.sleep(0.6)
    bench.slots.on_room_wanted()
    await bench.settle()
    before = bench.loop.time()
    bench.slots.on_failed(ToolbusError("no requests could be taken"))
    with pytest.raises(ToolbusError, match="no requests could be taken"):
        await asyncio.wait_for(bench.drained(), 60.0)
    assert bench.loop.time() - before < 20.0
    assert bench.broker.closed == 1


async def test_a_hand_back_waits_three_seconds_for_the_server(caplog: pytest.LogCaptureFixture) -> None:
    """Then the worker leaves, and the leases expire; of nothing, nothing is handed back."""
    bench = Bench(hold)
    asked: list[int] = []

    async def hang(deliveries: Any) -> None:
        asked.append(len(deliveries))
        await asyncio.Event().wait()

    bench.broker.hand_back = hang  # type: ignore[method-assign]
    before = bench.loop.time()
    await hand_back(bench.broker, [])  # type: ignore[arg-type]
    await hand_back(bench.broker, [bench.delivery("hold")])  # type: ignore[arg-type]
    assert bench.loop.time() - before == pytest.approx(3.0, abs=0.01)
    assert asked == [1]
    assert "the server did not answer" in caplog.text


@tool(service="beside", replace=True)
async def stay() -> str:
    """Wait for the gate."""
    await handlers.gate.wait()
    return "stayed"


async def test_a_withdrawn_service_has_the_grace_period(gate: asyncio.Event) -> None:
    """Its waiting calls go to other workers at once, its running ones at the end of the grace period; other services go on."""
    bench = Bench(hold, flaky, stay, concurrency=4)
    failed, held = (bench.delivery(name, service="unit", deadline=3000.0) for name in ("flaky", "hold"))
    beside = bench.delivery("stay", service="beside")
    bench.slots.start_all([failed, held, beside])
    await bench.settle()
    before = bench.loop.time()
    leaving = bench.loop.create_task(bench.slots.withdraw("unit"))
    await bench.settle()
    assert bench.broker.handed_back == [failed]
    await leaving
    assert bench.loop.time() - before == pytest.approx(5.0, abs=0.03)
    assert (bench.broker.handed_back, bench.broker.ends, bench.slots.running) == ([failed, held], [], 1)
    gate.set()
    await bench.settle()
    assert [end.frame.response for end in bench.broker.ends] == ["stayed"]


@pytest.mark.parametrize("what", ["a run", "a request that was just taken"])
async def test_a_withdrawn_service_leaves_when_its_calls_are_answered(what: str, gate: asyncio.Event) -> None:
    """A withdrawn service whose calls have ended does not wait for the end of the grace period."""
    bench = Bench(hold, stay)
    delivery = bench.delivery("hold")
    if what == "a run":
        bench.slots.start(delivery)
    await bench.settle()
    before = bench.loop.time()
    bench.loop.call_later(2.0, gate.set if what == "a run" else lambda: bench.stream.let_go(delivery))
    await bench.slots.withdraw("unit")
    assert bench.loop.time() - before == pytest.approx(2.0, abs=0.05)
    assert bench.broker.handed_back == []


async def test_a_withdrawn_service_does_not_wait_for_what_can_not_be_stopped(gate: asyncio.Event) -> None:
    """A service with a call that can't be stopped leaves a second after the grace period."""
    bench = Bench(stubborn)
    await bench.begin("stubborn", deadline=3000.0)
    before = bench.loop.time()
    await bench.slots.withdraw("unit")
    assert bench.loop.time() - before == pytest.approx(6.0, abs=0.05)
    gate.set()
    await bench.settle()


async def test_the_end_of_all_services_waits_for_one_that_is_withdrawn(gate: asyncio.Event) -> None:
    """A worker that begins to leave during a withdrawal hands nothing back twice."""
    bench = Bench(hold)
    bench.serve()
    bench.slots.start(bench.delivery("hold"))
    await bench.settle()
    leaving = bench.loop.create_task(bench.slots.withdraw("unit"))
    await bench.settle()
    bench.slots.stop()
    before = bench.loop.time()
    await leaving
    assert bench.loop.time() - before < 0.1
    assert (bench.broker.handed_back, bench.slots.running) == ([], 1)
    gate.set()
    await bench.drained()


async def test_a_retry_is_not_run_by_a_service_that_is_withdrawn(seen: list[Any]) -> None:
    """A retry that was being counted goes to other workers; a service that came back runs its retries again."""
    bench = Bench(flaky)
    counted = bench.broker.retry

    async def retry(delivery: Any) -> Any:
        await asyncio.sleep(0.01)
        return await counted(delivery)

    bench.broker.retry = retry  # type: ignore[method-assign]
    bench.slots.start(failed := bench.delivery("flaky"))
    await asyncio.sleep(1.005)
    await bench.slots.withdraw("unit")
    assert [each.request.id for each in bench.broker.handed_back] == [failed.request.id]
    assert len(seen) == 1
    bench.slots.forget("unit")
    bench.slots.start(bench.delivery("flaky"))
    await asyncio.sleep(1.1)
    assert (len(seen), len(bench.broker.handed_back)) == (3, 1)
