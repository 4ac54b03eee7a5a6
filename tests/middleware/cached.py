"""Tools whose answers are kept, and calls of them, for the tests of the cache."""

from __future__ import annotations

import threading

from tests.servers import eventually
from toolbus import invocation, tool
from toolbus.bus.middleware import ToolCall
from toolbus.testing.environment import OwnTallies

power: dict[str, bool] = {}
seen: list[str] = []
late = threading.Event()
switched = threading.Event()
measured = threading.Event()


@tool(service="cached", effect="read")
async def rows() -> str:
    """The rows of this session."""
    seen.append(invocation().session)
    return f"{invocation().user}/{invocation().session}/{invocation().metadata.get('k', '')}"


@tool(service="cached", effect="read")
async def light() -> bool:
    """Return whether the light is on."""
    return power.get("on", False)


@tool(service="cached", effect="idempotent")
async def switch(on: bool) -> str:
    """Switch the light."""
    power["on"] = on
    return "switched"


@tool(service="cached", effect="idempotent", cache=True)
async def render(text: str) -> int:
    """Draw a text, as often as it is really drawn."""
    seen.append(text)
    return len(seen)


@tool(service="cached", effect="once")
def switch_late() -> str:
    """Switch the light on when the test says so, in a thread that nobody can stop."""
    assert late.wait(60)
    power["on"] = True
    switched.set()
    return "switched"


@tool(service="cached", effect="read")
async def echo(n: float | None = None, k: str = "") -> str:
    """Return the arguments."""
    seen.append(k)
    return f"{n} {k}"


@tool(service="cached", effect="read")
async def measure(text: str) -> int:
    """Measure until the test says that it is done."""
    seen.append(text)
    await eventually(measured.is_set, timeout=60)
    return len(seen)


@tool(service="cached", effect="read", cache=False)
async def clock() -> int:
    """Something else each time."""
    seen.append("clock")
    return len(seen)


def call_of(name: str, effect: str = "", service: str = "cached") -> ToolCall:
    """A call of one of the tools at a worker, as middleware sees it."""
    return ToolCall(
        id="1", tool=name, service=service, user="", session="", arguments={}, config={}, effect=effect, side="handler", attempt=1,
        tallies=OwnTallies(),
    )  # fmt: skip
