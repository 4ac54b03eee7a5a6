"""The reap script alone: which entries it finds, and how far one run of it looks."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
import redis

from tests.contract import Place
from toolbus.broker import scripts
from toolbus.broker.keys import Keys

LEASE_MS = 1000
STRETCH = 1000


class Pool:
    """A request stream whose consumers are played by hand."""

    def __init__(self, place: Place) -> None:
        self.redis = redis.Redis.from_url(place.settings.url)
        keys = Keys(place.settings.namespace)
        self.queue, self.fence, self.live = keys.queue("pool"), keys.fence("pool"), keys.live
        self.redis.xgroup_create(self.queue, "g", "0", mkstream=True)
        self.redis.hset(self.fence, mapping={"generation": "one", "c:mine": 0, "c:other": 0})
        until = int(time.time() * 1000) + 60_000
        self.redis.zadd(self.live, {"pool/mine": until, "pool/other": until})
        for key in (self.queue, self.fence, self.live):
            self.redis.expire(key, 60)

    def take(self, consumer: str, count: int) -> list[bytes]:
        """Publish so many requests and have a consumer take them; their ids."""
        with self.redis.pipeline(transaction=False) as pipe:
            for number in range(count):
                pipe.xadd(self.queue, {"r": str(number)})
            ids: list[bytes] = pipe.execute()
        self.redis.xreadgroup("g", consumer, {self.queue: ">"}, count=count)
        return ids

    def leave(self, entry: bytes, consumer: str, leases: float) -> None:
        """Make an entry look as if nobody had renewed it for so many leases."""
        self.redis.xclaim(self.queue, "g", consumer, 0, [entry], idle=int(leases * LEASE_MS), justid=True)

    def reap(self, room: int = 256) -> list[bytes]:
        """Run the script as the consumer ``mine``; the ids it took over."""
        now, busy, alone = int(time.time() * 1000), 0, 3
        answer: Any = self.redis.eval(
            scripts.REAP.source, 3, self.queue, self.fence, self.live, "mine", "pool", room, LEASE_MS, now, busy, alone
        )
        return [entry for entry, _, _ in answer[2]]

    @property
    def cursor(self) -> bytes | None:
        """How far the pending list has been looked through."""
        return self.redis.hget(self.fence, "scan")

    def counter(self, consumer: str) -> bytes | None:
        """A consumer's fence counter."""
        return self.redis.hget(self.fence, f"c:{consumer}")


@pytest.fixture
def pool(redis_place: Place) -> Any:
    """A pool with two live consumers, ``mine`` and ``other``."""
    made = Pool(redis_place)
    yield made
    made.redis.close()


@pytest.mark.parametrize("pending", [10, STRETCH, 2 * STRETCH, 2 * STRETCH + 500])
@pytest.mark.parametrize("where", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("reaps_before", [0, 1, 2])
def test_an_entry_nobody_renews_is_found_in_one_round_of_the_list(pool: Pool, pending: int, where: float, reaps_before: int) -> None:
    """Under a live consumer, wherever it stands and wherever the scan is: within one reap a stretch, and one more."""
    ids = pool.take("other", pending)
    for _ in range(reaps_before):
        assert pool.reap() == []
    left = ids[round(where * (pending - 1))]
    pool.leave(left, "other", 2.1)
    found = [entry for _ in range(math.ceil(pending / STRETCH) + 1) for entry in pool.reap()]
    assert found == [left]
    assert pool.counter("other") == b"1", "its consumer is told by the fence"


def test_a_reap_looks_at_no_more_than_one_stretch(pool: Pool) -> None:
    """The scan stops after a stretch, goes on from there, and begins anew after the last entry."""
    ids = pool.take("other", 2 * STRETCH + 500)
    pool.leave(ids[STRETCH], "other", 2.1)
    assert pool.reap() == []
    assert pool.cursor == ids[STRETCH - 1]
    assert pool.reap() == [ids[STRETCH]]
    assert pool.cursor == ids[2 * STRETCH - 1]
    assert pool.reap() == []
    assert pool.cursor is None


def test_the_scan_stops_where_there_is_no_room_and_goes_on_there(pool: Pool) -> None:
    """What one reap had no room for is the next one's first."""
    ids = pool.take("other", 5)
    for entry in ids:
        pool.leave(entry, "other", 2.1)
    assert [pool.reap(room=2) for _ in range(3)] == [ids[:2], ids[2:4], ids[4:]]


def test_an_entry_idle_for_less_than_two_leases_stays_with_its_live_consumer(pool: Pool) -> None:
    """A renewal that is late is not a renewal that will never come."""
    (entry,) = pool.take("other", 1)
    pool.leave(entry, "other", 1.5)
    assert pool.reap() == []
    assert pool.counter("other") == b"0"
