"""``ToolGroup``: tools that come and go together, listed when the group is added to the toolkit."""

from __future__ import annotations

import importlib
import inspect
from abc import ABC, abstractmethod
from typing import Any
from uuid import uuid4

from toolbus.compat.chat2graph.core.common.type import ToolType
from toolbus.compat.chat2graph.core.toolkit.tool import Tool
from toolbus.compat.chat2graph.core.toolkit.tool_config import ToolGroupConfig
from toolbus.compat.chat2graph.core.toolkit.tool_connection import ToolConnection
from toolbus.toolkit.graph import ToolGroup as GraphGroup
from toolbus.toolkit.service import group_of_module


class ToolGroup(GraphGroup, ABC):
    """A group that lists its tools on request. Subclasses may set ``_id`` after ``super().__init__``."""

    def __init__(self, tool_group_config: ToolGroupConfig) -> None:
        super().__init__(str(uuid4()), tool_group_config.name)
        self._tool_group_config = tool_group_config

    def get_id(self) -> str:
        """Return the id of its vertex."""
        return self._id

    @abstractmethod
    async def create_connection(self, tool_call_ctx: Any = None) -> ToolConnection:
        """Connect to the runner of the tools."""

    @abstractmethod
    async def list_tools(self) -> list[Any]:
        """Return every tool of the group: ``Tool``s, or objects with ``name``, ``description`` and ``inputSchema``."""


class ToolPackage(ToolGroup):
    """The public functions of a Python module as tools of this process; the group has the module's name."""

    async def create_connection(self, tool_call_ctx: Any = None) -> ToolConnection:
        """Return a connection that calls the module's functions."""
        return _ModuleConnection(await self.list_tools())

    async def list_tools(self) -> list[Tool]:
        """Return a tool for each public function.

        Raises:
            ToolkitError: the module has none.
        """
        group = group_of_module(importlib.import_module(self.name))
        return [Tool(tool.name, tool.description, tool.function, ToolType.LOCAL_TOOL) for tool in group.tools if tool.function is not None]


class _ModuleConnection(ToolConnection):
    def __init__(self, tools: list[Tool]) -> None:
        super().__init__()
        self._tools = {tool.name: tool for tool in tools}

    async def call(self, tool_name: str, **kwargs: Any) -> Any:
        """Call a function, and await its result when it is awaitable."""
        result: Any = self._tools[tool_name].function(**kwargs)  # type: ignore[misc] # each is a function of the module
        return await result if inspect.isawaitable(result) else result

    async def list_tools(self) -> list[Any]:
        """Return every tool of the module."""
        return list(self._tools.values())

    async def close(self) -> None:
        """Forget the tools."""
        self._tools.clear()
