"""What the adapters share: one call, as what the model reads and as the result itself."""

from __future__ import annotations

from collections.abc import Callable

from toolbus.client.executor import ToolExecutor
from toolbus.client.observers import ToolEvent
from toolbus.client.toolcalls import ToolCall
from toolbus.envelope import new_id
from toolbus.results import ToolResult


async def outcome(
    executor: ToolExecutor, name: str, arguments: object, call: str = "", told: Callable[[ToolEvent], None] | None = None
) -> tuple[str, ToolResult]:
    """Run a call as a model's, and return its observation and its result.

    :param told: is given what happens to the call, as it happens.
    :raises ConfigurationError: an option of the executor is wrong, or the bus is not open.
    """
    wanted = [ToolCall(call or new_id(), name, arguments)]
    # Who only waits for the end is no reader whom a person could answer.
    async with executor.turn(wanted) if told is None else executor.stream_tool_calls(wanted) as turn:
        if told is not None:
            async for event in turn:
                told(event)
        (message,) = await turn.messages()
        (result,) = await turn.results()
    return message["content"], result
