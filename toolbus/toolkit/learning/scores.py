"""Scores of edges, independent of the graph around them: source, target, kind and score."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from toolbus.bus.schema.documents import read_document
from toolbus.bus.values.results import ConfigurationError
from toolbus.toolkit.learning.records import Name

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
