"""``DynamicToolService``, at the path that TrustGraph uses."""

from toolbus.compat.trustgraph.service import DynamicToolService, default_concurrency, default_topic

__all__ = ["DynamicToolService", "default_concurrency", "default_topic"]
