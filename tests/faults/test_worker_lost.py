"""Calls whose worker was killed, and nobody took its place: real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.contract import Place
from tests.faults.programs import LEASE, place_of, programs
from tests.forking import ForkServer, Program
from tests.servers import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
def place(server: str, namespace: str) -> Place:
    """A namespace on Valkey, with the processes' lease."""
    return place_of(server, namespace)


@pytest.fixture
def spawn(place: Place, forks: ForkServer) -> Iterator[Callable[[], Program]]:
    """Starts a worker."""
    with programs(forks) as start:
        yield lambda: start("tests.faults.serve", place.settings.url, place.settings.namespace, str(LEASE))


@pytest.mark.usefixtures("slow")
async def test_a_caller_is_told_that_its_worker_has_stopped(place: Place, spawn: Callable[[], Program]) -> None:
    """The time of its call is up, a worker began it and was killed, and no other one lives: that is what the error says."""
    worker = spawn()
    async with place.bus() as bus:
        await bus.wait_for_tool("count", timeout=30)
        async with bus.stream("count", {"n": 1000, "delay": 0.05}, timeout=120.0) as call:
            async for _ in call:
                break
            worker.kill()
            await eventually(lambda: "faults" not in bus.services or not bus.services["faults"].live, timeout=60.0)
            call.expire()
            error = (await call.result()).error
    assert error is not None
    assert (error.type, error.code) == ("deadline_exceeded", "worker_lost")
