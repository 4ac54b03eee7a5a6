"""Taking from a group that was set back or made anew: what is left to others, and what is taken again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.taking import Taking
from toolbus.bus.values.results import BrokerUnavailable

pytestmark = pytest.mark.anyio


async def test_what_was_delivered_before_is_left_alone(taking: Taking, caplog: pytest.LogCaptureFixture) -> None:
    """A group that was set back delivers it again; whoever runs it goes on, and what is new is taken."""
    stream = taking.bench.stream
    taking.writing.answers["HGET"] = stream.fence_known.generation
    taking.found = [[[stream.key.encode(), taking.entries(*numbers)]] for numbers in ((7, 8), (7, 8, 9), (8,))]
    running = await taking.intake.take(10)
    assert [delivery.entry for delivery in await taking.intake.take(10)] == [b"9-0"]
    assert await taking.intake.take(10) == []
    assert [stream.held[each.entry] for each in running] == running
    assert taking.writing.args("HGET") == [(stream.fence, "generation")] * 2
    assert [record.message for record in caplog.records] == [f"requests.delivered_again service=pool calls={calls}" for calls in (2, 1)]


async def test_what_others_have_taken_is_left_alone(taking: Taking) -> None:
    """A reap tells how far the group had come, by its number and not by its text; also where the server is gone just now."""
    stream = taking.bench.stream
    taking.writing.answers["HGET"] = BrokerUnavailable("gone")
    stream.newest = (10, 1)
    taking.found = [[[stream.key.encode(), taking.entries(9, 10, 11)]]]
    assert [delivery.entry for delivery in await taking.intake.take(10)] == [b"11-0"]


@pytest.mark.parametrize("happened", ["reaped", "made anew"])
async def test_what_is_learned_while_a_read_is_under_way_says_nothing_of_its_entries(taking: Taking, happened: str) -> None:
    """A reap over the other connection may be answered first, and its position is that of the very entries which the read delivers."""
    stream = taking.bench.stream
    stream.newest = (9, 0) if happened == "made anew" else (5, 0)

    def read(keys: Any, args: Any) -> Any:
        if happened == "made anew":
            stream.fence_is(b"3.c", b"1")
        else:
            stream.newest = (8, 0)
        return [[stream.key.encode(), taking.entries(7, 8)]]

    taking.blocking.answers["XREADGROUP"] = read
    assert [delivery.entry for delivery in await taking.intake.take(10)] == [b"7-0", b"8-0"]


async def test_a_group_that_was_made_anew_delivers_everything_again(taking: Taking) -> None:
    """All of it is taken, since what was held is lost."""
    stream = taking.bench.stream
    taking.writing.answers["HGET"] = b"2.b"
    taking.found = [[[stream.key.encode(), taking.entries(*numbers)]] for numbers in ((7, 8), (7, 8))]
    await taking.intake.take(10)
    assert len(await taking.intake.take(10)) == 2
    stream.newest = (20, 0)
    stream.fence_is(b"3.c", b"1")
    assert not stream.newest
