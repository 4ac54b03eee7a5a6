"""Recovery from dead workers: the order of a turn, suspects, attempts, and entries that there is no slot for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.broker.fakes import FENCE, KEYS, SETTINGS, Bench, entry_fields, request
from toolbus.bus.broker.held.confirmations import DeadlineNotes
from toolbus.bus.broker.lease import recover
from toolbus.bus.broker.lease.recover import AbandonedCalls, Upkeep, hand_back, hand_over, outlive, pass_on
from toolbus.bus.broker.take.intake import deliveries
from toolbus.bus.broker.take.requests import UNSURE, Fence
from toolbus.bus.values.results import BrokerUnavailable, ErrorInfo

pytestmark = pytest.mark.anyio


class Recovery:
    """The upkeep of one worker; ``order`` has what a turn did, by name."""

    def __init__(self) -> None:
        self.bench = bench = Bench()
        self.order: list[str] = []
        self.gained: list[Any] = []
        self.settled: list[Any] | None = None
        bench.link.answers["TIME"] = lambda keys, args: [0, int(bench.times.now * 1_000_000)]
        for name in ("reap", "count", "EXISTS"):
            bench.link.answers[name] = self._noted(name)
        bench.link.answers["rescue"] = [0, b""]
        self.entries: list[tuple[Any, ...]] = []
        self.left = 0
        self.counted: list[Any] = []
        self.missing: set[str] = set()
        self.refuses_to_count: set[bytes] = set()
        abandoned = AbandonedCalls(*bench.own, outbox=cast("Any", self))
        self.finished: list[Any] = []
        self.retaken: list[tuple[str, int, bytes]] = []
        self.abandoned = abandoned
        self.upkeep = Upkeep(
            *bench.own,
            registry=cast("Any", self),
            ownership=cast("Any", self),
            notes=DeadlineNotes(*bench.own),
            abandoned=abandoned,
            deliveries=deliveries,
            register_lost=self.register_lost,
            on_lost_elsewhere=lambda delivery, owner: self.retaken.append((delivery.request.id, delivery.attempt, owner)),
        )

    def _noted(self, name: str) -> Any:
        def answer(keys: Any, args: Any) -> Any:
            self.order.append(name)
            if name == "reap":
                most = int(args[2])
                taken, self.entries = self.entries[:most], self.entries[most:]
                return [*FENCE, taken, self.left, b"0-0"]
            if name == "count":
                self.counted.append((args[3], args[4]))
                return int(args[3] not in self.refuses_to_count)
            return int(args[0] not in self.missing)

        return answer

    def finish(self, delivery: Any, frame: bytes) -> None:
        """End an abandoned call."""
        self.finished.append((delivery, frame))

    async def register_lost(self) -> None:
        """Take note."""
        self.order.append("register_lost")

    async def sweep(self, clock: Any) -> None:
        """Take note."""
        assert clock is self.bench.clock
        self.order.append("sweep")

    async def keep(self) -> None:
        """Take note."""
        self.order.append("keep")

    async def settle(self, deliveries: list[Any]) -> list[Any]:
        """Keep the sessions that the test leaves here."""
        return deliveries if self.settled is None else self.settled

    def trust(self) -> None:
        """Let a lease pass in which the server was heard."""
        bench = self.bench
        for _ in range(3):
            bench.clock.observe(bench.times.now * 1000, bench.times.now, bench.times.now)
            bench.times.now += SETTINGS.lease / 3
        bench.clock.observe(bench.times.now * 1000, bench.times.now, bench.times.now)
        assert bench.clock.trusted

    def entry(self, number: int, delivered: int = 1, counted: int = 1, owner: bytes = b"other", note: bytes = b"") -> tuple[Any, ...]:
        """Return an entry as the script moves it."""
        entry = f"{number}-0".encode()
        return (entry, delivered, counted, entry_fields(request(entry)), owner, note)

    @property
    def ran(self) -> list[tuple[bytes, int]]:
        """The entries that were started here, each with its attempt."""
        return [(delivery.entry, delivery.attempt) for delivery in self.bench.listener.recovered]


@pytest.fixture
def recovery() -> Iterator[Recovery]:
    """A worker that holds nothing."""
    made = Recovery()
    yield made
    made.bench.forget()


async def test_a_turn_goes_in_order(recovery: Recovery) -> None:
    """Dead workers' requests come first; the registry is swept and callers are checked only while leases can be trusted."""
    recovery.bench.listener.sessions.callers = {"agent"}
    recovery.trust()
    await recovery.upkeep.turn(once_a_lease=True)
    assert recovery.order == ["reap", "register_lost", "sweep", "EXISTS", "keep"]
    recovery.order.clear()
    await recovery.upkeep.turn(once_a_lease=False)
    assert recovery.order == ["reap", "EXISTS", "keep"]
    recovery.bench.clock.distrust()
    recovery.order.clear()
    await recovery.upkeep.turn(once_a_lease=True)
    assert recovery.order == ["reap", "register_lost", "keep"]
    recovery.trust()
    recovery.order.clear()
    await recovery.upkeep.turn(once_a_lease=False)
    assert recovery.order == ["reap", "sweep", "EXISTS", "keep"], "the sweep that was left out is made up for"


async def test_a_turn_survives_a_lost_connection(recovery: Recovery) -> None:
    """The next turn tries again."""
    recovery.bench.link.answers["reap"] = BrokerUnavailable("gone")
    await recovery.upkeep.turn(once_a_lease=True)
    await recovery.upkeep.recover()
    await recovery.upkeep.take_back(recovery.bench.stream)
    assert recovery.order == []


async def test_the_least_tried_entry_starts_first_and_each_is_counted_before_the_next(recovery: Recovery) -> None:
    """An entry that kills this worker takes no attempt from those behind it."""
    recovery.entries = [recovery.entry(1, delivered=2), recovery.entry(2, delivered=1)]
    seen: list[list[Any]] = []
    recovery.bench.listener.when_recovered = lambda: seen.append(list(recovery.counted))
    await recovery.upkeep.recover()
    assert recovery.ran == [(b"2-0", 2), (b"1-0", 3)]
    assert seen == [[(b"2-0", 2)], [(b"2-0", 2), (b"1-0", 3)]]
    assert recovery.upkeep.recovered == 2


@pytest.mark.parametrize(("delivered", "runs"), [(SETTINGS.alone_from - 2, True), (SETTINGS.alone_from - 1, False)])
async def test_a_suspect_does_not_start_beside_others(recovery: Recovery, delivered: int, runs: bool) -> None:
    """Something came in between: the suspect stays uncounted, for a worker that holds nothing."""
    recovery.entries = [recovery.entry(1, delivered=delivered)]
    recovery.bench.listener.running = True
    await recovery.upkeep.recover()
    assert bool(recovery.ran) is runs
    assert bool(recovery.counted) is runs


@pytest.mark.parametrize("room", [True, False])
@pytest.mark.parametrize("counted", [0, 1])
@pytest.mark.parametrize("is_ours", [True, False])
async def test_a_suspect_that_another_request_crossed_starts_when_nothing_runs(
    recovery: Recovery, room: bool, counted: int, is_ours: bool
) -> None:
    """Room is made for it where that can be; it starts, once, without looking like a lost delivery first, if its entry is ours still."""
    listener, attempt = recovery.bench.listener, SETTINGS.alone_from
    recovery.entries = [recovery.entry(1, delivered=attempt - counted, counted=counted)]
    listener.running, listener.room = True, room
    await recovery.upkeep.recover()
    assert (recovery.ran, recovery.counted, listener.left_over) == ([], [], room)
    listener.running = False
    recovery.refuses_to_count = set() if is_ours else {b"1-0"}
    await recovery.upkeep.recover()
    await recovery.upkeep.recover()
    assert recovery.ran == [(b"1-0", attempt)] * is_ours
    assert [args[1:] for args in recovery.bench.link.args("count")] == [(FENCE[0], b"", b"1-0", attempt)]


async def test_a_suspect_starts_where_nothing_runs(recovery: Recovery) -> None:
    """A worker that holds nothing is where it belongs."""
    recovery.entries = [recovery.entry(1, delivered=SETTINGS.alone_from)]
    await recovery.upkeep.recover()
    assert recovery.ran == [(b"1-0", SETTINGS.alone_from + 1)]


@pytest.mark.parametrize(("waits", "reaps"), [(False, 3), (True, 1)])
async def test_what_ended_at_once_makes_way_for_the_next_suspect(recovery: Recovery, waits: bool, reaps: int) -> None:
    """Dead letters, each of which is taken alone, follow each other in one turn; a suspect that waits to run lets none be taken."""
    poison = [recovery.entry(number, delivered=SETTINGS.max_deliveries) for number in (1, 2)]
    listener = recovery.bench.listener

    def answer(keys: Any, args: Any) -> Any:
        taken = [poison.pop(0)] if poison and listener.slots else []
        if waits:
            listener.slots = 0
        return [*FENCE, taken, 0, b"0-0"]

    recovery.bench.link.answers["reap"] = answer
    await recovery.upkeep.recover()
    assert len(recovery.ran) == min(reaps, 2)
    assert len(recovery.bench.link.args("reap")) == reaps
    assert not recovery.upkeep.has_postponed


@pytest.mark.parametrize("counted", [0, 1])
async def test_what_this_worker_had_already_does_not_run_once_more(recovery: Recovery, counted: int) -> None:
    """Its renewals were late: a call that runs goes on, and one that was answered meanwhile is gone, as its entry shows."""
    running = recovery.bench.hold(b"1-0")
    mine = recovery.bench.stream.consumer.encode()
    recovery.entries = [recovery.entry(number, counted=counted, owner=mine) for number in (1, 2)]
    recovery.refuses_to_count = {b"2-0"}
    await recovery.upkeep.recover()
    assert (recovery.ran, running.is_held) == ([], True)
    assert [args[1:] for args in recovery.bench.link.args("count")] == [(FENCE[0], b"", b"2-0", 1 + counted)]


async def test_what_was_delivered_in_a_lost_reply_runs_in_its_first_attempt(recovery: Recovery) -> None:
    """Nobody has run it, and its entry is this worker's still."""
    recovery.entries = [recovery.entry(1, counted=0, owner=recovery.bench.stream.consumer.encode())]
    await recovery.upkeep.recover()
    assert recovery.ran == [(b"1-0", 1)]


async def test_an_entry_that_was_handed_back_does_not_count(recovery: Recovery) -> None:
    """Nobody died of it, so it runs under the attempt that it has."""
    recovery.entries = [recovery.entry(1, delivered=2, counted=0)]
    await recovery.upkeep.take_back(recovery.bench.stream)
    assert recovery.counted == []
    assert recovery.ran == [(b"1-0", 2)]
    assert recovery.bench.link.args("reap")[0][4] == 1, "only what was handed back"


async def test_an_entry_that_is_lost_before_it_counts_does_not_run(recovery: Recovery) -> None:
    """Another worker has it."""
    recovery.entries = [recovery.entry(1), recovery.entry(2)]
    recovery.refuses_to_count = {b"1-0"}
    await recovery.upkeep.recover()
    assert recovery.ran == [(b"2-0", 2)]


async def test_what_other_workers_had_begun_is_counted_by_tool(recovery: Recovery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only calls that another worker had begun are counted, by service and tool, and by service alone beyond a number of tools."""
    monkeypatch.setattr(recover, "_MOST_TOOLS", 2)
    tools = ["a", "b", "a", "c", "d", "e", "f"]
    others = [b"other"] * 4 + [b"mine", b"~to:other", b"other"]
    for number, (tool, owner) in enumerate(zip(tools, others, strict=True)):
        entry = f"{number}-0".encode()
        recovery.entries = [(entry, 1, int(tool != "f"), entry_fields(request(entry, tool=tool)), owner, b"")]
        await recovery.upkeep.recover()
    assert recovery.upkeep.retaken == {("pool", "a"): 2, ("pool", "b"): 1, ("pool", ""): 1}
    assert recovery.retaken == [(f"call-{number}-0", 2, b"other") for number in range(4)]


async def test_what_there_is_no_slot_for_is_postponed(recovery: Recovery) -> None:
    """It is reaped when a slot is free, as widely as it was asked for, and not while the service is paused or the worker drains."""
    stream = recovery.bench.stream
    recovery.bench.listener.slots = 0
    await recovery.upkeep.take_back(stream)
    assert recovery.order == []
    assert recovery.upkeep.has_postponed
    stream.pause(True, 1.0)
    assert not recovery.upkeep.has_postponed
    stream.pause(False, 2.0)
    stream.unlisted = "its lease was lost there"
    assert not recovery.upkeep.has_postponed
    stream.unlisted = ""
    recovery.upkeep.taking = False
    assert not recovery.upkeep.has_postponed
    recovery.upkeep.taking = True
    recovery.bench.listener.slots = 1
    await recovery.upkeep.reap_postponed()
    assert [args[4] for args in recovery.bench.link.args("reap")] == [1]
    assert not recovery.upkeep.has_postponed
    recovery.bench.listener.slots = 0
    await recovery.upkeep.recover()
    await recovery.upkeep.take_back(stream)
    recovery.bench.listener.slots = 1
    await recovery.upkeep.reap_postponed()
    assert [args[4] for args in recovery.bench.link.args("reap")] == [1, 0], "a wide reap is not forgotten for a narrow one"


async def test_a_reap_takes_no_more_than_there_are_slots(recovery: Recovery) -> None:
    """When it took as many it goes on while there is a slot, and postpones the rest."""
    recovery.entries = [recovery.entry(number) for number in range(1, 6)]
    recovery.bench.listener.slots = 3
    await recovery.upkeep.recover()
    assert [args[2] for args in recovery.bench.link.args("reap")] == [3]
    assert len(recovery.ran) == 3
    assert recovery.upkeep.has_postponed
    recovery.bench.listener.slots = 600
    recovery.entries = [recovery.entry(number) for number in range(1, 301)]
    await recovery.upkeep.reap_postponed()
    assert [args[2] for args in recovery.bench.link.args("reap")][1:] == [256, 256]
    assert len(recovery.ran) == 303
    assert not recovery.upkeep.has_postponed


async def test_nothing_is_reaped_while_paused_unlisted_or_draining(recovery: Recovery) -> None:
    """A paused or leaving worker would have to give back what it took, and one that the registry does not list would lose it."""
    recovery.bench.stream.pause(True, 1.0)
    await recovery.upkeep.recover()
    recovery.bench.stream.pause(False, 2.0)
    recovery.bench.stream.unlisted = "its lease was lost there"
    await recovery.upkeep.recover()
    recovery.bench.stream.unlisted = ""
    recovery.upkeep.taking = False
    await recovery.upkeep.recover()
    assert recovery.order == []


@pytest.mark.parametrize("left", [0, 1])
async def test_a_suspect_that_waits_makes_room(recovery: Recovery, left: int) -> None:
    """The script says when it is this worker's turn to make room."""
    recovery.left = left
    recovery.bench.listener.running = True
    recovery.bench.listener.room = False
    await recovery.upkeep.recover()
    assert recovery.bench.listener.left_over == left
    consumer, service, slots, lease, back, busy, alone, flexible, notes = recovery.bench.link.args("reap")[0]
    assert (consumer, service, slots, lease, back) == ("mine", "pool", 10, 6000, 0)
    assert (busy, alone, flexible, notes) == (1, SETTINGS.alone_from, 0, KEYS.pause("pool", ""))
    stream = recovery.bench.stream
    assert recovery.bench.link.keys("reap") == [(stream.key, stream.fence, KEYS.live, KEYS.pulse)]


@pytest.mark.parametrize(("delivered", "newest"), [(b"0-0", (5, 7)), (b"5-10", (5, 10)), (b"9-1", (9, 1))])
async def test_a_reap_tells_how_far_the_group_has_come(recovery: Recovery, delivered: bytes, newest: tuple[int, int]) -> None:
    """The newest id that is known moves forward by a reap's answer, and never back."""
    recovery.bench.stream.newest = (5, 7)
    recovery.bench.link.answers["reap"] = lambda keys, args: [*FENCE, [], 0, delivered]
    await recovery.upkeep.recover()
    assert recovery.bench.stream.newest == newest


async def test_what_was_ours_all_the_time_is_no_news(recovery: Recovery) -> None:
    """It only looked as if nobody renewed it; what another had in between is another delivery, and the first is lost."""
    held = recovery.bench.hold(b"1-0")
    recovery.entries = [recovery.entry(1, owner=b"mine")]
    await recovery.upkeep.recover()
    assert recovery.ran == []
    assert recovery.bench.stream.held[b"1-0"] is held
    recovery.entries = [recovery.entry(1, owner=b"other")]
    await recovery.upkeep.recover()
    assert recovery.bench.listener.lost == [held]
    assert recovery.ran == [(b"1-0", 2)]


async def test_the_sessions_of_a_sticky_service_are_asked_about(recovery: Recovery) -> None:
    """A request whose session another worker has does not run here."""
    recovery.bench.stream.sticky = True
    recovery.settled = []
    recovery.entries = [recovery.entry(1)]
    await recovery.upkeep.recover()
    assert recovery.ran == []


async def test_a_delivery_that_is_lost_again_does_not_run(recovery: Recovery) -> None:
    """While its session was asked about, it may have been taken away."""
    recovery.bench.stream.sticky = True

    async def lose(deliveries: list[Any]) -> list[Any]:
        recovery.bench.stream.held.clear()
        return deliveries

    recovery.settle = lose  # type: ignore[method-assign]
    recovery.entries = [recovery.entry(1)]
    await recovery.upkeep.recover()
    assert recovery.ran == []


async def test_a_later_deadline_comes_with_the_entry(recovery: Recovery) -> None:
    """A call whose handler has waited for a confirmation has the time that it waited on top; a note that can't be read changes nothing."""
    recovery.entries = [recovery.entry(1, note=b"200000 0 0"), recovery.entry(2, note=b"nonsense"), recovery.entry(3, note=b"1000 0 0 2")]
    await recovery.upkeep.recover()
    first, second, third = sorted(recovery.bench.listener.recovered, key=lambda delivery: delivery.entry)
    assert (first.deadline, first.noted) == (200.0, True)  # type: ignore[attr-defined]
    assert (second.deadline, second.noted) == (160.0, False)  # type: ignore[attr-defined]
    assert (third.deadline, third.noted) == (160.0, True)  # type: ignore[attr-defined]
    assert [first.excused_attempts, second.excused_attempts, third.excused_attempts] == [0, 0, 2]


async def test_calls_of_dead_callers_end(recovery: Recovery) -> None:
    """A call whose reply stream is gone ends: a running one is stopped, and one that was taken never starts, be it on its way to a slot."""
    recovery.trust()
    old, young = recovery.bench.hold(b"1-0"), recovery.bench.hold(b"106000-0", agent="alive")
    alive, dead = KEYS.replies("alive"), KEYS.replies("agent")
    recovery.missing = {dead}
    await recovery.abandoned.stop_calls()
    assert [replies for replies, _ in recovery.bench.listener.replies_gone] == [dead]
    assert (old.cancelled, young.cancelled) == ("cancelled", "")
    # One that runs was stopped, and one of which the next attempt is counted is not stopped by that.
    for counting in (False, True):
        old.replies, old.begun, old.counting, old.cancelled = dead, True, counting, ""
        await recovery.abandoned.stop_calls()
        assert old.cancelled == ("cancelled" if counting else "")
    # What it still says would make the stream anew.
    assert old.replies == ""
    old = recovery.bench.hold(b"2-0")
    assert old.queued_ms > 5_000.0
    assert young.queued_ms == 0.0
    assert await recovery.abandoned.without([old, young]) == [young]
    assert recovery.finished == [(old, b"")]
    assert old.replies == ""
    assert young.replies == alive


async def test_what_is_taken_over_of_a_dead_caller_never_runs(recovery: Recovery) -> None:
    """It may be what kills its workers, and nobody waits for it."""
    recovery.trust()
    recovery.missing = {KEYS.replies("agent")}
    recovery.entries = [recovery.entry(1)]
    await recovery.upkeep.recover()
    assert [(delivery.entry, frame) for delivery, frame in recovery.finished] == [(b"1-0", b"")]
    assert recovery.ran == []


async def test_young_requests_are_not_checked(recovery: Recovery) -> None:
    """A reply stream outlives its agent for longer than they waited."""
    young = recovery.bench.hold(b"95001-0")
    assert await recovery.abandoned.without([young]) == [young]
    assert recovery.order == []


async def test_when_the_server_can_not_be_asked_nobody_is_gone(recovery: Recovery) -> None:
    """Silence is no proof of death."""
    recovery.bench.hold(b"1-0")
    recovery.bench.link.answers["EXISTS"] = BrokerUnavailable("gone")
    await recovery.abandoned.stop_calls()
    assert recovery.bench.listener.replies_gone == []


async def test_the_sessions_of_dead_callers_end_some_at_a_time(recovery: Recovery) -> None:
    """Each turn checks a bounded number of callers, and the next turn others."""
    agents = {f"a{number:03}" for number in range(300)}
    recovery.trust()
    recovery.bench.listener.sessions.callers = agents
    recovery.missing = {KEYS.replies(agent) for agent in agents}
    for _ in range(2):
        await recovery.abandoned.end_sessions()
    first, second = (each[1] for each in recovery.bench.listener.sessions.said)
    assert len(first) == len(second) == 256
    assert first | second == agents


async def test_a_leaving_worker_lets_others_take_what_waits_for_it(recovery: Recovery) -> None:
    """Part by part, until a part is not full."""
    bench, left = recovery.bench, [256, 256, 3]
    bench.link.answers["hand_back"] = lambda keys, args: left.pop(0)
    await pass_on(bench.as_link, [bench.stream])
    assert left == []
    assert bench.link.args("hand_back")[0] == ("mine", "", "", bench.stream.wake, "pool", "", 256, "")


async def test_hand_back_gives_what_is_held_under_the_known_fence(recovery: Recovery) -> None:
    """Lost entries are left out, those of an earlier generation let go for others to take; entries of unequal fences are each looked at."""
    bench = recovery.bench
    kept, lost, old, other = (bench.hold(f"{number}-0".encode()) for number in range(1, 5))
    del bench.stream.held[lost.entry]
    old.fence = Fence(b"0.z", b"5")
    await hand_back(bench.as_link, [kept, lost, old])
    assert bench.link.args("hand_back") == [("mine", *FENCE, KEYS.wake("pool"), "pool", b"1-0", 1, "")]
    assert set(bench.stream.held) == {b"4-0"}
    again = bench.hold(b"5-0", fence=Fence(FENCE.generation, b"6"))
    await hand_back(bench.as_link, [other, again])
    assert bench.link.args("hand_back")[1][1:3] == (FENCE.generation, UNSURE)
    await hand_back(bench.as_link, [lost])
    assert len(bench.link.args("hand_back")) == 2
    begun = bench.hold(b"6-0")
    begun.begun = True
    await hand_back(bench.as_link, [begun])
    assert bench.link.args("hand_back")[2][5:] == (b"6-0", 1, 120_000), "a minute longer than it may run"
    many = [bench.hold(f"{number}-1".encode()) for number in range(300)]
    await hand_back(bench.as_link, many)
    assert [len(args) for args in bench.link.args("hand_back")[3:]] == [5 + 3 * 256, 5 + 3 * 44]


async def test_what_a_group_passed_over_is_looked_for_in_stretches(recovery: Recovery, caplog: pytest.LogCaptureFixture) -> None:
    """On and on while there is something; where nothing was found the next look goes on behind it."""
    link = recovery.bench.link
    found = iter([[16, b"16-0"], [3, b"32-0"], [0, b"48-0"], [0, b""], [0, b""]])
    link.answers["rescue"] = lambda keys, args: next(found)
    for _ in range(3):
        await recovery.upkeep.turn(once_a_lease=True)
    await recovery.upkeep.turn(once_a_lease=False)
    assert [args[0] for args in link.args("rescue")] == [b"", b"16-0", b"32-0", b"48-0", b""]
    assert link.args("rescue")[0][1:] == (6_000, KEYS.wake("pool"), "pool")
    assert [record.message for record in caplog.records] == ["requests.passed_over service=pool calls=19"]


@pytest.mark.parametrize("taken", [True, False])
async def test_a_call_for_another_revision_goes_to_a_worker_of_it(recovery: Recovery, taken: bool) -> None:
    """The call is held here until a worker of its revision has it."""
    bench = recovery.bench
    delivery = bench.hold(attempt=2, digest="other")
    bench.link.answers["hand_over"] = int(taken)
    assert await hand_over(bench.as_link, KEYS, delivery) is taken
    assert (delivery.entry in bench.stream.held) is not taken
    assert bench.link.keys("hand_over") == [(bench.stream.key, bench.stream.fence, KEYS.live, KEYS.instances("pool"))]
    assert bench.link.args("hand_over") == [("mine", "pool", FENCE.generation, bench.stream.wake, b"1-0", 2, "other")]


class Registration:
    """The registration of a worker, of which only the last is asked."""

    def __init__(self, order: list[str]) -> None:
        self.order = order

    def digest(self, service: str) -> str:
        """Return the digest of its revision."""
        return f"digest of {service}"

    async def step_back(self, service: str) -> None:
        """Take note."""
        self.order.append(service)


@pytest.mark.parametrize(
    ("answers", "untils", "stepped"),
    [
        # Last: 0 when others serve the revision, or nobody serves another; then the newest entry, and whether all up to it was taken.
        ([(0, b"", 0)], [b""], False),
        ([(1, b"7-0", 0), (1, b"8-0", 0), (1, b"", 0), (1, b"", 1), (1, b"", 1)], [b"", b"7-0", b"8-0", b"8-0", b"8-0"], True),
        ([(1, b"7-0", 1), (1, b"8-0", 1), (1, b"", 0), (1, b"", 1), (1, b"", 1)], [b"", b"7-0", b"8-0", b"8-0", b"8-0"], True),
        ([(1, b"7-0", 1), (1, b"8-0", 1), (1, b"", 1)], [b"", b"7-0", b"8-0"], True),
        ([(1, b"7-0", 0), (1, b"8-0", 0), (0, b"", 0)], [b"", b"7-0", b"8-0"], True),
    ],
)
async def test_the_last_worker_of_a_revision_waits_until_its_calls_were_taken(
    recovery: Recovery, monkeypatch: pytest.MonkeyPatch, answers: list[Any], untils: list[bytes], stepped: bool
) -> None:
    """It steps back once, so that callers turn to the other revision, and ends after two looks in a row found all taken."""
    # mutmut runs a test several times with the same parameters.
    bench, waits, left = recovery.bench, list[float](), [*answers]

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(recover.asyncio, "sleep", sleep)
    bench.link.answers["outlive"] = lambda keys, args: left.pop(0)
    await outlive(bench.as_link, KEYS, bench.stream, cast("Any", Registration(recovery.order)))
    assert left == []
    assert bench.link.args("outlive") == [("mine", "pool", "digest of pool", until) for until in untils]
    assert set(bench.link.keys("outlive")) == {(bench.stream.key, bench.stream.fence, KEYS.live, KEYS.instances("pool"))}
    assert recovery.order == (["pool"] if stepped else [])
    assert waits == ([0.3] + [0.1] * (len(untils) - 2) if stepped else [])


@pytest.mark.parametrize("ahead", [False, True])
async def test_calls_without_their_reply_stream_end_unless_the_clock_was_set_forward(recovery: Recovery, ahead: bool) -> None:
    """Calls go on without their reply stream when the clock was set forward, or while the server can't be asked; else they end."""
    bench, error = recovery.bench, ErrorInfo("cancelled", "caller_gone")
    bench.clock.observe(bench.times.now * 1000, bench.times.now, bench.times.now)
    mine, other = bench.hold(b"1-0"), bench.hold(b"2-0", agent="other")
    bench.link.answers["TIME"] = BrokerUnavailable("gone")
    await recovery.abandoned.stop_calls_of(mine.replies, error)
    bench.link.answers["TIME"] = lambda keys, args: [int(bench.times.now) + 60 * ahead, 0]
    assert bench.listener.replies_gone == []
    key = mine.replies
    await recovery.abandoned.stop_calls_of(key, error)
    assert bench.listener.replies_gone == ([] if ahead else [(key, error)])
    assert (bool(mine.replies), bool(other.replies)) == (ahead, True)


async def test_a_stream_that_is_withdrawn_is_forgotten(recovery: Recovery) -> None:
    """Forgetting a stream drops its postponed calls and the place up to which it was looked through, and nothing of other streams."""
    bench = recovery.bench
    bench.streams["other"] = other = bench.new_stream("other")
    bench.link.answers["rescue"] = [0, b"1-0"]
    await recovery.upkeep.turn(once_a_lease=True)
    recovery.upkeep.postponed |= {bench.stream: True, other: True}
    for _ in range(2):
        await recovery.upkeep.forget(bench.stream)
    assert recovery.upkeep.postponed.keys() == {other}
    await recovery.upkeep.turn(once_a_lease=True)
    assert [(args[3], args[0]) for args in bench.link.args("rescue")[2:]] == [("pool", b""), ("other", b"1-0")]


async def test_a_stream_can_be_looked_into_between_two_turns(recovery: Recovery) -> None:
    """Looking into a stream takes over the calls left behind there at once."""
    await recovery.upkeep.look_into(recovery.bench.stream)
    assert recovery.order == ["reap"]
    assert recovery.bench.link.keys("reap")[0][0] == recovery.bench.stream.key
