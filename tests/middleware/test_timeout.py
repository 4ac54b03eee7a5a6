"""The timeout, and values that no middleware takes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract import Place
from tests.middleware.guarded import error_of, heard, serving
from tests.servers import eventually
from toolbus import ConfigurationError, ToolBus
from toolbus.middleware import Cache, CircuitBreaker, Quota, RateLimit, Timeout

pytestmark = pytest.mark.anyio


async def test_a_timeout_cancels_the_handler(place: Place) -> None:
    """A handler over its time ends deadline_exceeded, outcome_unknown when it must not happen twice; its own TimeoutError stays its own."""
    async with serving(place, Timeout(0.1)), place.bus() as bus:
        error = await error_of(bus, "slow")
        assert (error.type, error.code) == ("deadline_exceeded", "timeout")
        assert (await error_of(bus, "slow_once")).type == "outcome_unknown"
        assert (await error_of(bus, "slow", {"raises": True})).code == "TimeoutError"
        assert (await bus.call("read")).success


async def test_a_timeout_tells_a_handler_in_a_thread(place: Place) -> None:
    """A thread can't be stopped, so it hears that nobody waits any more."""
    heard.clear()
    async with serving(place, Timeout(0.1)), place.bus() as bus:
        assert (await error_of(bus, "slow_thread")).type == "deadline_exceeded"
        await eventually(heard.is_set)


async def test_a_timeout_at_the_caller_cancels_the_call(place: Place) -> None:
    """Around a call it ends the wait, and the worker hears of it."""
    async with serving(place) as worker, ToolBus(settings=place.settings, middleware=[Timeout(0.2)]) as bus:
        assert (await error_of(bus, "slow")).type == "deadline_exceeded"
        await eventually(lambda: worker.statistics()["running"] == 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Cache(ttl=0),
        lambda: Cache(most_bytes=0),
        lambda: RateLimit(0),
        lambda: RateLimit(1, per=0),
        lambda: Quota(-1),
        lambda: CircuitBreaker(failures=0),
        lambda: CircuitBreaker(cooldown=-1),
        lambda: Timeout(0),
        lambda: Timeout(float("inf")),
    ],
)
def test_values_out_of_range_are_refused_at_once(make: Any) -> None:
    """A wrong value is a clear error where it is written."""
    with pytest.raises(ConfigurationError):
        make()
