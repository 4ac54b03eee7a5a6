"""The invariants are right: they pass what is right, and each is broken once here."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.chaos.history import AnyRecord, Begun, Ended, Exited, History, Hit, Issued, Left
from tests.chaos.options import Options
from tests.chaos.oracle.case import Case
from tests.chaos.plan import SEATED, Planned
from tests.chaos.samples import unreached
from tests.chaos.schedule import POISON
from tests.simulation import oracles
from tests.simulation.oracles import Invariants
from tests.simulation.storage import Group, Hash, Pending, Scores, Storage, Stream
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.wire import Wire

PREFIX = b"tb:{chaos}:"


class Bench:
    """A server's keys, and the invariants over them."""

    def __init__(self) -> None:
        self.now = 0
        self.db = Storage(lambda: self.now * 1000)
        self.invariants = Invariants(self.db, PREFIX, Options(concurrency=1))

    def found(self) -> list[str]:
        return [f"{violation.rule}: {violation.what}" for violation in self.invariants.violations]

    def hash(self, name: str, **fields: str) -> None:
        """Set fields of a hash, with a command of its own."""
        self._expires(name)
        self.db.make(PREFIX + name.encode(), Hash).update({field.encode(): value.encode() for field, value in fields.items()})
        self.invariants.changed({PREFIX + name.encode()})

    def frames(self, name: str, run: str, *places: int) -> None:
        """Append frames of a run to a reply stream, with a command of its own."""
        self._expires(name)
        stream = self.db.make(PREFIX + name.encode(), Stream)
        stream.last = stream.next_id(0)
        document = ",".join(f'{{"run":"{run}","seq":{place}}}' for place in places)
        stream.entries[stream.last] = [b"f", f"[{document}]".encode()]
        self.invariants.changed({PREFIX + name.encode()})

    def lives(self, *members: str, until: int = 1000) -> None:
        """Let instances have leases until a time, in milliseconds."""
        self._expires("live")
        self.db.make(PREFIX + b"live", Scores).update({member.encode(): float(until) for member in members})

    def held(self, owner: str) -> Pending:
        """Let a consumer have the entry 1-0."""
        self._expires("q:chaos")
        stream = self.db.make(PREFIX + b"q:chaos", Stream)
        stream.last = (1, 0)
        stream.entries[1, 0], stream.groups[b"g"] = [b"r", b"{}"], Group((1, 0), {(1, 0): Pending(owner.encode(), 0)})
        return stream.groups[b"g"].pending[1, 0]

    def script(self, script: scripts.Script, *words: str, does: Callable[[], object] = lambda: None, keys: int = 2) -> None:
        """Carry out a script of the process 7, which has so many keys, and does something."""
        names = [PREFIX + name for name in (b"q:chaos", b"fence:chaos", b"live", b"pulse", b"instances:chaos")[:keys]]
        look = self.invariants.watch(script.name, 7, [*names, *(word.encode() for word in words)])
        does()
        if look is not None:
            look()

    def reap(self, *, does: Callable[[], object] = lambda: None) -> None:
        """Let the worker "me" take over one entry at most."""
        self.script(scripts.REAP, "me", "chaos", "1", "2000", "0", "0", "4", "0", "tb:{chaos}:pause:", does=does, keys=4)

    def _expires(self, name: str) -> None:
        self.db.expires[PREFIX + name.encode()] = 1_000_000


def _no_ttl(bench: Bench) -> None:
    bench.db.make(PREFIX + b"started:x", Hash)[b"a"] = b"b"
    bench.invariants.changed({PREFIX + b"started:x", b"elsewhere", PREFIX + b"gone"})


def _too_many_handlers(bench: Bench) -> None:
    for key in ("a", "b"):
        bench.invariants.wrote(Begun(1.0, key, 1, 7))


def _fence_returns(bench: Bench) -> None:
    for counter in ("12", "13", "12"):
        bench.hash("fence:chaos", generation="0.x", **{"c:w": counter})


def _generation_returns(bench: Bench) -> None:
    for generation in ("0.x", "0.y", "0.x"):
        bench.hash("fence:chaos", generation=generation)


def _flushes_overtake(bench: Bench) -> None:
    bench.hash("pub:a", one="4 x")
    bench.hash("pub:a", two="3 y")


def _a_frame_is_missing(bench: Bench) -> None:
    bench.frames("rsp:a", "r", 0, 1)
    bench.frames("rsp:a", "r", 3)


def _two_scripts(bench: Bench) -> None:
    _send(bench, ['{"run":"r"}', '{"run":"r"}'], answer=False)


def _takes(pending: Pending, owner: str) -> Callable[[], None]:
    return lambda: setattr(pending, "consumer", owner.encode())


def _ends_anothers(bench: Bench) -> None:
    bench.held("you")
    bench.script(scripts.FINISH, "me", does=lambda: bench.held("x") and bench.db.remove(PREFIX + b"q:chaos"))


def _renews_anothers(bench: Bench) -> None:
    bench.script(scripts.RENEW, "me", does=_takes(bench.held("you"), "me"))


def _reaps_without_a_lease(bench: Bench) -> None:
    bench.hash("fence:chaos", **{"x:you": "1"})
    bench.reap(does=_takes(bench.held("you"), "me"))


def _reaps_after_a_silence(bench: Bench) -> None:
    bench.lives("chaos/me")
    bench.reap(does=_takes(bench.held("you"), "me"))


def _reaps_with_an_impossible_lease(bench: Bench) -> None:
    bench.hash("fence:chaos", **{"l:me": "1000"})
    bench.lives("chaos/me", until=5000)
    bench.held("me")
    bench.reap()


def _leaves_what_was_handed_back(bench: Bench) -> None:
    bench.lives("chaos/me")
    bench.held("~back")
    bench.reap()


def _leaves_with_an_entry(bench: Bench) -> None:
    bench.held("me")
    bench.script(scripts.RETIRE, "me", "chaos", "0", keys=5)


def _leaves_the_fence(bench: Bench) -> None:
    bench.hash("fence:chaos", **{"c:me": "5"})
    bench.script(scripts.HAND_BACK, "me", does=_takes(bench.held("me"), "~back"))


def _sweeps_too_soon(bench: Bench) -> None:
    bench.lives("chaos/you")
    bench.script(scripts.BEAT)
    bench.now = 10_000
    bench.script(scripts.BEAT)
    bench.lives("chaos/you")
    bench.script(scripts.UNREGISTER, "ended", does=lambda: bench.db.remove(PREFIX + b"live"))


def _beats_too_seldom(bench: Bench) -> None:
    bench.script(scripts.BEAT, "chaos/me")
    bench.now = 10_000
    bench.script(scripts.BEAT, "chaos/me")


def _goes_round(bench: Bench) -> None:
    for number in range(101):
        bench.invariants.hear(scripts.LISTEN.name, 7, 1.0 + number / 120, refused=False)


def _is_refused_again_and_again(bench: Bench) -> None:
    for number in range(101):
        bench.invariants.hear("XREAD", 7, 1.0 + number / 120, refused=True)


def _takes_in_no_turns(bench: Bench, times: int = 4, *, between: Callable[[], None] = lambda: None) -> None:
    """Let a worker take of the first of two streams alone, so many times."""
    for name in ("q:chaos", "q:kept"):
        bench.held("me")
        bench.db.values[PREFIX + name.encode()] = Stream({(number, 0): [] for number in range(1, 20)}, (19, 0), {b"g": Group((1, 0))})
    first: Any = bench.db.values[PREFIX + b"q:chaos"]
    for number in range(times):
        words = [PREFIX + b"q:chaos", PREFIX + b"q:kept", b"me", b"1"]
        look = bench.invariants.watch(scripts.TAKE.name, 7, words)
        first.groups[b"g"].last = (2 + number, 0)
        assert look is not None
        look()
        between()


def _keeps_anothers(bench: Bench) -> None:
    bench.held("you")
    bench.script(scripts.SAVE, "me", "0.x", "5", "1-0", does=lambda: bench.hash("pulse", t="x"), keys=4)


def _waits_twice(bench: Bench) -> None:
    bench.held("me")
    stream = bench.db.make(PREFIX + b"q:chaos", Stream)
    stream.entries |= {(2, 0): [b"r", b'{"id":"c"}'], (3, 0): [b"r", b'{"id":"c"}']}
    bench.invariants.changed({PREFIX + b"q:chaos"})


def _begins_before_its_turn(bench: Bench, *, ended: bool = False) -> None:
    """Let a call of a session begin behind one that was made before it."""
    bench.held("me")
    stream = bench.db.make(PREFIX + b"q:chaos", Stream)
    for number in (2, 3):
        stream.entries[number, 0] = [b"r", b'{"id":"c%d","session":"s","ordered":true}' % number, b"d", b"1"]
        stream.last = (number, 0)
        bench.invariants.changed({PREFIX + b"q:chaos"})
    if ended:
        del stream.entries[2, 0]
    bench.invariants.wrote(Begun(1.0, "a", 1, 7, "c3"))
    bench.invariants.wrote(Left(1.0, "a", 1, 7, "done"))


def _send(bench: Bench, frames: list[str], *, answer: bool) -> None:
    """Send each frame with a script of its own, each after the answer to the one before if there are answers."""
    link: Any = Link.__new__(Link)

    def run(_: Any, script: Any, keys: Any, args: Any, on_reply: Callable[[Any], None], **options: Any) -> None:
        if answer:
            on_reply(None)

    with pytest.MonkeyPatch.context() as patch, bench.invariants.listening():
        patch.setattr(Wire, "run", run)
        for frame in frames:
            link.run(scripts.FINISH, ("key",), (frame.encode(), 1))


BROKEN: dict[Callable[[Bench], None], str] = {
    _no_ttl: "rest: the key started:x has no TTL",
    _too_many_handlers: "inside: 2 handlers run in process 7, of 1 slots",
    _fence_returns: "inside: fence:chaos: c:w is 12 again",
    _generation_returns: "inside: fence:chaos: generation is 0.x again",
    _flushes_overtake: "inside: pub:a: flush 3 was carried out after flush 4",
    _a_frame_is_missing: "inside: rsp:a: the run r goes on with frame 3 after frame 1",
    _ends_anothers: "inside: finish/finish of me: it ended what is another one's (entry 1-0, you)",
    _renews_anothers: "inside: lease/renew of me: it took what is another one's (entry 1-0, you)",
    _reaps_without_a_lease: "inside: recover/reap of me: it took an entry although its own lease was over (entry 1-0, you)",
    _reaps_after_a_silence: "inside: recover/reap of me: it judged a lease right after a silence (entry 1-0, you)",
    _reaps_with_an_impossible_lease: "inside: me reaped with a lease that ends 5000 ms from now",
    _leaves_what_was_handed_back: "inside: me left 1-0 to others although it had room",
    _leaves_with_an_entry: "inside: me leaves, and has not handed back what it has",
    _leaves_the_fence: "inside: entries were moved away from me, whose fence is still 5",
    _sweeps_too_soon: "inside: chaos/you was swept out of the registry by a worker that had not beaten for long",
    _goes_round: "inside: the process 7 has sent publish/listen 101 times in a second",
    _is_refused_again_and_again: "inside: the process 7 has sent XREAD in vain 101 times in a second",
    _beats_too_seldom: "inside: chaos/me has beaten 1 times in 10000 ms",
    _takes_in_no_turns: "inside: the process 7 took of other streams than q:kept 4 times in a row",
    _begins_before_its_turn: "inside: attempt 1 of the call c3 began before the end of c2, which was made before it in its session",
    _keeps_anothers: "inside: me kept a snapshot after a call that it has not (entry 1-0)",
    _waits_twice: "inside: q:chaos: the call c waits twice",
    _two_scripts: "inside: the run r is in two scripts that were not answered, the second of them finish/finish",
}


_PAID: dict[str, Any] = {"id": "c", "pid": 1, "success": True}
_OTHERS = [f"b{number}" for number in range(11)]
_KILLED = (Issued(1.0, "a", 1), Begun(1.0, "a", 1, 7, "c"), Exited(2.0, "worker", 7, -9, True), Begun(100.0, "a", 2, 8, "c"))

RUNS: dict[str, tuple[list[AnyRecord], dict[str, Any]]] = {
    "session a: the 1. call of the session s was made after its 2.": (
        [Issued(1.0, "b", 1), Issued(2.0, "a", 1)]
        + [Ended(3.0, key, began=1.0, output=f"{key}:7.1:{count}", **_PAID) for key, count in (("b", 2), ("a", 1))],
        {"tool": "sit", "session": "s", "keys": ["b", "a"]},
    ),
    "executions a: process 7 cut it off 1.00 s after it was told to leave": (
        [Issued(9.0, "a", 1), Hit(10.0, "term", 10.0, "", (7,)), Left(11.0, "a", 1, 7, "cancelled")],
        {"faults": ("term",)},
    ),
    "executions a: attempt 1 ran for 7.0 s after attempt 2 began": (
        [Begun(1.0, "a", 1, 7, "c"), Begun(2.0, "a", 2, 8, "c"), Left(9.0, "a", 1, 7, "done")],
        {},
    ),
    "one-end a: it was given up because of what ran beside it": (
        [Ended(3.0, "a", began=1.0, code="max_deliveries", **_PAID)],
        {"faults": (POISON,)},
    ),
    "executions a: attempt 4 ran in process 7 beside b (attempt 1)": (
        [Begun(1.0, "a", 4, 7), Begun(1.5, "b", 1, 7), Left(3.0, "a", 4, 7, "done"), Left(3.0, "b", 1, 7, "done")],
        {"keys": ["a", "b"]},
    ),
    "executions a: 11 calls that were made later began while it waited for another worker": (
        [*_KILLED, *(each for key in _OTHERS for each in (Issued(5.0, key, 1), Begun(50.0, key, 1, 8), Left(51.0, key, 1, 8, "done")))],
        {"keys": ["a", *_OTHERS]},
    ),
    "executions a: attempt 1 of the call c began 2 times": (
        [Begun(1.0, "a", 1, 7, "c"), Exited(2.0, "worker", 7, -9, True), Begun(3.0, "a", 1, 8, "c")],
        {},
    ),
    "executions a: 11 calls of another service, made later, began before it (99.0 s)": (
        [Issued(1.0, "a", 1), Begun(100.0, "a", 1, 7)]
        + [record for key in _OTHERS for record in (Issued(2.0, key, 1), Begun(3.0, key, 1, 8), Left(4.0, key, 1, 8, "done"))],
        {"keys": ["a", *_OTHERS], "session": "s"},
    ),
    "one-end a: it ended 9.0 s after its deadline, as a success": ([Ended(70.0, "a", began=1.0, **_PAID)], {}),
}
"""What a rule says about a whole run: its records, and what is special about its calls and options."""


def _judged(records: list[AnyRecord], about: dict[str, Any]) -> list[str]:
    options = Options(concurrency=1, workers=1, faults=about.get("faults", ()))
    keys, tool = about.get("keys", ["a"]), about.get("tool", "echo")
    # A session is that of all calls of a tool of sessions, or else of the first call alone.
    sessions = [about.get("session", "") if tool in SEATED or not number else "" for number in range(len(keys))]
    calls = [Planned(key, 0, tool, {"key": key}, 0.0, 60.0, session=session) for key, session in zip(keys, sessions, strict=True)]
    case = Case(options, calls, History(records))
    return [f"{found.rule} {found.key}: {found.what}" for rule in oracles.RULES for found in rule(case)]


def test_a_session_waits_for_the_lease_of_a_worker_that_died() -> None:
    """Calls of other services go on meanwhile; of a death that was long ago, nothing waits any more."""
    [(_, (records, about))] = [each for each in RUNS.items() if "of another service" in each[0]]
    for at, right in ((2.5, True), (-200.0, False)):
        assert (_judged([*records, Exited(at, "worker", 9, -9, True)], about) == []) is right, at


def test_a_session_waits_for_a_slot_of_its_worker() -> None:
    """Others are served by other workers meanwhile; nothing waits for a slot that is free, or has long been."""
    [(told, (records, about))] = [each for each in RUNS.items() if "of another service" in each[0]]
    about = about | {"keys": [*about["keys"], "before"]}
    for over, right in ((99.0, True), (2.5, False)):
        busy = Begun(1.5, "before", 1, 7), Left(over, "before", 1, 7, "done")
        assert _judged([*records, *busy], about) == ([] if right else [told]), over


@pytest.mark.parametrize("told", RUNS)
def test_each_rule_of_runs_is_broken_once(told: str) -> None:
    """One thing that goes wrong in a run is found, once."""
    assert _judged(*RUNS[told]) == [told]


def test_a_call_whose_end_was_lost_may_run_again_after_later_ones() -> None:
    """A server that forgot the end of a session's call has it run once more, and nothing can be known of the order then."""
    told = "session a: the 1. call of the session s was made after its 2."
    records, about = RUNS[told]
    again = [msgspec.structs.replace(each, attempts=2) if isinstance(each, Ended) and each.key == "b" else each for each in records]
    # Where the delivery was lost as well, it is the first attempt.
    for more in (again, [*records, Begun(1.5, "b", 1, 7), Begun(2.5, "b", 1, 7)]):
        assert _judged(more, about)[0] == told
        assert _judged(more, about | {"faults": ("flushall",)}) == []
    assert _judged([*records, Begun(2.5, "b", 1, 7)], about | {"faults": ("flushall",)}) == [told]


def test_a_state_that_was_lost_may_be_older_than_the_one_before() -> None:
    """A server that forgot the last snapshot of a session's state has the one before; no other server has."""
    records, about = RUNS["session a: the 1. call of the session s was made after its 2."]
    stays = about | {"tool": "stay"}
    assert _judged(records, stays) == _judged(records, about)
    assert _judged(records, stays | {"faults": ("flushall",)}) == []


def test_a_suspect_may_wait_for_an_idle_worker() -> None:
    """It runs alone, so other calls begin and end before it; one with attempts left goes on beside them."""
    [(told, (records, about))] = [each for each in RUNS.items() if "waited for another worker" in each[0]]
    third, fourth = (
        [msgspec.structs.replace(each, attempt=number) if each is _KILLED[3] else each for each in records] for number in (3, 4)
    )
    assert (_judged(third, about), _judged(fourth, about)) == ([told], [])


def test_calls_that_were_made_before_may_go_first() -> None:
    """They may be those of other workers that were killed."""
    [(_, (records, about))] = [each for each in RUNS.items() if "waited for another worker" in each[0]]
    earlier = [msgspec.structs.replace(each, at=0.5) if isinstance(each, Issued) and each.key != "a" else each for each in records]
    assert _judged(earlier, about) == []


def test_a_call_that_a_dead_worker_took_may_wait_for_its_lease() -> None:
    """Calls of other services go on meanwhile, and none of them is served before its turn."""
    [(told, (records, about))] = [each for each in RUNS.items() if "of another service" in each[0]]
    again = [msgspec.structs.replace(each, attempt=2) if isinstance(each, Begun) and each.key == "a" else each for each in records]
    assert (_judged(records, about), _judged(again, about)) == ([told], [])


@pytest.mark.parametrize("break_it", BROKEN)
def test_each_invariant_is_broken_once(break_it: Callable[[Bench], None]) -> None:
    """One thing that goes wrong is found, once."""
    bench = Bench()
    break_it(bench)
    assert bench.found() == [BROKEN[break_it]]


def test_there_is_an_example_of_each_invariant() -> None:
    """Each thing that the invariants can say is wrong, an example here has them say."""

    def break_everything() -> None:
        for break_it in BROKEN:
            break_it(Bench())
        for run in RUNS.values():
            _judged(*run)

    assert unreached([Path(oracles.__file__)], break_everything) == []


def test_what_goes_on_as_promised_breaks_nothing() -> None:
    """Counters that change, or begin anew with their group; flushes in order; frames that are written again; one handler after another."""
    bench = Bench()
    bench.hash("fence:chaos", generation="0.x", **{"c:w": "9"})
    bench.hash("fence:chaos", **{"c:w": "12"})
    bench.db.remove(PREFIX + b"fence:chaos")
    bench.hash("fence:chaos", **{"c:w": "1"})
    bench.hash("pub:a", one="3 x")
    bench.hash("pub:a", two="4 y")
    for places in ((0, 1), (1, 2), (3,)):
        bench.frames("call:a", "r", *places)
    bench.frames("call:a", "other", 0)
    for number in itertools.count(1):
        bench.invariants.wrote(Begun(1.0, "a", number, 7))
        bench.invariants.wrote(Left(1.0, "a", number, 7, "done") if number < 3 else Exited(1.0, "worker", 7, -9, True))
        if number == 4:
            break
    _send(bench, ['{"run":"r"}', '{"run":"r"}'], answer=True)
    _send(bench, ['{"run":"r"}', '{"run":"s"}'], answer=False)
    for number in range(200):
        bench.invariants.hear(scripts.LISTEN.name, number % 2, 1.0 + number / 120, refused=False)
        bench.invariants.hear(scripts.FINISH.name, 7, 1.0, refused=False)
        bench.invariants.hear(scripts.PUBLISH.name, 7, 1.0, refused=True)
    _takes_in_no_turns(bench, 9, between=lambda: bench.invariants.hear("XREADGROUP", 7, 1.0, refused=False))
    _takes_in_no_turns(bench, 9, between=lambda: bench.invariants.wrote(Hit(1.0, "cut", 1.0, "", (7,))))
    _begins_before_its_turn(bench, ended=True)
    bench.hash("fence:kept", generation="0.x", **{"c:w": "12"})
    bench.hash("fence:kept", generation="0.y", **{"c:w": "12"})
    bench.invariants.lose(broken_off=True)
    _no_ttl(bench)
    assert bench.found() == []


@pytest.mark.parametrize("stands", [True, False])
def test_a_worker_distrusts_by_its_own_clock(stands: bool) -> None:
    """While the server's clock stands, or once it was set back, nobody can say by it for how long a worker distrusts."""
    bench = Bench()
    bench.lives("chaos/you")
    bench.script(scripts.BEAT)
    bench.now = 10_000
    bench.script(scripts.BEAT)
    if stands:
        bench.invariants.stand()
    else:
        bench.now = 9_990
        bench.script(scripts.BEAT)
    bench.lives("chaos/you")
    bench.script(scripts.UNREGISTER, "ended", does=lambda: bench.db.remove(PREFIX + b"live"))
    assert bench.found() == []


def test_a_beat_that_was_refused_is_not_heard() -> None:
    """It is no sign of a silence when the server's clock was set back behind it."""
    bench = Bench()
    lease = bench.invariants._lease
    for bench.now in range(0, 2 * lease, lease // 3):
        bench.script(scripts.BEAT)
    last, bench.now = bench.now, 3 * lease
    assert bench.invariants.watch(scripts.BEAT.name, 7, []) is not None
    bench.now = last + lease // 3
    bench.script(scripts.BEAT)
    bench.hash("fence:chaos", **{"x:you": "1"})
    bench.lives("chaos/me", until=10 * lease)
    bench.reap(does=_takes(bench.held("you"), "me"))
    assert bench.found() == []


def test_the_agent_of_a_worker_hears_the_time_for_itself() -> None:
    """A clock that was set back and forth between two beats is news to the one that has asked for the time meanwhile, and to no other."""
    bench = Bench()
    bench.now = 10_000
    bench.lives("chaos/you")
    bench.script(scripts.BEAT)
    bench.now = 1_000
    bench.invariants.tell_time(7)
    bench.now = 10_100
    bench.script(scripts.BEAT)
    bench.script(scripts.UNREGISTER, "ended", does=lambda: bench.db.remove(PREFIX + b"live"))
    assert bench.found() == []


@pytest.mark.parametrize("break_it", [_ends_anothers, _renews_anothers, _leaves_the_fence, _keeps_anothers])
def test_only_what_was_there_is_excused_when_the_server_loses_something(break_it: Callable[[Bench], None]) -> None:
    """A move that was lost may be made again by whoever had the entry; one of an entry that came later may not."""
    for entry_was_there in (True, False):
        bench = Bench()
        if entry_was_there:
            bench.held("you")
        else:
            bench.db.make(PREFIX + b"q:chaos", Stream)
        bench.invariants.lose()
        break_it(bench)
        assert bench.found() == ([] if entry_was_there else [BROKEN[break_it]])
