"""Ends of workers: their grace period, and processes that drain when their parent ends, or that its supervisor has told already."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract import Place
from tests.servers import elapse, eventually
from toolbus import tool
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.process.lifeline import Lifeline
from toolbus.bus.worker.process.supervisor import Supervisor

_WITHIN = 60

# Runs one slow call, tells when it begins to drain, and writes a file when the call has ended.
WORKER = """
import asyncio, sys
from pathlib import Path
from toolbus import ToolBus, Worker, tool
from toolbus.bus.worker.process.lifeline import end_process
from toolbus.bus.worker.process.lifeline import ChildState, report_state, watch_lifeline

line, folder = int(sys.argv[1]), Path(sys.argv[2])

@tool(service="slow", effect="read")
async def slow() -> str:
    \"\"\"Wait until the file is there.\"\"\"
    while not (folder / "go").exists():
        await asyncio.sleep(0.01)
    (folder / "done").touch()
    return "done"

async def main():
    watch_lifeline(line, end_process, 120.0)
    async with ToolBus("memory://", namespace="ending") as bus:
        calls = []
        def opened():
            calls.append(asyncio.create_task(bus.call("slow", wait=True)))
            report_state(line, ChildState(serving=True))
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


@pytest.mark.anyio
@pytest.mark.parametrize("twice", [pytest.param(False, id="parent", marks=pytest.mark.slow), pytest.param(True, id="person")])
async def test_the_end_of_the_parent_is_no_second_signal(tmp_path: Path, twice: bool) -> None:
    """A process that drains finishes its call when its parent ends; a second signal of a person still ends it at once."""
    with Lifeline() as line:
        process = subprocess.Popen([sys.executable, "-c", WORKER, str(line.theirs), str(tmp_path)], pass_fds=(line.theirs,))  # noqa: ASYNC220
        try:
            line.started()
            while not line.read().serving:
                assert select.select([line], [], [], _WITHIN)[0]
            process.send_signal(signal.SIGTERM)
            await eventually((tmp_path / "draining").exists, timeout=_WITHIN)
            if twice:
                process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(process.wait, _WITHIN) == 1
                return
            line.__exit__(None, None, None)
            with pytest.raises(subprocess.TimeoutExpired):
                await asyncio.to_thread(process.wait, 1.0)
            (tmp_path / "go").touch()
            assert await asyncio.to_thread(process.wait, _WITHIN) == 0
            assert (tmp_path / "done").exists()
        finally:
            process.kill()
            process.wait()


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
