"""The scripts that act on entries a worker believes to be its own: what each of them takes for proof."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.broker.conftest import ScriptPlace
from toolbus.bus.broker.server import scripts

GENERATION = "3.abc"


class Stream:
    """A request stream with one entry, and a worker ``mine`` that is played by hand."""

    def __init__(self, place: ScriptPlace) -> None:
        self.redis, self.keys = place.redis, place.keys
        self.queue, self.fence = self.keys.queue("pool"), self.keys.fence("pool")
        self.redis.xgroup_create(self.queue, "g", "0", mkstream=True)
        self.redis.hset(self.fence, mapping={"generation": GENERATION, "c:mine": 7})
        self.entry = self.redis.xadd(self.queue, {"r": "{}", "d": "1"})
        for key in (self.queue, self.fence):
            self.redis.expire(key, 60)

    def give(self, consumer: str, attempt: int) -> None:
        """Let a consumer hold the entry in an attempt."""
        self.redis.xreadgroup("g", consumer, {self.queue: ">"})
        self.redis.xclaim(self.queue, "g", consumer, 0, [self.entry], retrycount=attempt, justid=True)

    def run(self, script: scripts.Script, keys: tuple[str, ...], *args: Any) -> Any:
        """Run a script on the stream as ``mine``."""
        everything = (self.queue, self.fence, *keys)
        return self.redis.eval(script.source, len(everything), *everything, "mine", *args)


Owns = Callable[[Stream, str, int], bool]


def counts(stream: Stream, known: str, attempt: int) -> bool:
    """Count a further attempt, and return whether that was allowed."""
    return bool(stream.run(scripts.COUNT, (), GENERATION, known, stream.entry, attempt + 1))


def starts(stream: Stream, known: str, attempt: int) -> bool:
    """Begin ``once`` work, and return whether that was allowed."""
    mark = (stream.keys.started("call"),)
    return bool(stream.run(scripts.START, mark, GENERATION, known, stream.entry, attempt, "run", 60_000) == [b"started"])


def buries(stream: Stream, known: str, attempt: int) -> bool:
    """Make the entry a dead letter, and return whether that was allowed."""
    letter = ("reason", attempt, "error", "{}", 10, 60_000, "", "", "")
    return bool(stream.run(scripts.BURY, (stream.keys.dead_letters("pool"),), GENERATION, known, stream.entry, *letter))


def finishes(stream: Stream, known: str, attempt: int) -> bool:
    """Answer and remove the entry, and return whether that was allowed."""
    return not stream.run(scripts.FINISH_EACH, (), GENERATION, known, 1, stream.entry, attempt)[2]


def renews(stream: Stream, known: str, attempt: int) -> bool:
    """Renew the entry's lease, and return whether that was allowed."""
    return not stream.run(scripts.RENEW, (), GENERATION, known, stream.entry, attempt)[2]


def hands_back(stream: Stream, known: str, attempt: int) -> bool:
    """Hand the entry back for others, and return whether that was allowed."""
    return bool(stream.run(scripts.HAND_BACK, (), GENERATION, known, "wake", "pool", stream.entry, attempt, ""))


SCRIPTS: tuple[Owns, ...] = (counts, starts, buries, finishes, renews, hands_back)


@pytest.fixture
def stream(script_place: ScriptPlace) -> Stream:
    """A stream with one entry that no worker holds yet."""
    return Stream(script_place)


@pytest.mark.parametrize("owns", SCRIPTS)
@pytest.mark.parametrize("known", ["7", "6"])
def test_what_is_held_is_owned(stream: Stream, owns: Owns, known: str) -> None:
    """An equal counter proves it; with another one the entry itself is looked at."""
    stream.give("mine", 2)
    assert owns(stream, known, 2)


@pytest.mark.parametrize("owns", SCRIPTS)
def test_an_attempt_that_others_had_since_is_not_owned(stream: Stream, owns: Owns) -> None:
    """An entry that has come back under the same name is another delivery: the run it was lost by may not end it."""
    stream.give("mine", 4)
    assert not owns(stream, "6", 1)
    assert owns(stream, "6", 4)


@pytest.mark.parametrize("owns", SCRIPTS)
def test_equal_counters_prove_nothing_where_there_is_none(stream: Stream, owns: Owns) -> None:
    """A worker that was forgotten has no counter, and may have learned so; what was moved since is not its own."""
    stream.redis.hdel(stream.fence, "c:mine")
    stream.give("other", 1)
    assert not owns(stream, "", 1)
    stream.give("mine", 1)
    assert owns(stream, "", 1), "what it holds it may finish"


def test_without_a_counter_nothing_is_finished_unseen(stream: Stream) -> None:
    """The script that finishes all or nothing leaves it to the one that looks at every entry."""
    stream.give("mine", 1)
    assert len(stream.run(scripts.FINISH, (), GENERATION, "7", 1, stream.entry)) == 5
    stream.redis.hdel(stream.fence, "c:mine")
    assert stream.run(scripts.FINISH, (), GENERATION, "", 1, stream.entry) == [GENERATION.encode(), b""]


@pytest.mark.parametrize("known", ["7", "6"])
def test_a_burial_that_is_sent_again_keeps_one_letter(stream: Stream, known: str) -> None:
    """A connection may be lost before the answer; two letters would be two calls when they are redriven."""
    stream.give("mine", 2)
    assert buries(stream, known, 2)
    buries(stream, known, 2)
    assert stream.redis.xlen(stream.keys.dead_letters("pool")) == 1
    stream.redis.delete(stream.keys.dead_letters("pool"))
