"""An autoscaler and the supervisor it resizes: what it counts, which process goes, and what it tells."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from toolbus.bus.worker.process.lifeline import EVERY, Bounds, Load
from toolbus.bus.worker.process.supervisor import Child, Rules, Scaling, resize

RULES = Rules(fall=5.0)


class Processes:
    """A supervisor whose children serve at once, on a clock that a test turns."""

    def __init__(self, bounds: Bounds) -> None:
        self.now = 0.0
        self.children: dict[int, Child] = {}
        self.scaling = Scaling(bounds, RULES)
        self.next = 0
        for _ in range(bounds.least):
            self.add()

    @property
    def wanted(self) -> list[Child]:
        """The children that are to stay."""
        return [*self.children.values()]

    @property
    def slots(self) -> set[int]:
        """Their slots."""
        return {*self.children}

    def add(self) -> None:
        """Start a child."""
        child = self.children[self.next] = Child(self.next)
        child.serve(self.now)
        self.next += 1

    def dismiss(self, slot: int) -> None:
        """Let a child go."""
        del self.children[slot]

    def run(self, turns: int, loads: dict[int, Load] | Load | None) -> None:
        """Let time pass, with the same reports again and again."""
        for _ in range(turns):
            self.now += EVERY
            for child in self.wanted:
                load = loads.get(child.slot) if isinstance(loads, dict) else loads
                if load is not None and child.awaited is None:
                    child.load, child.reported = load, self.now
            resize(self, self.scaling, self.now)


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the changes that were logged."""
    found = [record.__dict__["toolbus"] for record in caplog.records if "supervisor.scaled" in record.getMessage()]
    return [{key: each[key] for key in ("before", "processes")} for each in found]


def test_each_change_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """One event for each step, up and down, with the numbers before and after."""
    with caplog.at_level(logging.INFO, "toolbus"):
        processes = Processes(Bounds(1, 4))
        processes.run(20, Load(full=1.0))
        assert len(processes.slots) == 4
        processes.run(60, Load())
    assert len(processes.slots) == 1
    steps = told(caplog)
    assert steps[0]["before"] == 1
    assert [each["before"] for each in steps[1:]] == [each["processes"] for each in steps[:-1]]
    assert steps[-2:] == [{"before": 4, "processes": 2}, {"before": 2, "processes": 1}]


def test_a_silent_process_counts_as_one_that_is_held() -> None:
    """A held event loop can't tell that it is."""
    processes = Processes(Bounds(1, 2))
    processes.run(20, None)
    assert len(processes.slots) == 2


def test_the_least_busy_process_without_sessions_goes() -> None:
    """Sessions stay with their process, however little it does."""
    processes = Processes(Bounds(3, 3))
    processes.scaling = Scaling(Bounds(1, 3), RULES)
    processes.run(40, {0: Load(sessions=2), 1: Load(slots=10, running=2), 2: Load(slots=10, running=1)})
    assert processes.slots == {0}
    processes.run(40, {0: Load(sessions=1)})
    assert processes.slots == {0}


def test_processes_with_sessions_all_stay() -> None:
    """Nothing is let go while each has a session, and nothing is told."""
    processes = Processes(Bounds(1, 2))
    processes.run(10, Load(full=1.0, sessions=1))
    processes.run(60, Load(sessions=1))
    assert len(processes.slots) == 2


def test_a_process_that_starts_again_puts_decisions_off_for_a_while() -> None:
    """Ten seconds; then the others decide alone."""
    processes = Processes(Bounds(4, 8))
    processes.children[0].end(processes.now)
    processes.run(19, Load(full=1.0))
    assert len(processes.slots) == 4
    processes.run(4, Load(full=1.0))
    assert len(processes.slots) == 5
