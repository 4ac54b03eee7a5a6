"""A supervisor whose number of children changes while it runs."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from tests.servers import eventually
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.process.lifeline import ChildState, Load
from toolbus.bus.worker.process.supervisor import Supervisor

# Tells that it serves and how busy it is, and ends in order when it is told to; it takes the descriptor as its last argument.
CHILD = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
line = int(sys.argv[-1])
os.write(line, b'{"serving":true}\\n')
os.write(line, b'{"load":{"slots":7,"running":3.5}}\\n')
while True:
    time.sleep(60)
"""


@pytest.mark.anyio
async def test_children_are_added_and_dismissed_while_others_run() -> None:
    """One that is dismissed ends in order and is not started again; each serves once, and its reports are passed on."""
    retired: list[ChildState] = []
    stopping: list[bool] = []

    class Observed(Supervisor):
        async def retire(self, state: ChildState) -> None:
            retired.append(state)

        @property
        def loads(self) -> list[Load]:
            return [child.load for child in self.children.values() if child.reported and child.load != Load()]

        @property
        def slots(self) -> list[int]:
            return [child.slot for child in self.wanted]

    served: list[bool] = []
    supervisor = Observed([sys.executable, "-c", CHILD], os.environ, Settings.load({}, grace=30.0), complain=pytest.fail)
    supervisor.add()
    assert not supervisor.slots
    running = asyncio.create_task(supervisor.supervise(lambda: served.append(True), lambda: stopping.append(True)))
    await eventually(lambda: len(supervisor.loads) == 1, timeout=60)
    assert supervisor.slots == [0]
    supervisor.add()
    supervisor.add()
    await eventually(lambda: len(supervisor.loads) == 3, timeout=60)
    assert set(supervisor.loads) == {Load(slots=7, running=3.5)}
    assert [(child.starts, child.awaited, child.state.serving) for child in supervisor.children.values()] == [(1, None, True)] * 3
    [first, second, third] = supervisor.slots
    supervisor.dismiss(second)
    assert supervisor.slots == [first, third]
    await eventually(lambda: second not in supervisor.children, timeout=60)
    assert [*supervisor.children] == [first, third]
    assert (running.done(), stopping) == (False, [])
    supervisor.stop()
    assert await running == 0
    supervisor.add()
    supervisor.dismiss(first)
    assert (supervisor.added, supervisor.dismissed, supervisor.restarts, retired) == (3, 1, 0, [])
    assert (supervisor.children, served, stopping) == ({}, [True], [True])
