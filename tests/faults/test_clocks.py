"""A server whose clock is set forward: every key whose life ends by then is gone at once."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis

from tests.contract import Place
from tests.servers import eventually
from tests.tiers import pairs
from toolbus import ToolResult, invocation, tool
from toolbus.bus.broker.lease.clock import ServerClock
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.values.events import Started, Text

pytestmark = pytest.mark.anyio

HOUR = 3600.0
runs: list[str] = []
go = threading.Event()


@pytest.fixture(autouse=True)
def nothing_yet() -> None:
    """Forget what earlier tests did."""
    runs.clear()
    go.clear()


@tool(service="timed", effect="read")
async def silent() -> str:
    """Say nothing until the test says so."""
    runs.append(invocation().id)
    await eventually(go.is_set, timeout=60)
    return "done"


@tool(service="timed", effect="once")
async def pay() -> str:
    """Act, and say so when the test says."""
    runs.append(invocation().id)
    await eventually(go.is_set, timeout=60)
    return "done"


@tool(service="timed", effect="read")
async def speak() -> Any:
    """Speak before and after."""
    runs.append(invocation().id)
    yield "do"
    await eventually(go.is_set, timeout=60)
    yield "ne"


class Clock:
    """The server's clock, as far as this process learns of it."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def set_forward(self, place: Place, seconds: float) -> None:
        """Set it forward, and with it end the lives of keys."""
        self.ahead += seconds
        with redis.Redis.from_url(place.settings.url) as client:
            for key in list(client.scan_iter(f"{Keys(place.settings.namespace).prefix}*", count=1000)):
                left = client.pttl(key)
                if 0 < left <= seconds * 1000:
                    client.delete(key)
                elif left > 0:
                    client.pexpire(key, left - int(seconds * 1000))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the test's server."""
    made, observe = Clock(), ServerClock.observe

    def observe_ahead(self: ServerClock, server_ms: float, asked: float, answered: float) -> None:
        observe(self, server_ms + made.ahead * 1000, asked, answered)

    monkeypatch.setattr(ServerClock, "observe", observe_ahead)
    return made


@pytest.mark.parametrize(("name", "key", "at_once"), pairs(["silent", "pay", "speak"], ["", "k"], [True, False]))
async def test_running_calls_outlive_a_clock_that_is_set_forward(place: Place, clock: Clock, name: str, key: str, at_once: bool) -> None:
    """They run once and are answered, whether they end before the agent has noticed or after."""
    with redis.Redis.from_url(place.settings.url) as client:
        async with place.serving(silent) as bus:
            await bus.wait_for_tool(name)
            async with bus.stream(name, idempotency_key=key, timeout=30.0) as call:
                await eventually(lambda: len(runs) == 1)
                # What goes with its key before it was read is lost.
                first = Text if name == "speak" else Started
                await anext(event async for event in call.events() if isinstance(event, first))
                clock.set_forward(place, HOUR + 60.0)
                if not at_once:
                    replies = Keys(place.settings.namespace).replies(bus._dispatcher.opened().agent)
                    await eventually(lambda: key or client.exists(replies))
                go.set()
                result: ToolResult = await call.result()
            assert (result.output, result.error) == ("done", None)
    assert len(runs) == 1
