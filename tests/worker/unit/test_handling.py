"""Handling: handlers of every kind, within middleware."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.servers import eventually
from tests.worker.unit.fakes import NOW, Bench, hold
from toolbus import ToolResult, tool
from toolbus.middleware.chain import Next, ToolCall
from toolbus.worker.run.states import RunState

pytestmark = pytest.mark.anyio


@tool(service="unit", replace=True, isolation="process")
def apart(number: int) -> str:
    """Run in a child process."""
    return str(number)


async def test_middleware_may_call_a_handler_again_within_one_run(seen: list[Any]) -> None:
    """``once`` work enters once, and the second result is the answer."""

    async def twice(call: ToolCall, following: Next) -> ToolResult:
        await following(call)
        return await following(call)

    @tool(service="unit", replace=True, effect="once")
    async def count() -> str:
        """Count its calls."""
        seen.append(len(seen))
        return str(len(seen))

    end = await Bench(count, middleware=(twice,)).run("count")
    assert (end.frame.response, seen) == ("2", [0, 1])


async def test_middleware_that_gives_a_handler_up_stops_it() -> None:
    """The handler is told, and the middleware's own result is the answer."""

    async def impatient(call: ToolCall, following: Next) -> ToolResult:
        try:
            async with asyncio.timeout(1):
                return await following(call)
        except TimeoutError:
            return ToolResult(output="gave up")

    bench = Bench(hold, middleware=(impatient,))
    held = await bench.begin("hold")
    await asyncio.sleep(1.1)
    await bench.settle()
    assert [end.frame.response for end in bench.broker.ends] == ["gave up"]
    assert str(held.stopped) == "cancelled: the middleware around the handler gave it up"


async def test_plain_functions_and_generators_run_in_threads() -> None:
    """Their results and items arrive as those of coroutines do."""

    @tool(service="unit", replace=True)
    def plain() -> str:
        """Return."""
        return "plain"

    @tool(service="unit", replace=True)
    def items() -> Iterator[str]:
        """Yield."""
        yield "a"
        yield "b"

    bench = Bench(plain, items)
    for name in ("plain", "items"):
        bench.slots.start(bench.delivery(name))
    await eventually(lambda: len(bench.broker.ends) == 2)
    assert "plain" in {end.frame.response for end in bench.broker.ends}
    texts = [text for frame in bench.broker.frames for text in (frame.texts or [frame.response])]
    assert "".join(filter(None, texts)) == "ab"
    await bench.settle()
    assert bench.slots.running == 0


@pytest.mark.parametrize("effect", ["", "once"])
async def test_an_isolated_tool_runs_in_the_pool(effect: str, seen: list[Any]) -> None:
    """The pool is given the request and its limits; ``once`` work enters when a process is ready, and refused arguments take none."""
    bench = Bench(apart)
    asked: list[dict[str, Any]] = []

    async def pooled(made: Any, request: Any, *, enter: Any, **limits: Any) -> AsyncIterator[str]:
        asked.append({"name": made.name, "id": request.id, **limits})
        if enter is not None:
            seen.append(bench.slots._runs["run-1"].state)
            enter()
            seen.append(bench.slots._runs["run-1"].state)
        yield "apart"

    bench.slots.isolation.run = pooled  # type: ignore[method-assign, assignment]
    await bench.run("apart", {"number": 1}, attempt=2, effect=effect)
    assert asked == [{"name": "apart", "id": "call-1", "attempt": 2, "deadline": NOW + 10.0}]
    assert seen == ([RunState.MARKED, RunState.ENTERED] if effect else [])
    bench.broker.ends.clear()
    end = await bench.run("apart", {"number": "one"}, effect=effect)
    assert end.frame.error is not None
    assert end.frame.error.type == "invalid_arguments"
    assert len(asked) == 1
