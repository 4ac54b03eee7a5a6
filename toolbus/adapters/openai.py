"""Run a conversation with tools through OpenAI's SDK until the model answers (``toolbus[openai]``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolbus.adapters.home import MAX_TURNS, turns
from toolbus.bus.client.executor.executor import ToolExecutor
from toolbus.bus.client.executor.toolcalls import tool_calls

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion
    from openai.types.responses import Response


async def chat(
    client: AsyncOpenAI, executor: ToolExecutor, messages: list[Any], *, max_turns: int = MAX_TURNS, **parameters: Any
) -> ChatCompletion:
    """Return the first chat completion that calls no tool; ``messages`` grows with the conversation. The last turn may call none.

    Raises:
        ConfigurationError: there is no model, or an option of the executor or ``max_turns`` is wrong.
    """
    for last in turns(max_turns):
        body = executor.build_request(messages, **parameters)
        if last and "tools" in body:
            body["tool_choice"] = "none"
        completion: ChatCompletion = await client.chat.completions.create(**body)
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not tool_calls(message) or last:
            break
        messages += await executor.process_tool_calls(message)
    return completion


async def respond(
    client: AsyncOpenAI, executor: ToolExecutor, items: list[Any], *, max_turns: int = MAX_TURNS, **parameters: Any
) -> Response:
    """Return the first response that calls no tool; ``items`` grows with the conversation. The last turn may call none.

    Raises:
        ConfigurationError: an option of the executor or ``max_turns`` is wrong.
    """
    for last in turns(max_turns):
        tools = executor.tools.definitions("responses", namespaces=False)
        body: dict[str, Any] = {"model": executor.model, "input": items, "tools": tools, **parameters}
        if last and tools:
            body["tool_choice"] = "none"
        response: Response = await client.responses.create(**body)
        items += [item.model_dump(exclude_none=True) for item in response.output]
        if not tool_calls(response) or last:
            break
        items += await executor.process_tool_calls(response)
    return response
