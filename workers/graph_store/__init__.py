"""Tools over a graph store: ``graph_query``, ``graph_schema`` and ``graph_import``.

``toolbus worker workers.graph_store`` serves them over an embedded graph database. ``workers.graph_store.tools`` is the
tools alone: they are served where somebody provides a ``GraphStore``, and left out where nobody does.
"""

from workers.graph_store.store import Batch, Found, GraphStore, Label, Loaded, Schema

__all__ = ["Batch", "Found", "GraphStore", "Label", "Loaded", "Schema"]
