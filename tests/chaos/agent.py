"""An agent process of a run: makes its calls when they are due, and writes down what it saw of each."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from tests.chaos.fork_server import Order
from tests.chaos.history import Agent, AnyRecord, Cancelled, Counted, Ended, Issued, Journal, read
from tests.chaos.options import Options
from tests.chaos.plan import POISON, Planned, plan
from toolbus import BrokerError, Call, ToolBus, ToolResult
from toolbus.bus import telemetry
from toolbus.bus.values.options import CallOptions

try:
    from toolbus.bus.values.events import Finished, Reset, Text
    from toolbus.bus.values.events import Started as CallStarted
except ModuleNotFoundError:
    # In a run of two versions this file is imported by the other one as well, where the names may be elsewhere.
    from toolbus import Finished, Reset, Text  # type: ignore[attr-defined,no-redef]
    from toolbus import Started as CallStarted  # type: ignore[attr-defined,no-redef]

_COUNT_EVERY = 2.0


def main(order: Order) -> None:
    """Make the agent's calls, then stay until SIGTERM."""
    asyncio.run(_live(order))


def calls_of(order: Order) -> list[Planned]:
    """The calls that are still this agent's to make: those that its predecessors did not make, or can be found again and had not ended."""
    options = order.options
    everything = plan(options.seed, options.calls, options.agents, poisoned=options.poisoned, timeout=options.timeout, lease=options.lease)
    return still_to_make([call for call in everything if call.agent == order.index], read(Path(order.history), f"agent-{order.index}-*"))


def still_to_make(calls: list[Planned], records: Iterable[AnyRecord]) -> list[Planned]:
    """Return the calls that an agent's predecessors did not make, or that can be found again and had not ended."""
    made: set[str] = set()
    ended: set[str] = set()
    for record in records:
        if isinstance(record, Issued):
            made.add(record.key)
        elif isinstance(record, Ended):
            ended.add(record.key)
    return [call for call in calls if call.key not in (ended if call.shares else made)]


async def _live(order: Order) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    journal = Journal(Path(order.history), order.name, order.pid)
    bus = ToolBus(settings=order.options.settings(order.url))
    while True:
        try:
            await bus.open()
        except BrokerError as error:
            telemetry.log.warning("agent.start_failed", error=str(error))
            await asyncio.sleep(0.2)
        else:
            break
    journal.write(Agent(time.monotonic(), order.index, bus.agent, journal.pid))
    counting = asyncio.create_task(count(journal, bus))
    await make_calls(journal, bus, await asyncio.to_thread(calls_of, order), order.options, order.start)
    (Path(order.logs) / f"{order.name}.idle").touch()
    await told.wait()
    counting.cancel()
    journal.write(_counted(bus))
    await bus.aclose()


async def make_calls(journal: Journal, bus: ToolBus, mine: list[Planned], options: Options, start: float) -> None:
    """Make calls when they are due, ``start`` being the beginning of the run, and write down what became of them."""
    slots = asyncio.Semaphore(options.in_flight)
    made: dict[str, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as tasks:
        for call in mine:
            wait = start + call.due * options.seconds - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            await slots.acquire()
            # What it follows was begun before it, so that it waits in its slot for something that has one.
            task = tasks.create_task(_make(journal, bus, call, after=made.pop(call.follows, None)))
            task.add_done_callback(lambda _: slots.release())
            if call.shares:
                made[call.key] = task


async def count(journal: Journal, bus: ToolBus) -> None:
    """Write down every two seconds what an agent has counted."""
    while True:
        await asyncio.sleep(_COUNT_EVERY)
        journal.write(_counted(bus))


def _counted(bus: ToolBus) -> Counted:
    counts = bus.statistics()
    # The other version may not count them.
    return Counted(time.monotonic(), bus.agent, counts["malformed"], counts.get("early_frames", 0))


async def _make(journal: Journal, bus: ToolBus, planned: Planned, *, after: asyncio.Task[None] | None) -> None:
    if after is not None:
        await after
    journal.write(Issued(time.monotonic(), planned.key, journal.pid))
    began = time.monotonic()
    options: CallOptions = {"user": "chaos", "timeout": planned.timeout, "wait": True}
    if planned.shares:
        options["idempotency_key"] = planned.shares
    if planned.session:
        options["session"] = planned.session
    if planned.streaming:
        await _read(journal, bus.stream(planned.tool, planned.arguments, **options), planned, began)
        return
    if planned.cancel is None:
        result = await bus.call(planned.tool, planned.arguments, **options)
    else:
        result = await _result_until(journal, bus.stream(planned.tool, planned.arguments, **options), planned, planned.cancel)
    journal.write(_ended(journal.pid, planned, result, began))


async def _result_until(journal: Journal, call: Call, planned: Planned, seconds: float) -> ToolResult:
    """The result of a call that is cancelled when it takes longer."""
    timer = asyncio.get_running_loop().call_later(seconds, _cancel, journal, call, planned)
    try:
        return await call.result()
    finally:
        timer.cancel()


def _cancel(journal: Journal, call: Call, planned: Planned) -> None:
    if not call.done:
        journal.write(Cancelled(time.monotonic(), planned.key, journal.pid))
        call.cancel()


async def _read(journal: Journal, call: Call, planned: Planned, began: float) -> None:
    segments: list[list[str]] = [[]]
    pieces = finished = 0
    first = ""
    heard, silence = began, (began, began)
    result: ToolResult | None = None
    # Leaving a stream cancels it.
    with suppress(TimeoutError):
        async with asyncio.timeout(planned.cancel), call:
            async for event in call.events():
                now = time.monotonic()
                if now - heard > silence[1] - silence[0] and first:
                    silence = (heard, now)
                heard = now
                if isinstance(event, Text):
                    segments[-1].append(event.text)
                    pieces += 1
                elif isinstance(event, Reset):
                    segments.append([])
                elif isinstance(event, CallStarted):
                    first = event.worker
                elif isinstance(event, Finished):
                    finished += 1
                    result = event.result
    if result is None:
        journal.write(Cancelled(time.monotonic(), planned.key, journal.pid))
        # One that had not yet been published when its time was up is still to be ended.
        call.cancel()
        result, finished = await call.result(), 1
        if result.success:
            # Its end had come and was not read any more.
            segments = [[result.output or ""]]
    ended = _ended(journal.pid, planned, result, began)
    told = tuple("".join(segment) for segment in segments)
    if planned.tool in POISON:
        told = ()
    journal.write(msgspec.structs.replace(ended, segments=told, pieces=pieces, finished=finished, first=first, silence=silence))


def _ended(pid: int, planned: Planned, result: ToolResult, began: float) -> Ended:
    error = result.error
    return Ended(
        time.monotonic(),
        key=planned.key,
        id=result.meta.id,
        pid=pid,
        began=began,
        success=result.success,
        # A flood is not worth keeping.
        output=None if planned.tool in POISON and error is not None else result.output,
        error="" if error is None else error.type,
        code="" if error is None else error.code,
        message="" if error is None else error.message[:300],
        attempts=result.meta.attempts,
        worker=result.meta.worker,
    )


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Order))
