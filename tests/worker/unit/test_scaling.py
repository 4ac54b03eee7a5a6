"""The number of worker processes that the load asks for: its bounds, its pace, and that it comes to rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbus.bus.worker.process.lifeline import EVERY, TICK, Bounds, Load, LoadMeter
from toolbus.bus.worker.process.supervisor import RULES, Scaling, backlog_of

SHARE = st.floats(0, 1)
LOADS = st.builds(
    Load,
    slots=st.integers(1, 100),
    running=st.floats(0, 100),
    held=st.integers(0, 200),
    full=SHARE,
    blocked=SHARE,
    cpu=st.floats(0, 8),
    depth=st.integers(-1, 10_000),
)
BOUNDS = st.tuples(st.integers(1, 16), st.integers(0, 48)).map(lambda pair: Bounds(pair[0], sum(pair)))


def history(bounds: Bounds, loads: Callable[[float, int], list[Load]], seconds: float) -> list[int]:
    """Return the numbers of processes over a time, two decisions a second."""
    scaling, processes, found = Scaling(bounds), bounds.least, [bounds.least]
    for turn in range(int(seconds / EVERY)):
        processes = scaling.decide(turn * EVERY, processes, loads(turn * EVERY, processes)).processes
        found.append(processes)
    return found


def changes(numbers: list[int]) -> list[int]:
    """Return the steps from one number to another."""
    return [after - before for before, after in pairwise(numbers) if after != before]


def spread(demand: float) -> Callable[[float, int], list[Load]]:
    """Return the loads of processes that share a demand evenly, each of which can be in use only once."""
    return lambda _, processes: [Load(blocked=min(1.0, demand / processes))] * processes


@pytest.mark.usefixtures("slow")
@given(BOUNDS, st.lists(st.lists(LOADS, max_size=8), min_size=1, max_size=80))
def test_the_number_keeps_to_its_bounds_and_to_its_pace(bounds: Bounds, turns: list[list[Load]]) -> None:
    """No reports make it leave its bounds, more than double, or fall below half."""
    scaling, processes = Scaling(bounds), bounds.least
    for turn, loads in enumerate(turns):
        wanted = scaling.decide(turn * EVERY, processes, loads).processes
        assert bounds.least <= wanted <= bounds.most
        assert processes / 2 <= wanted <= processes * RULES.growth
        processes = wanted


@pytest.mark.usefixtures("slow")
@given(BOUNDS, st.floats(0, 64))
def test_a_steady_demand_is_followed_once_and_in_one_direction(bounds: Bounds, demand: float) -> None:
    """From the fewest, the number only grows, in few steps, and then stays; no process is in use more than it should be unless all run."""
    numbers = history(bounds, spread(demand), 300)
    steps = changes(numbers)
    assert all(step > 0 for step in steps)
    assert len(steps) <= 6 + 3 * math.log2(bounds.most)
    assert len(set(numbers[-100:])) == 1
    assert numbers[-1] == bounds.most or demand / numbers[-1] <= RULES.high + 1e-6


@pytest.mark.usefixtures("slow")
@given(st.integers(2, 32), st.floats(0, 32))
def test_a_demand_that_has_fallen_is_followed_without_a_way_back(most: int, demand: float) -> None:
    """After a peak the number only falls, and what then runs is in use neither too much nor, above one process, too little."""
    scaling, processes, numbers = Scaling(Bounds(1, most)), most, [most]
    for turn in range(600):
        loads = spread(min(demand, most * RULES.high))(0, processes)
        processes = scaling.decide(turn * EVERY, processes, loads).processes
        numbers.append(processes)
    assert all(step < 0 for step in changes(numbers))
    assert min(demand, most * RULES.high) / processes <= RULES.high + 1e-6


@given(st.integers(1, 58))
def test_a_pause_of_less_than_half_a_minute_changes_nothing(pause: int) -> None:
    """Load that comes and goes keeps the processes that its peaks need."""

    def loads(now: float, processes: int) -> list[Load]:
        busy = int(now / EVERY) % (pause + 4) < 4
        return [Load(blocked=0.6 if busy else 0.0)] * processes

    scaling = Scaling(Bounds(1, 8))
    assert {scaling.decide(turn * EVERY, 4, loads(turn * EVERY, 4)).processes for turn in range(400)} <= {4}


def test_a_moment_of_load_starts_nothing() -> None:
    """A peak of less than a second is over before a process would serve."""
    assert history(Bounds(1, 8), lambda now, processes: [Load(full=float(now == 2.0))] * processes, 20) == [1] * 41


def test_nothing_changes_while_a_process_starts() -> None:
    """Its share of the load is not known yet."""
    scaling = Scaling(Bounds(1, 8))
    assert {scaling.decide(turn * EVERY, 2, [Load(full=1.0)], starting=True).processes for turn in range(200)} == {2}
    assert scaling.decide(100.0, 2, [Load(full=1.0)] * 2).processes == 2
    assert scaling.decide(101.0, 2, [Load(full=1.0)] * 2).processes == 3


def test_a_backlog_doubles_the_processes() -> None:
    """Calls that wait for a slot ask for more than full slots do, and each step at most doubles."""
    waiting = Load(slots=10, running=10, held=10, full=1.0, depth=500)
    assert changes(history(Bounds(1, 8), lambda _, processes: [waiting] * processes, 20)) == [1, 2, 4]


def test_what_others_run_is_no_backlog() -> None:
    """With a free slot here, what the stream holds beyond these processes is with workers elsewhere."""
    assert backlog_of([Load(slots=10, running=4, held=4, depth=40)]) == 0
    assert backlog_of([Load(slots=10, full=0.2, held=10, depth=40), Load(full=1.0, held=10, depth=-1)]) == 20
    assert backlog_of([]) == 0


@given(LOADS)
def test_a_load_survives_its_report(load: Load) -> None:
    """A report is read as it was written, and no process is in use more than once."""
    assert msgspec.json.decode(msgspec.json.encode(load), type=Load) == load
    assert 0 <= load.use <= 1


class Counted:
    """A worker with counts that a test sets."""

    def __init__(self) -> None:
        self.counts = {"running": 0, "free": 4, "sessions": 0, "held": 0, "finished": 0, "depth": 0}

    def statistics(self) -> dict[str, int]:
        """Return the counts."""
        return self.counts


class Metered:
    """A meter on a clock that a test turns."""

    def __init__(self) -> None:
        self.worker = Counted()
        self.now = self.used = self.queued = 0.0
        self.meter = LoadMeter(self.worker.statistics, lambda: self.now, lambda: self.used, lambda: self.queued)

    def sample(self, late: float = 0.0, queued: float = 0.0) -> None:
        """Take a sample that comes late, with a time for which the loop waited for a processor."""
        # A little more than due, so that no error of rounding counts.
        self.now += TICK + late + 1e-9
        self.queued += queued
        self.meter.sample()


def test_a_meter_tells_the_shares_of_the_time_since_the_last_report() -> None:
    """Calls on average, time without a free slot, a core's share, and what the worker holds; then it begins anew."""
    metered = Metered()
    metered.worker.counts |= {"running": 4, "free": 0, "held": 6, "finished": 3, "depth": 20, "sessions": 1}
    for _ in range(10):
        metered.sample()
    assert not metered.meter.due
    metered.worker.counts |= {"running": 2, "free": 2}
    metered.used = 0.2
    for _ in range(15):
        metered.sample()
    assert metered.meter.due
    assert metered.meter.report() == Load(slots=4, running=2.8, sessions=1, held=6, full=0.4, cpu=0.4, depth=20)
    metered.sample()
    again = metered.meter.report()
    assert (again.full, again.running, again.blocked, again.cpu, again.depth) == (0.0, 2.0, 0.0, 0.0, -1)


@pytest.mark.parametrize(
    ("late", "queued", "blocked"),
    [
        ([0.0] * 25, [0.0] * 25, 0.0),
        ([0.004] * 25, [0.0] * 25, 0.0),  # what a loop that is only busy does
        ([0.015] * 14, [0.0] * 14, 1.0),  # calls that hold it for a moment, again and again
        ([0.48], [0.0], 1.0),  # one that holds it for long
        ([0.24] + [0.0] * 12, [0.0] * 13, 0.52),
        ([0.48], [0.48], 0.0),  # no processor was free
        ([0.48], [0.24], 0.52),
    ],
)
def test_a_loop_that_is_held_is_measured(late: list[float], queued: list[float], blocked: float) -> None:
    """By the share of the samples that were held up, however long each hold is; time without a processor is not counted."""
    metered = Metered()
    for each, waited in zip(late, queued, strict=True):
        metered.sample(each, waited)
    assert metered.meter.report().blocked == blocked
