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
from tests.simulation.storage import Hash, Id, Storage, Stream
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.wire import Wire, unheard

V = TypeVar("V")

_SENDING = frozenset({scripts.SEND, scripts.FINISH, scripts.FINISH_EACH, scripts.BURY})
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
        # What was known of a value, and the value itself: one that was made anew is another one.
        self._known: dict[bytes, tuple[object, Any]] = {}
        self._running: Counter[int] = Counter()
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


_CHECKS: dict[str, tuple[type, Callable[[Invariants, bytes, Any], Iterator[str]]]] = {
    "fence": (Hash, Invariants._fence),
    "pub": (Hash, Invariants._flushes),
    "rsp": (Stream, Invariants._frames),
    "call": (Stream, Invariants._frames),
}
