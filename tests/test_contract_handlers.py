"""Handlers that do what nobody expects: their calls end with an answer that is true, and the slot is free again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract import Place
from tests.servers import eventually
from toolbus import Progress, Worker, invocation, tool

pytestmark = pytest.mark.anyio

runs: list[str] = []


@pytest.fixture(autouse=True)
def no_runs() -> None:
    """Forget what earlier tests ran."""
    runs.clear()


@tool(service="odd", effect="read")
async def cancel_itself() -> str:
    """Cancel the task that runs it."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    return "not reached"


@tool(service="odd", effect="read")
async def count(done: Any, total: Any = None, message: Any = "") -> str:
    """Tell how far it is."""
    invocation().progress(done, total, message)
    return "counted"


WRONG: dict[str, tuple[Any, ...]] = {
    "text": ("half",),
    "nothing": (None,),
    "not a number": (float("nan"),),
    "endless": (1.0, float("inf")),
    "too large": (10**400,),
    "message": (1, 2, 3),
    "surrogate": (1, 2, "\ud800"),
}


@tool(service="odd", effect="read")
async def count_wrongly(kind: str, *, yields: bool) -> Any:
    """Tell how far it is, in a form that no caller could read."""
    if yields:
        yield Progress(*WRONG[kind])
    invocation().progress(*WRONG[kind])
    yield "counted"


@tool(service="odd", effect="once")
async def pay() -> str:
    """Have an effect."""
    runs.append("pay")
    return "paid"


async def test_a_handler_that_cancels_its_own_task_is_answered(place: Place) -> None:
    """Its caller hears at once that it was cancelled from within, and nothing stays held."""
    async with place.worker(cancel_itself) as worker, place.bus() as bus:
        await bus.wait_for_tool("cancel_itself")
        result = await bus.call("cancel_itself", timeout=20.0)
        assert result.error is not None
        assert (result.error.type, result.error.code) == ("tool_error", "CancelledError")
        await eventually(lambda: worker.broker.statistics()["held"] == 0)


@pytest.mark.parametrize("yields", [True, False])
@pytest.mark.parametrize("kind", WRONG)
async def test_progress_that_would_not_arrive_is_the_handlers_error(place: Place, kind: str, yields: bool) -> None:
    """The handler gets a TypeError that names the field, and the caller no answer with a hole."""
    async with place.serving(count_wrongly) as bus:
        result = await bus.call("count_wrongly", {"kind": kind, "yields": yields}, timeout=20.0)
    assert result.error is not None
    assert (result.error.type, result.error.code) == ("tool_error", "TypeError")
    assert "progress: " in result.error.message


class Stubborn:
    """Middleware that goes on although its call was cancelled."""

    async def __call__(self, call: Any, next: Any) -> Any:
        """Wait, and call the handler whatever happens."""
        try:
            await asyncio.sleep(30.0)
        except asyncio.CancelledError:
            runs.append("went on")
        return await next(call)


async def test_middleware_begins_nothing_in_a_worker_that_has_handed_the_call_back(place: Place) -> None:
    """Work that has not begun when its worker leaves runs once, in the next worker, whatever the middleware of the first one does."""
    worker = Worker([pay], settings=place.with_(grace=0.1), middleware=[Stubborn()])
    async with worker, place.bus() as bus:
        await bus.wait_for_tool("pay")
        call = asyncio.create_task(bus.call("pay", timeout=20.0))
        await eventually(lambda: worker.started == 1)
        await worker.drain()
        assert runs == ["went on"]
        async with place.worker(pay):
            assert (await call).output == "paid"
    assert runs == ["went on", "pay"]
