"""One timer for many deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbus.bus.support.deadlines import Deadlines


class Timer:
    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """A loop's clock and timers, turned by hand; it may wake timers a little early, as loops do."""

    def __init__(self, early: float = 0.0) -> None:
        self.now = 100.0
        self.early = early
        self.timers: list[Timer] = []
        self.errors: list[BaseException] = []

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context["exception"])

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(when, callback))
        return self.timers[-1]

    @property
    def pending(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.cancelled]

    def turn_to(self, end: float) -> None:
        """Run every timer that is due until ``end``, at its time."""
        while due := [timer for timer in self.pending if timer.when <= end]:
            timer = min(due, key=lambda each: each.when)
            self.timers.remove(timer)
            self.now = max(self.now, timer.when - self.early)
            timer.callback()
        self.now = max(self.now, end)


def made(clock: Clock, tick: float = 0.02) -> Deadlines:
    loop: Any = clock
    return Deadlines(loop, tick)


@given(st.lists(st.floats(0, 50, allow_nan=False), max_size=30), st.sampled_from([0.0, 1e-9, 0.001]))
def test_calls_back_on_time(delays: list[float], early: float) -> None:
    """Each callback runs exactly once, not before its time and at most two ticks after it, in the order of the slots."""
    clock = Clock(early)
    deadlines = made(clock)
    called: list[tuple[int, float]] = []
    for index, delay in enumerate(delays):
        deadlines.add(100.0 + delay, index, lambda index=index: called.append((index, clock.now)))  # type: ignore[misc]
    assert len(deadlines) == len(delays)
    clock.turn_to(200.0)
    assert sorted(index for index, _ in called) == list(range(len(delays)))
    for index, when in called:
        assert 100.0 + delays[index] - early <= when <= 100.0 + delays[index] + 0.04
    assert len(deadlines) == 0
    assert (clock.pending, clock.errors) == ([], [])


@pytest.mark.usefixtures("slow")
def test_there_is_one_timer_for_the_earliest() -> None:
    """One timer waits for the earliest of any number of deadlines; without deadlines there is no timer."""
    clock = Clock()
    deadlines = made(clock)
    assert clock.pending == []
    for delay in (5.0, 3.0, 4.0, 3.0):
        deadlines.add(100.0 + delay, object(), lambda: None)
    (timer,) = clock.pending
    assert 103.0 <= timer.when <= 103.04


def test_removed_deadline_is_not_called() -> None:
    """remove() forgets a deadline; removing it twice, or one that never was, does nothing."""
    clock = Clock()
    deadlines = made(clock)
    called: list[str] = []
    slot = deadlines.add(101.0, "a", lambda: called.append("a"))
    deadlines.add(101.0, "b", lambda: called.append("b"))
    deadlines.remove(slot, "a")
    deadlines.remove(slot, "a")
    deadlines.remove(12345, "never")
    assert len(deadlines) == 1
    clock.turn_to(110.0)
    assert called == ["b"]


def test_past_deadline_is_called_at_the_next_turn() -> None:
    """A deadline that has already passed is called by the loop, not inside add()."""
    clock = Clock()
    deadlines = made(clock)
    called: list[float] = []
    deadlines.add(50.0, "late", lambda: called.append(clock.now))
    assert called == []
    clock.turn_to(100.1)
    assert len(called) == 1


@pytest.mark.usefixtures("slow")
def test_callback_may_add_and_remove() -> None:
    """A callback may add new deadlines and remove others of later slots."""
    clock = Clock()
    deadlines = made(clock)
    called: list[str] = []
    later = deadlines.add(105.0, "later", lambda: called.append("later"))

    def first() -> None:
        called.append("first")
        deadlines.remove(later, "later")
        deadlines.add(102.0, "second", lambda: called.append("second"))

    deadlines.add(101.0, "first", first)
    clock.turn_to(110.0)
    assert called == ["first", "second"]


def test_callback_may_remove_what_is_due_in_the_same_turn() -> None:
    """A deadline that is removed while its turn runs is not called any more, in the same slot or a later one."""
    clock = Clock()
    deadlines = made(clock)
    called: list[str] = []
    slots: dict[str, int] = {}

    def first() -> None:
        called.append("first")
        deadlines.remove(slots["same"], "same")
        deadlines.remove(slots["next"], "next")

    deadlines.add(50.0, "first", first)
    slots["same"] = deadlines.add(50.0, "same", lambda: called.append("same"))
    slots["next"] = deadlines.add(60.0, "next", lambda: called.append("next"))
    clock.turn_to(110.0)
    assert called == ["first"]


def test_callback_may_add_what_has_passed() -> None:
    """A callback that adds a deadline in the past gets it called in another turn, so that it can't hold up the loop."""
    clock = Clock()
    deadlines = made(clock)
    called: list[int] = []

    def again() -> None:
        called.append(len(called))
        if len(called) < 3:
            deadlines.add(50.0, len(called), again)

    deadlines.add(50.0, 0, again)
    clock.turn_to(100.0)
    assert called == [0, 1, 2]
    assert len(deadlines) == 0


def test_close_inside_a_callback_stops_the_turn() -> None:
    """A callback that closes keeps the rest of its turn from being called."""
    clock = Clock()
    deadlines = made(clock)
    deadlines.add(50.0, "a", deadlines.close)
    deadlines.add(50.0, "b", lambda: pytest.fail("called after close()"))
    deadlines.add(60.0, "c", lambda: pytest.fail("called after close()"))
    clock.turn_to(110.0)
    assert (len(deadlines), clock.pending, clock.errors) == (0, [], [])


def test_failing_callback_takes_no_other_with_it() -> None:
    """A callback that raises is reported to the loop and does not keep others from being called."""
    clock = Clock()
    deadlines = made(clock)
    called: list[str] = []

    def failing() -> None:
        raise ValueError

    deadlines.add(101.0, "bad", failing)
    deadlines.add(101.0, "same slot", lambda: called.append("same slot"))
    deadlines.add(102.0, "later", lambda: called.append("later"))
    clock.turn_to(110.0)
    assert called == ["same slot", "later"]
    assert [type(error) for error in clock.errors] == [ValueError]


def test_close_forgets_everything() -> None:
    """After close() nothing is called and no timer is left."""
    clock = Clock()
    deadlines = made(clock)
    deadlines.add(101.0, "a", lambda: pytest.fail("called after close()"))
    deadlines.close()
    assert len(deadlines) == 0
    assert clock.pending == []


@pytest.mark.anyio
async def test_runs_on_a_real_loop() -> None:
    """On a real loop a deadline is called about when it is due."""
    loop = asyncio.get_running_loop()
    deadlines = Deadlines(loop)
    called = asyncio.Event()
    began = loop.time()
    deadlines.add(began + 0.03, "a", called.set)
    await asyncio.wait_for(called.wait(), 5)
    assert loop.time() - began >= 0.03
