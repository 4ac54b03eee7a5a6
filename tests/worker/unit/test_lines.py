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
from toolbus.bus.broker.protocols import Note
from toolbus.bus.broker.take.requests import Delivery
from toolbus.bus.values.results import BrokerUnavailable, deadline_exceeded

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


async def test_a_call_that_was_lost_while_it_waited_lets_those_behind_it_run(gate: asyncio.Event) -> None:
    """It is passed over when its turn comes, and the others keep their order."""
    bench = Bench(hold, echo)
    bench.slots.start(of_session(bench, "hold"))
    await bench.settle()
    lost, *behind = (of_session(bench, "echo", {"text": text}) for text in ("lost", "second", "third"))
    for delivery in (lost, *behind):
        bench.slots.start(delivery)
    bench.slots.on_lost(lost)
    gate.set()
    await bench.settle()
    assert [end.frame.id for end in bench.broker.ends][1:] == [each.request.id for each in behind]
    assert len(bench.slots._lines) == 0


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


def ids(bench: Bench) -> list[str]:
    """The ids of the calls that were answered, in order."""
    return [end.frame.id for end in bench.broker.ends]


async def test_calls_of_a_session_run_in_the_order_of_their_entries(gate: asyncio.Event) -> None:
    """Entries are ordered by their numbers, whenever they came, and one that was lost and comes again runs once."""
    bench = Bench(hold, echo, concurrency=9)
    bench.slots.start(of_session(bench, "hold", entry=b"1-0"))
    entries = [b"10-0", b"9-0", b"9-10", b"9-2", b"2-0", b"9-2"]
    for number, entry in enumerate(entries):
        if entry in bench.stream.held:
            bench.stream.lose(bench.stream.held[entry])
        bench.slots.start(of_session(bench, "echo", {"text": ""}, id=f"{number} {entry.decode()}", entry=entry))
    gate.set()
    await asyncio.sleep(1)
    assert ids(bench)[1:] == ["4 2-0", "1 9-0", "5 9-2", "2 9-10", "0 10-0"]


async def test_a_call_that_waits_for_its_turn_is_refused_at_its_deadline(gate: asyncio.Event) -> None:
    """A waiting call is refused at its deadline, or at the later one that it was given meanwhile."""
    bench = Bench(hold, echo)
    bench.slots.start(of_session(bench, "hold", deadline=2000.0))
    first, second = (of_session(bench, "echo", {"text": ""}) for _ in range(2))
    for each in (first, second):
        bench.slots.start(each)
    await asyncio.sleep(1)
    bench.slots.on_extended(second.request.id, second.deadline + 5.0)
    await asyncio.sleep(10.5)
    assert ids(bench) == [first.request.id]
    await asyncio.sleep(5)
    expected = deadline_exceeded("the deadline passed while earlier calls of its session ran", "not_taken")
    assert [end.frame.error for end in bench.broker.ends] == [expected] * 2
    gate.set()
    await asyncio.sleep(1)


async def test_a_call_that_waits_for_its_turn_is_counted_when_it_comes(gate: asyncio.Event, seen: list[Any]) -> None:
    """Its attempt is noted as none; the next one may have killed its workers as before, and waits until nothing else runs."""
    bench = Bench(hold, echo, max_deliveries=3)
    bench.slots.start(of_session(bench, "hold"))
    first, again = (of_session(bench, "echo", {"text": "again"}, attempt=attempt) for attempt in (1, 3))
    bench.slots.start(again)
    bench.slots.start(first)
    await bench.settle()
    assert bench.broker.excused == [(again, Note(again.deadline), 1)]
    assert again.excused is True
    assert again.tries == 2
    assert not bench.broker.retried
    gate.set()
    await bench.settle()
    assert [(each.attempt, each.tries) for each in bench.slots._waiting.suspects] == [(4, 3)]
    assert bench.broker.retried == [again]
    assert seen[-1] != "again"


async def test_a_call_whose_note_is_refused_runs_when_its_turn_comes(gate: asyncio.Event) -> None:
    """Its attempt counts then if the worker dies, as that of any other call."""
    bench = Bench(hold, echo)
    bench.broker.failure = BrokerUnavailable("gone")
    bench.slots.start(of_session(bench, "hold"))
    bench.slots.start(again := of_session(bench, "echo", {"text": "again"}, attempt=2))
    await bench.settle()
    gate.set()
    await bench.settle()
    assert [end.frame.id for end in bench.broker.ends][1:] == [again.request.id]
    assert bench.broker.retried == [again]


@pytest.mark.parametrize("moved", [True, False])
async def test_calls_that_wait_in_a_session_that_ended_here_do_not_run(moved: bool, gate: asyncio.Event) -> None:
    """Waiting calls are handed back when their session moved, and refused when it was closed; those of other sessions go on."""
    bench = Bench(hold, echo, concurrency=5)
    bench.slots.start(of_session(bench, "hold"))
    waiting = [of_session(bench, "echo", {"text": ""}) for _ in range(2)]
    other = [of_session(bench, name, {}, session="other") for name in ("hold", "hold")]
    for each in (*waiting, *other):
        bench.slots.start(each)
    bench.slots._lines.empty(("unit", "u", "s"), moved)
    bench.slots._lines.empty(("unit", "u", "unknown"), moved)
    await asyncio.sleep(1)
    assert bench.broker.handed_back == (waiting if moved else [])
    refused = [end.frame.error for end in bench.broker.ends]
    message = "the session was closed, maybe by another agent, before the call ran"
    assert refused == ([] if moved else [ErrorInfo("cancelled", "session_closed", message)] * 2)
    gate.set()
    await asyncio.sleep(1)
    assert ids(bench)[-2:] == [each.request.id for each in other]
    assert len(bench.slots._lines) == 0


async def test_the_server_is_asked_until_what_came_before_has_ended_elsewhere(seen: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """The server is asked at growing intervals up to half a second, also after a failure, which is logged, and no more afterwards."""
    bench = Bench(hold, concurrency=5)
    asked: list[tuple[float, list[bytes]]] = []
    answers: list[Any] = [[[b"0-1"]], BrokerUnavailable("gone"), [[b"0-1"]], [[b"0-1"]], [[b"0-1"]], [[b"0-1"]], [[b"0-1"]], [[]]]

    async def before(deliveries: Any) -> Any:
        asked.append((round(bench.loop.time() - began, 2), [each.entry for each in deliveries]))
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    bench.broker.before = before  # type: ignore[method-assign]
    began = bench.loop.time()
    bench.slots.start(of_session(bench, "hold", {"name": "late"}, entry=b"5-0", after=b"0-1"))
    await asyncio.sleep(3)
    assert seen == ["late"]
    assert [at for at, _ in asked] == pytest.approx([0.0, 0.02, 0.06, 0.14, 0.3, 0.62, 1.12, 1.62], abs=0.011)
    assert {entry for _, entries in asked for entry in entries} == {b"5-0"}
    assert "sessions.unordered calls=1 error=gone" in caplog.text
    answers.append([[]])
    bench.slots.start(of_session(bench, "hold", {"name": "another"}, session="other", entry=b"6-0", after=b"0-1"))
    await asyncio.sleep(0.1)
    assert (seen, len(asked)) == (["late", "another"], 9)


async def test_a_call_is_asked_about_with_the_news_of_another(seen: list[Any]) -> None:
    """When a call of another session comes, those that wait are asked about at once, too."""
    bench = Bench(hold, concurrency=5)
    bench.broker.left = [b"0-1"]
    bench.slots.start(of_session(bench, "hold", {"name": "a"}, entry=b"5-0", after=b"0-1"))
    await asyncio.sleep(2)
    bench.broker.left = []
    asked = len(bench.broker.asked_before)
    bench.slots.start(of_session(bench, "hold", {"name": "b"}, session="other", entry=b"6-0", after=b"0-1"))
    await asyncio.sleep(0.03)
    assert (sorted(seen), len(bench.broker.asked_before) - asked) == (["a", "b"], 1)


async def test_a_call_goes_on_unasked_behind_one_that_was_run_here(seen: list[Any]) -> None:
    """A call behind one that ended here needs no question, also after a pause; one behind an unknown call is asked about."""
    bench = Bench(echo, hold)
    bench.broker.left = [b"9-9"]
    for entry, after in ((b"2-0", b""), (b"4-0", b"2-0"), (b"5-0", b"3-0")):
        bench.slots.start(of_session(bench, "echo", {"text": ""}, entry=entry, after=after))
        await asyncio.sleep(1)
    assert (len(bench.broker.ends), bench.broker.asked_before) == (3, [])
    bench.slots.start(of_session(bench, "hold", entry=b"8-0", after=b"7-0"))
    await asyncio.sleep(1)
    assert (bench.broker.asked_before[0], seen) == ([b"8-0"], [])
    bench.slots.close()


async def test_a_call_behind_one_that_was_lost_is_asked_about(seen: list[Any]) -> None:
    """A call whose predecessor was lost to another worker waits until the server says that it has ended."""
    bench = Bench(echo, hold)
    bench.slots.start(first := of_session(bench, "echo", {"text": ""}, entry=b"2-0"))
    await asyncio.sleep(1)
    bench.slots._lines.lose(first)
    bench.broker.left = [b"2-0"]
    bench.slots.start(of_session(bench, "hold", entry=b"4-0", after=b"2-0"))
    await asyncio.sleep(1)
    assert (bench.broker.asked_before[0], seen) == ([b"4-0"], [])
    bench.slots.close()


async def test_sessions_of_a_service_that_is_gone_are_forgotten() -> None:
    """Forgetting a service drops what is known of its sessions, and of no other service's."""
    bench = Bench(hold, echo, concurrency=5)
    for session, name in (("s", "hold"), ("t", "echo")):
        bench.slots.start(of_session(bench, name, {} if name == "hold" else {"text": ""}, session=session))
    await asyncio.sleep(1)
    bench.slots._lines.forget("other")
    assert (len(bench.slots._lines), len(bench.slots._lines._floors)) == (1, 1)
    bench.slots._lines.forget("unit")
    assert (len(bench.slots._lines), len(bench.slots._lines._floors)) == (0, 0)


async def test_sessions_in_which_nothing_runs_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of idle sessions beyond the bound, the one that ended first is forgotten."""
    monkeypatch.setattr("toolbus.bus.worker.lines._MOST_FLOORS", 2)
    bench = Bench(echo)
    for session in ("a", "b", "c"):
        bench.slots.start(of_session(bench, "echo", {"text": ""}, session=session))
        await asyncio.sleep(1)
    assert [name[2] for name in bench.slots._lines._floors] == ["b", "c"]


async def test_what_is_on_its_way_is_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound the oldest call is forgotten; of one call the first reason and the last time count."""
    monkeypatch.setattr("toolbus.bus.worker.slots._MOST_EARLY", 2)
    slots = Bench(echo).slots
    for call, why in (("a", "first"), ("b", "cancelled"), ("c", "late"), ("c", "later")):
        slots.on_cancelled(call, why)
        slots.on_extended(call, float(len(why)))
    assert slots._early_ends == {"b": "cancelled", "c": "late"}
    assert slots._early_deadlines == {"b": 9.0, "c": 5.0}
