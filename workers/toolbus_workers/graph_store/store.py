"""``GraphStore``: the interface between the tools and any graph store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

Scalar = str | int | float | bool | None


class Found(msgspec.Struct, frozen=True):
    """Rows of a query as JSON values.

    Attributes:
        more: whether there were more rows than asked for.
        cut: number of long values that were cut.
    """

    columns: list[str]
    rows: list[list[Any]]
    more: bool = False
    cut: int = 0


class Label(msgspec.Struct, frozen=True, omit_defaults=True):
    """One label of vertices, or one type of edges, which lead from ``source`` to ``target``.

    Attributes:
        count: number of vertices or edges.
        properties: types by name.
    """

    name: str
    count: int
    properties: dict[str, str]
    source: str = ""
    target: str = ""


class Schema(msgspec.Struct, frozen=True):
    """The labels and types of a graph."""

    vertices: list[Label]
    edges: list[Label]


class Batch(msgspec.Struct, frozen=True):
    """Rows to import: of vertices, each with ``id``; or of edges from ``source`` to ``target``, each with ``from`` and ``to``."""

    label: str
    rows: list[dict[str, Scalar]]
    source: str = ""
    target: str = ""


class Loaded(msgspec.Struct, frozen=True):
    """The result of a batch: its number of rows, and the label as it is now."""

    rows: int
    label: Label


class GraphStore(ABC):
    """A graph database; provide one to serve the tools of ``toolbus_workers.graph_store.tools``.

    Every method raises ``ToolError`` for mistakes that a model can correct, and ends within ``seconds``.
    """

    @abstractmethod
    async def query(self, query: str, parameters: dict[str, Any], *, max_rows: int, max_bytes: int, seconds: float) -> Found:
        """Return the first rows of one statement, which must only read."""

    @abstractmethod
    async def schema(self, *, seconds: float) -> Schema:
        """Return labels, types, properties and counts."""

    @abstractmethod
    async def load(self, batch: Batch, *, seconds: float) -> Loaded:
        """Add or update all rows of a batch, or none; a repetition changes nothing."""
