"""``ToolConnection``: the connection through which a group's tools are called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any
from uuid import uuid4


class ToolConnection(ABC):
    """An open connection to the tools of a group."""

    def __init__(self) -> None:
        self._id = str(uuid4())

    def get_id(self) -> str:
        """Return the connection's id."""
        return self._id

    @abstractmethod
    async def call(self, tool_name: str, **kwargs: Any) -> Any:
        """Run a tool with these arguments."""

    @abstractmethod
    async def list_tools(self) -> list[Any]:
        """Return every available tool."""

    @abstractmethod
    async def close(self) -> None:
        """Release what the connection holds."""
