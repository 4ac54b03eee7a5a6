"""What the tools need of a graph store, whichever it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

Scalar = str | int | float | bool | None


class Found(msgspec.Struct, frozen=True):
    """Rows of a query as JSON has them.

    Attributes:
        more: whether there were more rows than asked for.
        cut: how many long values were cut short.
    """

    columns: list[str]
    rows: list[list[Any]]
    more: bool = False
    cut: int = 0


class Label(msgspec.Struct, frozen=True, omit_defaults=True):
    """One label of vertices, or one type of edges, which lead from ``source`` to ``target``.

    Attributes:
        count: how many there are.
        properties: types by name.
    """

    name: str
    count: int
    properties: dict[str, str]
    source: str = ""
    target: str = ""


class Schema(msgspec.Struct, frozen=True):
    """What a graph consists of."""

    vertices: list[Label]
    edges: list[Label]


class Batch(msgspec.Struct, frozen=True):
    """Rows to import: of vertices, each with ``id``; or of edges from ``source`` to ``target``, each with ``from`` and ``to``."""

    label: str
    rows: list[dict[str, Scalar]]
    source: str = ""
    target: str = ""


class Loaded(msgspec.Struct, frozen=True):
    """What came of a batch: how many rows it had, and the label as it is now."""

    rows: int
    label: Label


class GraphStore(ABC):
    """A graph database; provide one, and the tools of ``toolbus_workers.graph_store.tools`` appear.

    Every method raises ``ToolError`` for what a model can mend, and ends within so many seconds.
    """

    @abstractmethod
    async def query(self, query: str, parameters: dict[str, Any], *, max_rows: int, max_bytes: int, seconds: float) -> Found:
        """The first rows of one statement, which reads and changes nothing."""

    @abstractmethod
    async def schema(self, *, seconds: float) -> Schema:
        """Labels, types, properties and counts."""

    @abstractmethod
    async def load(self, batch: Batch, *, seconds: float) -> Loaded:
        """Add or update all rows of a batch, or none; doing it again changes nothing."""
