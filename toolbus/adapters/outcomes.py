"""What the adapters share: one call, as what the model reads and as the result itself."""

from __future__ import annotations

from typing import Any

from toolbus.client.executor import ToolExecutor
from toolbus.client.toolcalls import ToolCall
from toolbus.envelope import new_id
from toolbus.results import ToolResult


async def outcome(executor: ToolExecutor, name: str, arguments: dict[str, Any], call: str = "") -> tuple[str, ToolResult]:
    """Run a call as a model's, and return its observation and its result.

    :raises ConfigurationError: an option of the executor is wrong, or the bus is not open.
    """
    async with executor.stream_tool_calls([ToolCall(call or new_id(), name, arguments)]) as turn:
        (message,) = await turn.messages()
        (result,) = await turn.results()
    return message["content"], result
