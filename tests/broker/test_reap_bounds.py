"""The reap script at the very millisecond, on fakeredis with a clock that stands still: whose lease has ended, and who makes room."""

from __future__ import annotations

import time

import pytest

from tests.broker.conftest import FakeServer, ScriptPlace
from tests.broker.test_reap import LEASE_MS, Pool
from toolbus.bus.broker.server import scripts

NOW = 1_800_000_000_000


class Still(Pool):
    """A pool whose time stands still."""

    def lease(self, consumer: str, ends: int) -> None:
        """End a consumer's lease so many milliseconds from now."""
        self.redis.zadd(self.live, {f"pool/{consumer}": NOW + ends})

    def suspect(self, consumer: str = "third", delivered: int = 2) -> bytes:
        """Leave an entry that must run alone with a consumer that has no lease."""
        [entry] = self.take(consumer, 1)
        self.redis.xclaim(self.queue, "g", consumer, 0, [entry], retrycount=delivered, justid=True)
        return entry

    @property
    def room(self) -> str | None:
        """Return the workers that make room, each with the time until which it does."""
        found = self.redis.hget(self.fence, "room")
        return None if found is None else str(found.decode())

    @room.setter
    def room(self, text: str) -> None:
        self.redis.hset(self.fence, "room", text)

    def inflexible(self) -> bool:
        """Reap as a busy worker that could make no room; whether it is told to."""
        args = ("mine", "pool", 256, LEASE_MS, 0, 1, 3, 0, self.notes)
        return bool(self.redis.eval(scripts.REAP.source, 4, self.queue, self.fence, self.live, self.pulse, *args)[3])


@pytest.fixture(params=["fakeredis"])
def pool(monkeypatch: pytest.MonkeyPatch, namespace: str) -> Still:
    """A pool with two live consumers, ``mine`` and ``other``."""
    monkeypatch.setattr(time, "time", lambda: NOW / 1000)
    return Still(ScriptPlace(FakeServer(), namespace))


def test_a_lease_lasts_to_its_last_millisecond(pool: Still) -> None:
    """Another's is judged, and one's own is needed, by the same time."""
    ids = pool.take("other", 2)
    pool.lease("other", 0)
    assert pool.reap() == []
    pool.lease("other", -1)
    pool.lease("mine", -1)
    assert pool.reap() == []
    pool.lease("mine", 0)
    assert pool.reap() == ids
    assert pool.counter("other") == b"%d.1.0" % (NOW * 1000), "however many were taken"


def test_leases_are_judged_from_the_end_of_the_quiet_time_on(pool: Still) -> None:
    """The server said until when."""
    ids = pool.take("other", 1)
    pool.lease("other", -1)
    pool.redis.set(pool.pulse, f"{NOW} {NOW + 1}", px=60_000)
    assert pool.reap() == []
    pool.redis.set(pool.pulse, f"{NOW} {NOW}", px=60_000)
    assert pool.reap() == ids


@pytest.mark.parametrize(("ended", "left"), [(LEASE_MS // 2 - 1, False), (LEASE_MS // 2, True)])
def test_a_suspect_waits_half_a_lease_for_an_idle_worker(pool: Still, ended: int, left: bool) -> None:
    """Only then others make room for it."""
    pool.suspect()
    pool.lease("third", -ended)
    assert pool.reap(busy=True) == []
    assert pool.left is left


def test_who_makes_room_says_until_when(pool: Still) -> None:
    """For three leases; another time takes the place of the earlier one."""
    pool.suspect()
    assert pool.reap(busy=True) == []
    assert (pool.left, pool.room) == (True, f"mine={NOW + 3 * LEASE_MS}")
    pool.room = f"mine={NOW + 5}"
    assert pool.reap(busy=True) == []
    assert (pool.left, pool.room) == (True, f"mine={NOW + 3 * LEASE_MS}")


def test_who_can_make_no_room_takes_no_place(pool: Still) -> None:
    """Another worker may."""
    pool.suspect()
    assert not pool.inflexible()
    assert pool.room is None


@pytest.mark.parametrize(("until", "kept"), [(0, False), (1, True), (4 * LEASE_MS - 1, True), (4 * LEASE_MS, False)])
def test_a_place_is_another_workers_until_its_time(pool: Still, until: int, kept: bool) -> None:
    """One that lies further ahead than anyone sets it was written before the clock was set back."""
    pool.suspect()
    pool.room = other = f"other={NOW + until}"
    pool.reap(busy=True)
    assert pool.left is not kept
    assert pool.room == (other if kept else f"mine={NOW + 3 * LEASE_MS}")


@pytest.mark.parametrize(("ends", "kept"), [(0, True), (-1, False)])
def test_a_place_is_a_living_workers(pool: Still, ends: int, kept: bool) -> None:
    """One whose lease has ended makes no room."""
    pool.suspect()
    pool.lease("other", ends)
    pool.room = f"other={NOW + 1}"
    pool.reap(busy=True)
    assert pool.left is not kept


@pytest.mark.parametrize(("workers", "room"), [(5, False), (6, True)])
def test_a_third_of_the_workers_make_room_at_most(pool: Still, workers: int, room: bool) -> None:
    """Consumers that only stand for entries that wait are no workers."""
    pool.suspect()
    for number in range(workers - 1):
        pool.redis.xgroup_createconsumer(pool.queue, "g", f"w{number}")
        pool.lease(f"w{number}", 60_000)
    for name in ("~back", "~to:other", "~to:w1"):
        pool.redis.xgroup_createconsumer(pool.queue, "g", name)
    pool.room = f"other={NOW + 1}"
    pool.reap(busy=True)
    assert pool.left is room
    assert pool.room == f"other={NOW + 1}" + (f" mine={NOW + 3 * LEASE_MS}" if room else "")


def test_a_suspect_is_taken_alone_by_who_holds_nothing(pool: Still) -> None:
    """Others stay for other workers, and this one counts among those that make room."""
    first = pool.suspect()
    second = pool.take("third", 1)
    assert pool.reap() == [first]
    assert pool.attempts == {first: 3}
    assert (pool.left, pool.room) == (False, f"mine={NOW + 3 * LEASE_MS}")
    assert pool.counter("third") == b"%d.1." % (NOW * 1000), "its consumer is told by the fence"
    assert pool.reap() == second


@pytest.mark.parametrize(("leases", "found"), [(0.9999, False), (1.0001, True)])
def test_an_entry_of_ones_own_is_idle_after_a_lease(pool: Still, leases: float, found: bool) -> None:
    """It would be renewed three times in that time, had its reply come."""
    [entry] = pool.take("mine", 1)
    pool.leave(entry, "mine", leases)
    assert pool.reap() == ([entry] if found else [])
    assert pool.counter("mine") == b"0", "nothing was taken away from it"


@pytest.mark.parametrize(("leases", "found"), [(1.9999, False), (2.0, True)])
@pytest.mark.parametrize("longer", [False, True])
def test_an_entry_of_a_living_worker_is_idle_after_two_leases(pool: Still, leases: float, found: bool, longer: bool) -> None:
    """Its own, if they are longer than the reaper's."""
    [entry] = pool.take("other", 1)
    if longer:
        pool.redis.hset(pool.fence, "l:other", 2 * LEASE_MS)
        pool.lease("other", 2 * LEASE_MS)
    pool.leave(entry, "other", leases * (1 + longer))
    assert pool.reap() == ([entry] if found else [])


def test_what_waits_for_a_living_worker_is_left_to_it(pool: Still) -> None:
    """However long it has waited; it is taken, uncounted, when that worker's lease has ended, and by that worker itself."""
    [entry] = pool.take("~to:other", 1)
    pool.leave(entry, "~to:other", 5.0)
    assert pool.reap() == []
    pool.lease("other", -1)
    assert pool.reap() == [entry]
    assert pool.attempts == {entry: 1}
    assert pool.counter("~to:other") is None, "nobody holds what waits, so nobody has to be told"
    [mine] = pool.take("~to:mine", 1)
    [back] = pool.take("~back", 1)
    assert pool.reap(room=1) == [mine]
    assert pool.reap() == [back]
    assert pool.counter("~back") is None


@pytest.mark.parametrize("consumer", ["~back", "~to:mine", "~to:third"])
def test_a_suspect_that_waits_goes_to_who_holds_nothing(pool: Still, consumer: str) -> None:
    """The busy leave it, those that wait with it are taken, and its attempt is not another one."""
    suspect = pool.suspect(consumer, delivered=3)
    other = pool.take(consumer, 1)
    nearly = pool.suspect(consumer, delivered=2)
    assert pool.reap(busy=True) == [*other, nearly]
    assert pool.left
    assert pool.attempts[nearly] == 2
    assert pool.reap() == [suspect]
    assert pool.attempts == {suspect: 3}
    assert not pool.left
    assert pool.counter(consumer) is None


@pytest.mark.parametrize("consumer", ["~back", "~to:mine", "mine"])
def test_nothing_waits_behind_a_suspect_that_the_busy_leave(pool: Still, consumer: str) -> None:
    """A worker with one free slot takes what may run beside others, and hears of the suspect before it."""
    suspect = pool.suspect(consumer, delivered=3)
    other, another = pool.take(consumer, 2)
    for entry in (suspect, other, another):
        pool.leave(entry, consumer, 1.5)
    assert pool.reap(busy=True, room=1) == [other]
    assert pool.left
    assert pool.reap(busy=True, room=1) == [another]


def test_a_suspect_of_ones_own_or_of_a_living_worker_is_taken_alone_too(pool: Still) -> None:
    """Its reply was lost, or its worker renews no more."""
    mine, other = pool.suspect("mine"), pool.suspect("other")
    plain = pool.take("other", 1)
    pool.leave(mine, "mine", 2.5)
    for entry in (other, *plain):
        pool.leave(entry, "other", 2.5)
    assert pool.reap(busy=True) == plain
    assert pool.left
    assert pool.reap() == [mine]
    assert pool.attempts == {mine: 3}
    assert pool.counter("mine") == b"0"
    assert pool.reap() == [other]
    assert pool.counter("other") == b"%d.2.0" % (NOW * 1000), "the time has not moved"


def test_a_reap_looks_at_64_dead_workers_and_64_of_their_entries(pool: Still) -> None:
    """So it is bounded; the next goes on."""
    ids = pool.take("third", 70)
    assert [len(pool.reap()) for _ in range(3)] == [64, 6, 0]
    assert {pool.owner(entry) for entry in ids} == {"mine"}
    for number in range(66):
        pool.take(f"dead{number}", 1)
    assert [len(pool.reap()) for _ in range(3)] == [64, 2, 0]


def test_a_reap_takes_no_more_than_asked_of_what_was_handed_back(pool: Still) -> None:
    """Nor more than 256 at once."""
    ids = pool.take("~back", 300)
    assert pool.reap(room=2) == ids[:2]
    assert len(pool.reap(room=400, handed_back_only=True)) == 256
    assert len(pool.reap(room=400)) == 42


def test_an_entry_that_is_gone_takes_nothing_away(pool: Still) -> None:
    """It was deleted while it was held: nothing is moved, and nobody is fenced off for it."""
    [entry] = pool.take("other", 1)
    pool.redis.xdel(pool.queue, entry)
    pool.lease("other", -1)
    assert pool.reap() == []
    assert pool.counter("other") == b"0"


def test_consumers_are_forgotten_when_they_hold_nothing_and_were_swept(pool: Still) -> None:
    """One whose lease has just ended may come back; what is forgotten leaves no field behind."""
    for name in ("third", "other"):
        pool.redis.xgroup_createconsumer(pool.queue, "g", name)
        pool.redis.hset(pool.fence, mapping={f"c:{name}": 5, f"l:{name}": LEASE_MS})
    pool.lease("other", -1)
    pool.reap()
    assert [each["name"] for each in pool.redis.xinfo_consumers(pool.queue, "g")] == [b"other"]
    assert set(pool.redis.hkeys(pool.fence)) == {b"generation", b"c:mine", b"c:other", b"l:other"}


def test_a_cursor_that_is_none_begins_anew(pool: Still) -> None:
    """A cursor that is no id makes the scan begin anew, and is gone once the scan has come to the end."""
    [entry] = pool.take("other", 1)
    pool.leave(entry, "other", 2.5)
    pool.redis.hset(pool.fence, "scan", "nonsense")
    assert pool.reap() == [entry]
    assert pool.cursor is None


def test_the_scan_remembers_where_its_room_ended(pool: Still) -> None:
    """The next reap goes on behind that entry."""
    ids = pool.take("other", 3)
    for entry in ids:
        pool.leave(entry, "other", 2.5)
    assert pool.reap(room=1) == ids[:1]
    assert pool.cursor == ids[0]
    pool.leave(ids[0], "other", 2.5)
    assert pool.reap(room=1) == ids[1:2]


def test_a_note_of_another_type_is_none(pool: Still) -> None:
    """The entry is taken all the same: it is too late to fail."""
    ids = pool.take("other", 1)
    pool.lease("other", -1)
    pool.redis.hset(pool.notes + ids[0].decode(), "a", "b")
    assert pool.reap() == ids
    assert pool.noted == {ids[0]: b""}


def test_without_a_group_nothing_is_taken(pool: Still) -> None:
    """The worker registers again when it next reads."""
    pool.redis.xgroup_destroy(pool.queue, "g")
    assert pool.reap() == []
    assert not pool.left


def test_time_is_exact_to_the_millisecond(pool: Still, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also right before a second begins."""
    monkeypatch.setattr(time, "time", lambda: NOW / 1000 + 0.999999)
    pool.redis.set(pool.pulse, f"{NOW} {NOW}", px=60_000)
    ids = pool.take("other", 1)
    pool.lease("other", 999)
    assert pool.reap() == []
    pool.lease("mine", 998)
    pool.lease("other", 998)
    assert pool.reap() == []
    pool.lease("mine", 999)
    assert pool.reap() == ids


def test_what_is_taken_over_comes_with_its_fields_and_who_had_it(pool: Still) -> None:
    """The worker runs it from the answer alone, under the fence that it names."""
    [dead], [back] = pool.take("other", 1), pool.take("~back", 1)
    pool.lease("other", -1)
    args = ("mine", "pool", 256, LEASE_MS, 0, 0, 3, 1, pool.notes)
    answer = pool.redis.eval(scripts.REAP.source, 4, pool.queue, pool.fence, pool.live, pool.pulse, *args)
    taken = [[back, 1, 0, [b"r", b"0"], b"~back", b""], [dead, 1, 1, [b"r", b"0"], b"other", b""]]
    assert answer == [b"one", b"0", taken, 0, max(back, dead)]


def test_a_reap_tells_how_far_the_group_has_delivered(pool: Still) -> None:
    """Also when it was set back behind what is pending; a position beyond the stream is no entry's."""

    def delivered() -> bytes:
        args = ("mine", "pool", 0, LEASE_MS, 1, 0, 3, 1, pool.notes)
        answer: list[bytes] = pool.redis.eval(scripts.REAP.source, 4, pool.queue, pool.fence, pool.live, pool.pulse, *args)
        return answer[4]

    assert delivered() == b"0-0"
    ids = pool.take("other", 3)
    assert delivered() == ids[-1]
    pool.redis.xgroup_setid(pool.queue, "g", "0")
    assert delivered() == ids[-1]
    pool.redis.xack(pool.queue, "g", ids[-1])
    pool.redis.xgroup_setid(pool.queue, "g", f"{2 * NOW}-0")
    assert delivered() == ids[-2]
    pool.redis.delete(pool.queue)
    assert delivered() == b"0-0"


def test_one_slot_is_enough_for_what_was_lost_on_its_way(pool: Still) -> None:
    """A first delivery whose reply never came, and then one that a living worker renews no more."""
    [mine], [other] = pool.take("mine", 1), pool.take("other", 1)
    pool.leave(mine, "mine", 1.5)
    pool.leave(other, "other", 2.5)
    assert pool.reap(room=1) == [mine]
    assert pool.reap(room=1) == [other]
