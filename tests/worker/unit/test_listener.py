"""The listener: what slots do about events of the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.worker.unit.fakes import Bench, flaky, handlers, hold, stubborn
from toolbus import ErrorInfo
from toolbus.bus.broker.take.requests import Delivery, RequestStream

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
    monkeypatch.setattr("toolbus.bus.worker.slots._MOST_EARLY", 2)
    bench = Bench(hold, concurrency=5)
    for call in ("one", "two", "three"):
        bench.slots.on_cancelled(call)
    for call in ("one", "two", "three"):
        bench.slots.start(bench.delivery("hold", {"name": call}, id=call))
    await bench.settle()
    assert seen == ["one"]
    assert [end.frame.id for end in bench.broker.ends] == ["two", "three"]


def _on_its_way(bench: Bench) -> Delivery:
    return bench.delivery("hold")


def _running(bench: Bench) -> Delivery:
    bench.slots.start(delivery := bench.delivery("hold"))
    return delivery


def _suspect(bench: Bench) -> Delivery:
    bench.slots.start(delivery := bench.delivery("hold", attempt=4))
    return delivery


def _behind_another(bench: Bench) -> Delivery:
    first, second = (bench.delivery("hold", {"name": name}, ordered=True, user="u", session="s") for name in ("first", ""))
    bench.slots.start_all([first, second])
    return second


def _tried_again(bench: Bench) -> Delivery:
    bench.slots.start(delivery := bench.delivery("flaky"))
    return delivery


PLACES = [_on_its_way, _running, _suspect, _behind_another, _tried_again]
"""Where a delivery may be when something is heard about its call."""


WAYS = [RequestStream.lose, RequestStream.let_go]
"""Ways in which a delivery is held no longer: another worker has it, or the server has refused its end."""


def _delivered_again(bench: Bench, delivery: Delivery, way: Callable[[RequestStream, Delivery], object]) -> Delivery:
    """Hold a delivery no longer before its end was accepted, and deliver its call once more, by a group that was made anew."""
    way(bench.stream, delivery)
    request = delivery.request
    return bench.delivery(request.tool, id=request.id, entry=delivery.entry, epoch=1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", PLACES)
async def test_a_cancelled_call_that_is_delivered_once_more_does_not_start(
    place: Callable[[Bench], Delivery], way: Callable[[RequestStream, Delivery], object], seen: list[Any]
) -> None:
    """A later delivery of a cancelled call is refused as not begun, wherever the first one was, also when its end was not accepted."""
    bench = Bench(hold, flaky)
    bench.broker.accepts = False
    delivery = place(bench)
    await bench.settle()
    bench.slots.on_cancelled(delivery.request.id)
    await bench.settle()
    seen.clear()
    bench.slots.start(_delivered_again(bench, delivery, way))
    await bench.settle()
    assert seen == []
    last = bench.broker.ends[-1].frame
    assert (last.id, last.epoch, last.error) == (
        delivery.request.id,
        1,
        ErrorInfo("cancelled", "not_begun", "cancelled by the caller before the tool began"),
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", PLACES)
async def test_a_call_whose_caller_seemed_to_be_gone_runs_when_it_is_delivered_once_more(
    place: Callable[[Bench], Delivery], way: Callable[[RequestStream, Delivery], object], seen: list[Any]
) -> None:
    """The reply stream alone may have been lost, so only this delivery of the call is over, also where it is on its way to a slot."""
    bench = Bench(hold, flaky)
    bench.broker.accepts = False
    delivery = place(bench)
    await bench.settle()
    bench.slots.on_replies_gone(delivery.replies, ErrorInfo("cancelled", message="the calling agent is gone"))
    delivery.cancelled, delivery.replies = "cancelled", ""
    await bench.settle()
    seen.clear()
    if delivery.is_held and not delivery.begun:
        bench.slots.start(delivery)
        await bench.settle()
        assert seen == []
    bench.slots.start(_delivered_again(bench, delivery, way))
    await bench.settle()
    assert seen != []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", PLACES)
async def test_a_call_that_got_more_time_has_it_in_its_next_delivery(
    place: Callable[[Bench], Delivery], way: Callable[[RequestStream, Delivery], object]
) -> None:
    """A later deadline counts for each later delivery of the call, wherever the first one was."""
    bench = Bench(hold, flaky)
    delivery = place(bench)
    await bench.settle()
    bench.slots.on_extended(delivery.request.id, 1e9)
    for _ in range(2):
        delivery = _delivered_again(bench, delivery, way)
        bench.slots.start(delivery)
        await bench.settle()
        assert delivery.deadline == 1e9


async def test_more_time_counts_also_for_what_waited_before_it_ran(gate: asyncio.Event) -> None:
    """A later deadline of a call that waited is still known when it runs and is delivered again, whatever was heard of others."""
    bench = Bench(hold)
    delivery = _behind_another(bench)
    await bench.settle()
    bench.slots.on_extended(delivery.request.id, 1e9)
    bench.slots.on_extended("another", 1e9)
    gate.set()
    handlers.gate = asyncio.Event()
    await bench.settle()
    assert delivery.begun
    bench.slots.start(again := _delivered_again(bench, delivery, RequestStream.lose))
    assert again.deadline == 1e9


async def test_what_was_lost_on_its_way_does_not_start(seen: list[Any]) -> None:
    """A request that another worker took before it started is not run here, takes no slot, and does not hold up its session."""
    bench = Bench(hold)
    lost, other = bench.delivery("hold", {"name": "lost"}, ordered=True, user="u", session="s"), bench.delivery("hold", {"name": "other"})
    bench.stream.lose(lost)
    bench.slots.start_all([lost, other])
    await bench.settle()
    assert (seen, bench.slots.free, bench.broker.ends) == (["other"], 1, [])
    # The session of the lost one is not held up by it.
    bench.slots.start(bench.delivery("hold", {"name": "next"}, ordered=True, user="u", session="s"))
    await bench.settle()
    assert seen == ["other", "next"]


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
