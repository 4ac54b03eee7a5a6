"""The rules of every run: the promises, as the oracle of the chaos runs has them, and invariants, looked at with each command."""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeVar

import msgspec

from tests.chaos import oracle, plan
from tests.chaos.history import AnyRecord, Begun, Exited, History, Hit, Left
from tests.chaos.options import Options
from tests.chaos.oracle import Violation
from tests.chaos.oracle.case import Case, noticed
from tests.chaos.oracle.rest import KEPT
from tests.chaos.oracle.sessions import answers, seat
from tests.chaos.schedule import POISON
from tests.simulation.commands import shown
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
        *(scripts.HAND_BACK, scripts.HAND_OVER, scripts.BEAT, scripts.UNREGISTER, scripts.RETIRE, scripts.SAVE, scripts.TAKE),
    )
)
"""The scripts that are looked at with the entries before and after them: those that deliver, move or end entries, keep owners of them
alive, or keep what their calls have done.
"""

_CALL = re.compile(rb'"id":"([^"]+)"')
_RUN = re.compile(rb'"run":"([^"]+)"')
_SESSION = re.compile(rb'"session":"([^"]+)"')


def judge(scenario: Scenario, history: History) -> list[Violation]:
    """Return every violation in a run."""
    case = Case(scenario.options, scenario.calls, history)
    return [*oracle.judge(scenario.options, scenario.calls, history), *(found for rule in RULES for found in rule(case))]


# -- rules about whole runs, of which the times are exact ---------------------------------------------

# What takes no worker's time, and neither its connection nor its lease.
_HARMLESS = frozenset({"kill", "term", "agent-kill", "script-flush", "versions"})


def _order(case: Case) -> Iterator[Violation]:
    """The calls of a session are run in the order in which they were made."""
    place = {key: number for number, key in enumerate(case.planned)}
    if any(
        hit.what.startswith("wrong-key") or (hit.what.startswith("wrong-type") and ":order:" in hit.what) for hit in case.history.of(Hit)
    ):
        # Somebody has overwritten the order.
        return
    everything = [ended for records in case.ended.values() for ended in records]
    for session, answered in answers(case.planned.values(), everything).items():
        lives: dict[str, list[tuple[int, str]]] = {}
        for ended in sorted(answered, key=lambda ended: (case.issued[ended.key].at, place[ended.key])):
            # A call whose end the server lost runs once more, after those that came then, and as the first attempt if it lost the delivery,
            # too; if it lost a snapshot, an older state is back.
            again = ended.attempts > 1 or case.executions(ended.key) > 1
            if case.options.lossy and (again or case.planned[ended.key].tool == "stay"):
                continue
            token, count, _ = seat(ended)
            lives.setdefault(token, []).append((count, ended.key))
        for counts in lives.values():
            for (before, _), (count, key) in pairwise(counts):
                if count < before:
                    yield Violation("session", f"the {count}. call of the session {session} was made after its {before}.", key)


def _drains(case: Case) -> Iterator[Violation]:
    """A worker that is to leave gives what it runs its time."""
    if not _HARMLESS.issuperset(case.options.faults):
        return
    for left in case.history.of(Left):
        planned, told = case.planned.get(left.key), case.told_to_leave.get(left.pid)
        if left.how != "cancelled" or planned is None or told is None or not told < left.at < told + case.options.grace - 0.01:
            continue
        issued = case.issued[left.key]
        wanted = left.key not in case.cancelled and not case.abandoned(issued) and left.at < issued.at + planned.timeout - 0.1
        if wanted and not planned.shares and planned.tool not in {"nested", "deep"}:
            yield Violation("executions", f"process {left.pid} cut it off {left.at - told:.2f} s after it was told to leave", left.key)


def _stops(case: Case) -> Iterator[Violation]:
    """A run that another one has replaced stops when its worker can hear of it."""
    if case.options.lossy:
        return
    for key, records in case.begun.items():
        for one, following in pairwise(records):
            # One that stood still may begin what was taken from it meanwhile.
            if one.call != following.call or following.attempt <= one.attempt or case.over(one) <= following.at:
                continue
            since = following.at
            for hit in case.history.of(Hit):
                if hit.at < since + case.options.lease + _SOON:
                    since = max(since, noticed(hit))
            late = case.over(one) - since
            if late > case.options.lease + _SOON:
                yield Violation("executions", f"attempt {one.attempt} ran for {late:.1f} s after attempt {following.attempt} began", key)


def _innocents(case: Case) -> Iterator[Violation]:
    """Nothing but poison is given up if nothing else kills workers."""
    for key, records in case.ended.items() if {POISON}.issuperset(case.options.faults) else ():
        if case.planned[key].tool not in plan.POISON and any(ended.code == "max_deliveries" for ended in records):
            yield Violation("one-end", "it was given up because of what ran beside it", key)


def _alone(case: Case) -> Iterator[Violation]:
    """A call that may have killed its workers runs alone."""
    if "term" in case.options.faults:
        return
    runs: dict[int, list[Begun]] = {}
    for key in case.planned:
        for begun in case.begun.get(key, ()):
            runs.setdefault(begun.pid, []).append(begun)
    for pid, records in runs.items():
        for one in records:
            if one.attempt < case.options.max_deliveries - 1 or case.planned[one.key].tool in plan.FAILING | plan.SEATED:
                continue
            beside = [each for each in records if each is not one and each.at < case.over(one) and case.over(each) > one.at]
            if beside:
                told = f"attempt {one.attempt} ran in process {pid} beside {beside[0].key} (attempt {beside[0].attempt})"
                yield Violation("executions", told, one.key)


def _starving(case: Case) -> Iterator[Violation]:
    """Calls of a killed worker are not left for the sake of later ones."""
    if not _HARMLESS.issuperset(case.options.faults):
        return
    most = 2 * case.options.workers * case.options.concurrency + 8
    firsts = [(case.issued[key].at, records[0].at) for key, records in case.begun.items() if key in case.issued]
    deaths = sorted(gone.at for gone in case.exits.values())
    for key, records in case.begun.items() if firsts else ():
        made = case.issued[key].at if key in case.issued else 0.0
        for one, following in pairwise(records):
            gone = case.exits.get(one.pid)
            # A suspect waits for a worker that has nothing else to run.
            alone = following.attempt >= case.options.max_deliveries - 1
            if one.call != following.call or gone is None or gone.at > following.at or alone:
                continue
            # Those that died since may have taken it over before, and begun it as little.
            since = deaths[bisect(deaths, following.at) - 1] + 3 * case.options.lease
            passed = sum(issued > made and since < began <= following.at for issued, began in firsts)
            if passed > most:
                yield Violation("executions", f"{passed} calls that were made later began while it waited for another worker", key)


def _attempts(case: Case) -> Iterator[Violation]:
    """No two runs of a call have one number, unless the server has lost count."""
    if case.options.lossy or "group-destroy" in case.options.faults:
        return
    for key, records in case.begun.items():
        for (call, attempt), count in Counter((each.call, each.attempt) for each in records).items():
            if count > 1:
                yield Violation("executions", f"attempt {attempt} of the call {call} began {count} times", key)


def _shares(case: Case) -> Iterator[Violation]:
    """A service is not served later than another one's calls that were made later."""
    if not _HARMLESS.issuperset(case.options.faults):
        return
    firsts = sorted((records[0].at, key) for key, records in case.begun.items() if key in case.issued)
    most, before = 2 * case.options.workers * case.options.concurrency + 8, dict[str, float]()
    deaths = sorted(gone.at for gone in case.exits.values())
    for number, (at, key) in enumerate(firsts):
        session = case.planned[key].session
        since = case.issued[key].at
        if session:
            # The session may be that of a worker which died, until its lease has ended and somebody has taken it over.
            dead = [gone + 3 * case.options.lease for gone in deaths[: bisect(deaths, at)]]
            since = max(since, before.get(session, 0.0), *dead)
            before[session] = max(before.get(session, 0.0), *map(case.over, case.begun[key]))
        passed = [each for began, each in firsts[:number] if began > since and case.issued[each].at > since]
        others = sum(bool(case.planned[each].session) != bool(session) for each in passed)
        own = sum(began > since and bool(case.planned[each].session) == bool(session) for began, each in firsts[:number])
        first = case.begun[key][0]
        # One that was taken by a worker which died before it began it waits for that one's lease.
        if others <= own + most or first.attempt != 1:
            continue
        # The worker of its session was the only one that could run it.
        freed = _freed(case, first.pid, at) if session else since
        if sum(began > freed for began, each in firsts[:number] if each in passed) > own + most:
            yield Violation("executions", f"{others} calls of another service, made later, began before it ({at - since:.1f} s)", key)


def _freed(case: Case, pid: int, before: float) -> float:
    """Return when a worker last had a slot again after it had none, before a time (s); 0 when it always had one."""
    runs = [each for records in case.begun.values() for each in records if each.pid == pid and each.at < before]
    changes = sorted([(each.at, 1) for each in runs] + [(min(case.over(each), before), -1) for each in runs])
    taken, freed = 0, 0.0
    for at, change in changes:
        if taken == case.options.concurrency and change < 0:
            freed = at
        taken += change
    return freed


def _punctual(case: Case) -> Iterator[Violation]:
    """A caller is told when its time is up; where work must not happen twice, the server is asked first, and people may take longer."""
    stops = [hit for hit in case.history.of(Hit) if hit.kind == "agent-stop"]
    for key, records in case.ended.items():
        for ended in records if case.planned[key].tool not in {"ask", "pay"} else ():
            stopped = sum(hit.until - hit.at for hit in stops if ended.pid in hit.pids and hit.at < ended.at and hit.until > ended.began)
            late = ended.at - ended.began - case.planned[key].timeout - stopped
            if late > _SOON:
                yield Violation("one-end", f"it ended {late:.1f} s after its deadline, as {ended.error or 'a success'}", key)


_SOON = 0.5
RULES = (_order, _drains, _stops, _innocents, _alone, _starving, _attempts, _shares, _punctual)


# -- rules that are looked at with each command -------------------------------------------------------


class _Place(msgspec.Struct):
    run: str
    seq: int = 0


_FRAMES = msgspec.json.Decoder(list[_Place])


# What a process sends by the clock or after a change, whatever calls there are.
_SELDOM = frozenset(
    script.name for script in (scripts.LISTEN, scripts.BEAT, scripts.MEND, scripts.REGISTER, scripts.UNREGISTER, scripts.RESCUE)
)
# Each comes from a caller, who may go on at once when it is refused.
_OF_CALLS = frozenset({scripts.PUBLISH.name, scripts.SHARE.name})
# A refusal is followed by another try within hundredths of a second; what goes round as fast as the server answers, hundreds of times.
_MOST_A_SECOND = 100
# With an answer that is lost, the worker does not know which of its streams had the last turn.
_LOST_TURNS = 2


class Invariants:
    """Rules that are looked at with each command, and not only when all is over.

    Args:
        db: the server's keys.
        prefix: of the namespace's keys.
        options: of the run.

    Attributes:
        violations: rules that were broken.
        broken_off: whether a key of a wrong type breaks scripts off; what one leaves unfinished the next one finishes, so that keys
            without a TTL are looked for at the end alone.
    """

    def __init__(self, db: Storage, prefix: bytes, options: Options) -> None:
        self._db = db
        self._prefix = prefix
        self._concurrency = options.concurrency
        self._lossy = options.lossy
        self._lease = int(options.lease * 1000)
        # What was known of a value, and the value itself: one that was made anew is another one.
        self._known: dict[bytes, tuple[object, Any]] = {}
        self._counters: defaultdict[tuple[bytes, bytes, bytes], set[bytes]] = defaultdict(set)
        self._running: Counter[int] = Counter()
        # When the server heard a beat last, and until when it is to judge no lease since it had heard none (ms).
        self._last_beat: int | None = None
        self._quiet_until = 0
        # When the server heard of each process last, and until when that is to trust no lease that has ended (ms).
        # It hears the time in beats, and in others' answers, which a worker that calls tools may keep for that alone.
        self._heard: dict[tuple[int, bool], int] = {}
        self._distrusts: dict[tuple[int, bool], int] = {}
        # The newest entry that each request stream had when the server lost something, and until when it may not know of a silence (ms).
        self._lost: dict[bytes, Id] = {}
        self._unsure_until = 0
        self._undisturbed, self._harmless = not options.faults, _HARMLESS.issuperset(options.faults)
        # When each process has sent each of what is sent seldom, and of what was refused.
        self._sent: dict[tuple[int, str, bool], deque[float]] = {}
        # Since when each worker beats (ms), and how often it has since.
        self._beats: dict[bytes, tuple[int, int]] = {}
        # How often in a row each process passed over a request stream that had something, and took of others.
        self._passed: dict[int, Counter[bytes]] = {}
        # The ordered calls of each session by their ids, with their entries, and the stream and session of each such call.
        self._lines: dict[tuple[bytes, bytes], dict[bytes, Id]] = {}
        self._line_of: dict[bytes, tuple[bytes, bytes]] = {}
        self.violations: list[Violation] = []
        self.broken_off = False

    def lose(self, *, broken_off: bool = False) -> None:
        """Take note that the server is about to lose something, or, if ``broken_off``, that a key of a wrong type breaks scripts off.

        A server that has lost a move has also lost the fence that tells of it: whoever had the entry by then renews or ends it.
        """
        for key, value in self._db.values.items():
            if isinstance(value, Stream) and key.startswith(self._prefix + b"q:"):
                self._lost[key] = max(value.last, self._lost.get(key, value.last))
        self._unsure_until = self._db.now() + 2 * self._lease
        self.broken_off |= broken_off

    def stand(self) -> None:
        """Take note that the server's clock is about to stand: how long a process distrusts what it hears, its own clock says."""
        self._distrusts.clear()

    def changed(self, keys: set[bytes]) -> None:
        """Look at the keys that one command has changed."""
        for key in sorted(keys):
            value = self._db.values.get(key)
            if value is None or not key.startswith(self._prefix):
                continue
            name = key[len(self._prefix) :].decode()
            if key not in self._db.expires and name not in KEPT and not self.broken_off:
                self._broken("rest", f"the key {name} has no TTL")
            kind, check = _CHECKS.get(name.partition(":")[0], (None, None))
            if check is not None and type(value) is kind:
                for what in check(self, key, value):
                    self._broken("inside", f"{name}: {what}")

    def wrote(self, record: AnyRecord) -> None:
        """Count the handlers that run in each process, and see that none begins before its turn in a session."""
        if isinstance(record, Hit):
            # It may have taken an answer that told of the turns of streams.
            self._passed.clear()
        elif isinstance(record, Exited):
            self._running.pop(record.pid, None)
        elif isinstance(record, Begun):
            self._running[record.pid] += 1
            if self._running[record.pid] > self._concurrency:
                self._broken("inside", f"{self._running[record.pid]} handlers run in process {record.pid}, of {self._concurrency} slots")
            self._follows(record)
        elif isinstance(record, Left):
            self._running[record.pid] -= 1

    def tell_time(self, pid: int, *, beat: bool = False) -> None:
        """Take note that a process that beats hears the server's time, by a ``beat`` or by another way."""
        now = self._db.now()
        for way in ((pid, False), (pid, True))[: 1 + beat]:
            if way not in self._heard:
                continue
            if now < self._heard[way]:
                # The clock was set back, and what was noted lies too far ahead.
                self._distrusts.pop(way, None)
            if now - self._heard[way] > self._lease + 200:
                self._distrusts[way] = now + self._lease // 2
            self._heard[way] = now

    def hear(self, name: str, pid: int, now: float, *, refused: bool) -> None:
        """Take note that a process has sent a command or script, at this time (s), and whether the server has refused it.

        What depends on no call is sent a few times a second, and so is what is refused again and again.
        """
        if name == "XREADGROUP":
            self._passed.pop(pid, None)
        if name in _OF_CALLS or (not refused and name not in _SELDOM):
            return
        sent = self._sent.setdefault((pid, name, refused), deque(maxlen=_MOST_A_SECOND))
        if len(sent) == _MOST_A_SECOND and now - sent[0] < 1.0:
            how = "in vain " if refused else ""
            self._broken("inside", f"the process {pid} has sent {name} {how}{_MOST_A_SECOND + 1} times in a second")
            sent.clear()
        sent.append(now)

    def watch(self, script: str, pid: int, words: list[bytes]) -> Callable[[], None] | None:
        """Look at what a script does to entries; returns what is to be called when it was carried out.

        Args:
            script: its name.
            pid: of the process that has sent it.
            words: its keys and arguments.
        """
        if script == scripts.BEAT.name:
            return lambda: self._hear_beat(pid, [word for word in words if b"/" in word])
        if script == scripts.UNREGISTER.name:
            distrusts = all(self._db.now() < self._distrusts.get((pid, beat), 0) for beat in (False, True))
            return self._sweeping() if b"ended" in words and distrusts else None
        if script == scripts.SAVE.name:
            return self._saving(words)
        if script == scripts.TAKE.name:
            return self._taking(pid, words)
        return self._moving(script, words)

    def _moving(self, script: str, words: list[bytes]) -> Callable[[], None] | None:
        """See that entries are moved and ended by those who may, and that fences tell of it."""
        queue, fence = words[0], words[1]
        me = next(word for word in words if not word.startswith(self._prefix))
        before, counters = self._owners(queue), self._fields(fence)
        if not before:
            return None
        lost = self._lost.get(queue, (0, 0))
        lives, silence = self._lives(queue.rpartition(b":")[2], me), self._is_silent()

        def look() -> None:
            after = self._owners(queue)
            for entry, owner in before.items():
                if (now := after.get(entry)) == owner:
                    continue
                known = owner.startswith(b"~") or b"x:" + owner in counters
                for what in _wrong_moves(script, me, owner, now, lives=lives, silence=silence and not known, is_lost=entry <= lost):
                    self._broken("inside", f"{script} of {me.decode()}: {what} (entry {entry[0]}-{entry[1]}, {owner.decode()})")
            if script == scripts.RETIRE.name and self._harmless and words[-1] != b"1" and me in before.values():
                self._broken("inside", f"{me.decode()} leaves, and has not handed back what it has")
            if script == scripts.REAP.name:
                self._reaped(words, before, after)
            for owner in {before[entry] for entry, now in after.items() if entry > lost and before.get(entry, now) != now}:
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

    def _saving(self, words: list[bytes]) -> Callable[[], None]:
        """See that only who has a call keeps what it did in its session."""
        (queue, _, _, snapshot, me), entry = words[:5], words[7]
        milliseconds, _, number = entry.partition(b"-")
        place = int(milliseconds), int(number)
        excused = place <= self._lost.get(queue, (0, 0)) or self.broken_off or self._owners(queue).get(place) == me
        before = self._fields(snapshot)

        def look() -> None:
            if not excused and self._fields(snapshot) != before:
                self._broken("inside", f"{me.decode()} kept a snapshot after a call that it has not (entry {entry.decode()})")

        return look

    def _follows(self, record: Begun) -> None:
        """See that the calls that were made before one in its session have ended."""
        call = record.call.encode()
        line = self._line_of.get(call)
        if line is None or self._lossy or self.broken_off:
            return
        stream, entries = self._db.find(line[0]), self._lines[line]
        earlier = [each for each, entry in entries.items() if entry < entries[call]]
        waits = [each.decode() for each in earlier if isinstance(stream, Stream) and entries[each] in stream.entries]
        if waits:
            told = f"attempt {record.attempt} of the call {record.call} began before the end of {waits[0]}"
            self._broken("inside", f"{told}, which was made before it in its session")

    def _taking(self, pid: int, words: list[bytes]) -> Callable[[], None]:
        """See that each stream has its turn at a worker that takes less than there is."""
        queues = [word for word in words if word.startswith(self._prefix)]

        def groups() -> dict[bytes, tuple[Id, bool]]:
            """Return up to where each stream was delivered, and whether there is more."""
            streams = {queue: stream for queue in queues if isinstance(stream := self._db.find(queue), Stream) and b"g" in stream.groups}
            return {queue: (last := each.groups[b"g"].last, next(reversed(each.entries), last) > last) for queue, each in streams.items()}

        before = groups()

        def look() -> None:
            after, passed = groups(), self._passed.get(pid)
            if passed is None or passed.keys() != after.keys():
                passed = self._passed[pid] = Counter(dict.fromkeys(after, 0))
            took = {queue for queue, (last, _) in after.items() if before.get(queue, (last,))[0] != last}
            for queue in after.keys() - took if took else ():
                passed[queue] = passed[queue] + 1 if after[queue][1] else 0
                if passed[queue] == len(queues) + _LOST_TURNS:
                    name = queue[len(self._prefix) :].decode()
                    self._broken("inside", f"the process {pid} took of other streams than {name} {passed[queue]} times in a row")
            for queue in took:
                passed[queue] = 0

        return look

    def _owners(self, queue: bytes) -> dict[Id, bytes]:
        stream = self._db.find(queue)
        group = stream.groups.get(b"g") if isinstance(stream, Stream) else None
        return {} if group is None else {entry: pending.consumer for entry, pending in group.pending.items()}

    def _fields(self, key: bytes) -> dict[bytes, bytes]:
        found = self._db.find(key)
        return dict(found) if isinstance(found, Hash) else {}

    def _lives(self, service: bytes, instance: bytes) -> bool:
        leases = self._db.find(self._prefix + b"live")
        return isinstance(leases, Scores) and leases.get(service + b"/" + instance, 0) >= self._db.now()

    def _is_silent(self) -> bool:
        now, last = self._db.now(), self._last_beat
        if now < self._unsure_until:
            return False
        return last is None or not 0 <= now - last <= self._lease / 2 or now < self._quiet_until

    def _reaped(self, words: list[bytes], before: dict[Id, bytes], after: dict[Id, bytes]) -> None:
        """See that a worker took what was handed back, if it has room, and that its own lease ends when one can."""
        fence, (me, service, room, _, _, _, alone, _, notes) = self._fields(words[1]), words[4:13]
        leases, longest = self._db.find(self._prefix + b"live"), int(fence.get(b"l:" + me, 0))
        ends = leases.get(service + b"/" + me, 0) if isinstance(leases, Scores) else 0
        if longest and ends > self._db.now() + 2 * longest:
            self._broken("inside", f"{me.decode()} reaped with a lease that ends {ends - self._db.now():.0f} ms from now")
        stream = self._db.find(words[0])
        group = stream.groups.get(b"g") if isinstance(stream, Stream) else None
        if group is None or not self._lives(service, me):
            return

        def is_suspect(entry: Id) -> bool:
            note = self._db.find(notes + shown(entry))
            back = note.split(b" ")[3:] if isinstance(note, bytes) else []
            return group.pending[entry].count - int(back[0] if back else 0) >= int(alone)

        taken = [entry for entry, owner in after.items() if owner == me and before.get(entry, me) != me]
        if len(taken) < int(room) and not any(map(is_suspect, taken)):
            for owner in (b"~to:" + me, b"~back"):
                # As far as the script looks.
                waiting = sorted(entry for entry, each in after.items() if each == owner)[:256]
                for entry in waiting:
                    if not is_suspect(entry):
                        self._broken("inside", f"{me.decode()} left {entry[0]}-{entry[1]} to others although it had room")

    def _sweeping(self) -> Callable[[], None]:
        def listed() -> set[bytes]:
            leases = self._db.find(self._prefix + b"live")
            return set(leases) if isinstance(leases, Scores) else set()

        before = listed()

        def look() -> None:
            for member in sorted(before - listed()):
                self._broken("inside", f"{member.decode()} was swept out of the registry by a worker that had not beaten for long")

        return look

    def _hear_beat(self, pid: int, members: list[bytes]) -> None:
        now, last = self._db.now(), self._last_beat
        self._heard.setdefault((pid, False), now)
        self._heard.setdefault((pid, True), now)
        self.tell_time(pid, beat=True)
        if self._undisturbed and members:
            began, count = self._beats.setdefault(members[0], (now, 0))
            self._beats[members[0]] = (began, count + 1)
            if now - began > (count * self._lease) / 3 + 100:
                self._broken("inside", f"{members[0].decode()} has beaten {count} times in {now - began} ms")
        if last is None or not 0 <= now - last <= self._lease / 2 or self._quiet_until > now + 2 * self._lease:
            self._quiet_until = now + self._lease
        self._last_beat = now

    def _moved(self, fence: bytes, owner: bytes, before: dict[bytes, bytes]) -> None:
        """See that the counter of a worker from which entries were moved is another one."""
        name = b"c:" + owner
        if not owner.startswith(b"~") and name in before and self._fields(fence).get(name) == before[name]:
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
        """No generation and no counter becomes what it was before, also when the server has lost that it was."""
        before: dict[bytes, bytes] = self._before(key, value, dict(value))
        generation = value.get(b"generation", b"")
        for name in (each for each in value if each.startswith(b"c:") or each == b"generation"):
            had = self._counters[key, generation if name.startswith(b"c:") else b"", name]
            if before.get(name) != value[name] and value[name] in had:
                yield f"{name.decode()} is {value[name].decode()} again"
            had.add(value[name])
        self._known[key] = (value, dict(value))

    def _requests(self, key: bytes, value: Stream) -> Iterator[str]:
        """No call waits twice."""
        last, calls = self._before(key, value, ((0, 0), dict[bytes, Id]()))
        added: list[Id] = []
        for entry in reversed(value.entries):
            if entry <= last:
                break
            added.append(entry)
        for entry in reversed(added):
            document = b"".join(value.entries[entry])
            found, session = _CALL.search(document), _SESSION.search(document)
            if found is not None:
                if session is not None and b'"ordered":true' in document:
                    line = self._line_of[found[1]] = key, session[1]
                    self._lines.setdefault(line, {})[found[1]] = entry
                if calls.get(found[1]) in value.entries and not self._lossy:
                    yield f"the call {found[1].decode()} waits twice"
                calls[found[1]] = entry
        self._known[key] = (value, (value.last, calls))

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


def _wrong_moves(script: str, me: bytes, owner: bytes, now: bytes | None, *, lives: bool, silence: bool, is_lost: bool) -> Iterator[str]:
    """Yield what is wrong with an entry that was its ``owner``'s and is ``now`` another one's, or nobody's.

    Args:
        script: which has done it, for the worker ``me``.
        lives: whether the lease of that worker lasts.
        silence: whether no lease may be judged.
        is_lost: whether the server may have lost who had it.
    """
    if now is None:
        if script in _ENDING and me and owner != me and not is_lost:
            yield "it ended what is another one's"
    elif script == scripts.RENEW.name:
        if is_lost:
            return
        yield "it took what is another one's"
    elif script == scripts.REAP.name and now == me:
        if not lives:
            yield "it took an entry although its own lease was over"
        if silence:
            yield "it judged a lease right after a silence"


_CHECKS: dict[str, tuple[type, Callable[[Invariants, bytes, Any], Iterator[str]]]] = {
    "q": (Stream, Invariants._requests),
    "fence": (Hash, Invariants._fence),
    "pub": (Hash, Invariants._flushes),
    "rsp": (Stream, Invariants._frames),
    "call": (Stream, Invariants._frames),
}
