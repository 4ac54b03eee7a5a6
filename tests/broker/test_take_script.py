"""The scripts that take requests and begin ``once`` work: turns of several streams, and what a second beginning is told."""

from __future__ import annotations

import pytest

from tests.broker.conftest import ScriptPlace
from toolbus.bus.broker.server import scripts


class Taking:
    """Three request streams, ``a``, ``b`` and ``c``, and the consumer ``mine``."""

    def __init__(self, place: ScriptPlace) -> None:
        self.redis, self.keys = place.redis, place.keys
        self.streams = [self.keys.queue(name) for name in "abc"]
        for stream in self.streams:
            self.redis.xgroup_create(stream, "g", "0", mkstream=True)
            self.redis.expire(stream, 60)

    def fill(self, *counts: int) -> None:
        """Publish so many requests in each stream; each says which stream it is in, and its number there."""
        for stream, name, count in zip(self.streams, "abc", counts, strict=False):
            for number in range(count):
                self.redis.xadd(stream, {"r": f"{name}{number}"})

    def take(self, room: int, streams: list[str] | None = None) -> tuple[int, list[list[str] | str]]:
        """Take by turns; whose turn was the last, and what was found in each stream."""
        keys = streams or self.streams
        last, *found = self.redis.eval(scripts.TAKE.source, len(keys), *keys, "mine", room)
        return last, [each.decode() if isinstance(each, bytes) else [fields[1].decode() for _, fields in each] for each in found]

    def waiting(self, number: int) -> int:
        """Return how many requests of a stream nobody has taken."""
        [group] = self.redis.xinfo_groups(self.streams[number])
        return int(self.redis.xlen(self.streams[number]) - group["pending"])


@pytest.fixture
def taking(script_place: ScriptPlace) -> Taking:
    """Streams without requests."""
    return Taking(script_place)


def test_nothing_is_found_in_empty_streams(taking: Taking) -> None:
    """The last turn is the last stream's, so that the next take begins with the first."""
    assert taking.take(5) == (3, [[], [], []])


def test_streams_share_the_room(taking: Taking) -> None:
    """In equal parts, oldest first; what is left of it goes to those that have more."""
    taking.fill(9, 1, 9)
    last, found = taking.take(9)
    assert found == [["a0", "a1", "a2", "a3"], ["b0"], ["c0", "c1", "c2", "c3"]]
    assert last == 3
    assert [taking.waiting(number) for number in range(3)] == [5, 0, 5]


@pytest.mark.parametrize(
    ("room", "found", "last"), [(1, [["a0"], [], []], 1), (2, [["a0"], ["b0"], []], 2), (4, [["a0", "a1"], ["b0"], ["c0"]], 1)]
)
def test_with_little_room_the_first_streams_have_their_turn(taking: Taking, room: int, found: list[list[str]], last: int) -> None:
    """The next take begins behind the one that had the last turn, so none is left out for long."""
    taking.fill(3, 3, 3)
    assert taking.take(room) == (last, found)


def test_a_stream_alone_has_all_the_room(taking: Taking) -> None:
    """No more is taken than fits, and what does not fit stays for others."""
    taking.fill(0, 5, 0)
    assert taking.take(3) == (2, [[], ["b0", "b1", "b2"], []])
    assert taking.waiting(1) == 2
    held = taking.redis.xpending_range(taking.streams[1], "g", "-", "+", 10)
    assert [entry["consumer"] for entry in held] == [b"mine"] * 3
    assert taking.take(0) == (3, [[], [], []])


def test_a_stream_without_a_group_concerns_itself_alone(taking: Taking) -> None:
    """Its error is told in its place; what others gave is delivered."""
    taking.fill(1, 0, 1)
    missing = taking.keys.queue("missing")
    last, found = taking.take(4, [taking.streams[0], missing, taking.streams[2]])
    assert (last, found[0], found[2]) == (3, ["a0"], ["c0"])
    assert isinstance(found[1], str)
    assert "key" in found[1]
    assert taking.take(1, [missing]) == (1, [found[1]]), "it is not read again and again"


class Beginning:
    """A request of ``once`` work that ``mine`` has taken, in its first attempt."""

    def __init__(self, place: ScriptPlace) -> None:
        self.redis, self.keys = place.redis, place.keys
        self.queue, self.fence, self.mark = self.keys.queue("pool"), self.keys.fence("pool"), self.keys.started("call")
        self.redis.xgroup_create(self.queue, "g", "0", mkstream=True)
        self.redis.hset(self.fence, mapping={"generation": "1.a", "c:mine": 7})
        self.entry = self.redis.xadd(self.queue, {"r": "{}"})
        self.redis.xreadgroup("g", "mine", {self.queue: ">"})
        for key in (self.queue, self.fence):
            self.redis.expire(key, 60)

    def start(self, run: str, attempt: int = 1, counter: str = "7", ttl: int = 60_000) -> bytes:
        """Begin."""
        args = ("mine", "1.a", counter, self.entry, attempt, run, ttl)
        [answer] = self.redis.eval(scripts.START.source, 3, self.queue, self.fence, self.mark, *args)
        return bytes(answer)


@pytest.fixture
def beginning(script_place: ScriptPlace) -> Beginning:
    """Work that nobody has begun."""
    return Beginning(script_place)


def test_once_work_begins_once(beginning: Beginning) -> None:
    """Its run may ask again, since its answer may have been lost; any other one is told that work began."""
    assert beginning.start("one") == b"started"
    assert beginning.redis.get(beginning.mark) == b"one"
    assert 50_000 < beginning.redis.pttl(beginning.mark) <= 60_000
    assert beginning.start("one") == b"started"
    assert beginning.start("two") == b"began"
    assert beginning.redis.get(beginning.mark) == b"one"


def test_who_has_lost_a_request_begins_nothing(beginning: Beginning) -> None:
    """With an older counter the entry itself is looked at, in the attempt that is to begin."""
    assert beginning.start("one", counter="6", attempt=2) == b"lost"
    beginning.redis.xclaim(beginning.queue, "g", "other", 0, [beginning.entry], justid=True)
    assert beginning.start("one", counter="6") == b"lost"
    assert not beginning.redis.exists(beginning.mark)


def test_an_equal_counter_proves_it_without_a_look(beginning: Beginning) -> None:
    """Nothing was moved away since, so the number of the attempt is not compared."""
    assert beginning.start("one", attempt=9) == b"started"


@pytest.mark.parametrize("needs_session", ["", "1"])
def test_who_has_lost_a_request_or_its_session_keeps_no_snapshot(beginning: Beginning, needs_session: str) -> None:
    """The snapshot of a session is written by the worker that holds the call, and that has the session if the call needs it."""
    owner, snapshot = beginning.keys.session("pool", "s"), beginning.keys.snapshot("pool", "s")

    def save(counter: str = "7") -> int:
        keys = (beginning.queue, beginning.fence, owner, snapshot)
        args = ("mine", "1.a", counter, beginning.entry, 1, needs_session, "token", "call", "{}", 60_000)
        return int(beginning.redis.eval(scripts.SAVE.source, len(keys), *keys, *args))

    beginning.redis.set(owner, "other", px=60_000)
    assert (save(), beginning.redis.exists(snapshot)) == ((0, 0) if needs_session else (1, 1))
    beginning.redis.delete(snapshot)
    beginning.redis.set(owner, "mine", px=60_000)
    beginning.redis.xclaim(beginning.queue, "g", "other", 0, [beginning.entry], justid=True)
    assert (save(counter="6"), beginning.redis.exists(snapshot)) == (0, 0)


def test_a_snapshot_that_is_sent_again_after_its_call_has_ended_is_not_kept(beginning: Beginning) -> None:
    """A worker whose connection comes back takes back nothing of what the session's next worker has kept since."""
    owner, snapshot = beginning.keys.session("pool", "s"), beginning.keys.snapshot("pool", "s")
    keys = (beginning.queue, beginning.fence, owner, snapshot)
    args = ("mine", "1.a", 7, beginning.entry, 1, "", "token", "call", "{}", 60_000)
    assert beginning.redis.eval(scripts.SAVE.source, len(keys), *keys, *args) == 1
    beginning.redis.xack(beginning.queue, "g", beginning.entry)
    beginning.redis.hset(snapshot, "d", "newer")
    assert beginning.redis.eval(scripts.SAVE.source, len(keys), *keys, *args) == 0
    assert beginning.redis.hget(snapshot, "d") == b"newer"
    beginning.redis.delete(snapshot)
