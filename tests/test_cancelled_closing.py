"""Opening and closing that is cancelled, at whatever step, or that hangs: nothing stays behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.contract import Place
from tests.servers import eventually
from toolbus import ToolBus, ToolService, tool
from toolbus.bus.values.results import BrokerError
from toolbus.bus.worker import worker as worker_module
from toolbus.bus.worker.worker import NestedBus, Worker

T = TypeVar("T")

pytestmark = pytest.mark.anyio


class CancelledAt:
    """A work whose task is cancelled when it waits for the ``at``-th time; if ``late``, when what it waits for has just come.

    Attributes:
        met: whether it waited so often.
    """

    def __init__(self, work: Awaitable[Any], at: int, *, late: bool) -> None:
        self._work = work
        self._late = late
        self._left = at
        self.met = False

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Any = self._work.__await__()
        error: BaseException | None = None
        while True:
            try:
                waits = steps.send(None) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            error = None
            task = asyncio.current_task()
            if self._left == 0 and task is not None:
                self.met = True
                if self._late and waits is not None:
                    waits.add_done_callback(lambda _, task=task: task.cancel())
                else:
                    task.cancel()
            self._left -= 1
            try:
                yield waits
            except BaseException as raised:
                error = raised


@tool(service="closing", effect="read")
async def echo(text: str) -> str:
    """Give a text back."""
    return text


async def used(bus: ToolBus) -> ToolBus:
    """Return a bus that has been opened and used."""
    await bus.open()
    await bus.call("echo", {"text": "x"}, session="s", timeout=0.01)
    return bus


async def serving(worker: Worker) -> Worker:
    """Return a worker that serves."""
    await worker.open()
    return worker


async def made(thing: T) -> T:
    """Return what is not open yet."""
    return thing


WAYS: dict[str, tuple[Callable[[Place], Awaitable[Any]], Callable[[Any], Awaitable[Any]]]] = {
    "ToolBus.open": (lambda place: made(place.bus()), ToolBus.open),
    "ToolBus.aclose": (lambda place: used(place.bus()), ToolBus.aclose),
    "Worker.open": (lambda place: made(place.worker(echo)), Worker.open),
    "Worker.drain": (lambda place: serving(place.worker(echo)), Worker.drain),
    "NestedBus.get": (lambda place: made(NestedBus(place.bus)), NestedBus.get),
}


def open_things() -> tuple[int, int, int]:
    """Return how many files, threads of leases and tasks there are."""
    threads = [each for each in threading.enumerate() if each.name == "toolbus-leases"]
    return len(list(Path("/dev/fd").iterdir())), len(threads), len(asyncio.all_tasks())


@pytest.mark.few(4)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("late", [False, True])
async def test_nothing_stays_behind_where_it_was_cancelled(place: Place, way: str, late: bool) -> None:
    """Connections, tasks and the thread of the leases end with a cancelled opening or closing, whichever wait it was in."""
    make, act = WAYS[way]

    async def attempt(at: int) -> bool:
        thing = await make(place)
        work = CancelledAt(act(thing), at, late=late)
        task = asyncio.ensure_future(work)
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
            await thing.aclose()
        return work.met

    # What is kept for good is made once.
    assert not await attempt(-1)
    before, at = open_things(), 0
    while await attempt(at):
        await eventually(lambda: all(map(int.__le__, open_things(), before)))
        at += 1
    assert at > 1


async def test_a_drain_that_is_cancelled_gives_no_grace(place: Place) -> None:
    """Handlers that run are stopped at once, before the worker is closed."""
    ran: list[str] = []

    @tool(service="closing", effect="read", replace=True)
    async def linger() -> str:
        """Take a while."""
        ran.append("began")
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            ran.append("stopped")
            raise
        return ""

    worker = place.worker(linger, grace=600.0)
    async with asyncio.timeout(20), place.bus() as bus:
        await worker.open()
        await bus.wait_for_tool("linger")
        call = asyncio.create_task(bus.call("linger"))
        await eventually(lambda: ran)
        draining = asyncio.create_task(worker.drain())
        await eventually(lambda: worker.leaving)
        await asyncio.sleep(0)
        draining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await draining
        assert ran == ["began", "stopped"]
        call.cancel()


class Stuck(ToolService):
    """A service whose clean-up does not end."""

    id = "stuck"

    @tool(effect="read")
    async def stick(self) -> str:
        """Answer."""
        return ""

    async def cleanup(self) -> None:
        """Wait for ever."""
        await asyncio.Event().wait()


@pytest.mark.parametrize("leave", [Worker.drain, lambda worker: worker.withdraw("stuck")])
async def test_a_clean_up_that_hangs_is_bounded(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, leave: Callable[[Worker], Awaitable[None]]
) -> None:
    """A service that does not end in its time is left, and the log names it."""
    monkeypatch.setattr(worker_module, "CLEANUP_WITHIN", 0.05)
    async with asyncio.timeout(8), place.worker(Stuck()) as worker:
        await leave(worker)
    failed = {record.toolbus["service"] for record in caplog.records if record.toolbus["event"] == "service.cleanup_failed"}  # type: ignore[attr-defined]
    assert failed == {"stuck"}


@pytest.mark.parametrize("late", [False, True])
async def test_a_handler_that_outlives_its_worker_opens_no_bus(place: Place, late: bool) -> None:
    """It asks for a bus when the worker has left, or while it leaves."""
    buses: list[ToolBus] = []

    def make() -> ToolBus:
        buses.append(place.bus())
        return buses[-1]

    nested = NestedBus(make)
    if late:
        await nested.aclose()
    asked = asyncio.create_task(nested.get())
    await asyncio.sleep(0)
    await nested.aclose()
    with pytest.raises(BrokerError, match="has left"):
        await asked
    assert not any(bus._dispatcher.is_open for bus in buses)
