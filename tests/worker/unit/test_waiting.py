"""Waiting: deliveries that a worker holds and does not run yet."""

from __future__ import annotations

import pytest

from tests.worker.unit.fakes import Bench, echo
from toolbus.bus.broker.take.requests import Delivery
from toolbus.bus.worker.lines import Waiting

pytestmark = pytest.mark.anyio


def filled() -> tuple[Waiting, list[Delivery]]:
    """Deliveries that wait for each of the three reasons; the first two are of one caller, the others have none."""
    bench, waiting = Bench(echo), Waiting()
    deliveries = [bench.delivery("echo", replies=replies) for replies in ("a", "a", "", "")]
    retry, due, *suspects = deliveries
    waiting.retries[retry.run] = retry
    waiting.due.append(due)
    waiting.suspects.extend(suspects)
    return waiting, deliveries


async def test_everything_that_waits_counts() -> None:
    """Retries, due requests and suspects; taking everything away leaves none."""
    waiting, deliveries = filled()
    assert len(waiting) == 4
    assert waiting.clear() == deliveries
    assert (len(waiting), waiting.clear()) == (0, [])


async def test_deliveries_are_found_by_their_call_their_caller_or_their_service() -> None:
    """A call without a caller is found by its own id alone."""
    waiting, deliveries = filled()
    assert waiting.find(call="call-3") == [deliveries[2]]
    assert waiting.find(replies="a") == deliveries[:2]
    assert waiting.find(replies="b") == []
    assert waiting.find(service="unit") == deliveries
    assert waiting.find(service="other") == []


async def test_a_delivery_can_be_taken_away() -> None:
    """Wherever it waits, and once; one that does not wait here changes nothing."""
    waiting, deliveries = filled()
    for each in (deliveries[0], deliveries[1], deliveries[3], deliveries[3]):
        waiting.remove(each)
    assert waiting.clear() == [deliveries[2]]
