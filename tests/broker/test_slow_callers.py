"""Callers that leave their replies unread, or that are gone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.broker.fakes import KEYS
from tests.broker.finishing import Finishing
from toolbus.bus.broker.lease.dead_letters import FreedKey
from toolbus.bus.broker.take.requests import Delivery

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024


@pytest.fixture
async def finishing() -> AsyncIterator[Finishing]:
    """An outbox whose callers may leave 100 entries or 1,000,000 bytes unread."""
    made = Finishing()
    yield made
    made.bench.forget()


def held(finishing: Finishing, entry: bytes = b"1-0", *, shared: bool = False) -> Delivery:
    """Return a delivery, with an idempotency key if it is shared."""
    return finishing.bench.hold(entry, shared=shared, idempotency_key="key" if shared else "")


async def write(finishing: Finishing, delivery: Delivery, *, times: int, size: int) -> None:
    """Write entries of ``size`` bytes."""
    for _ in range(times):
        # The brackets of a JSON list.
        finishing.outbox.send(delivery, b"x" * (size - 2))
        await finishing.turn()


@pytest.mark.parametrize(
    ("shared", "unread", "size", "found"),
    [
        (False, 100, 10, None),
        (False, 101, 10, ("slow_consumer", "", "101 entries of 10 bytes")),
        (False, 100, 10_000, None),
        (False, 100, 10_001, ("slow_consumer", "", "100 entries of 10001 bytes")),
        (True, 1_000, 1_000, None),
        (True, 1_001, 10, ("tool_error", "output_limit", "1001 entries of 10 bytes")),
        (True, 1_000, 1_001, ("tool_error", "output_limit", "1000 entries of 1001 bytes")),
    ],
)
async def test_a_caller_that_reads_too_slowly_is_told_of(
    finishing: Finishing, shared: bool, unread: int, size: int, found: tuple[str, str, str] | None
) -> None:
    """Every 64 entries it is asked how many are unread; answers that are kept for others have room for ten times as many."""
    one = held(finishing, shared=shared)
    finishing.bench.link.answers["XLEN"] = lambda keys, args: unread
    await write(finishing, one, times=63, size=size)
    assert "XLEN" not in finishing.bench.link.names
    await write(finishing, one, times=1, size=size)
    assert finishing.bench.link.args("XLEN") == [(one.replies,)]
    if found is None:
        assert finishing.gone == []
    else:
        [(replies, error)] = finishing.gone
        assert (replies, error.type, error.code) == (one.replies, *found[:2])
        assert found[2] in error.message


async def test_sizes_are_averages_of_what_was_written(finishing: Finishing) -> None:
    """A few large entries among many small ones are no reason to give up."""
    one = held(finishing)
    finishing.bench.link.answers["XLEN"] = lambda keys, args: 50
    await write(finishing, one, times=63, size=100)
    await write(finishing, one, times=1, size=60_000)
    assert finishing.gone == []
    await write(finishing, one, times=63, size=40_000)
    assert finishing.gone == []
    await write(finishing, one, times=1, size=100)
    assert ["50 entries of 20206 bytes" in error.message for _, error in finishing.gone] == [True]


async def test_large_entries_are_measured_early(finishing: Finishing) -> None:
    """Whenever more than 4 MiB were written since the last time."""
    one = held(finishing)
    finishing.bench.link.answers["XLEN"] = lambda keys, args: 0
    for asked in (0, 1):
        await write(finishing, one, times=4, size=MIB)
        assert finishing.bench.link.names.count("XLEN") == asked
        await write(finishing, one, times=1, size=MIB)
        assert finishing.bench.link.names.count("XLEN") == asked + 1


async def test_frames_that_go_with_an_end_are_measured_too(finishing: Finishing) -> None:
    """And counted."""
    finishing.bench.link.answers["XLEN"] = lambda keys, args: 101
    for number in range(64):
        one = held(finishing, f"{number}-0".encode())
        for _ in range(2):
            finishing.outbox.send(one, b"frame")
        finishing.outbox.finish(one, b"end")
        await finishing.turn()
    assert finishing.bench.link.args("XLEN") == [(KEYS.replies("agent"),)]
    assert [replies for replies, _ in finishing.gone] == [KEYS.replies("agent")]
    assert finishing.outbox.frames_sent == 192


@pytest.mark.parametrize("frees", [False, True])
async def test_ends_that_go_alone_are_measured_too(finishing: Finishing, frees: bool) -> None:
    """A caller whose calls answer with their ends alone may leave no more unread than any other."""
    finishing.bench.link.answers["XLEN"] = lambda keys, args: 101
    for number in range(64):
        assert finishing.gone == []
        freed = FreedKey("record", f"call-{number}", "mark", "run") if frees else None
        finishing.outbox.finish(held(finishing, f"{number}-0".encode()), b"end", freed)
        await finishing.turn()
    assert [(replies, error.type) for replies, error in finishing.gone] == [(KEYS.replies("agent"), "slow_consumer")]
    assert finishing.outbox.frames_sent == 64


async def test_callers_that_are_gone_are_told_of(finishing: Finishing) -> None:
    """By the script that finishes, and by the one that sends: the latter says which of its callers."""
    finishing.gone_keys = [KEYS.replies("agent").encode()]
    finishing.outbox.finish(held(finishing), b"end")
    await finishing.turn()
    finishing.bench.link.answers["send"] = lambda keys, args: [1, 3]
    for number, agent in enumerate(("first", "second", "third")):
        finishing.outbox.send(finishing.bench.hold(f"{number}-1".encode(), agent=agent), b"frame")
    await finishing.turn()
    assert [replies for replies, _ in finishing.gone] == [KEYS.replies(agent) for agent in ("agent", "first", "third")]
    assert {(error.type, error.message) for _, error in finishing.gone} == {("cancelled", "the calling agent is gone")}


async def test_a_caller_that_is_gone_is_forgotten(finishing: Finishing) -> None:
    """One that comes back under its name is measured from the start."""
    one = held(finishing)
    await write(finishing, one, times=62, size=10)
    finishing.bench.link.answers["send"] = lambda keys, args: [1]
    await write(finishing, one, times=1, size=10)
    finishing.bench.link.answers["send"] = []
    await write(finishing, one, times=63, size=10)
    assert "XLEN" not in finishing.bench.link.names
    await write(finishing, one, times=1, size=10)
    assert finishing.bench.link.names.count("XLEN") == 1


async def test_a_length_that_is_unknown_ends_nothing(finishing: Finishing) -> None:
    """The key may be of another type."""
    finishing.bench.link.answers["XLEN"] = lambda keys, args: None
    await write(finishing, held(finishing), times=64, size=MIB // 64)
    assert finishing.gone == []
