"""Ends of workers: their grace period, and processes that drain when their parent ends, or that its supervisor has told already."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract import Place
from tests.servers import elapse, eventually
from toolbus import Worker, tool
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker import worker
from toolbus.bus.worker.process.lifeline import Lifeline, end_process
from toolbus.bus.worker.process.supervisor import Supervisor

_WITHIN = 60

# Runs one slow call, tells when it begins to drain, and writes a file when the call has ended.
WORKER = """
import asyncio, sys
from pathlib import Path
from toolbus import ToolBus, Worker, tool
from toolbus.bus.telemetry import configure_logging
from toolbus.bus.worker.process.lifeline import end_process
from toolbus.bus.worker.process.lifeline import ChildState, report_state, watch_lifeline

line, folder = int(sys.argv[1]), Path(sys.argv[2])

@tool(service="slow", effect="read")
async def slow() -> str:
    \"\"\"Wait until the file is there.\"\"\"
    report_state(line, ChildState(serving=True))
    while not (folder / "go").exists():
        await asyncio.sleep(0.01)
    (folder / "done").touch()
    return "done"

async def main():
    configure_logging("info", format="json")
    watch_lifeline(line, end_process, 120.0)
    async with ToolBus("memory://", namespace="ending") as bus:
        calls = []
        def opened():
            calls.append(asyncio.create_task(bus.call("slow", wait=True)))
        await Worker([slow], url="memory://", namespace="ending").run(opened, lambda: (folder / "draining").touch())

asyncio.run(main())
"""

# Counts the signals that it gets, and ends when a file is there.
CHILD = """
import os, signal, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
signals = []
def heard(*_):
    signals.append(1)
    (folder / f"signal{len(signals)}").touch()
signal.signal(signal.SIGTERM, heard)
os.write(int(sys.argv[-1]), b'{"serving":true}\\n')
while not (folder / "go").exists():
    time.sleep(0.01)
"""


class Draining:
    """A process that runs ``WORKER``, and its line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.line = Lifeline()
        words = (sys.executable, "-c", WORKER, str(self.line.theirs), str(folder))
        self.process = subprocess.Popen(words, pass_fds=(self.line.theirs,), stderr=subprocess.PIPE, text=True)
        self.line.started()
        while not self.line.read().serving:
            assert select.select([self.line], [], [], _WITHIN)[0]

    async def drains(self) -> None:
        """Wait until it drains."""
        await eventually((self.folder / "draining").exists, timeout=_WITHIN)

    async def goes_on(self) -> None:
        """Check that it still waits for its call, let that end, and check that the process ends well."""
        with pytest.raises(subprocess.TimeoutExpired):
            await asyncio.to_thread(self.process.wait, 1.0)
        (self.folder / "go").touch()
        assert await asyncio.to_thread(self.process.wait, _WITHIN) == 0
        assert (self.folder / "done").exists()


@pytest.fixture
def draining(tmp_path: Path) -> Iterator[Draining]:
    """Provide a process that serves, and has a call that runs until it may end."""
    made = Draining(tmp_path)
    with made.line:
        yield made
    made.process.kill()
    made.process.communicate()


@pytest.mark.anyio
@pytest.mark.slow
async def test_the_end_of_the_parent_is_no_second_signal(draining: Draining) -> None:
    """A process that drains finishes its call when its parent ends."""
    draining.process.send_signal(signal.SIGTERM)
    await draining.drains()
    draining.line.__exit__(None, None, None)
    await draining.goes_on()


@pytest.mark.anyio
async def test_signals_that_come_together_are_one(draining: Draining) -> None:
    """A worker that is signalled twice within a moment drains: supervisors and terminals signal a process and its group."""
    for number in (signal.SIGTERM, signal.SIGINT):
        draining.process.send_signal(number)
    await draining.drains()
    await draining.goes_on()


@pytest.mark.anyio
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
async def test_a_later_signal_ends_a_worker_at_once(draining: Draining, number: signal.Signals) -> None:
    """The exit code is 1, and the log says last why."""
    draining.process.send_signal(number)
    await draining.drains()
    # Within half a second it is the same signal.
    await elapse(0.6)
    draining.process.send_signal(number)
    _, logged = await asyncio.to_thread(draining.process.communicate, timeout=_WITHIN)
    assert draining.process.returncode == 1
    last = json.loads(logged.splitlines()[-1])
    assert (last["event"], last["level"], last["running"]) == ("worker.killed", "warning", 1)
    assert not (draining.folder / "done").exists()


# Ends at a signal, and is signalled once more when it has ended its event loop.
ENDING = """
import asyncio, os, signal, sys, time
from toolbus.bus.worker.process.lifeline import ended_by

async def main():
    stop = asyncio.Event()
    with ended_by(stop.set, stop.set):
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()

asyncio.run(main())
time.sleep(float(sys.argv[1]))
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(("after", "code"), [(0.0, 0), (0.6, -signal.SIGTERM)])
def test_a_repeated_signal_spares_a_process_that_has_all_but_ended(after: float, code: int) -> None:
    """Its exit code stays 0, though its event loop hears no signals any more; after half a second they end it as they end any program."""
    assert subprocess.run([sys.executable, "-c", ENDING, str(after)], timeout=_WITHIN, check=False).returncode == code


@pytest.mark.anyio
async def test_a_child_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload that waits for a child's drain, and then the end of everything, are one signal for the child."""
    served = asyncio.Event()
    supervisor = Supervisor([sys.executable, "-c", CHILD, str(tmp_path)], os.environ, Settings.load({}, grace=60.0), complain=pytest.fail)
    monkeypatch.setattr(supervisor, "retire", pytest.fail)
    running = asyncio.create_task(supervisor.supervise(served.set))
    await asyncio.wait_for(served.wait(), _WITHIN)
    [child] = supervisor.children.values()
    reloading = asyncio.create_task(supervisor._end(child))
    await eventually((tmp_path / "signal1").exists, timeout=_WITHIN)
    supervisor.stop()
    # Its keeper has heard of the end, and would have sent its signal, by then.
    await elapse(0.4)
    (tmp_path / "go").touch()
    await reloading
    assert await running == 0
    assert not (tmp_path / "signal2").exists()


@pytest.mark.anyio
async def test_the_grace_period_begins_with_the_drain(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last worker of a revision, which first lets its calls be taken, has no longer than another one."""

    @tool(service="endings", replace=True)
    def end() -> str:
        """Answer."""
        return "done"

    async with place.worker(end, grace=60.0) as worker:
        slots, now, stopped = worker._slots, 1000.0, list[float]()
        assert slots is not None

        async def outlive(seconds: float) -> None:
            nonlocal now
            now += seconds

        monkeypatch.setattr(slots, "clock", lambda: now)
        monkeypatch.setattr(worker.broker, "outlive", outlive)
        stop = slots.stop
        monkeypatch.setattr(slots, "stop", lambda grace_ends: (stopped.append(grace_ends), stop(grace_ends)))
        await worker.drain()
    assert (now, stopped) == (1030.0, [1060.0])


@tool(service="first", effect="read")
async def first() -> str:
    """Answer."""
    return "first"


@tool(service="second", effect="read")
async def second() -> str:
    """Answer."""
    return "second"


@pytest.mark.anyio
async def test_an_end_between_two_publications_is_a_drain(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of the first service may run by then, so that the start is not broken off."""
    publish, published, drained = worker._publish, list[object](), list[bool]()

    async def told_before_the_second(broker: Any, served: Any) -> None:
        if published:
            end_process()
            await asyncio.sleep(0)
        published.append(served)
        await publish(broker, served)

    monkeypatch.setattr(worker, "_publish", told_before_the_second)
    await Worker([first, second], settings=place.settings).run(on_drain=lambda: drained.append(True))
    assert (len(published), drained) == (2, [True])
