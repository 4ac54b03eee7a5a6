"""nanoClaw's function tools: its names and conventions over toolbus.

A module that registers tools with these names is served by ``toolbus worker`` like any other.
"""

from toolbus.compat.nanoclaw.core import BusRegistry, ToolDefinition, ToolExecutor, ToolRegistry, ToolResult, registry
from toolbus.compat.nanoclaw.factory import (
    create_crawler_tools,
    create_data_tools,
    create_file_tools,
    create_weather_tools,
    init_tools,
    register,
    tool,
)

__all__ = [
    "BusRegistry",
    "ToolDefinition",
    "ToolExecutor",
    "ToolRegistry",
    "ToolResult",
    "create_crawler_tools",
    "create_data_tools",
    "create_file_tools",
    "create_weather_tools",
    "init_tools",
    "register",
    "registry",
    "tool",
]
