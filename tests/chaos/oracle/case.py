"""A run as the rules of the oracle look at it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import msgspec

from tests.chaos.history import Begun, Cancelled, Ended, Exited, History, Hit, Issued, Left, Serving, Started, State
from tests.chaos.options import Options
from tests.chaos.plan import Planned, inner
from tests.chaos.schedule import KINDS

# Seconds by which clocks, journals and busy machines may differ from what is right.
MARGIN = 5.0
# Steps of an attempt that counts, before its handler begins: its session is prepared, too.
_COUNTED = tuple(f"at {step}" for step in ("take/count", "sessions/own", "sessions/line", "sessions/load", "sessions/save", "take/start"))


class Violation(msgspec.Struct, frozen=True):
    """A promise that was not kept: the rule, what happened, and the call it happened to."""

    rule: str
    what: str
    key: str = ""


class Case:
    """A run as the rules look at it."""

    def __init__(self, options: Options, planned: list[Planned], history: History) -> None:
        self.options = options
        self.history = history
        self.planned = {call.key: call for call in planned}
        # What handlers know of calls: several with one idempotency key are the same work, and any of them may be the one that was made.
        self._works = {call.work: call for call in reversed(planned)}
        self.shared: dict[str, list[Planned]] = defaultdict(list)
        for call in planned:
            if call.shares:
                self.shared[call.shares].append(call)
        self.issued = {issued.key: issued for issued in history.of(Issued)}
        self.ended: dict[str, list[Ended]] = defaultdict(list)
        for ended in history.of(Ended):
            self.ended[ended.key].append(ended)
        self.cancelled = {cancelled.key: cancelled for cancelled in history.of(Cancelled)}
        self.begun: dict[str, list[Begun]] = defaultdict(list)
        for begun in history.of(Begun):
            self.begun[begun.key].append(begun)
        self._lefts: dict[tuple[str, int, int], list[Left]] = defaultdict(list)
        for left in history.of(Left):
            self._lefts[left.key, left.pid, left.attempt].append(left)
        self.exits = {gone.pid: gone for gone in history.of(Exited)}
        # How often the agent that had made a call was killed.
        self._unheard = Counter(issued.key for issued in history.of(Issued) if self.abandoned(issued))
        # When workers were told to leave, by process id.
        self.told_to_leave = {pid: hit.at for hit in history.of(Hit) if hit.kind == "term" for pid in hit.pids}
        # An agent that can't be heard of for as long counts as gone: what runs for it is stopped, and nobody answers it.
        unheard = options.agent_life - MARGIN
        self.blackouts = [hit for hit in history.of(Hit) if KINDS[hit.kind].outage and hit.until - hit.at > unheard]
        # Worker processes: from when they started, and from when they served, until they were gone.
        self._workers: list[tuple[float, float, float]] = []
        serving = {each.pid: each.at for each in reversed(history.of(Serving))}
        for started in history.of(Started) if serving else ():
            if started.role == "worker":
                gone = self.exits[started.pid].at if started.pid in self.exits else float("inf")
                self._workers.append((started.at, min(gone, serving.get(started.pid, gone)), gone))
        self.states = {state.name: state for state in history.of(State)}

    def work(self, key: str) -> Planned | None:
        """Return the first planned call that has, or whose handler makes, the call of a handler that began."""
        return self._works.get(key.removesuffix(inner("")))

    def left(self, begun: Begun) -> Left | None:
        """Return the end of an execution.

        A process may run what another handler calls again and again, each time as a first attempt.
        """
        return next((left for left in self._lefts[begun.key, begun.pid, begun.attempt] if left.at >= begun.at), None)

    def over(self, begun: Begun) -> float:
        """Return when an execution was over, with its process at the latest."""
        left, gone = self.left(begun), self.exits.get(begun.pid)
        return left.at if left is not None else gone.at if gone is not None else float("inf")

    def failures(self, key: str) -> int:
        """Return how many of the calls with this idempotency key ended without success, or may have: those of killed agents."""
        names = [call.key for call in self.shared.get(key, ())]
        return sum(not ended.success for name in names for ended in self.ended.get(name, ())) + sum(self._unheard[name] for name in names)

    def was_cut_off(self, ended: Ended) -> bool:
        """Return whether the agent could not be heard of for so long, while it waited for the call, that it counted as gone."""
        # It is back a moment after the outage, and not all of its connections at once.
        return any(hit.at < ended.at and hit.until + MARGIN > ended.began for hit in self.blackouts)

    def starved(self, since: float, until: float) -> bool:
        """Return whether workers spent more of a time starting than serving, as where the machine is too busy for a pool that is killed.

        False for a run that does not tell when they served.
        """
        starting = sum(max(0.0, min(served, until) - max(began, since)) for began, served, _ in self._workers)
        return starting > sum(max(0.0, min(gone, until) - max(served, since)) for _, served, gone in self._workers)

    def given_up(self, key: str, fewest: int, since: float, until: float) -> bool:
        """Return whether a call with at least so many attempts may have been given up, or one that its handler made.

        An attempt is one whose handler began, or whose worker was killed between its count and that.
        """
        made = Counter(begun.call for begun in self.begun.get(inner(key), ()))
        counted = sum(since < hit.at < until for hit in self.history.of(Hit) if hit.kind == "kill" and hit.what.endswith(_COUNTED))
        return max([self.executions(key), *made.values()]) + counted >= fewest

    def executions(self, key: str) -> int:
        """Return how often a call's handler began."""
        return len(self.begun.get(key, ()))

    def abandoned(self, issued: Issued) -> bool:
        """Return whether the agent that made the call was killed."""
        gone = self.exits.get(issued.pid)
        return gone is not None and gone.wanted and gone.status < 0


Rule = Callable[[Case], Iterator[Violation]]


def noticed(hit: Hit) -> float:
    """Return when a fault is over, and everybody has noticed it: whoever is not told that nothing passes takes 11 s for that."""
    return hit.until + (11.0 if hit.kind == "half-open" else 0.0)


def short(text: str | None) -> str:
    return repr(text) if text is None or len(text) < 80 else f"{text[:60]!r}… ({len(text)} characters)"
