"""Ends of calls that are more than a last frame: doubtful sessions, freed keys, dead letters, notes of deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.broker.fakes import FENCE, KEYS
from tests.broker.finishing import Finishing
from tests.broker.observing import Observed, waits
from toolbus.bus.broker.lease.dead_letters import DEAD_LETTER_LIMIT, FreedKey
from toolbus.bus.broker.take.requests import BadEntry, epoch_of
from toolbus.bus.values.envelope import decode_frames, encode, join_frames, share_digest
from toolbus.bus.values.results import ErrorInfo

pytestmark = pytest.mark.anyio


@pytest.fixture
async def finishing() -> AsyncIterator[Finishing]:
    """An outbox of the test's own."""
    made = Finishing()
    yield made
    made.bench.forget()


def freed(delivery: Any) -> FreedKey:
    """Return the idempotency key of a delivery."""
    request = delivery.request
    return FreedKey(KEYS.shared(share_digest(request)), request.id, KEYS.started(request.id), delivery.run)


async def test_a_failure_frees_its_idempotency_key(finishing: Finishing) -> None:
    """In the step that ends the call, unless another run began `once` work; a success keeps it."""
    one, two = (finishing.bench.hold(entry, shared=True, idempotency_key="key") for entry in (b"1-0", b"2-0"))
    finishing.endings.finish(one, b"end", frees=True)
    finishing.endings.finish(two, b"end", frees=False)
    await finishing.turn()
    key = freed(one)
    assert finishing.bench.link.keys("finish_each")[0][2:] == (key.record, key.mark)
    args = finishing.bench.link.args("finish_each")[0]
    assert args[8:14] == ("!3", 2, 1, key.call.encode(), 1, key.run.encode())


@pytest.mark.parametrize(("server", "frees"), [(b"", True), (b"run-one", True), (b"run-two", False)])
async def test_another_server_may_lack_the_mark_of_what_began(finishing: Finishing, server: bytes, frees: bool) -> None:
    """Then the key stays, since an earlier attempt may have had its effect."""
    one = finishing.bench.hold(b"1-0", shared=True, idempotency_key="key")
    one.server = server
    finishing.endings.finish(one, b"end", frees=True)
    await finishing.turn()
    assert ("finish_each" in finishing.bench.link.names) is frees


async def test_a_run_whose_session_may_be_anothers_is_not_told_before_it_is_known(finishing: Finishing) -> None:
    """Once another worker has answered in the session, what was computed here is out of date."""
    finishing.bench.stream.sticky = True
    finishing.doubted = True
    for ours in (False, True):
        finishing.ours = ours
        finishing.endings.finish(finishing.bench.hold(b"1-0"), b"end", frees=False)
        assert finishing.bench.started.pop() == "_finish_in_session"
        assert finishing.bench.link.names == []
        await finishing.bench.settle()
        assert not waits(finishing.endings.settled())
        await finishing.turn()
        assert finishing.bench.link.names == (["finish"] if ours else [])


@pytest.mark.parametrize("sticky", [True, False])
async def test_the_snapshot_of_a_session_is_forgotten_before_the_end_is_sent(finishing: Finishing, sticky: bool) -> None:
    """Behind the end of its call nobody may change it; a service without sessions has none."""
    finishing.bench.stream.sticky = sticky
    one = finishing.bench.hold(b"1-0")
    finishing.endings.finish(one, b"end", forgets=True)
    await finishing.turn()
    assert finishing.bench.link.names == ([] if sticky else ["finish"])
    await finishing.bench.settle()
    assert finishing.forgotten == ([one] if sticky else [])
    await finishing.turn()
    assert finishing.bench.link.names == ["finish"]


@pytest.mark.parametrize(("sticky", "doubted"), [(False, True), (True, False)])
async def test_a_run_whose_session_is_ours_is_told_at_once(finishing: Finishing, sticky: bool, doubted: bool) -> None:
    """Services without sticky sessions are not even asked about."""
    finishing.bench.stream.sticky, finishing.doubted = sticky, doubted
    finishing.endings.finish(finishing.bench.hold(), b"end", frees=False)
    assert finishing.bench.started == []
    await finishing.turn()
    assert finishing.bench.link.names == ["finish"]


async def test_a_doubtful_run_that_failed_frees_its_key(finishing: Finishing) -> None:
    """When its session turns out to be ours."""
    finishing.bench.stream.sticky = finishing.doubted = True
    one = finishing.bench.hold(shared=True, idempotency_key="key")
    finishing.endings.finish(one, b"end", frees=True)
    await finishing.bench.settle()
    await finishing.turn()
    assert finishing.bench.link.keys("finish_each")[0][2:] == (freed(one).record, freed(one).mark)


async def test_closing_waits_for_doubtful_ends(finishing: Finishing) -> None:
    """They are known only when the server has said whose each session is."""
    finishing.bench.stream.sticky = finishing.doubted = True
    asked = [asyncio.Event(), asyncio.Event()]
    answers = iter(asked)

    async def holds_at_end(delivery: Any) -> bool:
        return await next(answers).wait()

    finishing.holds_at_end = holds_at_end  # type: ignore[method-assign]
    for entry in (b"1-0", b"2-0"):
        finishing.endings.finish(finishing.bench.hold(entry), b"end", frees=False)
    endings = [asyncio.ensure_future(work) for work in finishing.bench.coroutines]
    finishing.bench.coroutines.clear()
    await finishing.turn()
    closing = asyncio.ensure_future(finishing.endings.settled())
    for ending, event in zip(endings, asked, strict=True):
        assert waits(finishing.endings.settled())
        event.set()
        await ending
    assert not waits(finishing.endings.settled())
    await closing


async def test_a_dead_letter_is_buried_after_what_its_run_has_sent(finishing: Finishing) -> None:
    """With its last frame, in one step, and it is held no more."""
    one = finishing.bench.hold(b"1-0", attempt=3)
    finishing.outbox.send(one, b"frame")
    finishing.endings.bury(one, "max_deliveries", "x" * 3_000, b"end")
    await finishing.turn()
    assert finishing.bench.link.names == ["send", "bury"]
    stream = finishing.bench.stream
    assert finishing.bench.link.keys("bury") == [(stream.key, stream.fence, stream.dead_letters)]
    args = finishing.bench.link.args("bury")[0]
    assert args[:8] == ("mine", *FENCE, b"1-0", "max_deliveries", 3, "x" * 2_000, encode(one.request))
    assert args[8:] == (DEAD_LETTER_LIMIT, 7 * 86_400_000, KEYS.replies("agent"), join_frames([b"end"]))
    assert stream.held == {}


async def test_a_dead_letter_frees_its_key(finishing: Finishing) -> None:
    """A later caller starts it anew."""
    one = finishing.bench.hold(b"1-0", shared=True, idempotency_key="key")
    finishing.endings.bury(one, "failed", "broken", b"end")
    await finishing.turn()
    key = freed(one)
    assert finishing.bench.link.keys("bury")[0][3:] == (key.record, key.mark)
    assert finishing.bench.link.args("bury")[0][12:] == (key.call, key.run)


@pytest.mark.parametrize("document", [b"nonsense", b'{"id":"call-1","agent":"agent","x":'])
async def test_a_request_that_can_not_be_read_becomes_a_dead_letter(finishing: Finishing, observed: Observed, document: bytes) -> None:
    """Its caller is told, when that is readable at least; an operator sees which entry it is."""
    bad = BadEntry(b"1-0", document, "no JSON", 2, FENCE)
    finishing.endings.set_aside(finishing.bench.stream, bad)
    args = finishing.bench.link.args("bury")[0]
    assert args[:8] == ("mine", *FENCE, b"1-0", "malformed", 2, "no JSON", document)
    assert finishing.endings.malformed == 1
    assert observed.events == [
        {"level": "ERROR", "event": "request.malformed", "service": "pool", "entry": "1-0", "error": "no JSON"},
    ]
    if bad.address is None:
        assert args[10:] == ("", b"")
    else:
        assert args[10] == KEYS.replies("agent")
        [frame], _ = decode_frames(args[11], limit=10_000)
        assert (frame.id, frame.attempt, frame.kind, frame.end_of_stream, frame.worker) == ("call-1", 2, "end", True, "mine")
        assert frame.epoch == epoch_of(bad.fence.generation)
        assert frame.error == ErrorInfo("invalid_arguments", "malformed_request", "no JSON")
    finishing.endings.set_aside(finishing.bench.stream, bad)
    assert finishing.endings.malformed == 2


async def test_the_note_of_a_later_deadline_goes_with_its_call(finishing: Finishing) -> None:
    """After the end was answered, and only where there is one."""
    one, two, three = (finishing.bench.hold(entry) for entry in (b"1-0", b"2-0", b"3-0"))
    one.noted = three.noted = True
    finishing.endings.finish(one, b"end", frees=False)
    finishing.endings.finish(two, b"end", frees=False)
    finishing.endings.bury(three, "failed", "broken", b"end")
    await finishing.turn()
    assert finishing.bench.link.names == ["finish", "DEL", "bury", "DEL"]
    assert finishing.bench.link.args("DEL") == [(KEYS.pause("pool", "1-0"),), (KEYS.pause("pool", "3-0"),)]
