"""``ToolServiceImpl``, at the path that TrustGraph uses."""

from toolbus.compat.trustgraph.client import ToolServiceImpl

__all__ = ["ToolServiceImpl"]
