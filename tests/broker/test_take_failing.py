"""A worker that can take nothing: when it gives up, and when it goes on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.broker.fakes import KEYS, SETTINGS
from tests.broker.taking import Restless, Taking
from toolbus.bus.broker.transport.command import ReplyError
from toolbus.bus.broker.transport.connection import Connector
from toolbus.bus.broker.transport.opening import Failing as Patience
from toolbus.bus.broker.worker import WorkerSteps
from toolbus.bus.values.results import BrokerUnavailable, ToolbusError

pytestmark = pytest.mark.anyio


class Failing:
    """A worker whose reads are refused, and what it is told when it can't go on."""

    def __init__(self, taking: Taking) -> None:
        self.taking = taking
        self.failures: list[str] = []
        taking.failing.give_up = self.on_failed
        taking.intake = taking.made(Restless)

    def on_failed(self, error: Exception) -> None:
        """Take note."""
        assert type(error) is ToolbusError
        self.failures.append(str(error))

    async def read(self, answer: Any, *, after: float = 0.0) -> None:
        """Read once, after some seconds in which the worker has beaten, and have this answered."""
        self.taking.bench.times.now += after
        self.taking.intake.beaten(self.taking.bench.times.now)
        self.taking.blocking.answers["XREADGROUP"] = answer
        await self.taking.intake.take(10)


FORBIDDEN = ReplyError("NOPERM no permissions to run 'xreadgroup'")


async def test_a_worker_that_can_take_nothing_for_long_is_told_that_it_failed(taking: Taking) -> None:
    """It would beat for ever, and its callers would wait; several leases and half a minute are longer than a brief fault."""
    failing = Failing(taking)
    await failing.read(FORBIDDEN)
    await failing.read(FORBIDDEN, after=29.9)
    assert failing.failures == []
    await failing.read(FORBIDDEN, after=0.2)
    assert failing.failures == ["no requests could be taken for 30 s: NOPERM no permissions to run 'xreadgroup'"]


@pytest.mark.parametrize("lost", ["before", "meanwhile"])
async def test_a_worker_without_the_connection_that_waits_fails_in_time(taking: Taking, lost: str) -> None:
    """It beats over another one, so it looks alive; when both are gone the server is, which comes back."""
    failing = Failing(taking)
    taking.blocking.connected = lost != "before"
    gone = BrokerUnavailable("gone")
    await failing.read(gone)
    await failing.read(gone, after=29.9)
    taking.writing.connected = False
    await failing.read(gone, after=60.0)
    taking.writing.connected = True
    await failing.read(gone)
    assert failing.failures == []
    await failing.read(gone, after=30.1)
    assert failing.failures == ["no requests could be taken for 30 s: the connection that waits for them is lost or can't be made"]


async def test_a_connection_that_is_there_again_has_not_failed(taking: Taking) -> None:
    """Also with nothing to take, and while the worker drains or everything is paused nothing is missed."""
    failing = Failing(taking)
    await failing.read(BrokerUnavailable("gone"))
    await failing.read(None, after=20.0)
    await failing.read(BrokerUnavailable("gone"), after=20.0)
    taking.taking = False
    await failing.read(BrokerUnavailable("gone"), after=40.0)
    taking.taking, taking.blocking.connected, taking.bench.stream.paused = True, False, True
    await failing.read(None, after=40.0)
    assert failing.failures == []


async def test_a_long_lease_gives_more_time(taking: Taking) -> None:
    """Three leases, if those are longer than half a minute."""
    taking.failing = Patience(20.0, "no requests could be taken", pytest.fail, taking.bench.times)
    failing = Failing(taking)
    await failing.read(FORBIDDEN)
    await failing.read(FORBIDDEN, after=59.9)
    assert failing.failures == []
    await failing.read(FORBIDDEN, after=0.2)
    assert len(failing.failures) == 1


async def test_the_steps_of_a_worker_wait_for_its_own_lease(taking: Taking) -> None:
    """The taking and the finishing of calls are both given up by the lease that the worker has."""
    settings = msgspec.structs.replace(SETTINGS, lease=20.0)
    steps = WorkerSteps(settings, Connector.of(settings), KEYS, "mine", taking.bench.clock, taking.bench.as_listener)
    assert (steps.intake.failing.lease, steps.outbox.failing.lease) == (20.0, 20.0)


async def test_a_read_that_is_not_refused_starts_the_count_anew(taking: Taking) -> None:
    """Refusals before it count no more."""
    failing = Failing(taking)
    await failing.read(FORBIDDEN)
    assert taking.intake.trouble == f"the server refuses to give it requests: {FORBIDDEN}"
    await failing.read(None, after=40.0)
    assert taking.intake.trouble == ""
    await failing.read(FORBIDDEN, after=29.0)
    assert failing.failures == []
    await failing.read(FORBIDDEN, after=31.0)
    assert len(failing.failures) == 1


async def test_a_worker_that_the_registry_does_not_list_is_told_that_it_failed(taking: Taking) -> None:
    """It beats, and takes nothing; another service that is listed, be it paused, does not end with it."""
    failing = Failing(taking)
    taking.two()
    other = taking.bench.streams["other"]
    taking.bench.stream.unlisted = "OOM no memory"
    await failing.read(None)
    other.pause(True, 1.0)
    await failing.read(None)
    await failing.read(None, after=40.0)
    assert (taking.intake.trouble, failing.failures) == ("", [])
    other.unlisted = "its lease was lost there"
    reason = "pool is not in the registry: OOM no memory; other is not in the registry: its lease was lost there"
    await failing.read(None, after=40.0)
    await failing.read(None, after=29.9)
    assert (taking.intake.trouble, failing.failures) == (reason, [])
    await failing.read(None, after=0.2)
    assert failing.failures == [f"no requests could be taken for 30 s: {reason}"]
    taking.bench.stream.unlisted = other.unlisted = ""
    await failing.read(None)
    assert (taking.intake.trouble, len(failing.failures)) == ("", 1)


async def test_what_was_missed_before_a_pause_is_not_counted_after_it(taking: Taking) -> None:
    """A worker of paused services does nothing wrong, unless its lease has ended."""
    failing = Failing(taking)
    for unlisted, paused, after in (("lost", False, 0.0), ("", True, 1.0), ("lost", True, 40.0), ("lost", True, 29.9)):
        taking.bench.stream.unlisted, taking.bench.stream.paused = unlisted, paused
        await failing.read(None, after=after)
    assert failing.failures == []
    await failing.read(None, after=0.2)
    assert len(failing.failures) == 1


@pytest.mark.parametrize("answer", ["MISCONF no disk", "OOM no memory", "NOGROUP no such group"])
async def test_a_refusal_counts_whatever_its_reason(taking: Taking, answer: str) -> None:
    """Also one that every process of the server gets, and that of a group which can't be made again."""
    failing = Failing(taking)
    await failing.read(ReplyError(answer))
    await failing.read(ReplyError(answer), after=30.1)
    assert failing.failures == [f"no requests could be taken for 30 s: {answer}"]


async def test_a_group_that_can_not_be_made_is_asked_for_now_and_then(taking: Taking) -> None:
    """At once when it is missing, and then after a pause each time: the server answers both at once, and refuses to make it."""
    failing = Failing(taking)
    for _ in range(3):
        await failing.read(ReplyError("NOGROUP no such group"))
    assert (taking.did, len(taking.again)) == (["paused", "paused"], 3)
    await failing.read(None)
    await failing.read(ReplyError("NOGROUP no such group"))
    assert (taking.did, len(taking.again)) == (["paused", "paused"], 4)


async def test_a_worker_whose_beats_fail_is_told_that_it_failed(taking: Taking) -> None:
    """From the end of its lease on it takes nothing, and no read says so; a beat that is accepted starts the count anew."""
    failing = Failing(taking)
    lease, times = SETTINGS.lease, taking.bench.times

    def fail(after: float) -> None:
        times.now += after
        taking.intake.unbeaten("MISCONF no disk")

    fail(lease / 2)
    assert taking.intake.trouble == ""
    fail(lease)
    reason = "its lease has ended, since its beats fail: MISCONF no disk"
    assert taking.intake.trouble == reason
    fail(29.9)
    taking.intake.beaten(times.now)
    assert (taking.intake.trouble, failing.failures) == ("", [])
    fail(1.1 * lease)
    fail(29.9)
    assert failing.failures == []
    fail(0.2)
    assert failing.failures == [f"no requests could be taken for 30 s: {reason}"]
    taking.writing.connected = False
    fail(0.1)
    taking.writing.connected = True
    fail(0.1)
    assert len(failing.failures) == 1, "a server that is away comes back"


async def test_a_worker_that_owes_answers_waits_with_its_end(taking: Taking) -> None:
    """They may be taken when the server accepts writes again, until nobody waits for them any more."""
    failing = Failing(taking)
    held = taking.bench.hold()
    await failing.read(FORBIDDEN)
    held.deadline = taking.bench.times.now + 100.0
    await failing.read(FORBIDDEN, after=99.0)
    assert failing.failures == []
    await failing.read(FORBIDDEN, after=2.0)
    assert len(failing.failures) == 1
