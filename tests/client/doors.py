"""Every way to make a call as a model's, and every state in which the catalogue may be."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from tests.client.executing import chat
from tests.contract import Place
from tests.servers import eventually
from toolbus import ToolBus, tool
from toolbus.adapters.home import calling, run_at_home
from toolbus.bus.broker.protocols import ServiceRecord
from toolbus.bus.client.confirmations import Confirmation

ran: list[Any] = []
asked: list[Any] = []


def revision(kind: str = "asks") -> Any:
    """Return a revision of the tool ``pay``: one that needs a confirmation, one that does not, or one with other parameters."""
    if kind == "other":

        @tool(service="till", name="pay", effect="once", confirm=True, replace=True)
        async def pay_text(amount: str) -> str:
            """Pay an amount in words."""
            ran.append(amount)
            return f"paid {amount}"

        return pay_text

    @tool(service="till", name="pay", effect="once", confirm=kind != "free", replace=True, output_limit=200)
    async def pay(amount: int) -> str:
        """Pay."""
        ran.append(amount)
        return f"paid {amount} {'x' * 500}"

    return pay


class Stage:
    """A place where workers with revisions of the tool come and go."""

    def __init__(self, place: Place, bus: ToolBus) -> None:
        self.place = place
        self.bus = bus
        self._worker: Any = None

    async def come(self, kind: str = "asks") -> None:
        """Start a worker, and wait until the bus has heard of it."""
        self._worker = self.place.worker(revision(kind))
        await self._worker.__aenter__()

    async def go(self) -> None:
        """Stop the worker; the bus knows the tool as one that nobody serves, as a server's registry keeps it."""
        publication = self.bus.services["till"].publication
        await self._worker.__aexit__(None, None, None)
        self._worker = None
        await eventually(lambda: "pay" not in self.bus.tools or not self.bus.tools["pay"].available)
        self.bus._dispatcher.connection.catalogue.on_service("till", ServiceRecord(publication, live=False))

    async def become(self, kind: str) -> None:
        """Put another revision in the place of the one that is there, as a deployment does, and wait until the bus has heard of it."""
        before = self.bus.tools["pay"]
        await self.go()
        await self.come(kind)
        await eventually(lambda: self.bus.tools["pay"].available and self.bus.tools["pay"] is not before)

    async def close(self) -> None:
        """Stop what runs."""
        if self._worker is not None:
            await self._worker.__aexit__(None, None, None)


# What the catalogue knows when the call is made, and what happens while it waits for a worker.
async def live(stage: Stage) -> None:
    """Start a worker that serves the tool."""
    await stage.come()
    await stage.bus.wait_for_tool("pay")


async def absent(stage: Stage) -> None:
    """Leave the tool unknown."""


async def gone(stage: Stage) -> None:
    """Its worker has left."""
    await live(stage)
    await stage.go()


async def gone_and_free(stage: Stage) -> None:
    """Its worker has left, and that revision asked nobody."""
    await stage.come("free")
    await stage.bus.wait_for_tool("pay")
    await stage.go()


async def described(stage: Stage) -> None:
    """Let an operator's descriptor that needs no confirmation stand for the tool, without a worker."""
    document = {"type": "tool-service", "name": "pay", "description": "Pay.", "service": "till", "arguments": []}
    await stage.bus.put("tool/pay", json.dumps(document).encode())
    await eventually(lambda: "pay" in stage.bus.tools)


STATES = (live, absent, gone, gone_and_free)

Door = Callable[[Stage, dict[str, Any]], Awaitable[str]]
CALL = [chat("c1", "pay", {"amount": "7"})]


async def execute(stage: Stage, how: dict[str, Any]) -> str:
    """Make one call by an executor."""
    return str(await stage.bus.executor(**how).execute("pay", {"amount": "7"}))


async def turn(stage: Stage, how: dict[str, Any]) -> str:
    """Make the call as a turn of a model."""
    [message] = await stage.bus.executor(**how).process_tool_calls(CALL)
    return str(message["content"])


async def streamed(stage: Stage, how: dict[str, Any]) -> str:
    """Make the call as a turn whose events are read."""
    async with stage.bus.executor(**how).stream_tool_calls(CALL) as made:
        async for _ in made:
            pass
        [message] = await made.messages()
    return str(message["content"])


async def bound(stage: Stage, how: dict[str, Any]) -> str:
    """Make the call by a bound view that has the options as defaults."""
    options = {name: how.pop(name) for name in ("wait", "session", "user", "idempotency_key") if name in how}
    [message] = await stage.bus.bind(**options).executor(**how).process_tool_calls(CALL)
    return str(message["content"])


async def adapter(stage: Stage, how: dict[str, Any]) -> str:
    """Make the call as the adapters of frameworks do."""
    executor = stage.bus.executor(**how)
    content, _ = await run_at_home(executor, calling(executor, "pay", '{"amount": "7"}'))
    return content.text


async def selected(stage: Stage, how: dict[str, Any]) -> str:
    """Make the call by an executor that may call some tools only."""
    return str(await stage.bus.executor(tools=stage.bus.tools.filter(names=["pay"]), **how).execute("pay", {"amount": "7"}))


DOORS = (execute, turn, streamed, bound, adapter, selected)
OPTIONS: tuple[dict[str, Any], ...] = (
    {"wait": 20},
    {"wait": True, "timeout": 20},
    {"wait": 20, "user": "al", "session": "s", "idempotency_key": "k"},
)


def says(answer: bool) -> Callable[[Confirmation], bool]:
    """Return a confirmer that gives the same answer to every request."""

    def confirmer(confirmation: Confirmation) -> bool:
        asked.append((dict(confirmation.arguments), list(ran)))
        return answer

    return confirmer
