"""Shared by the adapters: run one call for an observation and a result, and count the turns of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from toolbus.client.executor.executor import ToolExecutor
from toolbus.client.executor.observers import ToolEvent
from toolbus.client.executor.toolcalls import ModelCall
from toolbus.envelope import new_id
from toolbus.results import ConfigurationError, ToolResult

MAX_TURNS = 12


async def outcome(
    executor: ToolExecutor, name: str, arguments: object, call: str = "", observer: Callable[[ToolEvent], None] | None = None
) -> tuple[str, ToolResult]:
    """Run a call of a model and return its observation and its result.

    Args:
        observer: called with each event of the call.

    Raises:
        ConfigurationError: an option of the executor is wrong, or the bus is not open.
    """
    wanted = [ModelCall(call or new_id(), name, arguments)]
    # Without an observer no person sees a question, so handlers may not ask one.
    async with executor.turn(wanted) if observer is None else executor.stream_tool_calls(wanted) as turn:
        if observer is not None:
            async for event in turn:
                observer(event)
        (observation,) = await turn.observations()
        (result,) = await turn.results()
    return observation.text, result


def turns(most: int) -> Iterator[bool]:
    """Yield for each turn of a conversation whether it is the last one, in which the model may call no tool.

    Raises:
        ConfigurationError: ``most`` is less than 1.
    """
    if most < 1:
        raise ConfigurationError(f"max_turns must be at least 1, not {most}")
    return (turn == most for turn in range(1, most + 1))
