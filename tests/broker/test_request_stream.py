"""One service's requests as a worker sees them: what it makes of stream entries, holds and loses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.fakes import FENCE, KEYS, Bench, entry_fields, request
from toolbus.broker.take.requests import Fence

pytestmark = pytest.mark.anyio


@pytest.fixture
def bench() -> Bench:
    """A stream whose worker is played by hand."""
    return Bench()


def test_an_entry_becomes_a_delivery_in_local_time(bench: Bench) -> None:
    """Its deadline and its wait are by this process's clock, and it is held under the fence that was known before."""
    bench.clock.observe(1_100_000.0, 100.0, 100.0)
    [made] = bench.stream.deliveries([(b"1099000-0", 2, entry_fields(request(b"1-0"), 1_130_000, b"run"))], FENCE)
    assert (made.deadline, made.queued_ms, made.attempt, made.epoch) == (130.0, 1_000.0, 2, 1)
    assert (made.queue, made.fence, made.server, made.extended) == (bench.stream, FENCE, b"run", False)
    assert made.replies == KEYS.replies("agent")
    assert bench.stream.held == {b"1099000-0": made}


def test_replies_go_where_they_are_waited_for(bench: Bench) -> None:
    """To the caller, to everyone with the idempotency key, or nowhere; each run has a token of its own."""
    shared = bench.hold(b"1-0", shared=True, idempotency_key="key")
    nowhere = bench.hold(b"2-0", agent="")
    assert (shared.replies, nowhere.replies) == (KEYS.call("call-1-0"), "")
    assert shared.run != nowhere.run


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (None, "no deadline"),
        ([b"r", b"nonsense", b"d", b"1"], "malformed"),
        ([b"r", b"{}"], "no deadline"),
        ([b"r", b"{}", b"d", b"x"], "whole number"),
    ],
)
def test_an_entry_that_can_not_be_read_is_set_aside(bench: Bench, fields: Any, reason: str) -> None:
    """With its reason; the others are delivered."""
    good = entry_fields(request(b"2-0"))
    made = bench.stream.deliveries([(b"1-0", 3, fields), (b"2-0", 1, good)], FENCE)
    bad = bench.unreadable
    assert [delivery.entry for delivery in made] == [b"2-0"]
    assert [(each.entry, each.attempt, each.fence) for each in bad] == [(b"1-0", 3, FENCE)]
    assert reason in bad[0].reason
    assert set(bench.stream.held) == {b"2-0"}


def test_an_entry_that_is_delivered_once_more_is_another_delivery(bench: Bench) -> None:
    """By a group that was made anew: the first is lost."""
    first, second = bench.hold(b"1-0"), bench.hold(b"1-0")
    assert bench.listener.lost == [first]
    assert bench.stream.held == {b"1-0": second}
    bench.stream.lose(first)
    assert bench.listener.lost == [first], "it was let go before"


async def test_a_retry_is_a_further_attempt_of_the_same_entry(bench: Bench) -> None:
    """Counted under the fence, with a new token; None when another worker has it, or took it meanwhile."""
    one = bench.hold(b"1-0", attempt=2)
    bench.link.answers["count"] = lambda keys, args: 1
    again = await bench.stream.retry(bench.as_link, one)
    assert again is not None
    assert (again.attempt, again.entry, again.run != one.run) == (3, b"1-0", True)
    assert bench.stream.held == {b"1-0": again}
    assert bench.link.args("count") == [("mine", *FENCE, b"1-0", 3)]
    assert await bench.stream.retry(bench.as_link, one) is None, "it is held no more"
    bench.link.answers["count"] = lambda keys, args: 0
    assert await bench.stream.retry(bench.as_link, again) is None
    assert bench.stream.held == {b"1-0": again}


def test_the_fence_of_a_new_worker_takes_nothing(bench: Bench) -> None:
    """Only a known generation can have changed; an equal state is kept as the same object."""
    known = bench.stream.fence_known
    bench.stream.fence_is(*FENCE)
    assert bench.stream.fence_known is known
    held = bench.hold()
    bench.stream.fence_known = Fence(b"", b"")
    bench.stream.fence_is(b"9.z", b"1")
    assert bench.listener.lost == []
    assert bench.stream.held == {held.entry: held}
