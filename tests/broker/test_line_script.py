"""The order of sessions at the server: bounded whatever stands there, and kept as long as it is used."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.conftest import ScriptPlace
from toolbus.bus.broker.server import scripts

SESSION = "0" * 32
MOST = 16
HOSTILE = [b"x " * 50_000, b"1" * 500_000, b"9-9 " * 5_000, b" " * 100_000, b"1-1\n2-2\x00 3-3 ", ("9" * 30 + "-0 ").encode() * 40]
HOURS = 3_600_000


class Ordering:
    """Publications in one session, written by hand."""

    def __init__(self, place: ScriptPlace) -> None:
        self.redis, self.keys = place.redis, place.keys
        self.queue, self.order = self.keys.queue("pool"), self.keys.order("pool")
        self.redis.xgroup_create(self.queue, "g", "0", mkstream=True)
        self.redis.expire(self.queue, 60)
        self._flushes = 0

    def publish(self, shared: bool = False) -> bytes:
        """Publish a call; the id of its entry."""
        self._flushes += 1
        if shared:
            keys = (self.keys.shared(f"k{self._flushes}"), self.queue, self.keys.call(f"c{self._flushes}"), self.order)
            args = (f"c{self._flushes}", "d", "a", 100, 5_000, "{}", 60_000, "", self.keys.prefix, self.keys.wake("pool"), SESSION)
            shares: Any = self.redis.eval(scripts.SHARE.source, 4, *keys, *args)
            return bytes(shares[1])
        words = (self._flushes, 60_000, "", 2, f"9999 3 {SESSION}", 5_000, "{}")
        answer: Any = self.redis.eval(scripts.PUBLISH.source, 3, self.keys.flushes("a"), self.queue, self.order, *words)
        return bytes(answer)

    def line(self) -> bytes:
        """The ids that stand in the order."""
        return bytes(self.redis.hget(self.order, SESSION) or b"")

    def earlier(self, entry: bytes) -> list[bytes]:
        """Return what line.lua says is before an entry."""
        answer: Any = self.redis.eval(scripts.LINE.source, 2, self.queue, self.order, SESSION, entry, "")
        return list(answer[0].split())


@pytest.fixture
def ordering(script_place: ScriptPlace) -> Ordering:
    """A queue of the test's own."""
    return Ordering(script_place)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_line_shrinks_with_the_first_call(ordering: Ordering, hostile: bytes, shared: bool) -> None:
    """After it and the next ones, the last of our ids stand there, and no more."""
    ordering.redis.hset(ordering.order, SESSION, hostile)
    entries = [ordering.publish(shared) for _ in range(MOST + 2)]
    assert ordering.line() == b" ".join(entries[-MOST:])


@pytest.mark.parametrize("shared", [False, True])
def test_an_order_of_another_type_is_made_anew(ordering: Ordering, shared: bool) -> None:
    """A stranger who overwrites the key takes from the order what was published before, and nothing after it."""
    ordering.publish(shared)
    ordering.redis.set(ordering.order, "x")
    entries = [ordering.publish(shared) for _ in range(2)]
    assert (ordering.line(), ordering.earlier(entries[1])) == (b" ".join(entries), entries[:1])
    assert ordering.redis.pttl(ordering.order) > 3 * HOURS


def test_a_hostile_line_costs_a_question_a_bounded_number_of_looks(ordering: Ordering) -> None:
    """A worker asks what came before a call while a stranger has filled the line with thousands of entries that stand in the queue."""
    entries = [ordering.redis.xadd(ordering.queue, {"r": "{}"}, id=f"1-{number}") for number in range(1, 2_001)]
    last = ordering.publish()
    ordering.redis.hset(ordering.order, SESSION, b" ".join([*entries, last]))
    found = ordering.earlier(last)
    assert found == entries[-len(found) :]
    assert len(found) < MOST * 42 // 6


@pytest.mark.parametrize("shared", [False, True])
def test_the_order_lives_as_long_as_it_is_used(ordering: Ordering, shared: bool) -> None:
    """One long session renews it, at most every ten minutes, and not with each call."""
    ordering.publish(shared)
    ordering.redis.pexpire(ordering.order, HOURS)
    ordering.redis.hset(ordering.order, SESSION, "1000-0")
    ordering.publish(shared)
    assert ordering.redis.pttl(ordering.order) > 3 * HOURS
