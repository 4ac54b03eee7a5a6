"""``Tool``: a function of this process, with an id that it makes itself; ``FunctionCallResult``: the outcome of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self
from uuid import uuid4

from toolbus.compat.chat2graph.core.common.type import FunctionCallStatus, ToolType
from toolbus.toolkit.graph import Tool as GraphTool


@dataclass
class FunctionCallResult:
    """The outcome of a call, as that project's reasoners pass it on."""

    func_name: str
    func_args: dict[str, Any]
    call_objective: str
    output: str
    status: FunctionCallStatus = FunctionCallStatus.SUCCEEDED

    @classmethod
    def error(cls, error_message: str) -> Self:
        """Return the outcome of a call that failed before its function was known."""
        return cls("", {}, "", error_message, FunctionCallStatus.FAILED)


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
