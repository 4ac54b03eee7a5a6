"""Provide the embedded store, so that ``toolbus worker graph_store`` needs nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator

from toolbus import provide
from toolbus_workers.graph_store.embedded import EmbeddedGraph, Limits
from toolbus_workers.graph_store.store import GraphStore
from toolbus_workers.operations import load_limits


async def embedded_graph() -> AsyncIterator[GraphStore]:
    """Yield the store that ``TOOLBUS_GRAPH_…`` describes, for as long as the worker runs."""
    async with EmbeddedGraph(load_limits(Limits, "TOOLBUS_GRAPH_")) as store:
        yield store


provide(GraphStore, embedded_graph)  # type: ignore[type-abstract]  # handlers ask for the abstract type
