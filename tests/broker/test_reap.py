"""The reap script alone: which entries it finds, and how far one run of it looks."""

from __future__ import annotations

import math
import time
from typing import Any, cast

import pytest
import redis

from tests.broker.conftest import ScriptPlace
from tests.servers import next_millisecond
from tests.tiers import some
from toolbus.bus.broker.admin import overview_keys
from toolbus.bus.broker.server import scripts

# Long, so that no test is a race with it; what takes time is set by hand.
LEASE_MS = 10_000
STRETCH = 1000


class Pool:
    """A request stream whose consumers are played by hand."""

    def __init__(self, place: ScriptPlace) -> None:
        self.redis, self.keys = place.redis, place.keys
        keys = place.keys
        self.queue, self.fence, self.live, self.pulse = keys.queue("pool"), keys.fence("pool"), keys.live, keys.pulse
        self.paused, self.notes = keys.paused, keys.pause("pool", "")
        self.redis.xgroup_create(self.queue, "g", "0", mkstream=True)
        self.redis.hset(self.fence, mapping={"generation": "one", "c:mine": 0, "c:other": 0})
        until = int(time.time() * 1000) + 60_000
        self.redis.zadd(self.live, {"pool/mine": until, "pool/other": until})
        for key in (self.queue, self.fence, self.live):
            self.redis.expire(key, 60)
        self.pulse_is(0.0, -1.0)

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

    def pulse_is(self, last: float, quiet: float) -> None:
        """Set the server's pulse, in leases from now."""
        now = time.time() * 1000
        self.redis.set(self.pulse, f"{now + last * LEASE_MS:.0f} {now + quiet * LEASE_MS:.0f}", px=60_000)

    def beat(self) -> float:
        """Beat as the consumer ``mine``; for how many leases from now nobody's lease is judged."""
        keys = (self.live, self.paused, self.pulse)
        self.redis.eval(scripts.BEAT.source, len(keys), *keys, LEASE_MS, 60_000, "pool/mine")
        pulse: Any = self.redis.get(self.pulse)
        last, quiet = map(int, pulse.split())
        return (quiet - last) / LEASE_MS

    def reap(self, room: int = 256, *, busy: bool = False, handed_back_only: bool = False) -> list[bytes]:
        """Run the script as the consumer ``mine``; the ids it took over."""
        args = ("mine", "pool", room, LEASE_MS, int(handed_back_only), int(busy), 3, 1, self.notes)
        answer: Any = self.redis.eval(scripts.REAP.source, 4, self.queue, self.fence, self.live, self.pulse, *args)
        self.left = bool(answer[3])
        self.attempts = {entry: delivered + counted for entry, delivered, counted, *_ in answer[2]}
        self.noted = {entry: note for entry, *_, note in answer[2]}
        return list(self.attempts)

    def hand_back(self, consumer: str, known: bytes | None, entries: dict[bytes, str], attempt: int = 1) -> int:
        """Give entries back, each with the TTL of its note or none; how many were."""
        keys = [self.queue, self.fence, *(self.notes + entry.decode() for entry, ttl in entries.items() if ttl)]
        args = [word for entry, ttl in entries.items() for word in (entry, attempt, ttl)]
        answer: Any = self.redis.eval(scripts.HAND_BACK.source, len(keys), *keys, consumer, "one", known or b"", "wake", "pool", *args)
        return int(answer)

    def count(self, consumer: str = "mine", counter: str = "0") -> list[int]:
        """Say that the consumer runs what was taken over last; for each entry whether it is its own."""
        keys = (2, self.queue, self.fence)
        return [self.redis.eval(scripts.COUNT.source, *keys, consumer, "one", counter, *pair) for pair in self.attempts.items()]

    def renew(self, consumer: str, counter: bytes, *ids: bytes) -> tuple[bytes, list[bytes]]:
        """Renew as a consumer that knows this counter; what it is told of its counter, and what it has lost."""
        held = [word for entry in ids for word in (entry, 1)]
        answer: Any = self.redis.eval(scripts.RENEW.source, 2, self.queue, self.fence, consumer, "one", counter, *held)
        return answer[1], answer[2]

    def lease_over(self, consumer: str) -> None:
        """End a consumer's lease, and sweep it away."""
        self.redis.zrem(self.live, f"pool/{consumer}")

    def owner(self, entry: bytes) -> str:
        """Return the consumer that has a pending entry."""
        (pending,) = self.redis.xpending_range(self.queue, "g", entry, entry, 1)
        return str(pending["consumer"].decode())

    def delivered(self) -> list[int]:
        """The delivery counts of everything pending."""
        return [entry["times_delivered"] for entry in self.redis.xpending_range(self.queue, "g", "-", "+", 100)]

    @property
    def cursor(self) -> bytes | None:
        """Return the id up to which the pending list has been looked through."""
        return self.redis.hget(self.fence, "scan")

    def counter(self, consumer: str) -> bytes | None:
        """A consumer's fence counter."""
        return self.redis.hget(self.fence, f"c:{consumer}")


@pytest.fixture
def pool(script_place: ScriptPlace) -> Pool:
    """A pool with two live consumers, ``mine`` and ``other``."""
    return Pool(script_place)


@pytest.mark.parametrize("pending", some([10, 2 * STRETCH + 500], [10, STRETCH, 2 * STRETCH, 2 * STRETCH + 500]))
@pytest.mark.parametrize("where", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("reaps_before", some([0, 2], [0, 1, 2]))
def test_an_entry_nobody_renews_is_found_in_one_round_of_the_list(pool: Pool, pending: int, where: float, reaps_before: int) -> None:
    """Under a live consumer, wherever it stands and wherever the scan is: within one reap a stretch, and one more."""
    ids = pool.take("other", pending)
    for _ in range(reaps_before):
        assert pool.reap() == []
    left = ids[round(where * (pending - 1))]
    pool.leave(left, "other", 2.1)
    found = []
    for _ in range(math.ceil(pending / STRETCH) + 1):
        # The list takes seconds to make, and a server that heard no beat meanwhile judges no lease.
        pool.pulse_is(-0.1, -1.0)
        found += pool.reap()
    assert found == [left]
    assert pool.counter("other") != b"0", "its consumer is told by the fence"


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
    """A reap stops at the first entry that it has no room for, and the next one begins there."""
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


def test_a_worker_with_a_longer_lease_renews_less_often(pool: Pool) -> None:
    """An entry of a live consumer is judged by that consumer's own lease, whatever the reaper's is."""
    pool.redis.hset(pool.fence, "l:other", 5 * LEASE_MS)
    [entry] = pool.take("other", 1)
    pool.leave(entry, "other", 9.9)
    assert pool.reap() == []
    pool.leave(entry, "other", 10.1)
    assert pool.reap() == [entry]


@pytest.mark.parametrize(("last", "quiet"), [(-0.6, -5.0), (-0.1, 0.5), (30.0, -5.0)], ids=["silent", "was-silent", "clock-set-back"])
def test_nothing_is_taken_when_the_server_has_not_heard_the_living(pool: Pool, last: float, quiet: float) -> None:
    """While it has heard no beat for half a lease, or had not a lease ago, or its clock stepped, the living may look dead."""
    ids = pool.take("other", 3)
    pool.redis.zadd(pool.live, {"pool/other": 1})
    pool.pulse_is(last, quiet)
    assert pool.reap() == []
    pool.redis.delete(pool.pulse)
    assert pool.reap() == []
    pool.pulse_is(-0.1, -0.1)
    assert pool.reap() == ids


def test_a_beat_that_is_broken_off_is_no_pulse(pool: Pool) -> None:
    """It has prolonged no lease, so that the living look dead once its key of another type is gone."""
    pool.pulse_is(-0.4, -1.0)
    before = pool.redis.get(pool.pulse)
    pool.redis.set(pool.live, "no leases", ex=60)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        pool.beat()
    assert pool.redis.get(pool.pulse) == before


def test_the_first_beat_after_a_silence_gives_the_living_a_lease_to_show_themselves(pool: Pool) -> None:
    """No lease is judged for one lease after a stall, a restore, or a step of the clock; beats in between change nothing."""
    for last in (-0.7, 30.0):
        pool.pulse_is(last, -5.0)
        assert pool.beat() == 1.0
        assert 0.5 < pool.beat() <= 1.0
    pool.redis.delete(pool.pulse)
    assert pool.beat() == 1.0


def test_a_server_that_hears_beats_all_the_time_judges_leases(pool: Pool) -> None:
    """Leases are judged while each beat comes within half a lease of the last; a waiting time that ends far ahead begins anew."""
    pool.pulse_is(-0.4, -0.1)
    assert pool.beat() < 0
    pool.pulse_is(-0.1, 3000.0)
    assert pool.beat() == 1.0


def test_a_lease_that_ends_too_far_ahead_was_written_before_the_clock_was_set_back(pool: Pool) -> None:
    """A consumer whose lease seems to last for an hour is taken for dead, and its lease ended, so that it is swept too."""
    ids = pool.take("other", 2)
    pool.redis.hset(pool.fence, "l:other", LEASE_MS)
    pool.redis.zadd(pool.live, {"pool/other": int(time.time() * 1000) + 3_600_000})
    assert pool.reap() == ids
    assert pool.redis.zscore(pool.live, "pool/other") < time.time() * 1000


def test_the_overview_does_not_count_a_worker_whose_lease_ends_too_far_ahead(pool: Pool) -> None:
    """It shows the workers that a reap takes for living ones, and changes nothing."""
    keys = overview_keys(pool.keys, "pool", "pool")
    pool.redis.hset(pool.keys.instances("pool"), mapping={"i:mine": "1:a", "i:other": "2:a"})
    pool.redis.expire(pool.keys.instances("pool"), 60)
    pool.redis.hset(pool.fence, mapping={"l:mine": LEASE_MS, "l:other": LEASE_MS})
    ends = {"pool/mine": int(time.time() * 1000) + LEASE_MS, "pool/other": int(time.time() * 1000) + 3_600_000}
    pool.redis.zadd(pool.live, ends)
    [answer] = cast("Any", pool.redis.eval(scripts.OVERVIEW.source, len(keys), *keys, "pool"))
    assert answer[4] == 1
    assert pool.redis.zscore(pool.live, "pool/other") == ends["pool/other"]


def test_what_dead_workers_held_counts_as_queued(pool: Pool) -> None:
    """It waits for others, while a worker that has left the registry and drains still runs what it has."""
    keys = overview_keys(pool.keys, "pool", "pool")
    pool.take("drains", 1)
    pool.take("dead", 2)
    now = int(time.time() * 1000)
    pool.redis.zadd(pool.live, {"pool/drains": now + LEASE_MS, "pool/dead": now - 10})
    assert pool.redis.eval(scripts.OVERVIEW.source, len(keys), *keys, "pool") == [[2, 1, 0, 0, 0]]


def test_what_may_be_poison_is_taken_alone_and_by_nobody_who_holds_anything(pool: Pool) -> None:
    """From the third attempt on one entry a reap, with nothing beside it; after a lease the busy hear that it waits."""
    ids = pool.take("other", 4)
    for _ in range(2):
        pool.redis.xclaim(pool.queue, "g", "other", 0, ids[1:], justid=False)
    pool.redis.zadd(pool.live, {"pool/other": int(time.time() * 1000) - 10})
    assert pool.reap(busy=True) == ids[:1]
    assert pool.reap(busy=True) == []
    assert not pool.left
    assert pool.reap() == ids[1:2]
    assert pool.reap() == ids[2:3]
    pool.redis.zadd(pool.live, {"pool/other": int(time.time() * 1000) - 2 * LEASE_MS})
    assert pool.reap(busy=True) == []
    assert pool.left
    assert pool.reap() == ids[3:]


def test_what_was_handed_back_is_taken_without_counting(pool: Pool) -> None:
    """It keeps its delivery count, and is taken whoever was heard of."""
    ids = pool.take("other", 2)
    pool.redis.xclaim(pool.queue, "g", "~back", 0, ids, justid=True)
    pool.redis.delete(pool.pulse)
    assert pool.reap(handed_back_only=True) == ids
    assert pool.delivered() == [1, 1]
    assert set(pool.attempts.values()) == {1}


def test_everything_that_had_begun_is_handed_back_as_the_next_attempt(pool: Pool) -> None:
    """Its new number is the script's; what had not begun keeps its own; one that waited for a person keeps its deadline in its note."""
    ids = pool.take("other", 4)
    pool.redis.set(pool.notes + ids[2].decode(), "7000 0 0", px=60_000)
    assert pool.hand_back("other", b"0", {ids[0]: "60000", ids[1]: "", ids[2]: "1", ids[3]: "60000"}) == 4
    assert pool.hand_back("other", b"0", dict.fromkeys(ids, "60000")) == 0, "a script that is sent again counts once"
    assert pool.reap(handed_back_only=True) == ids
    assert pool.attempts == dict(zip(ids, [2, 1, 2, 2], strict=True))
    assert pool.noted == dict(zip(ids, [b"0 0 0 1", b"", b"7000 0 0 1", b"0 0 0 1"], strict=True))
    assert all(1 < pool.redis.pttl(pool.notes + entry.decode()) <= 60_000 for entry in (ids[0], *ids[2:]))


def test_what_leaving_workers_cut_off_is_no_suspect(pool: Pool) -> None:
    """However often that was; the attempts that workers died of count, and nothing else does."""
    (entry,) = pool.take("mine", 1)
    for attempt in range(1, 5):
        assert pool.hand_back("mine", pool.counter("mine"), {entry: "60000"}, attempt) == 1
        assert pool.reap(busy=True) == [entry]
    assert (pool.attempts, pool.noted, pool.left) == ({entry: 5}, {entry: b"0 0 0 4"}, False)
    pool.redis.xclaim(pool.queue, "g", "~back", 0, [entry], retrycount=7, justid=True)
    assert pool.reap(busy=True) == []
    assert pool.left, "workers died of its fifth and sixth attempt"


def test_a_delivery_whose_reply_was_lost_is_taken_again_without_counting(pool: Pool) -> None:
    """An entry that lies idle under the worker's own name was never seen by it, so it is taken again without counting."""
    ids = pool.take("mine", 2)
    for entry in ids:
        pool.leave(entry, "mine", 1.1)
    assert pool.reap() == ids
    assert pool.delivered() == [1, 1]
    assert set(pool.attempts.values()) == {1}


def test_what_was_taken_over_counts_when_it_is_run(pool: Pool) -> None:
    """A worker that takes a request over and dies before it runs it has tried nothing, however often that happens."""
    ids = pool.take("other", 2)
    pool.redis.zadd(pool.live, {"pool/other": 1})
    assert pool.reap() == ids
    for entry in ids:
        pool.redis.xclaim(pool.queue, "g", "other", 0, [entry], retrycount=1)
    assert pool.reap() == ids
    assert pool.delivered() == [1, 1]
    assert set(pool.attempts.values()) == {2}
    for _ in range(2):
        assert pool.count() == [1, 1], "a repeated script counts once"
        assert pool.delivered() == [2, 2]


def test_only_the_owner_counts(pool: Pool) -> None:
    """An entry that another worker took over meanwhile is not counted."""
    ids = pool.take("other", 2)
    pool.redis.zadd(pool.live, {"pool/other": 1})
    assert pool.reap() == ids
    pool.redis.xclaim(pool.queue, "g", "third", 0, [ids[1]], retrycount=1)
    assert pool.count(counter="behind") == [1, 0]
    assert pool.delivered() == [2, 1]


def test_a_lost_reply_of_a_reap_counts_when_it_is_taken_again(pool: Pool) -> None:
    """Only a first delivery is its own attempt; what lies idle here after it was another's is a further one."""
    ids = pool.take("mine", 2)
    pool.redis.xclaim(pool.queue, "g", "mine", 0, [ids[1]], idle=2 * LEASE_MS, retrycount=2)
    pool.leave(ids[0], "mine", 2.0)
    assert pool.reap(busy=True) == ids[:1]
    assert pool.attempts == {ids[0]: 1}
    assert pool.left, "the third attempt of the other one is to be alone"


def test_a_first_attempt_elsewhere_counts_when_its_reap_was_lost(pool: Pool) -> None:
    """Its delivery count is that of a delivery that was lost, but a worker had it: its run here is the second."""
    ids = pool.take("other", 2)
    pool.lease_over("other")
    assert pool.reap() == ids
    lost = pool.take("mine", 1)
    for _ in range(2):
        for entry in ids + lost:
            pool.leave(entry, "mine", 1.1)
        assert pool.reap() == ids + lost
        assert pool.attempts == {ids[0]: 2, ids[1]: 2, lost[0]: 1}
    assert pool.count() == [1, 1, 1]
    assert pool.delivered() == [2, 2, 1]


def test_the_fence_remembers_a_bounded_number_of_moved_entries(pool: Pool) -> None:
    """The last of them stay, and one that has been cut is none."""
    pool.redis.hset(pool.fence, "moved", "1-1 " * 10_000)
    (entry,) = pool.take("other", 1)
    pool.lease_over("other")
    assert pool.reap() == [entry]
    moved = pool.redis.hget(pool.fence, "moved")
    assert moved is not None
    assert len(moved) == 16_384
    assert moved.endswith(b" 1-1 " + entry + b" ")


@pytest.mark.parametrize("mine", [-1.0, None])
@pytest.mark.parametrize("handed_back", [False, True])
def test_who_has_no_lease_takes_nothing(pool: Pool, mine: float | None, handed_back: bool) -> None:
    """A worker that wakes up after its lease has ended would lose at once what it took, and each loss costs the call an attempt."""
    ids = pool.take("~back" if handed_back else "other", 2)
    pool.redis.zadd(pool.live, {"pool/other": 1})
    until = pool.redis.zscore(pool.live, "pool/mine")
    pool.redis.zrem(pool.live, "pool/mine")
    if mine is not None:
        pool.redis.zadd(pool.live, {"pool/mine": int(time.time() * 1000 + mine * LEASE_MS)})
    assert pool.reap(handed_back_only=handed_back) == []
    pool.redis.zadd(pool.live, {"pool/mine": until})
    assert pool.reap(handed_back_only=handed_back) == ids


def test_what_is_taken_over_brings_the_note_of_its_deadline(pool: Pool) -> None:
    """The later deadline of a call whose handler has waited for a person goes with the entry; others have none."""
    ids = pool.take("other", 2)
    pool.redis.zadd(pool.live, {"pool/other": 1})
    pool.redis.set(pool.notes + ids[1].decode(), "1 2 3", px=60_000)
    pool.reap()
    assert pool.noted == {ids[0]: b"", ids[1]: b"1 2 3"}


def test_a_forgotten_consumer_is_told_nothing_that_could_come_true(pool: Pool) -> None:
    """Deleted for want of a lease and of entries, it takes some, loses them, and is deleted again: they must not look like its own."""
    pool.redis.xgroup_createconsumer(pool.queue, "g", "other")
    pool.lease_over("other")
    assert pool.reap() == []
    assert pool.counter("other") is None
    known, _ = pool.renew("other", b"")
    (entry,) = pool.take("other", 1)
    assert pool.renew("other", known, entry)[1] == []
    assert pool.reap() == [entry]
    assert pool.reap() == []
    assert pool.counter("other") is None
    assert pool.renew("other", known, entry)[1] == [entry]
    assert pool.owner(entry) == "mine"


@pytest.mark.anyio
async def test_a_counter_that_begins_anew_is_none_that_was(pool: Pool) -> None:
    """Each time a forgotten consumer loses entries its counter begins anew, with a number that it never had."""
    seen = set()
    for _ in range(3):
        pool.lease_over("other")
        pool.reap()
        (entry,) = pool.take("other", 1)
        assert pool.reap() == [entry]
        seen.add(pool.counter("other"))
        assert pool.counter("mine") is not None
        await next_millisecond(pool.redis)
        pool.reap()
    assert len(seen) == 3


def test_a_worker_that_died_makes_no_room(pool: Pool) -> None:
    """Few workers at a time make room for what must run alone; the place of one whose lease has ended is another's."""
    [entry] = pool.take("third", 1)
    pool.redis.xclaim(pool.queue, "g", "third", 0, [entry], retrycount=2, justid=True)
    pool.redis.hset(pool.fence, "room", f"other={int(time.time() * 1000) + LEASE_MS}")
    assert pool.reap(busy=True) == []
    assert not pool.left, "another one makes room already"
    pool.lease_over("other")
    assert pool.reap(busy=True) == []
    assert pool.left


@pytest.mark.parametrize(
    "scan",
    ["18446744073709551615-18446744073709551615", "99999999999999999999999-1", "0-99999999999999999999999", "junk", "9" * 400 + "-1"],
)
def test_a_position_that_no_entry_can_have_is_none(pool: Pool, scan: str) -> None:
    """A value in the fence stops no recovery: entries of dead consumers and stalled ones are found, and the position is put right."""
    dead, stalled = pool.take("gone", 1)[0], pool.take("other", 1)[0]
    pool.lease_over("gone")
    pool.leave(stalled, "other", 3.0)
    pool.redis.hset(pool.fence, "scan", scan)
    # An id that a server takes all the same is behind every entry, so the next reap begins anew.
    assert {*pool.reap(), *pool.reap()} == {dead, stalled}
    assert pool.cursor is None


@pytest.mark.parametrize("delivered", [2**63 - 1, 2 * 10**17, 2**53])
def test_a_delivery_count_beyond_all_bounds_is_one_that_can_be_counted(pool: Pool, delivered: int) -> None:
    """The entry is taken over, so that it is set aside, and entries beside it are no worse off."""
    entry, beside = pool.take("gone", 2)
    pool.redis.xclaim(pool.queue, "g", "gone", 0, [entry], retrycount=delivered, justid=True)
    pool.lease_over("gone")
    assert pool.reap() == [entry], "it may have killed its workers, so it is taken alone"
    assert pool.attempts[entry] > 1_000
    assert pool.count() == [1]
    assert pool.reap() == [beside]
