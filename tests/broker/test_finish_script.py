"""The script that finishes requests: frames to the callers, and entries that are acknowledged and deleted, all of it or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.conftest import ScriptPlace
from toolbus.bus.broker.server import scripts


class Finishing:
    """A worker ``mine`` that holds some requests, and two callers' reply streams."""

    def __init__(self, place: ScriptPlace) -> None:
        self.redis, self.keys = place.redis, place.keys
        self.queue, self.fence = self.keys.queue("pool"), self.keys.fence("pool")
        self.replies = [self.keys.replies(name) for name in ("one", "two")]
        self.redis.xgroup_create(self.queue, "g", "0", mkstream=True)
        self.redis.hset(self.fence, mapping={"generation": "1.a", "c:mine": 7})
        self.entries = [self.redis.xadd(self.queue, {"r": str(number)}) for number in range(5)]
        self.redis.xreadgroup("g", "mine", {self.queue: ">"}, count=4)
        for stream in self.replies:
            self.redis.xadd(stream, {"o": "1"})
        for key in (self.queue, self.fence, *self.replies):
            self.redis.expire(key, 60)

    def finish(self, entries: list[bytes], *frames: str, counter: str = "7", generation: str = "1.a") -> list[Any]:
        """Finish some requests; ``frames`` are pairs of reply stream and frames."""
        args = ("mine", generation, counter, len(entries), *entries, *frames)
        answer: list[Any] = self.redis.eval(scripts.FINISH.source, 2, self.queue, self.fence, *args)
        return answer

    def pending(self) -> list[bytes]:
        """The entries that are still held."""
        return [entry["message_id"] for entry in self.redis.xpending_range(self.queue, "g", "-", "+", 10)]

    def waiting(self) -> list[bytes]:
        """The entries that are in the stream."""
        return [entry for entry, _ in self.redis.xrange(self.queue)]

    def frames(self, stream: str) -> list[bytes]:
        """The frames in a reply stream."""
        return [fields[b"f"] for _, fields in self.redis.xrange(stream) if b"f" in fields]


@pytest.fixture
def finishing(script_place: ScriptPlace) -> Finishing:
    """A worker that holds four of five requests."""
    return Finishing(script_place)


def test_a_batch_is_answered_acknowledged_and_deleted(finishing: Finishing) -> None:
    """Each caller gets its frames; the answer has the fence and how many requests are left in the stream."""
    first, second, third, *_ = finishing.entries
    one, two = finishing.replies
    answer = finishing.finish([first, third], one, "[1]", two, "[2,3]")
    assert answer == [b"1.a", b"7", [], [], 3]
    assert (finishing.frames(one), finishing.frames(two)) == ([b"[1]"], [b"[2,3]"])
    assert finishing.pending() == [second, finishing.entries[3]]
    assert finishing.waiting() == [second, *finishing.entries[3:]]


def test_reply_streams_that_are_gone_are_named(finishing: Finishing) -> None:
    """Each is made anew for five seconds, and says first that it was lost; the others are answered, and the requests are done with."""
    one, two = finishing.replies
    finishing.redis.delete(one)
    three = finishing.keys.replies("three")
    answer = finishing.finish(finishing.entries[:1], one, "[1]", two, "[2]", three, "[3]")
    assert answer == [b"1.a", b"7", [], [one.encode(), three.encode()], 4]
    assert finishing.frames(two) == [b"[2]"]
    for gone, frame in ((one, b"[1]"), (three, b"[3]")):
        assert [fields for _, fields in finishing.redis.xrange(gone)] == [{b"o": b"lost"}, {b"f": frame}]
        assert 0 < finishing.redis.pttl(gone) <= 5_000
    assert finishing.entries[0] not in finishing.waiting()


def test_a_reply_stream_of_another_type_is_gone(finishing: Finishing) -> None:
    """A caller whose reply key has another type counts as gone, and the other callers still get their answers."""
    one, two = finishing.replies
    finishing.redis.set(one, "text", ex=60)
    assert finishing.finish(finishing.entries[:1], one, "[1]", two, "[2]") == [b"1.a", b"7", [], [one.encode()], 4]
    assert finishing.frames(two) == [b"[2]"]


def test_requests_without_callers_are_finished_without_frames(finishing: Finishing) -> None:
    """All of a batch, in one script."""
    assert finishing.finish(finishing.entries[:4]) == [b"1.a", b"7", [], [], 1]
    assert (finishing.pending(), finishing.waiting()) == ([], finishing.entries[4:])


@pytest.mark.parametrize(("generation", "counter"), [("1.a", "6"), ("0.z", "7")])
def test_when_something_was_moved_nothing_is_done(finishing: Finishing, generation: str, counter: str) -> None:
    """The answer is the fence alone; another script looks at each entry then."""
    one, _ = finishing.replies
    assert finishing.finish(finishing.entries[:1], one, "[1]", generation=generation, counter=counter) == [b"1.a", b"7"]
    assert finishing.frames(one) == []
    assert finishing.pending() == finishing.entries[:4]
