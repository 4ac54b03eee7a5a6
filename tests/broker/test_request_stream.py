"""One service's requests as a worker sees them: what it makes of stream entries, holds and loses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.fakes import FENCE, KEYS, SETTINGS, Bench, entry_fields, request
from toolbus.bus.broker.take.intake import deliveries
from toolbus.bus.broker.take.requests import UNSURE, Fence, RequestStream, common_fence

pytestmark = pytest.mark.anyio


@pytest.fixture
def bench() -> Bench:
    """A stream whose worker is played by hand."""
    return Bench()


def test_an_entry_becomes_a_delivery_in_local_time(bench: Bench) -> None:
    """Its deadline and its wait are by this process's clock, and it is held under the fence that was known before."""
    bench.clock.observe(1_100_000.0, 100.0, 100.0)
    [made] = deliveries(bench.stream, [(b"1099000-0", entry_fields(request(b"1-0"), 1_130_000, b"run"))], FENCE, 2)
    assert (made.deadline, made.queued_ms, made.attempt, made.epoch) == (130.0, 1_000.0, 2, 1)
    assert (made.queue, made.fence, made.server, made.noted) == (bench.stream, FENCE, b"run", False)
    assert made.replies == KEYS.replies("agent")
    assert bench.stream.held == {b"1099000-0": made}


def test_what_is_left_of_a_deadline_is_told_in_milliseconds(bench: Bench) -> None:
    """Less than a second as it is, and nothing when it has passed."""
    delivery = bench.hold()
    left = []
    for seconds in (0.25, 0.0, -5.0):
        delivery.deadline = bench.stream.clock.monotonic() + seconds
        left.append(bench.stream.remaining_ms(delivery))
    assert left == [250, 0, 0]


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
    made = [*deliveries(bench.stream, [(b"1-0", fields)], FENCE, 3), *deliveries(bench.stream, [(b"2-0", good)], FENCE)]
    bad = bench.unreadable
    assert [delivery.entry for delivery in made] == [b"2-0"]
    assert [(each.entry, each.attempt, each.fence) for each in bad] == [(b"1-0", 3, FENCE)]
    assert reason in bad[0].reason
    assert set(bench.stream.held) == {b"2-0"}


def test_an_entry_that_can_not_be_read_may_still_say_whose_it_is(bench: Bench) -> None:
    """Then its caller can be told."""
    deliveries(bench.stream, [(b"1-0", [b"r", b'{"id":"call-1","agent":"agent","x":', b"d", b"1"])], FENCE)
    [bad] = bench.unreadable
    assert bad.address == ("call-1", "agent")


@pytest.mark.parametrize(
    ("fields", "document"), [(None, b""), ([b"d", b"1"], b""), ([b"r", b"{}"], b"{}"), ([b"r", b"{}", b"d", b"1"], b"{}")]
)
def test_an_entry_that_can_not_be_read_keeps_its_document(bench: Bench, fields: Any, document: bytes) -> None:
    """So that an operator sees it among the dead letters."""
    deliveries(bench.stream, [(b"1-0", fields)], FENCE)
    assert bench.unreadable[0].document == document


@pytest.mark.parametrize(("beyond", "made"), [(0, 1), (1, 0)])
def test_requests_are_bounded(bench: Bench, beyond: int, made: int) -> None:
    """With room for what the publisher adds to the largest request that a caller may send."""
    document = entry_fields(request(b"1-0"))[1]
    document += b" " * (SETTINGS.max_request + 1024 + beyond - len(document))
    assert len(deliveries(bench.stream, [(b"1-0", [b"r", document, b"d", b"1"])], FENCE)) == made


def test_fields_may_be_in_any_order(bench: Bench) -> None:
    """And there may be more of them."""
    r, document, d, deadline = entry_fields(request(b"1-0"))
    for number, fields in enumerate(([d, deadline, r, document], [b"x", b"y", d, deadline, r, document])):
        [made] = deliveries(bench.stream, [(f"{number}-0".encode(), fields)], FENCE)
        assert (made.request, made.deadline, made.server) == (request(b"1-0"), 160.0, b"")


@pytest.mark.parametrize("place", [0, 2])
def test_fields_count_by_their_names(bench: Bench, place: int) -> None:
    """Another client may have written a request's document, or its deadline, under another name."""
    fields = entry_fields(request(b"1-0"))
    fields[place] = b"x"
    assert deliveries(bench.stream, [(b"1-0", fields)], FENCE) == []
    assert len(bench.unreadable) == 1


def test_a_request_of_the_future_has_not_waited(bench: Bench) -> None:
    """The clocks of a server and its replica may differ."""
    ahead = int(bench.times.now * 1000) + 1
    assert bench.hold(f"{ahead}-0".encode()).queued_ms == 0.0


def test_an_entry_that_is_delivered_once_more_is_another_delivery(bench: Bench) -> None:
    """By a group that was made anew: the first is lost."""
    first, second = bench.hold(b"1-0"), bench.hold(b"1-0")
    assert bench.listener.lost == [first]
    assert bench.stream.held == {b"1-0": second}
    bench.stream.lose(first)
    assert bench.listener.lost == [first], "it was let go before"


async def test_a_retry_is_a_further_attempt_of_the_same_entry(bench: Bench) -> None:
    """Counted under the fence, with a new token; None when another worker has it, or took it meanwhile: then it is lost."""
    one = bench.hold(b"1-0", attempt=2)
    bench.link.answers["count"] = lambda keys, args: 1
    again = await bench.stream.retry(bench.as_link, one)
    assert again is not None
    assert (again.attempt, again.entry) == (3, b"1-0")
    assert again.run
    assert again.run != one.run
    assert bench.stream.held == {b"1-0": again}
    assert bench.link.args("count") == [("mine", *FENCE, b"1-0", 3)]
    assert await bench.stream.retry(bench.as_link, one) is None, "it is held no more"
    bench.link.answers["count"] = lambda keys, args: 0
    assert await bench.stream.retry(bench.as_link, again) is None
    assert bench.stream.held == {}


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


def test_what_is_let_go_of_is_told_once(bench: Bench) -> None:
    """And what was lost before that it is lost; a later delivery of the same entry stays."""
    first = bench.hold(ordered=True)
    later = bench.hold(ordered=True)
    assert bench.listener.let_go == [(first, False)]
    assert bench.listener.lost == [first]
    assert not bench.stream.let_go(first, ended=True)
    assert bench.stream.held == {later.entry: later}
    assert bench.stream.let_go(later, ended=True)
    bench.stream.lose(later)
    assert bench.listener.let_go == [(first, False), (later, True)]
    assert bench.listener.lost == [first]
    bench.stream.let_go(bench.hold())
    assert len(bench.listener.let_go) == 2, "calls without an order"


def test_a_new_stream_holds_nothing(bench: Bench) -> None:
    """It knows no fence, and its keys are those of its service's queue."""
    heard = {"on_lost": pytest.fail, "on_let_go": pytest.fail, "set_aside": pytest.fail}
    made = RequestStream(KEYS, "pool", "queue", "mine", bench.clock, SETTINGS, **heard)
    keys = (KEYS.queue("queue"), KEYS.fence("queue"), KEYS.dead_letters("queue"), KEYS.cancelled("queue"), KEYS.wake("queue"))
    assert (made.key, made.fence, made.dead_letters, made.cancelled, made.wake) == keys
    assert (made.service, made.queue, made.consumer) == ("pool", "queue", "mine")
    assert (made.fence_known, made.held, made.depth) == (Fence(b"", b""), {}, 0)
    assert (made.paused, made.sticky) == (False, False)
    assert (made.alone_from, made.lease_ms) == (SETTINGS.alone_from, 6_000)
    assert made.pause_key(b"1-0") == KEYS.pause("queue", "1-0")


def test_each_process_has_run_tokens_of_its_own(bench: Bench) -> None:
    """A caller tells the runs of an entry apart, whichever worker they are of."""
    first = bench.hold()
    bench.stream = bench.new_stream("pool")
    assert bench.hold().run != first.run


def test_deliveries_have_a_fence_in_common_when_their_states_are_equal(bench: Bench) -> None:
    """Equal states count, in one object or in several; else the script looks at each delivery."""
    one, two = bench.hold(b"1-0"), bench.hold(b"2-0", fence=Fence(*FENCE))
    assert common_fence([one, two]) == FENCE
    three = bench.hold(b"3-0", fence=Fence(b"2.b", b"5"))
    assert common_fence([one, two, three]) == Fence(FENCE.generation, UNSURE)
