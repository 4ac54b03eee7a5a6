"""The frames that an outbox sends: how they are cut into scripts, and what waits for what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.broker.fakes import KEYS
from tests.broker.finishing import Finishing

pytestmark = pytest.mark.anyio

LIMIT = 262_144
"""Bytes of frames in one script."""


@pytest.fixture
async def finishing() -> AsyncIterator[Finishing]:
    """An outbox of the test's own."""
    made = Finishing()
    yield made
    made.bench.forget()


@pytest.mark.parametrize(
    ("frames", "scripts"),
    [
        ({"a": [1]}, [[("a", [1])]]),
        ({"a": [LIMIT]}, [[("a", [LIMIT])]]),
        ({"a": [LIMIT + 1, 1]}, [[("a", [LIMIT + 1])], [("a", [1])]]),
        ({"a": [LIMIT // 2] * 4}, [[("a", [LIMIT // 2] * 2)]] * 2),
        ({"a": [100_000] * 3}, [[("a", [100_000] * 2)], [("a", [100_000])]]),
        ({"a": [200_000], "b": [LIMIT - 200_000]}, [[("a", [200_000]), ("b", [LIMIT - 200_000])]]),
        ({"a": [100_000], "b": [100_000], "c": [100_000]}, [[("a", [100_000]), ("b", [100_000])], [("c", [100_000])]]),
        ({"a": [250_000], "b": [250_000], "c": [10]}, [[("a", [250_000])], [("b", [250_000]), ("c", [10])]]),
        ({"a": [250_000, 250_000], "b": [10, 10]}, [[("a", [250_000])], [("a", [250_000]), ("b", [10, 10])]]),
    ],
)
async def test_frames_of_one_tick_are_scripts_of_bounded_size(
    finishing: Finishing, frames: dict[str, list[int]], scripts: list[list[tuple[str, list[int]]]]
) -> None:
    """In order, each caller's frames as one entry of a script; a frame that is larger than the bound goes alone."""
    for number, (agent, sizes) in enumerate(frames.items()):
        delivery = finishing.bench.hold(f"{number}-0".encode(), agent=agent)
        for size in sizes:
            finishing.outbox.send(delivery, b"x" * size)
    await finishing.turn()
    assert finishing.sent() == [[(KEYS.replies(agent), sizes) for agent, sizes in script] for script in scripts]
    assert finishing.outbox.frames_sent == sum(map(len, frames.values()))
    assert finishing.drained()


async def test_every_script_names_a_key_of_the_namespace(finishing: Finishing) -> None:
    """So that a cluster finds its slot."""
    finishing.outbox.send(finishing.bench.hold(), b"frame")
    await finishing.turn()
    assert finishing.bench.link.keys("send") == [(KEYS.live,)]


async def test_large_frames_go_part_by_part_before_their_end(finishing: Finishing) -> None:
    """The server may refuse one and carry out the next: the end waits for the answer of the last part."""
    one = finishing.bench.hold(b"1-0")
    finishing.bench.link.holding = True
    for _ in range(3):
        finishing.outbox.send(one, b"x" * 150_000)
    finishing.outbox.finish(one, b"end")
    await finishing.turn()
    for expected in (["send"], ["send"] * 2, ["send"] * 3, ["send"] * 3 + ["finish"]):
        assert finishing.bench.link.names == expected
        finishing.bench.link.release()


@pytest.mark.parametrize(("frame", "end", "together"), [(200_000, 62_144, True), (200_000, 62_145, False), (62_145, 200_000, False)])
async def test_frames_and_their_end_are_one_script_within_the_bound(finishing: Finishing, frame: int, end: int, together: bool) -> None:
    """Else the end waits for the frames."""
    one = finishing.bench.hold()
    finishing.outbox.send(one, b"x" * frame)
    finishing.outbox.finish(one, b"x" * end)
    await finishing.turn()
    assert finishing.bench.link.names == (["finish"] if together else ["send", "finish"])
    assert finishing.outbox.frames_sent == 1


async def test_a_tick_is_one_flush(finishing: Finishing) -> None:
    """However much was produced in it."""
    one = finishing.bench.hold()
    for _ in range(3):
        finishing.outbox.send(one, b"frame")
    finishing.outbox.finish(one, b"end")
    await finishing.turn()
    await finishing.turn()
    assert (finishing.bench.link.names, finishing.bench.link.flushes) == (["finish"], 1)


async def test_frames_wait_for_the_answer_of_those_before(finishing: Finishing) -> None:
    """Else the server could refuse the first ones of a run and take the next."""
    link, one = finishing.bench.link, finishing.bench.hold()
    link.holding = True
    for _ in range(3):
        finishing.outbox.send(one, b"frame")
        await finishing.turn()
    assert [sizes for [(_, sizes)] in finishing.sent()] == [[5]]
    link.release()
    assert [sizes for [(_, sizes)] in finishing.sent()] == [[5], [5, 5]]
    assert not finishing.drained()
    link.release()
    assert finishing.drained()
    assert finishing.outbox.frames_sent == 3


async def test_a_flush_of_two_streams_is_answered_with_the_last_script(finishing: Finishing) -> None:
    """Work that was to follow the flush follows both."""
    bench = finishing.bench
    bench.streams["other"] = other = bench.new_stream("other")
    bench.link.holding = True
    one = bench.hold()
    finishing.outbox.finish(one, b"end")
    bench.stream = other
    finishing.outbox.send(bench.hold(), b"frame")
    finishing.outbox.then(lambda: bench.link.send(("AFTER",)))
    await finishing.turn()
    assert bench.link.names == ["finish", "send"]
    bench.link.release()
    assert bench.link.names == ["finish", "send"]
    assert not finishing.drained()
    bench.link.release()
    assert bench.link.names == ["finish", "send", "AFTER"]
    assert finishing.drained()


async def test_a_full_outbox_makes_producers_wait(finishing: Finishing) -> None:
    """Until what is queued has been handed to the server; then there is as much room as before."""
    one = finishing.bench.hold()
    for _ in range(2):
        finishing.outbox.send(one, b"x" * 4 * 1024 * 1024)
        assert (finishing.outbox.congested, finishing.has_room()) == (False, True)
        finishing.outbox.send(one, b"x")
        assert (finishing.outbox.congested, finishing.has_room()) == (True, False)
        waiting = asyncio.ensure_future(finishing.outbox.room())
        await finishing.turn()
        assert not finishing.outbox.congested
        await waiting


async def test_what_packs_before_sending_goes_with_the_flush(finishing: Finishing) -> None:
    """And what is to come afterwards comes when everything before it was answered."""
    one = finishing.bench.hold(b"1-0")
    finishing.outbox.before_sending(lambda: finishing.outbox.send(one, b"packed"))
    finishing.outbox.then(lambda: finishing.bench.link.send(("AFTER",)))
    finishing.bench.link.holding = True
    await finishing.turn()
    assert finishing.bench.link.names == ["send"]
    finishing.bench.link.release()
    assert finishing.bench.link.names == ["send", "AFTER"]


@pytest.mark.parametrize("asks", ["before_sending", "then"])
async def test_what_is_asked_for_during_a_flush_comes_when_it_is_answered(finishing: Finishing, asks: str) -> None:
    """Also when nothing else is queued."""
    link = finishing.bench.link
    link.holding = True
    finishing.outbox.send(finishing.bench.hold(), b"frame")
    await finishing.turn()
    getattr(finishing.outbox, asks)(lambda: link.send(("AFTER",)))
    await finishing.turn()
    assert link.names == ["send"]
    link.release()
    assert link.names == ["send", "AFTER"]


async def test_what_follows_a_flush_may_ask_for_more(finishing: Finishing) -> None:
    """Frames, and what is to follow those in turn."""
    link, one = finishing.bench.link, finishing.bench.hold()
    link.holding = True

    def more() -> None:
        finishing.outbox.send(one, b"more")
        finishing.outbox.then(lambda: link.send(("AFTER",)))

    finishing.outbox.send(one, b"frame")
    finishing.outbox.then(more)
    await finishing.turn()
    link.release()
    await finishing.turn()
    assert link.names == ["send", "send"]
    link.release()
    assert link.names == ["send", "send", "AFTER"]
