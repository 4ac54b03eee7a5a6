"""Tools over a graph store: ``graph_query``, ``graph_schema`` and ``graph_import``.

``toolbus worker graph_store`` serves them over an embedded graph database. ``toolbus_workers.graph_store.tools`` has only
the tools: they are served when the worker's code provides a ``GraphStore``, and left out otherwise.
"""

from toolbus_workers.graph_store.store import Batch, Found, GraphStore, Label, Loaded, Schema

__all__ = ["Batch", "Found", "GraphStore", "Label", "Loaded", "Schema"]

SETTINGS = {
    "TOOLBUS_GRAPH_PATH": "the file that keeps the graph; a temporary one when empty",
    "TOOLBUS_GRAPH_MEMORY": "bytes that the database holds in memory (268435456)",
    "TOOLBUS_GRAPH_DISK": "most bytes of the file (4294967296)",
}
