"""The order of sticky sessions when workers die and leave: real processes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract import Place
from tests.faults.programs import LEASE, place_of, programs
from tests.forking import ForkServer, Program
from tests.servers import eventually
from toolbus import ToolBus

pytestmark = pytest.mark.anyio

CALLS = 40
SESSIONS = 6


@pytest.fixture
def place(server: str, namespace: str) -> Place:
    """A namespace on Valkey, with the processes' lease."""
    return place_of(server, namespace)


@pytest.fixture
def spawn(place: Place, forks: ForkServer, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts a worker; given the number of a step, one that keeps its end to itself."""
    settings = place.settings
    with programs(forks) as start:
        yield lambda *kept: start("tests.faults.steps", settings.url, settings.namespace, str(LEASE), str(tmp_path / "steps"), *kept)


def lives(path: Path) -> dict[str, list[tuple[str, int]]]:
    """Return what began and ended in each session."""
    found: dict[str, list[tuple[str, int]]] = {}
    for line in path.read_text().splitlines():
        word, session, number, _ = line.split()
        found.setdefault(session, []).append((word, int(number)))
    return found


def check(story: list[tuple[str, int]], count: int) -> None:
    """Each step begins after the end of the one before it; a step that was cut off, or whose end nobody heard of, begins again."""
    done, running = -1, None
    for word, number in story:
        if word == "begin":
            assert number in {done, done + 1, running}, (number, done, story)
            assert running is None or number == running, (number, running, story)
            running = number
        else:
            assert number == running, story
            done, running = number, None
    assert done == count - 1, story


@pytest.mark.usefixtures("slow")
async def test_order_holds_while_workers_are_killed_and_drained(place: Place, spawn: Callable[[], Program], tmp_path: Path) -> None:
    """Calls of many sessions that are published at once run in their order, also when their workers die and leave, one after another."""
    chance = random.Random(1)
    workers = [spawn() for _ in range(3)]
    async with place.bus() as bus, ToolBus(settings=place.settings) as other:
        await bus.wait_for_tool("step", timeout=30)
        await other.wait_for_tool("step", timeout=30)
        calls: list[asyncio.Task[object]] = []
        for number in range(CALLS):
            for session in range(SESSIONS):
                # What one agent published was accepted before the other one goes on.
                made = (bus, other)[number // 10 % 2].stream("step", {"number": number}, session=f"s{session}", timeout=90.0)
                await made.__aenter__()
                calls.append(asyncio.create_task(made.result()))
            await eventually(lambda: all(call.entry or call.done for each in (bus, other) for call in each._dispatcher._calls.values()))

        def ended() -> int:
            path = tmp_path / "steps"
            return path.read_text().count("end") if path.exists() else 0

        for turn, least in enumerate((30, 80, 130)):
            await eventually(lambda least=least: ended() >= least, timeout=60.0)  # type: ignore[misc] # bound now
            victim = workers.pop(chance.randrange(len(workers)))
            if turn == 1:
                victim.terminate()
            else:
                victim.kill()
            workers.append(spawn())
        results = await asyncio.gather(*calls)
    assert all(result.success for result in results), [result.error for result in results if not result.success]  # type: ignore[attr-defined]
    for story in lives(tmp_path / "steps").values():
        check(story, CALLS)


async def test_the_next_call_begins_after_the_server_has_accepted_the_end_of_the_one_before(
    place: Place, spawn: Callable[..., Program], tmp_path: Path
) -> None:
    """A worker that dies with an end that nobody else knows has begun nothing behind it, so that no call runs again after a later one."""
    steps = tmp_path / "steps"
    first = spawn("1")
    async with place.bus() as bus:
        await bus.wait_for_tool("step", timeout=30)
        calls = asyncio.gather(*(bus.call("step", {"number": number}, session="s", timeout=60.0) for number in range(4)))
        await eventually(lambda: steps.exists() and "kept" in steps.read_text(), timeout=20.0)
        first.kill()
        spawn()
        assert all(result.success for result in await calls)
    begun = [int(line.split()[2]) for line in steps.read_text().splitlines() if line.startswith("begin")]
    assert begun == [0, 1, 1, 2, 3]
