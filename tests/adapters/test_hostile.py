"""Adapters with tools whose names and arguments are not made for any framework."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any, ClassVar

import pytest

from tests.adapters.scripted import WAYS, Model, Turn, playing
from tests.adapters.test_scripted import PACKAGES, Sums, serving
from tests.servers import eventually
from toolbus import ToolBus, ToolService, Worker
from toolbus.bus.client.executor.executor import ToolExecutor

pytestmark = pytest.mark.anyio

NAMES = ["find.docs", "find:docs", "грусть", "run", "self", "__class__", "invoke", "x" * 100, "final_result", "a-b", "1st"]
ARGUMENTS = [
    "self",
    "config",
    "callbacks",
    "run_manager",
    "runtime",
    "runtime_",
    "state",
    "store",
    "name",
    "arguments",
    "tool_input",
    "ctx",
    "a.b",
    "",
    "class",
]


class Echo(ToolService):
    """Says what came, under many names."""

    id = "echo"
    tools: ClassVar[list[dict[str, Any]]] = [
        {
            "name": name,
            "description": f"Echo {index}",
            "parameters": {"type": "object", "properties": {each: {"type": "string"} for each in ARGUMENTS}},
        }
        for index, name in enumerate(NAMES)
    ]

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> str:
        """Say what came."""
        return json.dumps(arguments, sort_keys=True)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """Name each adapter whose package is installed."""
    for package in (PACKAGES[request.param], "openai"):
        pytest.importorskip(package)
    return str(request.param)


async def test_each_name_and_argument_arrives(way: str, namespace: str) -> None:
    """Tools and arguments of any name are offered, called and answered, each with what the model said."""
    given = {name: f"said {index}" for index, name in enumerate(ARGUMENTS)}
    async with serving(Echo(), namespace=namespace) as executor:
        shown = {each["function"]["description"]: each["function"]["name"] for each in executor.tools.definitions("openai")}
        assert len(shown) == len(NAMES)
        turns: list[Turn] = [[(shown[f"Echo {index}"], given) for index in range(len(NAMES))], "done"]
        async with playing(lambda _, turn: turns[turn]) as model:
            assert await WAYS[way](model, executor, "one") == "done"
            told = model.told()
    assert told == {f"t0c{index}": json.dumps(given, sort_keys=True) for index in range(len(NAMES))}


def leaves_before_the_answer(model: Model, leaving: Worker, executor: ToolExecutor) -> None:
    """Let a worker leave when the model has got its first request, before it answers."""

    async def leave() -> None:
        await leaving.aclose()
        await eventually(lambda: (found := executor.find("run")) is None or not found.available)

    for endpoint in (model.chat, model.responses, model.messages):
        answer = endpoint.answer

        async def answering(*given: Any, answer: Any = answer) -> None:
            if len(model.bodies) == 1:
                await leave()
            await answer(*given)

        endpoint.answer = answering  # type: ignore[method-assign,assignment]


async def test_a_tool_that_leaves_while_the_model_answers_ends_no_run(way: str, namespace: str) -> None:
    """A model that calls what it was offered a moment before is told that it is gone, the run goes on, and offers it no more."""
    leaving = Worker([Echo()], url="memory://", namespace=namespace)
    turns: list[Turn] = [[("run", {}), ("add", {"a": 1, "b": 2})], "done"]
    async with serving(Sums(), namespace=namespace) as executor, playing(lambda _, turn: turns[turn]) as model:
        await leaving.open()
        await eventually(lambda: "run" in executor.tools)
        leaves_before_the_answer(model, leaving, executor)
        assert await WAYS[way](model, executor, "one") == "done"
    assert "Next:" in model.told()["t0c0"]
    assert model.told()["t0c1"] == "3 for nobody"
    # A graph offers the tools with which it was made.
    offered = ['"run"' in json.dumps(body["tools"]) for body in model.bodies]
    assert offered == [True, way.startswith("langgraph")]


async def test_langchain_tools_are_shown_and_copied(namespace: str) -> None:
    """A tool's repr, copies and JSON are those of any other StructuredTool; what can't be pickled says so."""
    pytest.importorskip("langchain_core")
    from langchain_core.tools import render_text_description_and_args

    from toolbus.adapters.langchain import structured_tools

    async with serving(Echo(), Sums(), namespace=namespace) as executor:
        tools = structured_tools(executor)
        for made in tools:
            for text in (repr(made), str(made), made.model_dump_json(), repr([made])):
                assert made.name in text
            for copied in (copy.copy(made), copy.deepcopy(made), made.model_copy()):
                assert (copied.name, copied.args) == (made.name, made.args)
        assert "Echo 3" in render_text_description_and_args(list(tools))
        add = copy.deepcopy(next(made for made in tools if made.name == "add"))
        assert await add.ainvoke({"a": 1, "b": 2}) == "3 for nobody"
        with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
            pickle.dumps(add)


async def test_calls_have_the_models_ids(namespace: str) -> None:
    """LangChain's calls are known by the model's ids, so a later call can refer to the result of an earlier one."""
    pytest.importorskip("langchain_core")
    from toolbus.adapters.langchain import structured_tools

    async with Worker([Echo(), Sums()], url="memory://", namespace=namespace), ToolBus("memory://", namespace=namespace) as bus:
        tools = {each.name: each for each in structured_tools(bus.executor(session="s", user="u"))}
        await tools["add"].ainvoke({"type": "tool_call", "id": "first", "name": "add", "args": {"a": 1, "b": 2}})
        call = {"type": "tool_call", "id": "second", "name": "run", "args": {"name": {"$from": "first"}}}
        assert (await tools["run"].ainvoke(call)).content == json.dumps({"name": "3 for u"})
