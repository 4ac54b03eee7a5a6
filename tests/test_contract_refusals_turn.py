"""A program that tries refused calls again and again keeps no other task from running."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.contract import Place, plugged
from tests.servers import eventually
from toolbus import ToolBus, tool
from toolbus.bus.middleware import ToolCall
from toolbus.bus.values.results import ToolbusError, ToolError, ToolResult

pytestmark = pytest.mark.anyio

TRIES = 50

Try = Callable[[ToolBus], Awaitable[Any]]


@tool(service="refusals-turn", effect="read", confirm=True)
async def guarded() -> str:
    """Be there for those who may."""
    return "here"


async def entered(bus: ToolBus) -> object:
    """A streamed call that is refused."""
    async with bus.stream("nowhere") as call:
        return call.done


async def read(bus: ToolBus) -> object:
    """The events of a refused call."""
    return [event async for event in bus.stream("nowhere").events()]


REFUSED: dict[str, Try] = {
    "unknown tool": lambda bus: bus.call("nowhere"),
    "unknown tool, bound": lambda bus: bus.bind(user="u").call("nowhere"),
    "unknown tool, entered": entered,
    "unknown tool, read": read,
    "unknown tool of a model": lambda bus: bus.executor().execute("nowhere"),
    "unknown tool of a turn": lambda bus: bus.process_tool_calls([{"id": "1", "function": {"name": "nowhere", "arguments": "{}"}}]),
    "unknown service": lambda bus: bus.service("nowhere").call("u", {}, {}),
    "no text for a name": lambda bus: bus.call(7),  # type: ignore[arg-type] # a mistake
    "invalid arguments": lambda bus: bus.call("plugged", {"no": 1}),
    "no object": lambda bus: bus.call("plugged", [1]),  # type: ignore[arg-type] # a mistake
    "too large": lambda bus: bus.call("plugged", metadata={"x": "x" * 2_000}),
    "no permission": lambda bus: bus.executor(confirm_anywhere=False).execute("guarded"),
    "unknown option": lambda bus: bus.call("plugged", no=1),  # type: ignore[call-arg] # a mistake
    "unknown option, bound": lambda bus: bus.bind(user="u").call("plugged", no=1),  # type: ignore[call-arg] # a mistake
    "wrong option": lambda bus: bus.call("plugged", timeout=-1.0),
    "wrong option of a service": lambda bus: bus.service("plug").call("u", 7, {}),  # type: ignore[arg-type] # a mistake
    "too long": lambda bus: bus.call("plugged", timeout=1e9),
    "no calls": lambda bus: bus.process_tool_calls(7),
    "no calls of an executor": lambda bus: bus.executor().process_tool_calls(7),
    "wrong key": lambda bus: bus.put("\ud800", b"{}"),
    "wrong key to delete": lambda bus: bus.delete("\ud800"),
    "no session": lambda bus: bus.close_session(),
    "no session, bound": lambda bus: bus.bind(user="u").close_session(),
    "no request": lambda bus: bus.confirmations.get("none"),
    "no request to allow": lambda bus: bus.confirmations.allow("none"),
    "no request to deny": lambda bus: bus.confirmations.deny("none"),
}

CLOSED: dict[str, Try] = {
    "call": lambda bus: bus.call("plugged"),
    "bound call": lambda bus: bus.bind(user="u").call("plugged"),
    "service": lambda bus: bus.service("plug").call("u", {}, {}),
    "calls": lambda bus: bus.process_tool_calls([{"id": "1", "function": {"name": "plugged", "arguments": "{}"}}]),
    "wait": lambda bus: bus.wait_for_tool("plugged"),
    "put": lambda bus: bus.put("tool/x", b"{}"),
    "delete": lambda bus: bus.delete("tool/x"),
    "replace": lambda bus: bus.replace([]),
    "usage": lambda bus: bus.usage(),
    "end": lambda bus: bus.end_session("u", "s"),
    "pending": lambda bus: bus.confirmations.pending(),
    "find": lambda bus: bus.tasks.find("x", "u"),
}


async def turns_beside(bus: ToolBus, attempt: Try) -> int:
    """The turns that a task gets beside so many refused attempts."""
    turns = 0

    async def beside() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(beside())
    try:
        for _ in range(TRIES):
            try:
                answer = await attempt(bus)
            except ToolbusError:
                continue
            assert not isinstance(answer, ToolResult) or not answer.success
    finally:
        task.cancel()
    return turns


@pytest.mark.few(6)
@pytest.mark.parametrize("name", REFUSED)
async def test_tasks_run_beside_refused_attempts(place: Place, name: str) -> None:
    """Another task gets a turn for each attempt that is refused without the server."""
    async with place.serving(plugged, guarded, max_request=1_000) as bus:
        await bus.wait_for_tool("plugged", 30.0)
        assert await turns_beside(bus, REFUSED[name]) >= TRIES


@pytest.mark.parametrize("name", CLOSED)
async def test_tasks_run_beside_attempts_on_a_closed_bus(place: Place, name: str) -> None:
    """Another task gets a turn for each use of a closed bus."""
    bus = place.bus()
    assert await turns_beside(bus, CLOSED[name]) >= TRIES


async def test_tasks_run_beside_refusals_of_a_full_queue(place: Place) -> None:
    """Another task gets a turn for each call that a full queue refuses."""
    gone_on = asyncio.Event()

    @tool(service="held", effect="read")
    async def hold() -> str:
        """Wait."""
        await gone_on.wait()
        return "done"

    async with place.serving(hold, concurrency=1, queue_limit=1) as bus:
        await bus.wait_for_tool("hold", 30.0)
        running = [asyncio.create_task(bus.call("hold", timeout=120.0)) for _ in range(8)]
        await eventually(lambda: any(task.done() for task in running), timeout=30.0)
        assert await turns_beside(bus, lambda bus: bus.call("hold", timeout=60.0)) >= TRIES
        gone_on.set()
        await asyncio.gather(*running)


async def test_tasks_run_beside_refusals_of_middleware(place: Place) -> None:
    """Another task gets a turn for each call that middleware refuses."""

    async def refuse(call: ToolCall, next: Any) -> ToolResult:
        raise ToolError("no", type="forbidden")

    async with place.worker(plugged), ToolBus(settings=place.settings_of("agent", {}), middleware=[refuse]) as bus:
        assert await turns_beside(bus, lambda bus: bus.call("plugged")) >= TRIES


async def test_a_loop_of_refused_calls_meets_the_worker_that_registers_meanwhile(place: Place) -> None:
    """A program that calls an unknown tool until it is there sees the worker that registers in the same event loop."""
    async with place.bus() as bus:
        worker = place.worker(plugged)
        opening = asyncio.create_task(worker.open())
        try:
            async with asyncio.timeout(60.0):
                while not (result := await bus.call("plugged")).success:
                    pass
            assert result.output == "here"
        finally:
            await opening
            await worker.aclose()
