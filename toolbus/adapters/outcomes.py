"""What the adapters share: one call, as what the model reads and as the result itself, and the turns of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from toolbus.client.executor.executor import ToolExecutor
from toolbus.client.executor.observers import ToolEvent
from toolbus.client.executor.toolcalls import ModelCall
from toolbus.envelope import new_id
from toolbus.results import ConfigurationError, ToolResult

MAX_TURNS = 12


async def outcome(
    executor: ToolExecutor, name: str, arguments: object, call: str = "", told: Callable[[ToolEvent], None] | None = None
) -> tuple[str, ToolResult]:
    """Run a call as a model's, and return its observation and its result.

    Args:
        told: is given what happens to the call, as it happens.

    Raises:
        ConfigurationError: an option of the executor is wrong, or the bus is not open.
    """
    wanted = [ModelCall(call or new_id(), name, arguments)]
    # Who only waits for the end is no reader whom a person could answer.
    async with executor.turn(wanted) if told is None else executor.stream_tool_calls(wanted) as turn:
        if told is not None:
            async for event in turn:
                told(event)
        (message,) = await turn.messages()
        (result,) = await turn.results()
    return message["content"], result


def turns(most: int) -> Iterator[bool]:
    """For each turn of a conversation whether it is the last one, in which the model may call no tool.

    Raises:
        ConfigurationError: there is no turn at all.
    """
    if most < 1:
        raise ConfigurationError(f"max_turns must be at least 1, not {most}")
    return (turn == most for turn in range(1, most + 1))
