"""``Worker.open`` and ``aclose``, as the cells of a notebook use them."""

from __future__ import annotations

import asyncio

import pytest

from tests.contract import Place
from toolbus import ConfigurationError, ToolService, tool

pytestmark = pytest.mark.anyio


class Greeting(ToolService):
    """Greets, and counts its clean-ups."""

    id = "greeting"
    cleanups = 0

    @tool(effect="read")
    async def greet(self, name: str) -> str:
        """Greet somebody."""
        return f"Hello {name}"

    async def cleanup(self) -> None:
        """Count."""
        self.cleanups += 1


async def test_a_worker_is_opened_and_closed_in_different_tasks(place: Place) -> None:
    """It serves from one cell to another, opening it again changes nothing, and so does closing it again."""
    service = Greeting()
    worker = place.worker(service)
    await worker.aclose()
    await asyncio.create_task(worker.open())
    await asyncio.create_task(worker.open())
    async with place.bus() as bus:
        await bus.wait_for_tool("greet")
        assert (await bus.call("greet", {"name": "Ada"})).output == "Hello Ada"
    assert worker.healthy
    await asyncio.create_task(worker.aclose())
    await worker.aclose()
    assert (worker.healthy, service.cleanups) == (False, 1)


async def test_a_closed_worker_can_be_opened_again(place: Place) -> None:
    """Running the cells again serves again."""
    worker = place.worker(Greeting)
    async with place.bus() as bus:
        for _ in range(2):
            await worker.open()
            await bus.wait_for_tool("greet")
            assert (await bus.call("greet", {"name": "Ada"})).success
            await worker.aclose()


async def test_two_cells_that_open_a_worker_at_once_say_so(place: Place) -> None:
    """The second one of two that start a worker at the same time is told, and the first one serves."""
    worker = place.worker(Greeting)
    first, second = await asyncio.gather(worker.open(), worker.open(), return_exceptions=True)
    assert first is None
    assert isinstance(second, ConfigurationError)
    assert "already starts" in str(second)
    await worker.aclose()
