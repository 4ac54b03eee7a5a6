"""Owners of sessions, and their snapshots: what a worker is certain of, what it asks the server, and what it does with the answers."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.broker.fakes import FENCE, KEYS, SETTINGS, Bench, entry_fields, request
from toolbus.bus.broker.protocols import NO_SNAPSHOT, Snapshot
from toolbus.bus.broker.server.keys import session_digest
from toolbus.bus.broker.take.intake import deliveries
from toolbus.bus.broker.take.requests import Delivery, Fence
from toolbus.bus.broker.take.sessions import Ownership, Snapshots
from toolbus.bus.broker.transport.command import ReplyError
from toolbus.bus.values.results import BrokerUnavailable

pytestmark = pytest.mark.anyio

LEASE = SETTINGS.lease


class Owning:
    """One worker's sessions; the server answers ``verdicts``, or that every session is its own."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.sessions = self.bench.listener.sessions
        self.verdicts: list[bytes] | None = None
        self.after = FENCE.counter
        self.bench.link.answers["own"] = self._own
        self.ownership = Ownership(*self.bench.own)
        self.ownership.serve(self.bench.stream)
        self.snapshots = Snapshots(*self.bench.own, self.ownership)
        self.number = 0

    def _own(self, keys: Any, args: Any) -> Any:
        asked = (len(args) - 6) // 4
        return [FENCE.generation, FENCE.counter, self.after, self.verdicts or [b"mine"] * asked]

    @property
    def asked(self) -> int:
        """Return how often the server was asked."""
        return self.bench.link.names.count("own")

    def beat(self, *services: str, missing: bool = False) -> None:
        """Beat now, for these services or the one that there is."""
        self.ownership.beaten(self.bench.times.now, self.bench.times.now, services or ("pool",), missing=missing)

    def take(self, session: str = "s", user: str = "u", **fields: Any) -> Delivery:
        """Take a request of a session."""
        self.number += 1
        return self.bench.hold(f"{self.number}-0".encode(), user=user, session=session, **fields)

    async def settle(self, *deliveries: Delivery) -> list[Delivery]:
        """Settle whose they are."""
        return await self.ownership.settle(list(deliveries))


@pytest.fixture
async def owning() -> AsyncIterator[Owning]:
    """A worker that has beaten."""
    made = Owning()
    made.beat()
    yield made
    made.bench.forget()


async def test_a_session_is_asked_about_once_while_the_lease_is_unbroken(owning: Owning) -> None:
    """Afterwards its calls cost what others do."""
    first = owning.take()
    assert await owning.settle(first) == [first]
    args = owning.bench.link.args("own")[0]
    assert args == ("mine", "pool", FENCE.generation, 6_000, 3_600_000, owning.bench.stream.wake, 6, b"1-0", 1, 0)
    second = owning.take()
    assert await owning.settle(second) == [second]
    assert owning.asked == 1
    other, stranger = owning.take("other"), owning.take("other", "another")
    assert await owning.settle(other, stranger) == [other, stranger]
    assert owning.asked == 2
    assert len(owning.bench.link.keys("own")[1]) == 5 + 2, "a session of another user is another session"


async def test_calls_without_a_session_are_not_asked_about(owning: Owning) -> None:
    """They are of no session, so any worker runs them."""
    none = owning.take("", "")
    assert await owning.settle(none) == [none]
    assert owning.asked == 0


@pytest.mark.parametrize(("passed", "asked"), [(LEASE, 1), (LEASE + 0.1, 2)])
async def test_a_lease_that_lapsed_makes_sessions_uncertain(owning: Owning, passed: float, asked: int) -> None:
    """Another worker may have had them since, even if this one has a lease again."""
    await owning.settle(owning.take())
    owning.bench.times.now += passed
    owning.beat()
    await owning.settle(owning.take())
    assert owning.asked == asked


async def test_nothing_is_certain_while_there_is_no_lease(owning: Owning) -> None:
    """It has ended, and no beat was answered since: each request is asked about."""
    await owning.settle(owning.take())
    owning.bench.times.now += LEASE
    await owning.settle(owning.take())
    await owning.settle(owning.take())
    assert owning.asked == 3


async def test_an_unbroken_lease_keeps_what_is_known(owning: Owning) -> None:
    """Each beat before its end prolongs it."""
    await owning.settle(owning.take())
    for _ in range(5):
        owning.bench.times.now += LEASE / 2
        owning.beat()
        await owning.settle(owning.take())
    assert owning.asked == 1


@pytest.mark.parametrize("why", ["missing", "doubt"])
async def test_a_lost_registration_or_another_server_makes_sessions_uncertain(owning: Owning, why: str) -> None:
    """Others saw no owner then."""
    await owning.settle(owning.take())
    assert owning.asked == 1
    owning.bench.times.now += 1.0
    if why == "missing":
        owning.beat(missing=True)
    else:
        owning.ownership.doubt()
    assert owning.ownership.doubts(owning.bench.stream.held[b"1-0"])
    await owning.settle(owning.take())
    assert owning.asked == 2


async def test_another_workers_requests_are_handed_over(owning: Owning) -> None:
    """They are held no more, and what is here of the session ends if it was here."""
    await owning.settle(owning.take())
    owning.ownership.doubt()
    owning.bench.times.now += 1.0
    owning.ownership.doubt()
    owning.verdicts = [b"moved", b"mine", b"lost"]
    moved, mine, lost = owning.take(), owning.take("other"), owning.take("third")
    assert await owning.settle(moved, mine, lost) == [mine]
    assert moved.entry not in owning.bench.stream.held
    assert owning.bench.listener.lost == [lost]
    assert owning.sessions.said == [("moved", "pool", "u", "s")]


async def test_a_new_session_that_was_known_here_is_another_one(owning: Owning) -> None:
    """It was another worker's in between, so its state here is out of date; a burst of new ones takes small parts."""
    owning.verdicts = [b"new"]
    await owning.settle(owning.take())
    assert owning.sessions.said == []
    assert owning.ownership.gaining
    await owning.settle(owning.take())
    assert not owning.ownership.gaining
    owning.bench.times.now += LEASE + 0.1
    owning.beat()
    await owning.settle(owning.take())
    assert owning.sessions.said == [("moved", "pool", "u", "s")]


async def test_when_the_server_does_not_say_whose_a_session_is_its_calls_are_dropped(owning: Owning) -> None:
    """Their leases expire and another worker claims them; others run."""
    known = owning.take("", "")
    unsure = owning.take()
    owning.bench.link.answers["own"] = BrokerUnavailable("gone")
    assert await owning.settle(known, unsure) == [known]
    assert set(owning.bench.stream.held) == {known.entry}
    assert owning.bench.listener.lost == [], "nothing runs that could be told"


@pytest.mark.parametrize(("until", "answered"), [("the server answers", True), ("it leaves", False), ("nobody waits", False)])
async def test_a_worker_asks_about_an_ended_call_until_it_is_told(
    owning: Owning, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, until: str, answered: bool
) -> None:
    """An answer is not dropped while somebody waits for it, since the call would run once more."""
    monkeypatch.setattr("toolbus.bus.broker.take.sessions._AGAIN", 0.0)
    ended = owning.take()

    def own(keys: Any, args: Any) -> Any:
        if owning.asked < 3:
            return BrokerUnavailable("gone")
        if until == "the server answers":
            return owning._own(keys, args)
        if until == "it leaves":
            owning.ownership.leave()
        else:
            owning.bench.times.now = ended.deadline + 1.0
        return BrokerUnavailable("gone")

    owning.bench.link.answers["own"] = own
    assert await owning.ownership.holds_at_end(ended) is answered
    assert (owning.asked, ended.is_held) == (3, answered)
    assert caplog.text.count("sessions.unsettled") == 1


async def test_what_was_ours_when_the_script_ran_is_ours_under_the_new_fence(owning: Owning) -> None:
    """Handing over moves the fence; deliveries of another state stay as they are."""
    owning.after = b"6"
    mine, older = owning.take(), owning.take("other")
    older.fence = Fence(FENCE.generation, b"4")
    await owning.settle(mine)
    assert mine.fence == Fence(FENCE.generation, b"6") == owning.bench.stream.fence_known
    assert older.fence == Fence(FENCE.generation, b"4")


async def test_a_call_that_was_handed_over_keeps_the_fence_under_which_it_was_lost(owning: Owning) -> None:
    """A renewal that is under way would take it back from its new owner, if the new fence proved that it is still here."""
    owning.after, owning.verdicts = b"6", [b"moved"]
    moved, mine = owning.take(), owning.take("other")
    assert await owning.settle(moved) == []
    assert (moved.fence, mine.fence) == (FENCE, Fence(FENCE.generation, b"6"))


async def test_owners_are_renewed_before_their_keys_end(owning: Owning) -> None:
    """A third of their time on, without meaning a request; those that are another's by then end here."""
    await owning.settle(owning.take())
    owning.bench.times.now += 1_200.0
    await owning.ownership.keep()
    assert owning.asked == 1
    owning.bench.times.now += 0.1
    owning.verdicts = [b"mine"]
    await owning.ownership.keep()
    assert owning.bench.link.args("own")[1][6:] == (6, b"", 0, 0)
    await owning.ownership.keep()
    assert owning.asked == 2
    owning.bench.times.now += 1_201.0
    owning.verdicts = [b"moved"]
    await owning.ownership.keep()
    assert owning.sessions.said == [("moved", "pool", "u", "s")]
    owning.bench.times.now += 1_201.0
    await owning.ownership.keep()
    assert owning.asked == 3, "it is not ours any more"


async def test_a_session_that_no_call_opened_is_renewed_no_more(owning: Owning) -> None:
    """All of its calls were refused before they ran: its key ends by itself, with what others keep of it, and its next call asks again."""
    await owning.settle(owning.take("refused"), owning.take("runs"))
    owning.sessions.refused = {("pool", "u", "refused")}
    owning.bench.times.now += 1_201.0
    owning.beat()
    await owning.ownership.keep()
    assert len(owning.bench.link.keys("own")[1]) == 5 + 1
    assert owning.bench.link.keys("disown") == []
    owning.bench.times.now += 1_201.0
    owning.beat()
    await owning.ownership.keep()
    assert (owning.asked, len(owning.bench.link.keys("own")[2])) == (3, 5 + 1)
    await owning.settle(owning.take("refused"))
    assert (owning.asked, owning.sessions.said) == (4, [])


async def test_sessions_that_end_are_given_up_together(owning: Owning) -> None:
    """Sessions that end in one tick are given up in one script, only by their owner; a session that is not here is left alone."""
    await owning.settle(owning.take("one"), owning.take("two"))
    owning.ownership.release("pool", ("u", "one"), "closed")
    owning.ownership.release("pool", ("u", "two"), "closed")
    owning.ownership.release("pool", ("u", "two"), "closed")
    owning.ownership.release("other", ("u", "one"), "closed")
    await asyncio.sleep(0)
    assert [len(keys) for keys in owning.bench.link.keys("disown")] == [4]
    assert owning.bench.link.args("disown") == [("mine", "closed", "closed")]


async def test_a_session_that_nobody_ended_is_given_up_as_lost(owning: Owning) -> None:
    """Its next owner is told, so that no call runs silently on a new state."""
    await owning.settle(owning.take("one"), owning.take("two"))
    owning.ownership.release("pool", ("u", "one"), "lost")
    owning.ownership.release("pool", ("u", "two"), "kept")
    await asyncio.sleep(0)
    assert owning.bench.link.args("disown") == [("mine", "lost", "kept")]


async def test_an_inherited_session_is_told_with_the_time_of_the_answer(owning: Owning) -> None:
    """Calls that were published until then can't know of the state that begins here."""
    owning.verdicts = [b"heir 1790000000000"]
    call = owning.take()
    assert await owning.settle(call) == [call]
    assert owning.sessions.said == [("inherited", "pool", "u", "s", (1790000000000, 2**63))]


@pytest.mark.parametrize("how", ["moved", "released"])
async def test_a_run_is_doubted_when_its_session_is_this_workers_no_longer(owning: Owning, how: str) -> None:
    """Another call of it was handed over, or it has ended here; a worker that leaves ends what it has begun."""
    one = owning.take()
    await owning.settle(one)
    if how == "moved":
        owning.bench.times.now += LEASE
        owning.verdicts = [b"moved"]
        await owning.settle(owning.take())
    else:
        owning.ownership.release("pool", ("u", "s"), "closed")
    assert owning.ownership.doubts(one)
    owning.ownership.leave()
    assert not owning.ownership.doubts(one)


async def test_a_run_is_doubted_only_after_the_lease_lapsed(owning: Owning) -> None:
    """A run of a session is doubted until it is known to be ours, and once the lease has lapsed; one that has no session is not."""
    one = owning.take()
    assert owning.ownership.doubts(one)
    await owning.settle(one)
    assert not owning.ownership.doubts(one)
    owning.bench.times.now += LEASE
    assert owning.ownership.doubts(one)
    assert not owning.ownership.doubts(owning.take("", ""))


def test_a_worker_that_has_just_come_takes_small_parts() -> None:
    """Sessions may wait in numbers; where no service has sessions there is no need."""
    bench = Bench()
    ownership = Ownership(*bench.own)
    assert not ownership.gaining
    assert not bench.stream.sticky
    ownership.serve(bench.stream)
    assert ownership.gaining
    assert bench.stream.sticky is True


async def test_before_the_first_beat_nothing_is_certain() -> None:
    """Also where the local clock has just begun."""
    owning = Owning()
    owning.bench.times.now = 0.5
    await owning.settle(owning.take())
    await owning.settle(owning.take())
    assert owning.asked == 2


async def test_a_beat_that_does_not_name_a_service_says_nothing_of_its_lease(owning: Owning) -> None:
    """It was sent before the service was registered here, whose lease ends earlier at the server; those of others go on."""
    other = owning.bench.new_stream("other")
    owning.ownership.serve(other)
    calls = [owning.take(), *deliveries(other, [(b"9-0", entry_fields(request(b"9-0", session="s")))], FENCE)]
    for asked in (2, 3):
        await owning.settle(*calls)
        assert owning.asked == asked
    owning.beat("pool", "other")
    await owning.settle(*calls)
    assert owning.asked == 3
    owning.bench.times.now += LEASE / 2
    owning.beat("pool")
    owning.bench.times.now += LEASE / 2
    assert [owning.ownership.doubts(call) for call in calls] == [False, True]


async def test_many_uncertain_calls_are_asked_about_in_parts_and_each_once(owning: Owning) -> None:
    """Without a lease no answer makes the next call certain, but each that was asked about has its own."""
    owning.bench.times.now += LEASE
    calls = [owning.take(str(number % 7)) for number in range(300)]
    assert await owning.settle(*calls) == calls
    assert [(len(args) - 6) // 4 for args in owning.bench.link.args("own")] == [256, 44]


async def test_the_key_of_an_owner_is_the_same_for_every_worker(owning: Owning) -> None:
    """Of the queue, and of user and session together; giving a session up names the key that it was asked for with."""
    await owning.settle(owning.take("one"))
    digest = hashlib.blake2b(b'["u","one"]', digest_size=16).hexdigest()
    stream = owning.bench.stream
    key = KEYS.session("pool", digest)
    assert owning.bench.link.keys("own") == [(stream.key, stream.fence, KEYS.live, KEYS.pulse, KEYS.instances("pool"), key)]
    owning.ownership.release("pool", ("u", "one"), "closed")
    await asyncio.sleep(0)
    assert owning.bench.link.keys("disown") == [(key, KEYS.snapshot("pool", digest))]
    owning.ownership.release("pool", ("u", "one"), "closed")
    await asyncio.sleep(0)
    assert len(owning.bench.link.keys("disown")) == 1


async def test_many_sessions_that_end_are_given_up_in_parts(owning: Owning) -> None:
    """No script names more keys than it can bear."""
    await owning.settle(*(owning.take(str(number)) for number in range(300)))
    for number in range(300):
        owning.ownership.release("pool", ("u", str(number)), "closed")
    await asyncio.sleep(0)
    assert [len(keys) for keys in owning.bench.link.keys("disown")] == [512, 88]


async def test_owners_of_every_service_are_renewed(owning: Owning) -> None:
    """A service whose sessions are young does not keep another's from it; what was another worker's meanwhile is out of date here."""
    other = owning.bench.new_stream("other")
    owning.ownership.serve(other)
    [delivery] = deliveries(other, [(b"1-0", entry_fields(request(b"1-0", user="u", session="s")))], FENCE)
    assert await owning.settle(delivery) == [delivery]
    owning.bench.times.now += 1_300.0
    owning.verdicts = [b"new"]
    await owning.ownership.keep()
    assert owning.asked == 2
    assert owning.sessions.said == [("moved", "other", "u", "s")]


async def test_an_answer_that_is_too_short_is_an_error(owning: Owning) -> None:
    """No call may be left without a verdict."""
    owning.verdicts = [b"mine"]
    with pytest.raises(ValueError, match="shorter"):
        await owning.settle(owning.take("one"), owning.take("two"))
    owning.verdicts = None
    await owning.settle(owning.take("one"), owning.take("two"))
    owning.bench.times.now += 1_300.0
    owning.verdicts = [b"mine"]
    with pytest.raises(ValueError, match="shorter"):
        await owning.ownership.keep()


@pytest.mark.parametrize(
    ("lapsed", "verdict", "holds", "asked"), [(False, b"mine", True, 1), (True, b"mine", True, 2), (True, b"moved", False, 2)]
)
async def test_a_session_is_asked_about_again_only_after_a_pause(
    owning: Owning, lapsed: bool, verdict: bytes, holds: bool, asked: int
) -> None:
    """Just before a handler starts: the clock says whether anybody else may have the session by now."""
    delivery = owning.take()
    await owning.settle(delivery)
    owning.verdicts = [verdict]
    delivery.begun = True
    if lapsed:
        owning.bench.times.now += LEASE
    assert await owning.ownership.holds(delivery) is holds
    assert [args[-1] for args in owning.bench.link.args("own")] == [0, 1][:asked], "a run that began was an attempt"


async def test_a_worker_that_leaves_asks_about_whatever_it_takes(owning: Owning) -> None:
    """Others may have its sessions although its lease goes on; what it took before stays its own."""
    first = owning.take()
    await owning.settle(first)
    owning.ownership.leave()
    assert await owning.ownership.holds(first)
    assert owning.asked == 1
    owning.verdicts = [b"moved"]
    assert await owning.settle(owning.take()) == []


async def test_a_service_that_is_gone_has_no_sessions(owning: Owning) -> None:
    """The sessions of a service that is gone are forgotten, and those of others are kept."""
    owning.bench.streams["other"] = other = owning.bench.new_stream("other")
    owning.ownership.serve(other)
    owning.beat("pool", "other")
    await owning.settle(owning.take())
    owning.ownership.forget(owning.bench.stream)
    assert owning.ownership.serves
    assert owning.ownership._leases.keys() == owning.ownership._owned.keys() == {other}
    assert not owning.ownership.doubts(owning.take())
    owning.ownership.forget(other)
    owning.ownership.forget(other)
    assert not owning.ownership.serves


async def test_the_server_is_asked_what_came_before_calls(owning: Owning) -> None:
    """Each service is asked on its own, about 32 calls at a time, and the answers come in the order of the calls."""
    owning.bench.streams["other"] = other = owning.bench.new_stream("other")
    asked = [owning.take(f"s{number}", user="u") for number in range(33)]
    for each in asked:
        each.after = b"0-1"
    far = Delivery(asked[0].request, "", b"90-0", 0, 1, 200.0, 0.0, "run", other, FENCE)
    owning.bench.link.answers["line"] = lambda keys, args: [
        b"7-0 8-0" if entry == b"90-0" else b"%b%b" % (entry, b" 9-0" if entry == b"33-0" else b"") for entry in args[1::3]
    ]
    found = await owning.ownership.before([far, *asked])
    assert found == [[b"7-0", b"8-0"], *([each.entry] for each in asked[:-1]), [b"33-0", b"9-0"]]
    assert owning.bench.link.keys("line") == [
        (other.key, KEYS.order("other")),
        (owning.bench.stream.key, KEYS.order("pool")),
        (owning.bench.stream.key, KEYS.order("pool")),
    ]
    [_, first, second] = owning.bench.link.args("line")
    assert first[:6] == (session_digest("u", "s0"), b"1-0", b"0-1", session_digest("u", "s1"), b"2-0", b"0-1")
    assert (len(first), second) == (3 * 32, (session_digest("u", "s32"), b"33-0", b"0-1"))
    assert await owning.ownership.before([]) == []
    owning.bench.link.answers["line"] = [b""]
    with pytest.raises(ValueError, match="shorter"):
        await owning.ownership.before(asked[:2])


SNAPSHOT = Snapshot("token", "call-1", b"{}")
_DAY = 86_400_000


def snapshot_keys(owning: Owning) -> tuple[str, ...]:
    """The keys that a script is given for the session of ``take``."""
    digest = session_digest("u", "s")
    return owning.bench.stream.key, owning.bench.stream.fence, KEYS.session("pool", digest), KEYS.snapshot("pool", digest)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (1, ""),
        (0, '"the call has ended, or another worker has the session"'),
        (BrokerUnavailable("gone"), "gone"),
        (ReplyError("OOM"), "OOM"),
    ],
)
async def test_a_snapshot_is_kept_or_it_is_said_why_not(
    owning: Owning, ordered: bool, answer: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer is waited for; a snapshot that is refused removes the earlier one."""
    delivery = owning.take(ordered=ordered)
    await owning.settle(delivery)
    owning.bench.link.answers["save"] = answer
    kept = await owning.snapshots.save(delivery, SNAPSHOT)
    assert kept is (answer != 0)
    assert owning.bench.link.keys("save")[0] == snapshot_keys(owning)
    caller = ("mine", *FENCE, b"1-0", 1, int(not ordered))
    saved = [(*caller, "token", "call-1", b"{}", _DAY)]
    forgotten = [(*caller, "", "", "", _DAY)] if isinstance(answer, ReplyError) else []
    assert owning.bench.link.args("save") == saved + forgotten
    assert set(owning.bench.link.keys("save")) == {snapshot_keys(owning)}
    said = [f"session.unsaved queue=pool user=u session=s error={reason}"] if reason else []
    assert [record.getMessage() for record in caplog.records] == said * (1 + len(forgotten))


async def test_no_snapshot_is_kept_of_a_session_that_another_worker_has(owning: Owning) -> None:
    """A worker whose session has moved does not ask the server to keep its snapshot."""
    delivery = owning.take()
    await owning.settle(delivery)
    owning.bench.times.now += LEASE
    owning.verdicts = [b"moved"]
    assert not await owning.snapshots.save(delivery, SNAPSHOT)
    assert "save" not in owning.bench.link.names


async def test_a_call_in_doubt_is_checked_by_the_server(owning: Owning) -> None:
    """The server checks the caller of a step also for a call in order, when the session's lease has lapsed."""
    delivery = owning.take(ordered=True)
    await owning.settle(delivery)
    owning.bench.times.now += LEASE
    owning.bench.link.answers["save"] = BrokerUnavailable("gone")
    await owning.snapshots.forget(delivery)
    assert owning.bench.link.args("save") == [("mine", *FENCE, b"1-0", 1, 1, "", "", "", _DAY)]
    assert owning.bench.link.keys("save") == [snapshot_keys(owning)]


@pytest.mark.parametrize(("answer", "logged"), [(1, []), (0, []), (BrokerUnavailable("gone"), ["gone"])])
async def test_a_snapshot_that_can_not_be_forgotten_is_logged(
    owning: Owning, answer: Any, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A failure to forget a snapshot is logged; the snapshot of a session that is elsewhere is left to its owner in silence."""
    owning.bench.link.answers["save"] = answer
    await owning.snapshots.forget(owning.take())
    assert [record.getMessage() for record in caplog.records] == [
        f"session.unsaved queue=pool user=u session=s error={reason}" for reason in logged
    ]


@pytest.mark.parametrize(
    ("answer", "expected", "logged"),
    [
        ([], None, ""),
        ([b"token", b"call-1", b"{}"], SNAPSHOT, ""),
        ([b"t" * 65, b"call-1", b"{}"], NO_SNAPSHOT, "its 65 characters are over the limit of 64"),
        ([b"token", b"c" * 65, b"{}"], NO_SNAPSHOT, "its 65 characters are over the limit of 64"),
        ([b"it is a \xff"], NO_SNAPSHOT, "it is a \\ufffd"),
    ],
)
async def test_a_snapshot_that_can_not_be_used_is_told_from_none(
    owning: Owning, answer: list[bytes], expected: Snapshot | None, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    """None is no snapshot, and NO_SNAPSHOT one that can't be read, which is logged; the server is told the bounds."""
    owning.bench.link.answers["load"] = answer
    assert await owning.snapshots.load(owning.take()) == expected
    [*_, key] = snapshot_keys(owning)
    assert (owning.bench.link.keys("load"), owning.bench.link.args("load")) == ([(key,)], [(262_144, 64)])
    said = f'value.unreadable key={key} error="{logged}" advice="nothing of toolbus writes this; delete it"'
    assert [record.getMessage() for record in caplog.records] == ([said] if logged else [])


@pytest.mark.parametrize(("answer", "elsewhere"), [([b""], False), ([b"1-0"], True)])
async def test_the_server_is_asked_what_others_run_in_a_session(owning: Owning, answer: list[bytes], elsewhere: bool) -> None:
    """A session is elsewhere when the server names a call of it that another live worker runs."""
    owning.bench.link.answers["line"] = answer
    assert await owning.snapshots.is_elsewhere(owning.take()) is elsewhere
    stream = owning.bench.stream
    assert owning.bench.link.keys("line") == [(stream.key, KEYS.order("pool"), stream.fence, KEYS.live)]
    assert owning.bench.link.args("line") == [(session_digest("u", "s"), "", "", "mine", "pool")]
