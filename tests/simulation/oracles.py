"""The rules of every run: the promises, as the oracle of the chaos runs has them, and invariants, looked at with each command."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from tests.chaos import oracle
from tests.chaos.history import AnyRecord, Begun, Exited, History, Left
from tests.chaos.options import Options
from tests.chaos.oracle import Violation
from tests.chaos.oracle.rest import KEPT
from tests.simulation.scenario import Scenario
from tests.simulation.storage import Hash, Id, Scores, Storage, Stream
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.wire import Wire, unheard

V = TypeVar("V")

_SENDING = frozenset({scripts.SEND, scripts.FINISH, scripts.FINISH_EACH, scripts.BURY})
_ENDING = frozenset({scripts.FINISH.name, scripts.FINISH_EACH.name, scripts.BURY.name})
OF_ENTRIES = frozenset(
    script.name
    for script in (
        *(scripts.FINISH, scripts.FINISH_EACH, scripts.BURY, scripts.RENEW, scripts.REAP, scripts.OWN),
        *(scripts.HAND_BACK, scripts.HAND_OVER, scripts.BEAT),
    )
)
"""The scripts that are looked at with the entries before and after them: those that move or end entries, or keep owners of them alive."""

_RUN = re.compile(rb'"run":"([^"]+)"')


def judge(scenario: Scenario, history: History) -> list[Violation]:
    """Return every violation in a run."""
    return oracle.judge(scenario.options, scenario.calls, history)


class _Place(msgspec.Struct):
    run: str
    seq: int = 0


_FRAMES = msgspec.json.Decoder(list[_Place])


class Invariants:
    """Rules that are looked at with each command, and not only when all is over.

    Args:
        db: the server's keys.
        prefix: of the namespace's keys.
        options: of the run.

    Attributes:
        violations: rules that were broken.
    """

    def __init__(self, db: Storage, prefix: bytes, options: Options) -> None:
        self._db = db
        self._prefix = prefix
        self._concurrency = options.concurrency
        self._lossy = options.lossy
        self._lease = int(options.lease * 1000)
        # What was known of a value, and the value itself: one that was made anew is another one.
        self._known: dict[bytes, tuple[object, Any]] = {}
        self._running: Counter[int] = Counter()
        # When the server heard a beat last, and until when it is to judge no lease since it had heard none (ms).
        self._last_beat: int | None = None
        self._quiet_until = 0
        self.violations: list[Violation] = []

    def changed(self, keys: set[bytes]) -> None:
        """Look at the keys that one command has changed."""
        for key in sorted(keys):
            value = self._db.values.get(key)
            if value is None or not key.startswith(self._prefix):
                continue
            name = key[len(self._prefix) :].decode()
            if key not in self._db.expires and name not in KEPT:
                self._broken("rest", f"the key {name} has no TTL")
            kind, check = _CHECKS.get(name.partition(":")[0], (None, None))
            if check is not None and type(value) is kind:
                for what in check(self, key, value):
                    self._broken("inside", f"{name}: {what}")

    def wrote(self, record: AnyRecord) -> None:
        """Count the handlers that run in each process."""
        if isinstance(record, Exited):
            self._running.pop(record.pid, None)
        elif isinstance(record, Begun):
            self._running[record.pid] += 1
            if self._running[record.pid] > self._concurrency:
                self._broken("inside", f"{self._running[record.pid]} handlers run in process {record.pid}, of {self._concurrency} slots")
        elif isinstance(record, Left):
            self._running[record.pid] -= 1

    def watch(self, script: str, words: list[bytes]) -> Callable[[], None] | None:
        """Look at what a script does to entries; returns what is to be called when it was carried out.

        Args:
            script: its name.
            words: its keys and arguments.
        """
        if script == scripts.BEAT.name:
            self._hear_beat()
            return None
        queue, fence = words[0], words[1]
        me = next(word for word in words if not word.startswith(self._prefix))
        before, counters = self._owners(queue), self._counters(fence)
        if not before:
            return None
        lives, silence = self._lives(queue.rpartition(b":")[2], me), self._is_silent()

        def look() -> None:
            after = self._owners(queue)
            for entry, owner in before.items():
                if (now := after.get(entry)) == owner:
                    continue
                known = owner.startswith(b"~") or b"x:" + owner in counters
                for what in _wrong_moves(script, me, owner, now, lives=lives, silence=silence and not known):
                    self._broken("inside", f"{script} of {me.decode()}: {what} (entry {entry[0]}-{entry[1]}, {owner.decode()})")
            for owner in {before[entry] for entry, now in after.items() if before.get(entry, now) != now}:
                self._moved(fence, owner, counters)

        return look

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Look at every script that a process sends."""

        def run(link: Link, script: scripts.Script, keys: Any, args: Any, on_reply: Any = unheard, **options: Any) -> None:
            Wire.run(link, script, keys, args, self._sends(link, script, args, on_reply), **options)

        patched: Any = Link
        patched.run = run
        try:
            yield
        finally:
            del patched.run

    # -- inside -----------------------------------------------------------------------------------

    def _sends(self, link: Link, script: scripts.Script, words: tuple[Any, ...], on_reply: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return what the answer to a script is to be given to."""
        if script not in _SENDING:
            return on_reply
        runs = {found for word in words if isinstance(word, bytes) for found in _RUN.findall(word)}
        unanswered: set[bytes] = link.__dict__.setdefault("_simulated_runs", set())
        for run in sorted(unanswered & runs):
            self._broken("inside", f"the run {run.decode()} is in two scripts that were not answered, the second of them {script.name}")
        unanswered |= runs

        def answered(reply: Any) -> None:
            unanswered.difference_update(runs)
            on_reply(reply)

        return answered

    def _owners(self, queue: bytes) -> dict[Id, bytes]:
        stream = self._db.find(queue)
        group = stream.groups.get(b"g") if isinstance(stream, Stream) else None
        return {} if group is None else {entry: pending.consumer for entry, pending in group.pending.items()}

    def _counters(self, fence: bytes) -> dict[bytes, bytes]:
        found = self._db.find(fence)
        return dict(found) if isinstance(found, Hash) else {}

    def _lives(self, service: bytes, instance: bytes) -> bool:
        leases = self._db.find(self._prefix + b"live")
        return isinstance(leases, Scores) and leases.get(service + b"/" + instance, 0) >= self._db.now()

    def _is_silent(self) -> bool:
        now, last = self._db.now(), self._last_beat
        return last is None or not 0 <= now - last <= self._lease / 2 or now < self._quiet_until

    def _hear_beat(self) -> None:
        now, last = self._db.now(), self._last_beat
        if last is None or not 0 <= now - last <= self._lease / 2 or self._quiet_until > now + 2 * self._lease:
            self._quiet_until = now + self._lease
        self._last_beat = now

    def _moved(self, fence: bytes, owner: bytes, before: dict[bytes, bytes]) -> None:
        """See that the counter of a worker from which entries were moved is another one."""
        name = b"c:" + owner
        if not owner.startswith(b"~") and name in before and self._counters(fence).get(name) == before[name]:
            self._broken("inside", f"entries were moved away from {owner.decode()}, whose fence is still {before[name].decode()}")

    def _broken(self, rule: str, what: str) -> None:
        self.violations.append(Violation(rule, what))

    def _before(self, key: bytes, value: object, new: V) -> V:
        """Return what was known of a value when it was looked at last, ``new`` when it is another one."""
        known = self._known.get(key)
        if known is None or known[0] is not value:
            self._known[key] = (value, new)
            return new
        return known[1]  # type: ignore[no-any-return]

    def _fence(self, key: bytes, value: Hash) -> Iterator[str]:
        """Counters only rise."""
        before: dict[bytes, bytes] = self._before(key, value, {})
        for name, number in value.items():
            known = before.get(name)
            if known is not None and known.isdigit() and number.isdigit() and int(number) < int(known):
                yield f"{name.decode()} went from {known.decode()} back to {number.decode()}"
        self._known[key] = (value, dict(value))

    def _flushes(self, key: bytes, value: Hash) -> Iterator[str]:
        """No flush is carried out after a later one."""
        before: dict[bytes, bytes] = self._before(key, value, {})
        numbers = [int(each.partition(b" ")[0]) for each in before.values()]
        for slot, memo in value.items():
            number = int(memo.partition(b" ")[0])
            if before.get(slot) != memo and numbers and number < max(numbers):
                yield f"flush {number} was carried out after flush {max(numbers)}"
        self._known[key] = (value, dict(value))

    def _frames(self, key: bytes, value: Stream) -> Iterator[str]:
        """The frames of a run follow each other; those that were written again are known."""
        last, places = self._before(key, value, ((0, 0), dict[str, int]()))
        added: list[Id] = []
        for entry in reversed(value.entries):
            if entry <= last:
                break
            added.append(entry)
        for entry in reversed(added):
            fields = value.entries[entry]
            for place in _FRAMES.decode(fields[1]) if fields[0] == b"f" else ():
                known = places.get(place.run, place.seq - 1)
                if place.seq > known + 1 and not self._lossy:
                    yield f"the run {place.run} goes on with frame {place.seq} after frame {known}"
                places[place.run] = max(known, place.seq)
        self._known[key] = (value, (value.last, places))


def _wrong_moves(script: str, me: bytes, owner: bytes, now: bytes | None, *, lives: bool, silence: bool) -> Iterator[str]:
    """Yield what is wrong with an entry that was its ``owner``'s and is ``now`` another one's, or nobody's.

    Args:
        script: which has done it, for the worker ``me``.
        lives: whether the lease of that worker lasts.
        silence: whether no lease may be judged.
    """
    if now is None:
        if script in _ENDING and me and owner != me:
            yield "it ended what is another one's"
    elif script == scripts.RENEW.name:
        yield "it took what is another one's"
    elif script == scripts.REAP.name and now == me:
        if not lives:
            yield "it took an entry although its own lease was over"
        if silence:
            yield "it judged a lease right after a silence"


_CHECKS: dict[str, tuple[type, Callable[[Invariants, bytes, Any], Iterator[str]]]] = {
    "fence": (Hash, Invariants._fence),
    "pub": (Hash, Invariants._flushes),
    "rsp": (Stream, Invariants._frames),
    "call": (Stream, Invariants._frames),
}
