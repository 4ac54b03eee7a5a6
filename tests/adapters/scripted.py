"""A model played by an HTTP server in three dialects, and every adapter as a way to run an agent against it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cached_property
from importlib import import_module
from typing import Any

from tests.agent.endpoint import Canned, Endpoint, endpoint
from toolbus.bus.client.executor.executor import ToolExecutor

# A turn of the model: calls by tool and arguments (JSON as an object, or as the model's own text), or the last words.
Turn = list[tuple[str, Any]] | str
Script = Callable[[str, int], Turn]

_TURN = re.compile(r"t(\d+)c\d+")
_AGENT = re.compile(r"agent (\w+)")


class Model:
    """The endpoints of one scripted model, one for each dialect."""

    def __init__(self, chat: Endpoint, responses: Endpoint, messages: Endpoint) -> None:
        self.chat = chat
        self.responses = responses
        self.messages = messages
        # Clients of the SDKs are slow to make, so all agents share them.
        self._stack = AsyncExitStack()

    async def aclose(self) -> None:
        """Close the clients."""
        await self._stack.aclose()

    @cached_property
    def openai(self) -> Any:
        """OpenAI's asynchronous client."""
        made = import_module("openai").AsyncOpenAI(base_url=self.chat.url, api_key="k")
        self._stack.push_async_callback(made.close)
        return made

    @cached_property
    def openai_responses(self) -> Any:
        """The same for responses."""
        made = import_module("openai").AsyncOpenAI(base_url=self.responses.url, api_key="k")
        self._stack.push_async_callback(made.close)
        return made

    @cached_property
    def openai_sync(self) -> Any:
        """OpenAI's synchronous client."""
        made = import_module("openai").OpenAI(base_url=self.chat.url, api_key="k")
        self._stack.callback(made.close)
        return made

    @cached_property
    def anthropic(self) -> Any:
        """Anthropic's asynchronous client."""
        made = import_module("anthropic").AsyncAnthropic(base_url=self.messages.url.removesuffix("/v1"), api_key="k")
        self._stack.push_async_callback(made.close)
        return made

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The requests to all of them."""
        return self.chat.bodies + self.responses.bodies + self.messages.bodies

    def told(self, agent: str = "one") -> dict[str, str]:
        """Return what an agent's model was told about each call, by the call's id."""
        found: dict[str, str] = {}
        for body in self.bodies:
            if _agent(body) == agent:
                found |= _observations(body)
        return found


@asynccontextmanager
async def playing(script: Script) -> AsyncIterator[Model]:
    """Play the model of a script: what it says to an agent in each of its turns, counted from 0."""

    def chat(body: dict[str, Any]) -> Canned:
        turn, said = _next(script, body)
        calls = [
            {"id": f"t{turn}c{index}", "type": "function", "function": {"name": name, "arguments": _text(arguments)}}
            for index, (name, arguments) in enumerate(said if isinstance(said, list) else [])
        ]
        message = {"role": "assistant", **({"content": None, "tool_calls": calls} if calls else {"content": said})}
        choice = {"index": 0, "finish_reason": "tool_calls" if calls else "stop", "message": message}
        return _whole(id="x", object="chat.completion", created=1, model="m", choices=[choice])

    def responses(body: dict[str, Any]) -> Canned:
        turn, said = _next(script, body)
        output: list[dict[str, Any]]
        if isinstance(said, str):
            words = {"type": "output_text", "text": said, "annotations": []}
            output = [{"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [words]}]
        else:
            output = [
                {"type": "function_call", "id": f"f{turn}{n}", "call_id": f"t{turn}c{n}", "name": name, "arguments": _text(arguments)}
                for n, (name, arguments) in enumerate(said)
            ]
        fixed = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        return _whole(id=f"r{turn}", object="response", created=1, model="m", output=output, **fixed)

    def messages(body: dict[str, Any]) -> Canned:
        turn, said = _next(script, body)
        content: list[dict[str, Any]]
        if isinstance(said, str):
            content = [{"type": "text", "text": said}]
        else:
            content = [
                {"type": "tool_use", "id": f"t{turn}c{n}", "name": name, "input": arguments} for n, (name, arguments) in enumerate(said)
            ]
        usage = {"input_tokens": 1, "output_tokens": 1}
        return _whole(id="m", type="message", role="assistant", model="m", content=content, stop_reason="end_turn", usage=usage)

    async with (
        endpoint(chat) as one,
        endpoint(responses, "/v1/responses") as other,
        endpoint(messages, "/v1/messages") as third,
    ):
        model = Model(one, other, third)
        try:
            yield model
        finally:
            await model.aclose()


def _next(script: Script, body: dict[str, Any]) -> tuple[int, Turn]:
    turns = [int(turn) for turn in _TURN.findall(json.dumps(body.get("messages") or body["input"]))]
    turn = max(turns, default=-1) + 1
    return turn, script(_agent(body), turn)


def _agent(body: dict[str, Any]) -> str:
    found = _AGENT.search(json.dumps(body))
    assert found is not None
    return found[1]


def _observations(body: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in body.get("messages") or body["input"]:
        if item.get("role") == "tool":
            found[item["tool_call_id"]] = item["content"]
        elif item.get("type") == "function_call_output":
            found[item["call_id"]] = item["output"]
        elif isinstance(item.get("content"), list):
            found |= {each["tool_use_id"]: each["content"] for each in item["content"] if each.get("type") == "tool_result"}
    return found


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _whole(**document: Any) -> Canned:
    return Canned(json.dumps(document).encode(), kind="application/json")


# -- one agent of each kind -----------------------------------------------------------------------

Way = Callable[[Model, ToolExecutor, str], Awaitable[str]]


async def by_chat(model: Model, executor: ToolExecutor, agent: str) -> str:
    """Run an agent by OpenAI's chat completions."""
    from toolbus.adapters.openai import chat

    done = await chat(model.openai, executor, [{"role": "user", "content": f"agent {agent}"}], model="m")
    return str(done.choices[0].message.content)


async def by_responses(model: Model, executor: ToolExecutor, agent: str) -> str:
    """Run an agent by OpenAI's responses."""
    from toolbus.adapters.openai import respond

    done = await respond(model.openai_responses, executor, [{"role": "user", "content": f"agent {agent}"}], model="m")
    return done.output_text


async def by_anthropic(model: Model, executor: ToolExecutor, agent: str) -> str:
    """Run an agent by Anthropic's messages."""
    from toolbus.adapters.anthropic import converse

    done = await converse(model.anthropic, executor, [{"role": "user", "content": f"agent {agent}"}], model="m")
    return str(done.content[0].text)


async def by_openai_agents(model: Model, executor: Any, agent: str, **options: Any) -> str:
    """Run an agent of OpenAI's Agents SDK."""
    from agents import Agent, OpenAIResponsesModel, Runner

    from toolbus.adapters.openai_agents import function_tools, run_config

    made = Agent("a", tools=function_tools(executor), model=OpenAIResponsesModel("m", model.openai_responses))
    done = await Runner.run(made, f"agent {agent}", run_config=run_config(executor, tracing_disabled=True), **options)
    return str(done.final_output)


async def by_pydantic_ai(model: Model, executor: Any, agent: str, **options: Any) -> str:
    """Run an agent of Pydantic AI."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    from toolbus.adapters.pydantic_ai import BusToolset

    played = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=model.openai))
    made: Any = Agent(played, toolsets=[BusToolset(executor)], **options)
    return str((await made.run(f"agent {agent}")).output)


async def by_langgraph(model: Model, executor: Any, agent: str) -> str:
    """Run an asynchronous LangGraph agent."""
    state = await graph(model, executor).ainvoke({"messages": [("user", f"agent {agent}")]})
    return str(state["messages"][-1].content)


async def by_langgraph_in_a_thread(model: Model, executor: Any, agent: str) -> str:
    """Run a synchronous LangGraph agent beside the event loop of the bus."""
    program = graph(model, executor)
    state = await asyncio.to_thread(program.invoke, {"messages": [("user", f"agent {agent}")]})
    return str(state["messages"][-1].content)


WAYS: dict[str, Way] = {
    "chat": by_chat,
    "responses": by_responses,
    "anthropic": by_anthropic,
    "openai-agents": by_openai_agents,
    "pydantic-ai": by_pydantic_ai,
    "langgraph": by_langgraph,
    "langgraph in a thread": by_langgraph_in_a_thread,
}


def graph(model: Model, executor: Any, **options: Any) -> Any:
    """Return a LangGraph program that calls the model and its tools until the model is done.

    Args:
        options: of its ToolNode.
    """
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage, convert_to_openai_messages
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langchain_core.utils.function_calling import convert_to_openai_tool
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    from toolbus.adapters.langchain import structured_tools

    tools = structured_tools(executor)

    class Played(BaseChatModel):
        """Speaks chat completions by OpenAI's SDK."""

        @property
        def _llm_type(self) -> str:
            return "played"

        def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
            return self._made(model.openai_sync.chat.completions.create(**self._body(messages)))

        async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
            return self._made(await model.openai.chat.completions.create(**self._body(messages)))

        def _body(self, messages: list[BaseMessage]) -> dict[str, Any]:
            return {
                "model": "m",
                "messages": convert_to_openai_messages(messages),
                "tools": [convert_to_openai_tool(each) for each in tools],
            }

        def _made(self, completion: Any) -> ChatResult:
            said = completion.choices[0].message
            calls = [
                {"type": "tool_call", "id": each.id, "name": each.function.name, "args": json.loads(each.function.arguments)}
                for each in said.tool_calls or []
            ]
            return ChatResult(generations=[ChatGeneration(message=AIMessage(said.content or "", tool_calls=calls))])

    played = Played()

    def call(state: MessagesState) -> dict[str, Any]:
        return {"messages": [played.invoke(state["messages"])]}

    async def acall(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await played.ainvoke(state["messages"])]}

    from langchain_core.runnables import RunnableLambda

    made: Any = StateGraph(MessagesState).add_node("model", RunnableLambda(call, acall)).add_node("tools", ToolNode(tools, **options))
    return made.add_edge(START, "model").add_conditional_edges("model", tools_condition).add_edge("tools", "model").compile()
