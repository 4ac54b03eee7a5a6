"""Two revisions of a service serve side by side: each call runs where its arguments are taken."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from tests.contract import Place
from tests.servers import eventually
from toolbus import ToolBus, ToolResult, Worker, tool

pytestmark = pytest.mark.anyio


async def _pay(amount: int) -> str:
    """Pay."""
    await asyncio.sleep(0.01)
    return f"old {amount}"


async def _pay_net(amount: int, net: bool = False) -> str:
    """Pay."""
    await asyncio.sleep(0.01)
    return f"new {amount} {net}"


async def _pay_nothing_else() -> str:
    """Pay."""
    await asyncio.sleep(0.01)
    return "new"


async def _pay_sum(total: int) -> str:
    """Pay."""
    await asyncio.sleep(0.01)
    return f"new {total}"


async def _pay_list(amount: list[int]) -> str:
    """Pay."""
    await asyncio.sleep(0.01)
    return f"new {amount}"


async def _pay_to(amount: int, to: str) -> str:
    """Pay."""
    await asyncio.sleep(0.01)
    return f"new {amount} {to}"


# What the second revision takes, and arguments that only it takes; the first one takes a number.
CHANGES: dict[str, tuple[Callable[..., Coroutine[Any, Any, str]], dict[str, Any]]] = {
    "added": (_pay_net, {"amount": 1, "net": True}),
    "required": (_pay_to, {"amount": 1, "to": "al"}),
    "removed": (_pay_nothing_else, {}),
    "renamed": (_pay_sum, {"total": 1}),
    "retyped": (_pay_list, {"amount": [1]}),
}
OLD = {"amount": 1}


def revision(function: Callable[..., Coroutine[Any, Any, str]]) -> object:
    """Return that function as the one tool of a service."""
    return tool("pay", service="payments", effect="read", replace=True)(function)


def fitting(bus: ToolBus, change: str) -> dict[str, Any]:
    """Return arguments as an agent chooses them: by the schema that it sees."""
    found = bus.tools["pay"].parameters["properties"]
    return OLD if list(found) == ["amount"] and found["amount"]["type"] == "integer" else CHANGES[change][1]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_call_runs_where_its_arguments_are_taken(place: Place, change: str) -> None:
    """While both revisions serve, arguments of either are taken, whichever worker they come to first; none is told to mend them."""
    new, arguments = CHANGES[change]
    async with place.worker(revision(_pay), concurrency=3), place.bus() as early:
        await early.wait_for_tool("pay")
        async with place.worker(revision(new), concurrency=3), place.bus() as late:
            await eventually(lambda: fitting(late, change) is arguments)
            done = await asyncio.gather(*(late.call("pay", arguments) for _ in range(40)))
    assert Counter(each.error for each in done) == {None: 40}
    assert all("new" in (each.output or "") or change == "added" for each in done)


async def _load(bus: ToolBus, change: str, done: list[ToolResult], stopped: asyncio.Event) -> None:
    while not stopped.is_set():
        done.append(await bus.call("pay", fitting(bus, change), timeout=20))


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("change", CHANGES)
async def test_a_rolling_update_and_its_way_back_fail_no_call(place: Place, change: str) -> None:
    """Two workers are replaced one after the other, and again by the first revision, with a queue before them: every call succeeds."""
    done: list[ToolResult] = []
    stopped = asyncio.Event()
    async with AsyncExitStack() as stack:

        async def start(function: Callable[..., Coroutine[Any, Any, str]]) -> Worker:
            return await stack.enter_async_context(place.worker(revision(function), concurrency=4))

        serving = [await start(_pay), await start(_pay)]
        bus = await stack.enter_async_context(place.bus())
        await bus.wait_for_tool("pay")
        loads = [asyncio.create_task(_load(bus, change, done, stopped)) for _ in range(100)]
        for function in (CHANGES[change][0], _pay):
            for _ in range(2):
                serving.append(await start(function))
                seen = len(done)
                await eventually(lambda seen=seen: len(done) > seen + 5, timeout=20)
                await serving.pop(0).drain()
                seen = len(done)
                await eventually(lambda seen=seen: len(done) > seen + 100, timeout=20)
        stopped.set()
        await asyncio.gather(*loads)
    assert Counter(str(each.error) for each in done if not each.success) == {}
    assert {(each.output or "")[:3] for each in done} == {"old", "new"}


async def test_a_call_whose_revision_is_gone_is_to_be_made_again(place: Place) -> None:
    """Arguments that only a revision took which nobody serves any more are answered with other_revision, never as wrong."""
    async with place.worker(revision(_pay)), place.bus() as bus:
        await bus.wait_for_tool("pay")
        found = bus.tools["pay"]
        object.__setattr__(found, "resolution", msgspec.structs.replace(found.resolution, digest="0" * 32))
        object.__setattr__(found, "preparer", type("Any", (), {"prepare": staticmethod(lambda arguments, _=None: arguments)})())
        error = (await bus.call("pay", {"total": 1})).error
    assert error is not None
    assert (error.type, error.code, error.retryable) == ("unavailable", "other_revision", True)
    assert "look at the tool again" in error.message
