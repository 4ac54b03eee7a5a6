"""Run a conversation with tools through Anthropic's SDK until the model answers (``toolbus[anthropic]``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolbus.adapters.home import MAX_TURNS, turns
from toolbus.bus.client.executor.executor import ToolExecutor
from toolbus.bus.client.executor.toolcalls import tool_calls

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from anthropic.types import Message


async def converse(
    client: AsyncAnthropic,
    executor: ToolExecutor,
    messages: list[Any],
    *,
    max_tokens: int = 4096,
    max_turns: int = MAX_TURNS,
    **parameters: Any,
) -> Message:
    """Return the first message that calls no tool; ``messages`` grows with the conversation. The last turn may call none.

    Raises:
        ConfigurationError: an option of the executor or ``max_turns`` is wrong.
    """
    for last in turns(max_turns):
        tools = executor.tools.definitions("anthropic")
        body: dict[str, Any] = {"model": executor.model, "max_tokens": max_tokens, "messages": messages, "tools": tools, **parameters}
        if last and tools:
            body["tool_choice"] = {"type": "none"}
        message: Message = await client.messages.create(**body)
        messages.append({"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]})
        if not tool_calls(message) or last:
            break
        messages += await executor.process_tool_calls(message)
    return message
