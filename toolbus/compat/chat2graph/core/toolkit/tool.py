"""``Tool``: a function of this process, with an id that it makes itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from toolbus.compat.chat2graph.core.common.type import ToolType
from toolbus.toolkit.items import Tool as GraphTool


class Tool(GraphTool):
    """A tool of the toolkit.

    Subclasses may call ``super().__init__`` with one of their methods, set ``_id`` afterwards, and override ``copy``.

    Args:
        name: the name for the model.
        description: the text for the model; the function's docstring when empty.
        function: a coroutine function or a plain one.
        tool_type: the tool's origin.
        id: id of its vertex; a new one when left out.
        parameters: JSON Schema of the arguments; the function's own when left out.
    """

    def __init__(
        self,
        name: str,
        description: str,
        function: Callable[..., Any],
        tool_type: ToolType = ToolType.LOCAL_TOOL,
        id: str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(id or str(uuid4()), name, description, parameters, function)
        self._type = tool_type

    @property
    def tool_type(self) -> ToolType:
        """The tool's origin."""
        return self._type
