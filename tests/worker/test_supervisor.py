"""A supervisor whose number of children changes while it runs."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from tests.servers import eventually
from toolbus.bus.worker.process.lifeline import Told
from toolbus.bus.worker.process.load import Load
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


class Listener:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.served: set[int] = set()
        self.loads: dict[int, Load] = {}
        self.sizes: list[int] = []
        self.gone: list[int] = []
        self.restarts = 0

    def serving(self, slot: int, told: Told) -> None:
        """Keep a slot that serves."""
        assert slot not in self.served
        assert told.serving
        self.served.add(slot)

    def ended(self, slot: int) -> None:
        """Keep a slot."""
        self.gone.append(slot)

    def restarting(self) -> None:
        """Count."""
        self.restarts += 1

    def reported(self, slot: int, load: Load) -> None:
        """Keep a load."""
        self.loads[slot] = load

    def resized(self, slots: frozenset[int]) -> None:
        """Keep a number."""
        self.sizes.append(len(slots))


@pytest.mark.anyio
async def test_children_are_added_and_dismissed_while_others_run() -> None:
    """One that is dismissed ends in order and is not started again; each serves once, and its reports are passed on."""
    retired: list[Told] = []

    async def retire(told: Told) -> None:
        retired.append(told)

    watcher = Listener()
    command = [sys.executable, "-c", CHILD]
    supervisor = Supervisor(command, os.environ, processes=1, grace=30.0, retire=retire, complain=pytest.fail, watchers=[watcher])
    supervisor.add()
    assert not supervisor.slots
    running = asyncio.create_task(supervisor.supervise())
    await eventually(lambda: len(watcher.loads) == 1, timeout=60)
    supervisor.add()
    supervisor.add()
    await eventually(lambda: len(watcher.loads) == 3, timeout=60)
    assert set(watcher.loads.values()) == {Load(slots=7, running=3.5)}
    [first, second, third] = sorted(supervisor.slots)
    supervisor.dismiss(second)
    await eventually(lambda: watcher.gone == [second], timeout=60)
    assert supervisor.slots == {first, third}
    assert not running.done()
    supervisor.stop()
    assert await running == 0
    supervisor.add()
    supervisor.dismiss(first)
    assert (watcher.sizes, watcher.restarts, retired) == ([1, 2, 3, 2], 0, [])
    assert sorted(watcher.gone) == [first, second, third]
