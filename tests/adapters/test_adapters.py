"""The adapters with the packages themselves; what is not installed is skipped."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import toolbus_workers.calculator

from tests.agent.endpoint import Canned, Endpoint, endpoint
from tests.servers import eventually
from toolbus import ConfigurationError, Progress, ToolBus, ToolResult, ToolService, Worker, tool
from toolbus.bus.client.executor.executor import ToolExecutor

pytestmark = pytest.mark.anyio


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def say(config: str, callbacks: str = "") -> str:
    """Take arguments whose names others use themselves."""
    return f"{config}/{callbacks}"


@tool(service="reciting")
async def recite(lines: int) -> AsyncIterator[str | Progress]:
    """Say lines, one after the other."""
    for line in range(lines):
        yield f"line {line}\n"
        if line == 0:
            yield Progress(1, lines, "half")


@tool
async def broken() -> str:
    """Fail on every call."""
    raise RuntimeError("out of order")


@asynccontextmanager
async def executing(namespace: str = "") -> AsyncIterator[ToolExecutor]:
    """Provide an executor with the tools above."""
    namespace = namespace or uuid.uuid4().hex
    async with Worker([add, say, broken], url="memory://", namespace=namespace), ToolBus("memory://", namespace=namespace) as bus:
        yield bus.executor(model="m")


def whole(**document: Any) -> Canned:
    """Return an answer in one piece."""
    return Canned(json.dumps(document).encode(), kind="application/json")


async def test_langchain_tools_answer_with_content_and_artifact() -> None:
    """A StructuredTool's message has the observation as content and the result as artifact; a failure has the status error."""
    pytest.importorskip("langchain_core")
    from toolbus.adapters.langchain import structured_tools

    async with executing() as executor:
        tools = {each.name: each for each in structured_tools(executor)}
        assert sorted(tools) == ["add", "broken", "say"]

        async def call(name: str, **arguments: Any) -> Any:
            return await tools[name].ainvoke({"type": "tool_call", "id": "c1", "name": name, "args": arguments})

        message = await call("add", a=1, b="2")
        assert (message.content, message.status, message.tool_call_id) == ("3", "success", "c1")
        assert isinstance(message.artifact, ToolResult)
        assert (await call("say", config="x", callbacks="y")).content == "x/y"
        failed = await call("broken")
        assert (failed.status, "Next:" in failed.content) == ("error", True)
        assert (await call("add", a="one")).status == "error"


async def test_langgraph_streams_what_a_tool_says() -> None:
    """A ToolNode runs the calls of a message together, and a reader of its tools gets text and progress as deltas, call by call."""
    pytest.importorskip("langgraph")
    from langchain_core.messages import AIMessage
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    from toolbus.adapters.langchain import structured_tools

    namespace = uuid.uuid4().hex
    async with executing(namespace) as executor, Worker([recite], url="memory://", namespace=namespace):
        await eventually(lambda: "recite" in executor.tools)
        graph = StateGraph(MessagesState).add_node("tools", ToolNode(structured_tools(executor)))
        program = graph.add_edge(START, "tools").add_edge("tools", END).compile()
        wanted = [
            {"type": "tool_call", "id": "c1", "name": "recite", "args": {"lines": 2}},
            {"type": "tool_call", "id": "c2", "name": "broken", "args": {}},
        ]
        deltas: list[Any] = []
        state: dict[str, Any] = {}
        given = {"messages": [AIMessage("", tool_calls=wanted)]}
        async for mode, part in program.astream(given, stream_mode=["tools", "values"]):  # type: ignore[call-overload]
            if mode == "values":
                state = part
            elif part["event"] == "tool-output-delta":
                deltas.append((part["tool_call_id"], part["delta"]))
        assert deltas == [("c1", "line 0\n"), ("c1", {"done": 1, "total": 2, "message": "half"}), ("c1", "line 1\n")]
        recited, failed = state["messages"][1:]
        assert (recited.content, recited.status) == ("line 0\nline 1\n", "success")
        assert isinstance(recited.artifact, ToolResult)
        assert (failed.status, failed.tool_call_id) == ("error", "c2")
        silent = await program.ainvoke({"messages": [AIMessage("", tool_calls=wanted[:1])]})
        assert silent["messages"][1].content == recited.content


@pytest.mark.usefixtures("slow")
async def test_openai_agents_run_the_tools() -> None:
    """An agent of the Agents SDK calls the tools of a bus, casts as the executor does, reads failures, and sees who has gone."""
    pytest.importorskip("agents")
    from agents import Agent, OpenAIResponsesModel, RunConfig, Runner
    from openai import AsyncOpenAI

    from toolbus.adapters.openai_agents import function_tools

    def response(body: dict[str, Any]) -> Canned:
        output: list[dict[str, Any]] = [
            {"type": "function_call", "id": f"f{index}", "call_id": f"c{index}", "name": name, "arguments": arguments}
            for index, (name, arguments) in enumerate([("add", '{"a": "1", "b": 2}'), ("broken", "{}")])
        ]
        if len(body["input"]) > 1:
            words = {"type": "output_text", "text": "three", "annotations": []}
            output = [{"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [words]}]
        fixed = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        return whole(id="r", object="response", created_at=1, model="m", output=output, **fixed)

    namespace = uuid.uuid4().hex
    leaving = Worker([recite], url="memory://", namespace=namespace)
    async with executing(namespace) as executor, endpoint(response, "/v1/responses") as model:
        async with leaving:
            await eventually(lambda: "recite" in executor.tools)
            tools = function_tools(executor, strict=True)
        client = AsyncOpenAI(base_url=model.url, api_key="k")
        agent = Agent("a", tools=tools, model=OpenAIResponsesModel("m", client))
        done = await Runner.run(agent, "?", run_config=RunConfig(tracing_disabled=True))
        await client.close()
    assert done.final_output == "three"
    offered = {each["name"]: each for each in model.bodies[0]["tools"]}
    assert sorted(offered) == ["add", "broken", "say"]
    assert (offered["add"]["strict"], offered["say"]["parameters"]["required"]) == (True, ["config", "callbacks"])
    added, failed = (each["output"] for each in model.bodies[1]["input"] if each.get("type") == "function_call_output")
    assert added == "3"
    assert "Next:" in failed


async def test_langchain_says_the_schema_as_it_was_published() -> None:
    """LangChain shows models the published schema of a tool."""
    pytest.importorskip("langchain_core")
    from langchain_core.utils.function_calling import convert_to_openai_tool

    from toolbus.adapters.langchain import structured_tools

    async with executing() as executor:
        said = {each.name: convert_to_openai_tool(each)["function"] for each in structured_tools(executor)}
        assert said["add"]["description"] == "Add two numbers."
        assert said["add"]["parameters"]["required"] == ["a", "b"]


async def test_langchain_is_not_given_what_it_would_blow_up(namespace: str) -> None:
    """A short schema whose references double is left out, since LangChain replaces them; others of the service stay."""
    pytest.importorskip("langchain_core")
    from langchain_core.utils.function_calling import convert_to_openai_tool

    from toolbus.adapters.langchain import structured_tools

    stairs = 40
    layers = {f"d{n}": {"properties": {each: {"$ref": f"#/$defs/d{n + 1}"} for each in "ab"}} for n in range(stairs)}
    definitions = {**layers, f"d{stairs}": {"type": "integer"}, "tree": {"properties": {"child": {"$ref": "#/$defs/tree"}}}}

    def schema(name: str) -> dict[str, Any]:
        return {"type": "object", "properties": {"a": {"$ref": f"#/$defs/{name}"}}, "$defs": definitions}

    class Service(ToolService):
        id = "steep"
        tools: ClassVar[list[dict[str, Any]]] = [
            {"name": "steep", "description": "d", "parameters": schema("d0")},
            {"name": "flat", "description": "d", "parameters": schema(f"d{stairs - 2}")},
        ]

        async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> str:
            return "fine"

    async with Worker([Service()], url="memory://", namespace=namespace), ToolBus("memory://", namespace=namespace) as bus:
        made = structured_tools(bus.executor())
        assert [each.name for each in made] == ["flat"]
        assert convert_to_openai_tool(made[0])["function"]["name"] == "flat"
        assert (await bus.call("steep", {"a": {"a": {"b": {}}}})).output == "fine"


@pytest.mark.usefixtures("slow")
async def test_pydantic_ai_runs_the_tools() -> None:
    """An agent of Pydantic AI calls the tools of a bus, reads failures as observations, and keeps results as metadata."""
    pytest.importorskip("pydantic_ai")
    from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from toolbus.adapters.pydantic_ai import BusToolset

    offered: list[str] = []

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        offered[:] = [each.name for each in info.function_tools]
        if len(messages) > 1:
            return ModelResponse([TextPart("done")])
        return ModelResponse([ToolCallPart("add", {"a": "1", "b": 2}, "c1"), ToolCallPart("broken", {}, "c2")])

    async with executing() as executor:
        done = await Agent(FunctionModel(model), toolsets=[BusToolset(executor)]).run("?")
        parts = [part for message in done.all_messages() for part in message.parts if isinstance(part, ToolReturnPart)]
    assert (done.output, offered) == ("done", ["add", "broken", "say"])
    assert parts[0].content == "3"
    assert isinstance(parts[0].metadata, ToolResult)
    assert "Next:" in str(parts[1].content)


async def test_openai_chat_goes_on_until_an_answer() -> None:
    """The SDK's chat completions run with the tools, and the conversation holds every message."""
    openai = pytest.importorskip("openai")
    from toolbus.adapters.openai import chat

    def completion(**message: Any) -> Canned:
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": None, **message}}
        return whole(id="x", object="chat.completion", created=1, model="m", choices=[choice])

    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    script = [completion(tool_calls=[call]), completion(content="three")]
    async with executing() as executor, endpoint(script) as model, openai.AsyncOpenAI(base_url=model.url, api_key="k") as client:
        messages: list[Any] = [{"role": "user", "content": "?"}]
        done = await chat(client, executor, messages)
    assert done.choices[0].message.content == "three"
    assert [each["role"] for each in messages] == ["user", "assistant", "tool", "assistant"]
    assert model.bodies[1]["messages"][-1]["content"] == "3"


async def test_openai_responses_go_on_until_an_answer() -> None:
    """The SDK's responses run with the tools, and the last turn may call none."""
    openai = pytest.importorskip("openai")
    from toolbus.adapters.openai import respond

    def response(body: dict[str, Any]) -> Canned:
        item: dict[str, Any] = {"type": "function_call", "id": "f", "call_id": "c1", "name": "add", "arguments": '{"a": 1, "b": 2}'}
        if body.get("tool_choice") == "none":
            words = {"type": "output_text", "text": "three", "annotations": []}
            item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [words]}
        fixed = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        return whole(id="r", object="response", created_at=1, model="m", output=[item], **fixed)

    async with (
        executing() as executor,
        endpoint(response, "/v1/responses") as model,
        openai.AsyncOpenAI(base_url=model.url, api_key="k") as client,
    ):
        items: list[Any] = [{"role": "user", "content": "?"}]
        done = await respond(client, executor, items, max_turns=3)
    assert done.output_text == "three"
    assert model.bodies[1]["input"][-1] == {"type": "function_call_output", "call_id": "c1", "output": "3"}
    assert len(model.bodies) == 3


@pytest.mark.usefixtures("slow")
async def test_anthropic_goes_on_until_an_answer() -> None:
    """The SDK's messages run with the tools, all results of a turn in one message."""
    anthropic = pytest.importorskip("anthropic")
    from toolbus.adapters.anthropic import converse

    def message(*content: dict[str, Any]) -> Canned:
        usage = {"input_tokens": 1, "output_tokens": 1}
        return whole(id="m", type="message", role="assistant", model="m", content=content, stop_reason="end_turn", usage=usage)

    uses = [{"type": "tool_use", "id": f"t{a}", "name": "add", "input": {"a": a, "b": 1}} for a in (1, 2)]
    script = [message({"type": "text", "text": "Let me see."}, *uses), message({"type": "text", "text": "done"})]
    async with (
        executing() as executor,
        endpoint(script, "/v1/messages") as model,
        anthropic.AsyncAnthropic(base_url=model.url.removesuffix("/v1"), api_key="k") as client,
    ):
        messages: list[Any] = [{"role": "user", "content": "?"}]
        done = await converse(client, executor, messages)
    assert done.content[0].text == "done"
    assert [each["content"] for each in model.bodies[1]["messages"][-1]["content"]] == ["2", "3"]
    assert [each["role"] for each in messages] == ["user", "assistant", "user", "assistant"]


async def test_the_last_turn_without_tools_says_nothing_of_tools() -> None:
    """Providers refuse a choice among no tools; without a turn there is no conversation."""
    anthropic, openai = pytest.importorskip("anthropic"), pytest.importorskip("openai")
    from toolbus.adapters.anthropic import converse
    from toolbus.adapters.openai import respond

    usage = {"input_tokens": 1, "output_tokens": 1}
    said = whole(id="m", type="message", role="assistant", model="m", content=[], stop_reason="end_turn", usage=usage)
    answered = whole(id="r", object="response", created_at=1, model="m", output=[], parallel_tool_calls=True, tool_choice="auto", tools=[])
    namespace = uuid.uuid4().hex
    async with (
        ToolBus("memory://", namespace=namespace) as bus,
        endpoint([said], "/v1/messages") as one,
        endpoint([answered], "/v1/responses") as other,
        anthropic.AsyncAnthropic(base_url=one.url.removesuffix("/v1"), api_key="k") as claude,
        openai.AsyncOpenAI(base_url=other.url, api_key="k") as gpt,
    ):
        executor = bus.executor(model="m")
        await converse(claude, executor, [{"role": "user", "content": "?"}], max_turns=1)
        await respond(gpt, executor, [{"role": "user", "content": "?"}], max_turns=1)
        with pytest.raises(ConfigurationError, match="max_turns must be at least 1"):
            await converse(claude, executor, [], max_turns=0)
    assert "tool_choice" not in one.bodies[0] | other.bodies[0]


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "adapters.md"


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("index", "package", "path"),
    [
        (0, "openai", "/v1/chat/completions"),
        (1, "anthropic", "/v1/messages"),
        (2, "langchain_core", "/"),
        (3, "langgraph", "/"),
        (4, "agents", "/v1/responses"),
        (5, "pydantic_ai", "/v1/chat/completions"),
    ],
)
async def test_the_examples_run(index: int, package: str, path: str, server: str, namespace: str, tmp_path: Path) -> None:
    """Each example of the guide prints the answer of a scripted endpoint that called the calculator."""
    for needed in (package, "openai") if package == "pydantic_ai" else (package,):
        pytest.importorskip(needed)
    (tmp_path / "example.py").write_text(re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[index])

    def answer(body: dict[str, Any]) -> Canned:
        said = json.dumps((body.get("messages") or body["input"])[-1])
        return {"/v1/messages": _anthropic, "/v1/responses": _response}.get(path, _openai)(said)

    calculator = Worker([toolbus_workers.calculator], url=server, namespace=namespace)
    async with endpoint(answer, path) as model, calculator, ToolBus(server, namespace=namespace) as bus:
        await bus.wait_for_tool("calculator")
        out, err = await _run(tmp_path, model, server, namespace)
    assert "18446744073709551616" in out, err


def _openai(said: str) -> Canned:
    found = re.search(r"\d{20}", said)
    call = {"id": "c1", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "2**64"}'}}
    message = {"content": found[0]} if found else {"content": None, "tool_calls": [call]}
    choice = {"index": 0, "finish_reason": "stop" if found else "tool_calls", "message": {"role": "assistant", **message}}
    return whole(id="x", object="chat.completion", created=1, model="m", choices=[choice])


def _anthropic(said: str) -> Canned:
    found = re.search(r"\d{20}", said)
    use = {"type": "tool_use", "id": "t1", "name": "calculator", "input": {"expression": "2**64"}}
    block = {"type": "text", "text": found[0]} if found else use
    usage = {"input_tokens": 1, "output_tokens": 1}
    return whole(id="m", type="message", role="assistant", model="m", content=[block], stop_reason="end_turn", usage=usage)


def _response(said: str) -> Canned:
    found = re.search(r"\d{20}", said)
    item = {"type": "function_call", "id": "f", "call_id": "c1", "name": "calculator", "arguments": '{"expression": "2**64"}'}
    if found:
        words = {"type": "output_text", "text": found[0], "annotations": []}
        item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [words]}
    fixed = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return whole(id="r", object="response", created_at=1, model="m", output=[item], **fixed)


async def _run(folder: Path, model: Endpoint, url: str, namespace: str) -> tuple[str, str]:
    environment = {**os.environ, "TOOLBUS_URL": url, "TOOLBUS_NAMESPACE": namespace, "NO_PROXY": "127.0.0.1"}
    environment |= {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}
    environment["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
    environment["ANTHROPIC_BASE_URL"] = model.url.removesuffix("/v1")
    command = [sys.executable, "example.py"]
    process = await asyncio.create_subprocess_exec(*command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    return out.decode(), err.decode()
