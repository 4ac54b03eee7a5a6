"""When a process may act on leases that have ended."""

from __future__ import annotations

import pytest

from toolbus.bus.broker.lease.clock import ServerClock

LEASE = 6.0
SKEW = 1000.0


class Times:
    """A local clock that is set by hand, and a server whose clock shows something else."""

    def __init__(self) -> None:
        self.now = 100.0
        self.clock = ServerClock(LEASE, self.monotonic)

    def monotonic(self) -> float:
        """The local time."""
        return self.now

    def ask(self, there: float = 0.0, back: float = 0.0, step: float = 0.0) -> None:
        """Ask the server its time: seconds on the way there and back, and how far its clock was set."""
        asked = self.now
        self.now += there + back
        self.clock.observe((asked + there + SKEW + step) * 1000, asked, self.now)

    def pass_lease(self) -> None:
        """Go on asking for a lease."""
        for _ in range(4):
            self.now += LEASE / 4
            self.ask()


@pytest.fixture
def times() -> Times:
    """A clock that has heard of the server all the time."""
    made = Times()
    made.ask()
    return made


def test_who_hears_of_the_server_all_the_time_may_judge(times: Times) -> None:
    """Ended leases may be acted on, and the server's time is known."""
    times.pass_lease()
    assert times.clock.trusted
    assert times.clock.server_ms() == pytest.approx((times.now + SKEW) * 1000)
    assert times.clock.server_time(times.now - 5.0) == pytest.approx(times.now - 5.0 + SKEW)


@pytest.mark.parametrize(("there", "back"), [(0.0, 4.0), (4.0, 0.0), (2.0, 2.0)])
def test_after_an_answer_that_was_long_on_its_way_nobody_is_judged_for_a_lease(times: Times, there: float, back: float) -> None:
    """An answer that was slow on either way may mean that beats were slow too, so the clock is not trusted for one lease."""
    times.now += 0.5
    times.ask(there, back)
    assert not times.clock.trusted
    # A slow way back looks like a server clock that went ahead at the next answer.
    times.now += 0.5
    times.ask()
    times.pass_lease()
    assert times.clock.trusted


def test_who_has_not_heard_for_long_may_not_judge(times: Times) -> None:
    """Neither while it hears nothing, nor when it does again: it can't tell others' silence from its own."""
    times.now += 4.0
    assert not times.clock.trusted
    times.ask()
    assert not times.clock.trusted
    times.pass_lease()
    assert times.clock.trusted


def test_a_server_clock_that_was_set_ahead_ends_nobodys_lease(times: Times) -> None:
    """All leases look ended then."""
    times.now += 0.5
    times.ask(step=3600.0)
    assert not times.clock.trusted


@pytest.mark.parametrize("now", [100.0, 0.0])
def test_the_first_answer_is_no_stall(now: float) -> None:
    """There is nothing to compare it with, and the clocks of two machines differ; before it nothing is known."""
    made = Times()
    made.now = now
    assert not made.clock.trusted
    made.ask()
    assert made.clock.trusted


@pytest.mark.parametrize(("there", "trusted"), [(LEASE / 3, True), (LEASE / 3 + 0.5, False)])
def test_a_way_there_of_more_than_a_third_of_a_lease_is_a_stall(times: Times, there: float, trusted: bool) -> None:
    """So late a beat of another worker may be, too; what beats come in anyway is no stall."""
    times.ask(there)
    assert times.clock.trusted is trusted


@pytest.mark.parametrize(("silent", "trusted"), [(6.0, True), (6.001, False)])
def test_answers_that_come_too_rarely_are_not_enough_to_judge(silent: float, trusted: bool) -> None:
    """Beats come every third of a lease, so nobody was heard for six tenths of one."""
    now = 100.0
    clock = ServerClock(10.0, lambda: now)
    clock.observe(now * 1000, now, now)
    now += silent
    clock.observe(now * 1000, now, now)
    assert clock.trusted is trusted


@pytest.mark.parametrize(
    ("step", "ahead", "trusted"),
    [(LEASE / 3, False, True), (LEASE / 3 + 0.1, True, False), (LEASE, True, False), (-LEASE / 3, False, True), (-LEASE, False, False)],
)
def test_a_servers_clock_that_was_set_counts_for_a_lease(times: Times, step: float, ahead: bool, trusted: bool) -> None:
    """After a step that no slow answer explains nobody is judged for one lease; after one forward keys may have expired early, too."""
    times.ask(step=step)
    assert times.clock.ran_ahead is ahead
    assert times.clock.trusted is trusted
    times.now += LEASE - 0.1
    assert times.clock.ran_ahead is ahead
    times.now += 0.1
    assert not times.clock.ran_ahead
