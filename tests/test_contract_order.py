"""The order of a sticky session's calls, over every transport: that in which they were published, whoever takes them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.client.executing import chat
from tests.contract import Place
from tests.servers import eventually
from toolbus import Retry, ToolError, ToolService, invocation, tool

pytestmark = pytest.mark.anyio

RNG = random.Random(3)


class Steps(ToolService):
    """Writes down which step of which session ran, in a book that all workers of a test share."""

    id = "steps"
    sticky_sessions = True

    def __init__(self, book: list[tuple[str, int]], name: str = "") -> None:
        self.book = book
        self.name = name
        self.running: dict[str, int] = {}
        self.most = 0
        self.go = asyncio.Event()
        self.failures = 0

    @tool(effect="read")
    async def step(self, number: int) -> str:
        """Take a step."""
        session = invocation().session
        running = self.running[session] = self.running.get(session, 0) + 1
        self.most = max(self.most, running)
        await asyncio.sleep(RNG.uniform(0, 0.003))
        self.book.append((session, number))
        self.running[session] -= 1
        return f"{number}"

    @tool(effect="read")
    async def hold(self) -> str:
        """Run until the test says so."""
        self.book.append((invocation().session, -1))
        await self.go.wait()
        return "held"

    @tool(effect="read", sequential=False)
    async def beside(self) -> str:
        """Run beside the others."""
        return "beside"

    @tool(effect="idempotent", retry=Retry(attempts=3, delay=0.05, jitter=0.0))
    async def shaky(self, number: int) -> str:
        """Fail at first."""
        self.failures += 1
        if self.failures < 3:
            raise ToolError("not yet", retryable=True)
        return await self.step(number)

    @tool(effect="idempotent", retry=Retry(attempts=1000, delay=0.1, most=0.2, jitter=0.0))
    async def broken(self) -> str:
        """Fail."""
        raise ToolError("not yet", retryable=True)

    @tool(effect="read")
    async def nested(self, number: int) -> str:
        """Take a step by another call of this session."""
        return str((await invocation().call("step", {"number": number})).output)


def steps_of(book: list[tuple[str, int]], session: str) -> list[int]:
    """The steps of one session, as they ran."""
    return [number for name, number in book if name == session]


async def test_calls_of_a_session_run_in_the_order_of_their_publication(place: Place) -> None:
    """Several agents, workers and sessions at once: calls of one session run one by one in order, and sessions side by side."""
    book: list[tuple[str, int]] = []
    services = [Steps(book, str(number)) for number in range(3)]
    workers = [place.worker(service, concurrency=4) for service in services]
    async with workers[0], workers[1], workers[2], place.bus() as bus, place.bus() as other:
        await bus.wait_for_tool("step")
        await other.wait_for_tool("step")

        async def converse(session: str) -> None:
            for turn in range(4):
                view = (bus if turn % 2 else other).bind(session=session, user="ann")
                calls = [view.call("step", {"number": turn * 10 + number}) for number in range(10)]
                assert all(result.success for result in await asyncio.gather(*calls))

        await asyncio.gather(*(converse(f"s{number}") for number in range(12)))
        for number in range(12):
            assert steps_of(book, f"s{number}") == list(range(40))
        assert max(service.most for service in services) == 1
        for worker in workers:
            await eventually(lambda worker=worker: len(worker._opened()._lines) == 0)  # type: ignore[misc] # bound now


async def test_a_turn_of_a_model_runs_in_its_order_by_default(place: Place) -> None:
    """``mkdir``, then ``cd``: in one turn, and where each call has a turn of its own."""
    book: list[tuple[str, int]] = []
    async with place.worker(Steps(book)), place.worker(Steps(book)), place.bus() as bus:
        await bus.wait_for_tool("step")
        executor = bus.executor(session="s")
        made = await executor.process_tool_calls([chat(f"c{i}", "step", {"number": i}) for i in range(12)])
        assert [each["content"] for each in made] == [f"{i}" for i in range(12)]
        await asyncio.gather(*(executor.execute("step", {"number": 12 + i}) for i in range(12)))
        assert steps_of(book, "s") == list(range(24))


async def test_a_call_that_waits_for_its_turn_takes_no_slot(place: Place) -> None:
    """With one slot beside the running call, other sessions and calls that are in no order go on."""
    book: list[tuple[str, int]] = []
    service = Steps(book)
    async with place.serving(service, concurrency=2) as bus:
        await bus.wait_for_tool("hold")
        held = asyncio.create_task(bus.call("hold", session="s"))
        await eventually(lambda: book)
        waiting = [asyncio.create_task(bus.call("step", {"number": number}, session="s")) for number in range(20)]
        assert (await bus.call("step", {"number": 7}, session="other")).success
        assert (await bus.call("beside", session="s")).output == "beside"
        assert not any(task.done() for task in waiting)
        service.go.set()
        assert (await held).success
        await asyncio.gather(*waiting)
        assert steps_of(book, "s") == [-1, *range(20)]


async def test_waiting_calls_can_be_cancelled_and_expire(place: Place) -> None:
    """A call that is given up while it waits never runs, and the calls behind it go on in order."""
    book: list[tuple[str, int]] = []
    service = Steps(book)
    async with place.serving(service, concurrency=4) as bus:
        await bus.wait_for_tool("hold")
        held = asyncio.create_task(bus.call("hold", session="s"))
        await eventually(lambda: book)
        tasks = [asyncio.create_task(bus.call("step", {"number": number}, session="s")) for number in range(4)]
        late = asyncio.create_task(bus.call("step", {"number": 9}, session="s", timeout=0.3))
        last = asyncio.create_task(bus.call("step", {"number": 5}, session="s"))
        error = (await late).error
        assert error is not None
        assert error.type == "deadline_exceeded"
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        service.go.set()
        await asyncio.gather(held, tasks[0], tasks[2], tasks[3], last)
        assert steps_of(book, "s") == [-1, 0, 2, 3, 5]


async def test_a_call_that_waits_for_its_turn_uses_no_attempt(place: Place) -> None:
    """More workers than ``max_deliveries`` die while it waits, none of which had begun it, and then it runs; its own runs count."""
    service = Steps([])
    worker = place.worker(service, concurrency=4, lease=0.5, max_deliveries=4)
    async with worker, place.bus() as bus:
        await bus.wait_for_tool("hold")
        slots = worker._opened()
        steps = slots.broker.steps
        held = asyncio.create_task(bus.call("hold", session="s"))
        waiting = asyncio.create_task(bus.call("step", {"number": 1}, session="s"))
        stream = steps.streams["steps"]
        await eventually(lambda: len(stream.held) == 2)
        [*_, entry] = stream.held

        async def is_here() -> bool:
            [[_, owner, _, _]] = await steps.link.execute("XPENDING", stream.key, "g", entry, entry, 1)
            mine = stream.held.get(entry)
            return bool(owner.decode() == stream.consumer and not slots._counting and mine and mine.excused)

        for number in range(6):
            [[_, _, _, attempt]] = await steps.link.execute("XPENDING", stream.key, "g", entry, entry, 1)
            await steps.link.execute("HSET", stream.fence, f"c:{stream.consumer}", f"moved {number}")
            await steps.link.execute("XCLAIM", stream.key, "g", f"dead{number}", 0, entry, "RETRYCOUNT", attempt)
            await eventually(is_here, timeout=10.0)
        assert stream.held[entry].tries == 1
        service.go.set()
        assert (await held).success
        assert (await waiting).output == "1"
        assert steps_of(service.book, "s") == [-1, 1]


async def test_a_call_that_is_tried_again_keeps_its_place(place: Place) -> None:
    """The calls behind it wait for its last attempt."""
    book: list[tuple[str, int]] = []
    async with place.serving(Steps(book), concurrency=4) as bus:
        await bus.wait_for_tool("shaky")
        view = bus.bind(session="s")
        await asyncio.gather(view.call("shaky", {"number": 0}), *(view.call("step", {"number": number}) for number in range(1, 6)))
        assert steps_of(book, "s") == list(range(6))


@pytest.mark.parametrize("end", ["deadline", "cancel", "close"])
async def test_a_session_goes_on_after_a_retry_that_ended_while_it_waited_for_a_slot(place: Place, end: str) -> None:
    """The time of the waiting attempt is up, its caller cancels it or goes away: the calls behind it run."""
    book: list[tuple[str, int]] = []
    service = Steps(book)
    worker = place.worker(service, concurrency=1, max_deliveries=1000)
    caller = place.bus()
    async with worker, place.bus() as bus:
        await caller.open()
        await bus.wait_for_tool("hold")
        await caller.wait_for_tool("broken")
        waiting = worker._opened()._waiting
        broken = asyncio.create_task(caller.call("broken", session="s", timeout=60))
        await eventually(lambda: len(waiting) > 0)
        held = asyncio.create_task(bus.call("hold", session="other", timeout=60))
        await eventually(lambda: book and waiting.due)
        behind = asyncio.create_task(bus.call("step", {"number": 0}, session="s", timeout=30))
        if end == "deadline":
            waiting.due[0].deadline = 0.0
        elif end == "cancel":
            broken.cancel()
            await eventually(lambda: not waiting.due)
        else:
            await caller.aclose()
            await eventually(lambda: not waiting.due)
        service.go.set()
        assert (await held).success
        assert (await behind).success
        assert (await bus.call("step", {"number": 1}, session="s", timeout=30)).success
        assert steps_of(book, "s") == [0, 1]
        await asyncio.wait([broken])
        await caller.aclose()


async def test_failed_calls_are_not_waited_for(place: Place) -> None:
    """A call that is refused or fails ends its turn."""
    book: list[tuple[str, int]] = []
    async with place.serving(Steps(book), concurrency=4) as bus:
        await bus.wait_for_tool("step")
        view = bus.bind(session="s")
        refused: Any = {"number": "x", "no": 1}
        results = await asyncio.gather(
            view.call("step", {"number": 0}), bus.service("steps").call("", {}, refused, session="s"), view.call("step", {"number": 1})
        )
        assert [result.success for result in results] == [True, False, True]
        assert steps_of(book, "s") == [0, 1]


async def test_a_handler_may_call_its_own_session(place: Place) -> None:
    """Its call is a part of its own, and does not wait for it to end."""
    book: list[tuple[str, int]] = []
    async with place.serving(Steps(book), concurrency=4) as bus:
        await bus.wait_for_tool("nested")
        view = bus.bind(session="s", timeout=20)
        results = await asyncio.gather(view.call("nested", {"number": 0}), view.call("step", {"number": 1}))
        assert [result.output for result in results] == ["0", "1"]
        assert steps_of(book, "s") == [0, 1]


async def test_a_closed_session_leaves_nobody_waiting(place: Place) -> None:
    """Calls of other agents that wait in a session that is closed end, and the session can be used again."""
    book: list[tuple[str, int]] = []
    service = Steps(book)
    async with place.serving(service, concurrency=4) as bus, place.bus() as other:
        await other.wait_for_tool("hold")
        held = asyncio.create_task(bus.call("hold", session="s"))
        await eventually(lambda: book)
        waiting = [asyncio.create_task(other.call("step", {"number": number}, session="s")) for number in range(3)]
        await eventually(lambda: other.statistics()["in_flight"] == 3)
        assert (await other.call("step", {"number": 0}, session="o")).success
        await bus.bind(session="s").close_session()
        codes = [result.error.code if result.error else "" for result in await asyncio.gather(held, *waiting)]
        # The agent cancels its own call first: until its service hears of the close, the others have their turn.
        assert codes[0] == "session_closed"
        assert set(codes) <= {"session_closed", ""}
        assert (await bus.call("step", {"number": 4}, session="s")).success


async def test_a_drained_worker_keeps_the_order(place: Place) -> None:
    """Calls that go to another worker wait for those that the leaving one still runs."""
    book: list[tuple[str, int]] = []
    first, second = Steps(book, "first"), Steps(book, "second")
    leaving = place.worker(first, concurrency=4, grace=20)
    async with leaving, place.bus() as bus:
        await bus.wait_for_tool("hold")
        held = asyncio.create_task(bus.call("hold", session="s"))
        await eventually(lambda: book)
        waiting = [asyncio.create_task(bus.call("step", {"number": number}, session="s")) for number in range(5)]
        async with place.worker(second, concurrency=4):
            drain = asyncio.create_task(leaving.drain())
            await eventually(lambda: bus.statistics()["in_flight"] == 6)
            assert (await bus.call("step", {"number": 0}, session="o")).success
            assert steps_of(book, "s") == [-1]
            first.go.set()
            results = await asyncio.gather(held, *waiting)
            assert all(result.success for result in results), results
            await drain
            assert steps_of(book, "s") == [-1, *range(5)]


async def test_keyed_calls_keep_the_order_too(place: Place) -> None:
    """Calls with idempotency keys are in one order with those without, and a joined call takes no further place."""
    book: list[tuple[str, int]] = []
    async with place.worker(Steps(book)), place.serving(Steps(book), concurrency=4) as bus:
        await bus.wait_for_tool("step")
        view = bus.bind(session="s")
        calls = [view.call("step", {"number": number}, **({"idempotency_key": f"k{number}"} if number % 3 else {})) for number in range(12)]
        again = view.call("step", {"number": 1}, idempotency_key="k1")
        results = await asyncio.gather(*calls, again)
        assert all(result.success for result in results), results
        assert steps_of(book, "s") == list(range(12))
