"""Gather the evidence for each edge from a log: scores, episodes, choices, and their weights."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from toolbus.bus.schema.documents import read_document
from toolbus.bus.support.display import one_line
from toolbus.bus.values.results import ConfigurationError
from toolbus.toolkit.learning.stores import Execution, Name

EdgeKind = Literal["call", "next"]
KINDS: tuple[EdgeKind, EdgeKind] = ("call", "next")
MAX_FILE = 268_435_456

T = TypeVar("T")


class Edge(msgspec.Struct, frozen=True):
    """An edge and its score in [0, 1]: ``call`` leads from an action to a tool, ``next`` to another action."""

    kind: EdgeKind
    source: Name
    target: Name
    score: Annotated[float, Meta(ge=0, le=1)]


Row = Mapping[str, float]
"""The scores of an action's edges of one kind, by target."""


class Scores:
    """The scores of a graph's edges, immutable: ``scores.rows["call"]["count orders"]["run_sql"]``.

    Raises:
        ConfigurationError: an edge is given twice.
    """

    def __init__(self, edges: Iterable[Edge]) -> None:
        rows: dict[EdgeKind, dict[str, dict[str, float]]] = {"call": {}, "next": {}}
        for edge in edges:
            row = rows[edge.kind].setdefault(edge.source, {})
            if edge.target in row:
                raise ConfigurationError(f"the {edge.kind} edge from {edge.source!r} to {edge.target!r} is given twice")
            row[edge.target] = edge.score
        self.rows: Mapping[EdgeKind, Mapping[str, Row]] = rows

    def __iter__(self) -> Iterator[Edge]:
        """Yield every edge, sorted."""
        for kind in KINDS:
            for source, row in sorted(self.rows[kind].items()):
                for target, score in sorted(row.items()):
                    yield Edge(kind, source, target, score)

    def __len__(self) -> int:
        return sum(len(row) for rows in self.rows.values() for row in rows.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scores) and self.rows == other.rows

    __hash__ = None  # type: ignore[assignment]

    def row(self, kind: EdgeKind, source: str) -> Row:
        """Return an action's edges of one kind; empty when it has none."""
        return self.rows[kind].get(source, {})

    def score(self, kind: EdgeKind, source: str, target: str) -> float | None:
        """Return the score of one edge; None when there is no such edge."""
        return self.row(kind, source).get(target)

    @property
    def tools(self) -> list[str]:
        """Every tool that an edge leads to, sorted."""
        return sorted({tool for row in self.rows["call"].values() for tool in row})


class ScoreFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of static scores.

    Attributes:
        edges: the graph's edges.
        texts: descriptions of tools and actions by id, for lexical ranking.
        names: other names by which a log may know an action, tool or group, by id: an action's name, the name of a tool on the bus,
            and those of a group's tools.
    """

    edges: list[Edge]
    texts: dict[str, str] = {}
    names: dict[str, list[str]] = {}

    @property
    def scores(self) -> Scores:
        """The scores of the edges.

        Raises:
            ConfigurationError: an edge is given twice.
        """
        return Scores(self.edges)


def load_scores(path: str | Path) -> ScoreFile:
    """Return the content of a file: ``{"edges": [{"kind", "source", "target", "score"}, …], "texts": {…}, "names": {…}}``.

    Raises:
        ConfigurationError: the file can't be read or is invalid; the message names the place.
    """
    file = load_json(path, ScoreFile, "file of scores")
    try:
        file.scores  # noqa: B018 - checks the edges
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    return file


def load_json(path: str | Path, kind: type[T], what: str) -> T:
    """Return a JSON document of a known type.

    Raises:
        ConfigurationError: the file can't be read or has another type; the message names the file and the place in it.
    """
    try:
        if Path(path).stat().st_size > MAX_FILE:
            raise ConfigurationError(f"{path} is larger than {MAX_FILE} bytes")
        return read_document(Path(path).read_bytes(), kind)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigurationError(f"{path} is not a valid {what}: {error}") from None


Positive = Annotated[float, Meta(gt=0, le=1e9)]


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of learning; the defaults suit logs of hundreds to a million calls.

    Attributes:
        prior_strength: number of calls that a tool's static score is worth.
        next_strength: number of transitions that the static scores of an action's successors are worth together.
        half_life: days after which an execution counts half.
        clip: greatest weight of an execution; those with a propensity below 1 / ``clip`` get this weight.
        min_evidence: effective number of executions before a score moves.
        credibility: required probability that the static score is too low, or too high, before it moves.
        guard: required probability that the new order is better, before tools of an action change places.
        folds: number of parts of the log that take turns in judging what was learned from the others.
    """

    prior_strength: Positive = 4.0
    next_strength: Positive = 8.0
    half_life: Positive = 30.0
    clip: Annotated[float, Meta(ge=1, le=1e6)] = 10.0
    min_evidence: Positive = 8.0
    credibility: Annotated[float, Meta(ge=0.5, lt=1)] = 0.9
    guard: Annotated[float, Meta(ge=0.5, lt=1)] = 0.99
    folds: Annotated[int, Meta(ge=2, le=50)] = 5

    def checked(self) -> Parameters:
        """Return the same parameters after checking their bounds.

        Raises:
            ConfigurationError: a parameter is out of bounds; the message names it.
        """
        try:
            return msgspec.convert(msgspec.structs.asdict(self), Parameters)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"parameters of learning: {error}") from None


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


class Tally(msgspec.Struct):
    """The weighted uses of one edge, or of all edges of an action.

    An execution weighs ``decay * weight``: decay halves with each half-life of age, and weight is the inverse propensity, clipped.

    Attributes:
        count, successes: number of uses and of successes, unweighted.
        mass, square: sums of decay * weight and of decay * weight².
        hits: part of ``mass`` that succeeded.
    """

    count: int = 0
    successes: int = 0
    mass: float = 0.0
    square: float = 0.0
    hits: float = 0.0

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


_MOST_NAMED = 5


class Matched(NamedTuple):
    """The records of a log that are of an edge of a graph.

    Attributes:
        executions: these, with ids of the graph for actions and tools.
        left_out: number of the others, by action and tool.
    """

    executions: list[Execution]
    left_out: Mapping[tuple[str, str], int]

    @property
    def total(self) -> int:
        """The number of records of the log."""
        return len(self.executions) + sum(self.left_out.values())

    def told(self) -> str:
        """Return a sentence about the records that were left out; empty without any."""
        if not self.left_out:
            return ""
        most = Counter(dict(self.left_out)).most_common(_MOST_NAMED)
        named = ", ".join(f"{_cut(action)} → {_cut(tool)} ({count})" for (action, tool), count in most)
        more = "" if len(most) == len(self.left_out) else f" and {len(self.left_out) - len(most)} more edges"
        return f"{sum(self.left_out.values())} of {self.total} executions are of no edge of the graph and are left out: {named}{more}"


def matched(executions: Iterable[Execution], static: Scores, names: Mapping[str, Collection[str]]) -> Matched:
    """Find the edge of each record.

    Args:
        static: the graph's edges.
        names: other names of its vertices by id, see ``ScoreFile``.

    Raises:
        ConfigurationError: there are records, but none is of an edge; the message compares the names in the log and in the graph.
    """
    known = _Vertices(static, names)
    found: list[Execution] = []
    left_out: Counter[tuple[str, str]] = Counter()
    for execution in executions:
        own = known.execution(execution)
        if own is None:
            left_out[execution.action, execution.tool] += 1
        else:
            found.append(own)
    if left_out and not found:
        raise ConfigurationError(
            f"none of the {left_out.total()} executions is of an edge of this graph, so it may be the log of another one. "
            f"The log has the actions {_listed(action for action, _ in left_out)} and the tools {_listed(tool for _, tool in left_out)}; "
            f"the graph has the actions {_listed(static.rows['call'])} and the tools {_listed(static.tools)}"
        )
    return Matched(found, left_out)


class _Vertices:
    """Finds a graph's ids by the names in a log."""

    def __init__(self, static: Scores, names: Mapping[str, Collection[str]]) -> None:
        self._static = static
        nexts = static.rows["next"]
        actions = {*static.rows["call"], *nexts, *(target for row in nexts.values() for target in row)}
        self._actions = {name.casefold(): action for action in sorted(actions, reverse=True) for name in names.get(action, ())}
        self._actions |= {action: action for action in actions}
        # The tools of an action by name. A log has names of the bus, so these go before ids of vertices with another name there, and
        # what has few names, as a tool has, goes before a group with many.
        self._tools: dict[str, dict[str, str]] = {}
        for action, row in static.rows["call"].items():
            found = self._tools[action] = {target: target for target in row}
            for target in sorted(row, key=lambda each: (-len(names.get(each, ())), each)):
                found.update(dict.fromkeys(names.get(target, ()), target))
            found.update({target: target for target in row if not names.get(target)})

    def execution(self, given: Execution) -> Execution | None:
        """Return a record with the graph's ids; None when it is of no edge."""
        action = self._action(given.action)
        if action is None:
            return None
        tools = self._tools.get(action, {})
        tool = given.target if given.target in self._static.row("call", action) else tools.get(given.tool)
        if tool is None:
            return None
        if action == given.action and tool == given.tool and not given.shown and not given.next_shown:
            return given
        shown: dict[str, float] = {}
        for name, propensity in given.shown.items():
            target = tools.get(name)
            if target is not None:
                # A group is shown when one of its tools is.
                shown[target] = max(propensity, shown.get(target, 0.0))
        following = {self._action(name) or name: propensity for name, propensity in given.next_shown.items()}
        return msgspec.structs.replace(given, action=action, tool=tool, shown=shown, next_shown=following)

    def _action(self, name: str) -> str | None:
        return self._actions.get(name) or self._actions.get(name.strip().casefold())


def _listed(names: Iterable[str]) -> str:
    found = sorted(set(names))
    shown = ", ".join(_cut(name) for name in found[:_MOST_NAMED]) or "none"
    return shown if len(found) <= _MOST_NAMED else f"{shown} and {len(found) - _MOST_NAMED} more"


def _cut(name: str) -> str:
    return repr(one_line(name, 64))


def ranked(row: Row, static: Row) -> list[str]:
    """Return targets by score, best first; ties by static score, then by name."""
    return sorted(row, key=lambda target: (-row[target], -static.get(target, 0.0), target))


def reciprocal_rank(order: Sequence[str], target: str) -> float:
    """Return 1 for the first, 1/2 for the second, …, and 0 when the target is missing."""
    return 1.0 / (order.index(target) + 1) if target in order else 0.0


def wanted(choices: Sequence[Choice]) -> list[Choice]:
    """Return the choices that succeeded, which a good order has at its top."""
    return [choice for choice in choices if choice.success]
