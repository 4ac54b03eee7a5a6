"""Keep revisions of a graph's scores in a folder, with their origin, to compare them and roll back."""

from __future__ import annotations

import datetime
import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import msgspec

from toolbus.bus.values.results import ConfigurationError
from toolbus.toolkit.learning.evidence import Edge, EdgeKind, Episode, Parameters, Scores, load_json
from toolbus.toolkit.learning.learn import Change, Learned, Verdict
from toolbus.toolkit.learning.stores import encode, locked, write_file

KEPT = 200
_ID = re.compile(r"\d{4,9}-[0-9a-f]{8}")


class LogDigest(msgspec.Struct, frozen=True, kw_only=True):
    """The log that was learned from: its size, its time span (seconds since 1970), and the SHA-256 of its records in order."""

    episodes: int
    executions: int
    first: float
    last: float
    sha256: str


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of a graph, and their origin.

    Attributes:
        id: a running number, and the start of a digest of the content.
        parent: id of the revision that was current before; empty for the first.
        created_at: seconds since 1970.
        note: the origin in words.
        parameters, log, verdicts: parameters and log of the learning, and its verdicts; None and empty for static scores.
        changes: every score that differs from the parent's, with the reason.
        edges: every score.
        graph: name of the preset that the scores are for; empty when it is not known.
    """

    id: str
    parent: str
    created_at: float
    note: str
    edges: list[Edge]
    parameters: Parameters | None = None
    log: LogDigest | None = None
    verdicts: list[Verdict] = []
    changes: list[Change] = []
    graph: str = ""

    @property
    def scores(self) -> Scores:
        """The scores of this revision."""
        return Scores(self.edges)

    @property
    def created(self) -> str:
        """The time of its creation, in UTC, to the second."""
        return datetime.datetime.fromtimestamp(self.created_at, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


class Difference(msgspec.Struct, frozen=True):
    """An edge with different scores in two revisions; None where a revision has no such edge."""

    kind: EdgeKind
    source: str
    target: str
    old: float | None
    new: float | None


def difference(old: Scores, new: Scores) -> list[Difference]:
    """Return the edges on which two sets of scores differ, sorted."""
    before = {(each.kind, each.source, each.target): each.score for each in old}
    after = {(each.kind, each.source, each.target): each.score for each in new}
    return [Difference(*edge, before.get(edge), after.get(edge)) for edge in sorted(before | after) if before.get(edge) != after.get(edge)]


def digest(logged: Sequence[Episode]) -> LogDigest:
    """Return the digest of a log; the same records give the same digest, however they are stored."""
    whole = hashlib.sha256()
    times: list[float] = []
    for episode in logged:
        for execution in episode.executions:
            whole.update(encode(execution) + b"\n")
            times.append(execution.at)
    return LogDigest(
        episodes=len(logged), executions=len(times), first=min(times, default=0.0), last=max(times, default=0.0), sha256=whole.hexdigest()
    )


class Revisions:
    """A folder of revisions, one JSON file each, with a file ``current`` that names one of them.

    Files are replaced atomically, and one process writes at a time. Beyond 200 files the oldest are deleted, but never the
    current one.

    Raises:
        ConfigurationError: the folder can't be created.
    """

    def __init__(self, folder: str | Path, *, keep: int = KEPT) -> None:
        self.folder = Path(folder)
        self._keep = max(2, keep)

    def ids(self) -> list[str]:
        """Return the ids of the revisions, oldest first."""
        found = [path.stem for path in self.folder.glob("*.json") if _ID.fullmatch(path.stem)]
        return sorted(found, key=_number)

    def get(self, id: str) -> Revision:
        """Return a revision by its id, or by the number in the id.

        Raises:
            ConfigurationError: there is no such revision, or its file can't be read.
        """
        found = next((known for known in self.ids() if known == id or (id.isdecimal() and _number(known) == int(id))), None)
        if found is None:
            known = ", ".join(self.ids()[-5:]) or "none"
            raise ConfigurationError(f"{self.folder} has no revision {id[:64]!r}; the newest are: {known}")
        revision = load_json(self.folder / f"{found}.json", Revision, "revision")
        Scores(revision.edges)
        return revision

    def current(self) -> Revision | None:
        """Return the current revision, or None when there is none yet.

        Raises:
            ConfigurationError: the folder's files can't be read.
        """
        try:
            named = (self.folder / "current").read_text("utf-8").strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{self.folder / 'current'} can't be read: {error}") from None
        return self.get(named)

    def of(self, static: Scores, graph: str = "") -> Revision | None:
        """Return the current revision after checking that it is of this graph; ``graph`` is the name of its preset.

        Raises:
            ConfigurationError: it is of another graph, or the folder's files can't be read.
        """
        current = self.current()
        if current is not None:
            check_graph(current, static, graph)
        return current

    def add(self, static: Scores, learned: Learned, log: LogDigest, parameters: Parameters, *, graph: str = "") -> Revision | None:
        """Make the learned scores the current revision and return it; return None when they change no score.

        In an empty folder the static scores become the first revision, so that they can be restored.

        Raises:
            ConfigurationError: the folder has the scores of another graph, or can't be written.
        """
        self._make()
        with locked(self.folder):
            first = Revision(id="", parent="", created_at=0.0, note="the static scores", edges=[*static], graph=graph)
            parent = self.of(static, graph) or self._add(first)
            self._release()
            changes = changed(parent.scores, static, learned)
            if not changes and not difference(parent.scores, learned.scores):
                return None
            made = Revision(
                id="",
                parent=parent.id,
                created_at=0.0,
                note=f"learned from {log.executions} executions of {log.episodes} episodes",
                edges=[*learned.scores],
                graph=graph or parent.graph,
                parameters=parameters,
                log=log,
                verdicts=learned.verdicts,
                changes=changes,
            )
            return self._add(made)

    def roll_back(self, id: str = "") -> tuple[Revision | None, Revision]:
        """Make an earlier revision current again, by default the parent of the current one; return the one left and the new one.

        Nothing is deleted, so the same command goes forward again. The revision is held until then, see ``held``. When ``id`` is
        given, a current revision that can't be read is returned as None instead of raising.

        Raises:
            ConfigurationError: there is no revision to go back to, or no such revision.
        """
        self._make()
        with locked(self.folder):
            left = None
            with suppress(ConfigurationError) if id else nullcontext():
                left = self.current()
            if not id and left is None:
                raise ConfigurationError(f"{self.folder} has no current revision to roll back from")
            if not id and left is not None and not left.parent:
                raise ConfigurationError(f"{left.id} is the first revision; there is none before it")
            back = self.get(id or ("" if left is None else left.parent))
            if back.id == self.ids()[-1]:
                self._release()
            else:
                write_file(self.folder / "held", f"{back.id}\n".encode())
            write_file(self.folder / "current", f"{back.id}\n".encode())
            return left, back

    @property
    def held(self) -> bool:
        """True after a rollback: ``learning run`` adds no revision until it is told to, or ``add`` or a roll forward ends this."""
        return (self.folder / "held").exists()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder for everything that also publishes, against other processes; never wait for one.

        Raises:
            ConfigurationError: another process holds it, or the folder can't be written.
        """
        self._make()
        with locked(self.folder / "publishing", patient=False):
            yield

    def _release(self) -> None:
        (self.folder / "held").unlink(missing_ok=True)

    def _make(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"{self.folder} can't be made: {error.strerror or error}") from None

    def _add(self, made: Revision) -> Revision:
        """Keep a revision with its id and its time, and make it the current one."""
        known = self.ids()
        number = _number(known[-1]) + 1 if known else 1
        content = hashlib.sha256(msgspec.json.encode(made)).hexdigest()
        made = msgspec.structs.replace(made, id=f"{number:04}-{content[:8]}", created_at=round(time.time(), 3))
        write_file(self.folder / f"{made.id}.json", msgspec.json.format(msgspec.json.encode(made), indent=1))
        write_file(self.folder / "current", f"{made.id}\n".encode())
        for old in known[: max(0, len(known) + 1 - self._keep)]:
            (self.folder / f"{old}.json").unlink(missing_ok=True)
        return made


def check_graph(revision: Revision, static: Scores, graph: str = "") -> None:
    """Check that a revision is of a graph: by the names of the presets where both are known, and by the edges.

    Raises:
        ConfigurationError: it is of another graph.
    """
    advice = "give each graph a folder of its own (--revisions)"
    if graph and revision.graph and graph != revision.graph:
        raise ConfigurationError(f"revision {revision.id} has scores of the preset {revision.graph!r}, not of {graph!r}: {advice}")
    if revision.edges and len(static) and all(static.score(each.kind, each.source, each.target) is None for each in revision.edges):
        raise ConfigurationError(f"revision {revision.id} has scores of another graph, since none of its edges is in this one: {advice}")


def changed(parent: Scores, static: Scores, learned: Learned) -> list[Change]:
    """Return the changes from the parent's scores to the learned ones with reasons, including those back to static scores."""
    moved = {(each.kind, each.source, each.target): each for each in learned.changes}
    made: list[Change] = []
    for each in difference(parent, learned.scores):
        if each.new is None:
            continue  # the graph no longer has this edge
        change = moved.get((each.kind, each.source, each.target))
        given = static.score(each.kind, each.source, each.target)
        if change is None:
            change = Change(
                kind=each.kind,
                source=each.source,
                target=each.target,
                static=each.new if given is None else given,
                old=each.new,
                new=each.new,
                why="a new edge" if each.old is None else "back to the static score: the evidence is no longer enough, or not credible",
            )
        made.append(msgspec.structs.replace(change, old=change.static if each.old is None else each.old))
    return made


def _number(id: str) -> int:
    return int(id.partition("-")[0])
