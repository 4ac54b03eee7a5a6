"""The frames that an outbox sends: how they are cut into scripts, and what waits for what."""

from __future__ import annotations

import asyncio
import functools
import random
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.broker.fakes import KEYS
from tests.broker.finishing import Finishing
from toolbus.bus.broker.transport.command import ReplyError

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
    assert finishing.outbox.frames_sent == 2


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


class Disorder:
    """Four runs of two callers on one outbox, whose events come in an order that a seed chooses."""

    def __init__(self, seed: int, refusal: str | None) -> None:
        self.finishing = Finishing()
        self.choose = random.Random(seed)
        self.refusal = refusal
        self.link = self.finishing.bench.link
        self.link.holding = True
        self.link.answers |= {name: self._answering(self.link.answers[name]) for name in ("send", "finish", "finish_each")}
        self.runs = [self.finishing.bench.hold(f"{number}-0".encode(), agent=f"agent{number % 2}") for number in range(4)]
        self.made = [0] * 4
        self.gathered = [0] * 4
        self.ended: set[int] = set()
        self.written: list[bytes] = []
        self.answers = 0

    def _answering(self, right: Any) -> Any:
        def answer(keys: Any, args: Any) -> Any:
            if self.refusal is not None and self.choose.random() < 0.3:
                return ReplyError(f"{self.refusal} no writes")
            self.written += frames_in(args)
            return right(keys, args) if callable(right) else right

        return answer

    def frame(self, number: int) -> bytes:
        """Make the next frame of a run."""
        self.made[number] += 1
        return b"run%d:%d:" % (number, self.made[number]) + b"x" * self.choose.choice([1, 1, 100_000, 200_000])

    def pack(self, number: int) -> None:
        """Send what a run has gathered, as its stream does just before a flush."""
        gathered, self.gathered[number] = self.gathered[number], 0
        for _ in range(gathered):
            self.finishing.outbox.send(self.runs[number], self.frame(number))

    def release(self) -> None:
        """Answer the oldest script."""
        self.answers += 1
        self.link.release()

    async def step(self) -> None:
        """Let one thing happen."""
        outbox, choose = self.finishing.outbox, self.choose
        number, step = choose.randrange(4), choose.choice(["send", "pack", "finish", "answer", "answer", "turn", "turn"])
        if step == "turn":
            await self.finishing.turn()
        elif step == "answer" and self.link.held:
            self.release()
        elif number in self.ended or step == "answer":
            return
        elif step == "pack":
            if not self.gathered[number]:
                outbox.before_sending(functools.partial(self.pack, number))
            self.gathered[number] += 1
        elif step == "send":
            self.pack(number)
            outbox.send(self.runs[number], self.frame(number))
        elif choose.random() < 0.3:
            self.pack(number)
            outbox.finish(self.runs[number], self.frame(number))
            self.ended.add(number)

    def in_flight(self) -> list[bytes]:
        """Return the runs of each script that is not answered."""
        return [run for _, _, args in self.link.seen[self.answers :] for run in sorted({each[:4] for each in frames_in(args)})]


def frames_in(args: tuple[Any, ...]) -> list[bytes]:
    """Return the frames that a script carries, without their filling."""
    return [each for word in args if type(word) is bytes for each in re.findall(rb"run\d+:\d+:", word)]


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("refusal", [None, "MISCONF", "OOM"])
async def test_nothing_of_a_run_overtakes_anything_of_it(monkeypatch: pytest.MonkeyPatch, refusal: str | None) -> None:
    """In any order of frames, texts, ends, answers and refusals, no run is in two unanswered scripts, and all is written in order."""
    monkeypatch.setattr("toolbus.bus.broker.replies.finish._AGAIN_FIRST", 0.0)
    monkeypatch.setattr("toolbus.bus.broker.replies.finish._AGAIN_MOST", 0.0)
    for seed in range(300):
        disorder = Disorder(seed, refusal)
        for _ in range(80):
            await disorder.step()
            runs = disorder.in_flight()
            assert len(runs) == len(set(runs)), f"seed {seed}: {runs}"
        while not disorder.finishing.drained():
            if disorder.link.held:
                disorder.release()
            await disorder.finishing.turn()
        for number, made in enumerate(disorder.made):
            wanted = [b"run%d:%d:" % (number, each + 1) for each in range(made)]
            assert [each for each in disorder.written if each.startswith(b"run%d:" % number)] == wanted, f"seed {seed}"
        outbox = disorder.finishing.outbox
        assert (outbox.calls_finished, outbox.frames_sent) == (len(disorder.ended), sum(disorder.made))


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
