"""Base classes and clients, at the paths that TrustGraph uses."""

from toolbus.compat.trustgraph.client import ToolServiceClient
from toolbus.compat.trustgraph.service import DynamicToolService

__all__ = ["DynamicToolService", "ToolServiceClient"]
