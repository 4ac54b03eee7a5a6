"""Gather the evidence for each edge from a log: episodes, choices, and their weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from toolbus.toolkit.learning.parameters import Parameters
from toolbus.toolkit.learning.records import Execution
from toolbus.toolkit.learning.scores import EdgeKind

DAY = 86_400.0


class Choice(NamedTuple):
    """One use of an edge.

    Attributes:
        kind, source, target: the edge.
        success: whether the tool succeeded; always true for a transition.
        propensity: probability that the target was shown; 1.0 when it was not logged.
        at: seconds since 1970.
    """

    kind: EdgeKind
    source: str
    target: str
    success: bool
    propensity: float
    at: float


class Episode(NamedTuple):
    """The executions of one episode, in order."""

    id: str
    executions: tuple[Execution, ...]

    @property
    def ended(self) -> float:
        """The time at which its last execution ended, in seconds since 1970."""
        return max(each.at for each in self.executions)

    def calls(self) -> list[Choice]:
        """Return the calls whose outcome says something about the tool."""
        return [
            Choice("call", each.action, each.tool, each.outcome == "success", each.shown.get(each.tool, 1.0), each.at)
            for each in self.executions
            if each.conclusive
        ]

    def transitions(self) -> list[Choice]:
        """Return the changes from one action to the next; consecutive calls in one action are one visit."""
        return [
            Choice("next", before.action, after.action, True, before.next_shown.get(after.action, 1.0), after.at)
            for before, after in pairwise(self.executions)
            if before.action != after.action
        ]

    def choices(self) -> list[Choice]:
        """Return calls and transitions."""
        return self.calls() + self.transitions()


def episodes(executions: Iterable[Execution]) -> list[Episode]:
    """Return a log's episodes in the order in which they ended; executions are ordered by position, then time."""
    found: defaultdict[str, list[Execution]] = defaultdict(list)
    for execution in executions:
        found[execution.episode].append(execution)
    made = [Episode(name, tuple(sorted(each, key=lambda one: (one.position, one.at, one.id)))) for name, each in found.items()]
    return sorted(made, key=lambda episode: (episode.ended, episode.id))


class Tally:
    """The weighted uses of one edge, or of all edges of an action.

    An execution weighs ``decay * weight``: decay halves with each half-life of age, and weight is the inverse propensity, clipped.

    Attributes:
        count, successes: number of uses and of successes, unweighted.
        mass, square: sums of decay * weight and of decay * weight².
        hits: part of ``mass`` that succeeded.
    """

    __slots__ = ("count", "hits", "mass", "square", "successes")

    def __init__(self) -> None:
        self.count = 0
        self.successes = 0
        self.mass = 0.0
        self.square = 0.0
        self.hits = 0.0

    def add(self, weight: float, decay: float, *, success: bool) -> None:
        """Add one use."""
        self.count += 1
        self.mass += decay * weight
        self.square += decay * weight * weight
        if success:
            self.successes += 1
            self.hits += decay * weight

    @property
    def effective(self) -> float:
        """The number of fresh, equally weighted uses with the same information: Kish's effective sample size with decay."""
        return self.mass * self.mass / self.square if self.square > 0 else 0.0

    @property
    def rate(self) -> float:
        """The self-normalised (Hájek) estimate of the probability of success."""
        return self.hits / self.mass if self.mass > 0 else 0.0


Tallies = dict[tuple[EdgeKind, str], dict[str, Tally]]
"""Tallies by kind and source, then by target."""


def tallied(logged: Sequence[Episode], parameters: Parameters, now: float) -> Tallies:
    """Return the tallies of every edge that the episodes use; an execution at ``now`` (seconds since 1970) has full weight."""
    found: Tallies = {}
    for episode in logged:
        for choice in episode.choices():
            row = found.setdefault((choice.kind, choice.source), {})
            tally = row.get(choice.target)
            if tally is None:
                tally = row[choice.target] = Tally()
            age = max(0.0, now - choice.at) / DAY
            tally.add(weight_of(choice, parameters.clip), 0.5 ** (age / parameters.half_life), success=choice.success)
    return found


def weight_of(choice: Choice, clip: float) -> float:
    """Return the inverse of a choice's propensity, at most ``clip``."""
    return min(clip, 1.0 / choice.propensity)
