"""``ToolServiceClient``, at the path that TrustGraph uses."""

from toolbus.compat.trustgraph.client import ToolServiceClient

__all__ = ["ToolServiceClient"]
