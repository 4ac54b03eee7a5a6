"""Slots: what starts, what is refused, and what is handed back."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import Any

import pytest

from tests.worker.unit.fakes import Bench
from toolbus import Retry, Session, ToolService, tool
from toolbus.results import BrokerUnavailable, ErrorInfo, ToolbusError, ToolError
from toolbus.worker.run.states import RunState
from toolbus.worker.slots.leaving import hand_back, sign_off

pytestmark = pytest.mark.anyio

gate: asyncio.Event
seen: list[Any]
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Give each test a gate and a list of its own."""
    global gate, seen
    gate, seen = asyncio.Event(), []


@tool(service="unit_slots", replace=True)
async def hold(name: str = "") -> str:
    """Wait for the gate."""
    seen.append(name)
    await gate.wait()
    return name


@tool(service="unit_slots", replace=True)
async def stubborn() -> str:
    """Refuse to be cancelled."""
    while not gate.is_set():
        try:
            await gate.wait()
        except asyncio.CancelledError:
            seen.append("refused")
    return "done"


@tool(service="unit_slots", replace=True, effect="once")
async def pay() -> str:
    """Wait for the gate."""
    await gate.wait()
    return "paid"


@tool(service="unit_slots", replace=True, retry=Retry(attempts=3, delay=1.0, jitter=0.0))
async def flaky() -> str:
    """Fail."""
    seen.append("tried")
    raise ToolError("no", retryable=True)


# -- what starts --------------------------------------------------------------------------------------


async def test_deliveries_start_while_there_are_slots_and_the_rest_goes_back() -> None:
    """Two slots run two calls; the third and fourth are handed back without an attempt."""
    bench = Bench(hold)
    deliveries = [bench.delivery("hold", {"name": str(number)}) for number in range(4)]
    bench.slots.start_all(deliveries)
    await bench.settle()
    assert seen == ["0", "1"]
    assert bench.broker.handed_back == deliveries[2:]
    assert bench.slots.statistics() == {"running": 2, "sessions": 0, "free": 0, "started": 2, "finished": 0}
    assert (bench.slots.free_slots(), bench.slots.busy(), bench.slots.idle()) == (0, True, False)
    gate.set()
    await bench.settle()
    assert bench.slots.statistics() == {"running": 0, "sessions": 0, "free": 2, "started": 2, "finished": 2}
    assert (bench.slots.free_slots(), bench.slots.busy(), bench.slots.idle()) == (2, False, True)


async def test_a_cancelled_call_that_comes_later_does_not_start() -> None:
    """A cancellation that arrives before its request is remembered; another call runs."""
    bench = Bench(hold)
    bench.slots.on_cancelled("early")
    bench.slots.start_all([bench.delivery("hold", id="early"), bench.delivery("hold", {"name": "other"})])
    await bench.settle()
    assert seen == ["other"]
    [end] = bench.broker.ends
    assert (end.frame.id, end.frees) == ("early", True)
    assert end.frame.error == ErrorInfo("cancelled", "not_begun", "cancelled before it ran")
    assert (end.frame.worker, end.frame.kind, end.frame.end_of_stream) == ("worker-1", "end", True)


async def test_early_cancellations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is forgotten first."""
    monkeypatch.setattr("toolbus.worker.slots.slots._EARLY_CANCELS", 2)
    bench = Bench(hold, concurrency=5)
    for call in ("one", "two", "three"):
        bench.slots.on_cancelled(call)
    for call in ("one", "two", "three"):
        bench.slots.start(bench.delivery("hold", {"name": call}, id=call))
    await bench.settle()
    assert seen == ["one"]
    assert [end.frame.id for end in bench.broker.ends] == ["two", "three"]


async def test_a_cancellation_of_a_call_that_is_here_is_not_remembered() -> None:
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


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"deadline": 1000.0}, ErrorInfo("deadline_exceeded", message="the deadline passed while the request waited 12 ms")),
        ({"service": "other"}, ErrorInfo("not_found", message="this worker does not serve 'other'")),
    ],
)
async def test_what_can_not_run_is_refused(changes: dict[str, Any], expected: ErrorInfo) -> None:
    """A request whose time has passed, or whose service is not here, is answered without a run, and frees its key."""
    bench = Bench(hold)
    bench.slots.start(bench.delivery("hold", **changes))
    [end] = bench.broker.ends
    assert (end.frame.error, end.frees) == (expected, True)
    assert bench.slots.started == 0


async def test_an_unknown_tool_is_refused() -> None:
    """The error names the tools that there are."""
    bench = Bench(hold)
    bench.slots.start(bench.delivery("nothing"))
    assert bench.broker.errors() == [("not_found", "")]
    assert bench.slots.running == 0


async def test_a_request_with_too_many_attempts_becomes_a_dead_letter(caplog: pytest.LogCaptureFixture) -> None:
    """The last allowed attempt runs; the next delivery is set aside."""
    bench = Bench(hold, max_deliveries=3)
    bench.slots.start(bench.delivery("hold", attempt=4))
    [letter] = bench.broker.buried
    message = "given up after 3 deliveries: its workers died or lost their leases while it ran"
    assert (letter.reason, letter.error) == ("max_deliveries", message)
    assert letter.frame.error == ErrorInfo("tool_error", "max_deliveries", message)
    [line] = [record.getMessage() for record in caplog.records]
    assert line == f"request.buried service=unit_slots id=call-1 reason={message!r}".replace("'", '"')
    bench.slots.start(bench.delivery("hold", attempt=3), alone=True)
    await bench.settle()
    assert bench.slots.running == 1


async def test_runs_do_not_see_each_others_context() -> None:
    """A call that starts when another one ends has the worker's context variables, not that call's."""

    @tool(service="unit_slots", replace=True, retry=Retry(attempts=2, delay=0.0))
    async def colour() -> str:
        """Set a variable."""
        seen.append(variable.get())
        variable.set("set")
        raise ToolError("again", retryable=True)

    bench = Bench(colour)
    bench.slots.start(bench.delivery("colour"))
    await asyncio.sleep(1)
    assert seen == ["unset", "unset"]


async def test_a_service_with_sessions_starts_its_calls_in_them() -> None:
    """The call's session is open afterwards, and its state was known to be new."""

    class Keeping(ToolService):
        """Keeps sessions."""

        id = "unit_slots"
        tools = ({"name": "keep", "description": "Keep.", "arguments": []},)

        async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> str:
            seen.append(variable.get())
            variable.set("set")
            return "kept"

        async def cleanup(self, session: Session | None = None) -> None:
            seen.append(session)

    bench = Bench(Keeping)
    for _ in range(2):
        bench.slots.start(bench.delivery("keep", user="u", session="s"))
        await bench.settle()
    assert bench.slots.statistics()["sessions"] == 1
    assert seen == ["unset", "unset"]
    await bench.slots.sessions.aclose()
    assert seen[2:] == [("u", "s")]


async def test_deadlines_are_those_of_runs_that_have_not_ended() -> None:
    """A run that ended in its first steps gets no timer, and an ended run's timer is gone."""

    @tool(service="unit_slots", replace=True)
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
    assert bench.broker.errors() == [("deadline_exceeded", "")]
    run.extend(delivery.deadline + 50)
    await asyncio.sleep(6)
    assert len(bench.slots.deadlines) == 0


# -- retries ------------------------------------------------------------------------------------------


async def test_retries_have_the_server_count_them() -> None:
    """Each attempt is one more, up to the policy's number; then the failure is a dead letter."""
    bench = Bench(flaky)
    bench.slots.start(bench.delivery("flaky", deadline=2000.0))
    await asyncio.sleep(10)
    assert [delivery.attempt for delivery in bench.broker.retried] == [1, 2]
    assert [letter.reason for letter in bench.broker.buried] == ["retries_exhausted"]
    assert len(seen) == 3


async def test_no_retry_after_the_last_delivery_or_the_deadline() -> None:
    """A worker allows no more attempts than any delivery has, and none that could not begin in time."""
    for bench, changes in ((Bench(flaky, max_deliveries=2), {"attempt": 2}), (Bench(flaky), {"deadline": 1001.0})):
        bench.slots.start(bench.delivery("flaky", **changes), alone=True)
        await bench.settle()
        assert [letter.reason for letter in bench.broker.buried] == ["retries_exhausted"]
        assert not bench.slots.busy()


async def test_a_retry_waits_for_a_slot() -> None:
    """It starts when another run ends."""
    bench = Bench(flaky, hold, concurrency=1)
    bench.slots.start(bench.delivery("flaky"))
    await bench.settle()
    bench.slots.start(bench.delivery("hold"))
    await asyncio.sleep(2)
    assert (seen, len(bench.broker.retried)) == (["tried", ""], 1)
    gate.set()
    await bench.settle()
    assert seen == ["tried", "", "tried"]


async def test_a_retry_that_another_worker_has_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """The same when the server can't be asked: the lease expires, and another worker claims it."""
    bench = Bench(flaky)
    bench.broker.retry_answers = [None, BrokerUnavailable("gone")]
    for _ in range(2):
        bench.slots.start(bench.delivery("flaky"))
    await asyncio.sleep(5)
    assert (len(seen), len(bench.broker.retried), bench.slots.busy()) == (2, 2, False)
    assert caplog.text.count("retry.failed") == 1
    assert "call-2" in caplog.text


async def test_a_retry_that_is_counted_while_the_worker_leaves_is_handed_back() -> None:
    """It is not run here again."""
    bench = Bench(flaky)
    bench.slots.start(bench.delivery("flaky"))
    await bench.settle()
    bench.slots.stop()
    await asyncio.sleep(2)
    assert len(seen) == 1
    assert [(delivery.attempt, delivery.run) for delivery in bench.broker.handed_back] == [(2, "run-1+")]


async def test_a_waiting_retry_can_be_cancelled_lost_and_given_up() -> None:
    """Cancelled, it is answered; lost, it is forgotten; without its caller it is answered with the reason."""
    bench = Bench(flaky)
    deliveries = [bench.delivery("flaky", replies=replies) for replies in ("a", "a", "b")]
    for delivery in deliveries:
        bench.slots.start(delivery)
        await bench.settle()
    bench.slots.on_cancelled(deliveries[0].request.id)
    bench.slots.on_lost(deliveries[1])
    bench.slots.on_replies_gone("b", ErrorInfo("cancelled", "caller_gone"))
    assert not bench.slots.busy()
    assert bench.broker.errors() == [("cancelled", "not_begun"), ("cancelled", "caller_gone")]
    assert bench.broker.ends[0].frame.error is not None
    assert bench.broker.ends[0].frame.error.message == "cancelled by the caller before the tool began"
    await asyncio.sleep(5)
    assert (len(seen), bench.broker.retried) == (3, [])


# -- events -------------------------------------------------------------------------------------------


async def test_a_cancellation_stops_its_call_alone() -> None:
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
    """The line says whether it was running."""
    bench = Bench(hold)
    delivery = bench.delivery("hold")
    bench.slots.start(delivery)
    await bench.settle()
    bench.slots.on_lost(delivery)
    bench.slots.on_lost(bench.delivery("hold"))
    assert [record.getMessage().split()[0] for record in caplog.records] == ["call.lost", "call.lost"]
    assert "running=True" in caplog.records[0].getMessage()
    assert "running=False" in caplog.records[1].getMessage()
    assert "id=call-1 tool=hold" in caplog.records[0].getMessage()


async def test_recovered_deliveries_run_until_their_deadlines() -> None:
    """They take slots like any other, and expire like any other."""
    bench = Bench(hold)
    bench.slots.on_recovered([bench.delivery("hold", attempt=2, deadline=1001.0)])
    await asyncio.sleep(2)
    assert bench.broker.errors() == [("deadline_exceeded", "")]


async def test_handlers_that_can_not_be_stopped_make_a_worker_leave(caplog: pytest.LogCaptureFixture) -> None:
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


# -- leaving ------------------------------------------------------------------------------------------


async def test_a_drain_lets_calls_end() -> None:
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


async def test_a_drain_hands_back_what_does_not_end_in_time(caplog: pytest.LogCaptureFixture) -> None:
    """A call and a waiting retry go to other workers; entered ``once`` work is answered, since it must not run again."""
    caplog.set_level(logging.INFO, logger="toolbus")
    bench = Bench(hold, pay, flaky, concurrency=3)
    bench.serve()
    held, paying, failed = bench.delivery("hold"), bench.delivery("pay"), bench.delivery("flaky", deadline=3000.0)
    bench.slots.start_all([failed])
    await bench.settle()
    bench.slots._waiting.pop_retry(failed.run)
    bench.slots._waiting.add_retry(failed)
    bench.broker.retry_answers = [None]
    bench.slots.start_all([held, paying])
    await bench.settle()
    before = bench.loop.time()
    bench.slots.stop()
    bench.slots.deadlines.close()
    await bench.drained()
    assert bench.loop.time() - before == pytest.approx(5.0, abs=0.1)
    assert bench.broker.handed_back == [held, failed]
    assert bench.broker.errors() == [("outcome_unknown", "worker_stopped")]
    assert bench.slots.running == 0
    assert "worker.grace_ended running=2" in caplog.text
    assert "worker.handed_back calls=2" in caplog.text


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


@pytest.mark.parametrize("failure", [BrokerUnavailable("gone"), TimeoutError()])
async def test_a_failed_hand_back_is_logged(failure: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """The worker leaves all the same."""
    bench = Bench(flaky)
    bench.broker.hand_back_failure = failure
    bench.slots.start(bench.delivery("flaky"))
    await bench.settle()
    await bench.slots.hand_back_waiting()
    assert "worker.hand_back_failed" in caplog.text
    assert (str(failure) or "the server did not answer") in caplog.text


async def test_a_drain_waits_for_deliveries_that_go_back() -> None:
    """Those that found no slot are handed back before the worker ends."""
    bench = Bench(hold, concurrency=1)
    bench.serve()
    await bench.settle()
    extra = bench.delivery("hold")
    bench.slots.start_all([bench.delivery("hold"), extra])
    gate.set()
    await bench.drained()
    assert bench.broker.handed_back == [extra]


async def test_a_drain_does_not_wait_for_what_can_not_be_stopped() -> None:
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


async def test_a_failed_broker_ends_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    """It signs off, lets calls end, closes the broker and raises the first error."""
    bench = Bench(hold)
    bench.serve()
    bench.slots.start(bench.delivery("hold"))
    await bench.settle()
    gate.set()
    bench.slots.on_failed(ToolbusError("first"))
    bench.slots.on_failed(ToolbusError("second"))
    assert bench.slots.failed
    with pytest.raises(ToolbusError, match=r"^first$"):
        await bench.drained()
    assert (bench.broker.unregistered, bench.broker.closed) == (1, 1)
    assert bench.broker.errors() == [("", "")]
    assert "worker.failed error=first running=0" in caplog.text


async def test_taking_that_fails_again_and_again_ends_the_worker() -> None:
    """The error says so; before that it begins anew."""
    bench = Bench(hold)
    bench.broker.failure = ValueError("broken")
    with pytest.raises(ToolbusError, match="taking failed 12 times in a row"):
        await bench.slots.serve()
    assert bench.slots.failed
    assert len(bench.broker.asked_for) == 12
    assert bench.broker.closed == 1


async def test_taking_goes_on_after_a_failure() -> None:
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

    async def unregister() -> None:
        if not hangs:
            raise BrokerUnavailable("refused")
        await asyncio.Event().wait()

    bench.broker.unregister = unregister  # type: ignore[method-assign]
    before = bench.loop.time()
    await sign_off(bench.broker)  # type: ignore[arg-type]
    assert bench.loop.time() - before == pytest.approx(3.0 if hangs else 0.0, abs=0.01)
    [line] = [record.getMessage() for record in caplog.records]
    said = "the server did not answer" if hangs else "refused"
    assert line.startswith("worker.unregister_failed error=")
    assert said in line


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


async def test_sessions_of_nested_calls_end_with_the_session() -> None:
    """The bus for nested calls is told the user and the session."""
    bench = Bench(hold)
    ended: list[tuple[str, str]] = []

    async def close_session(user: str, session: str) -> None:
        ended.append((user, session))

    bench.slots.nested.close_session = close_session  # type: ignore[method-assign]
    bench.slots.sessions.closed("other", "u", "s")
    await bench.settle()
    assert ended == [("u", "s")]
