"""Each adapter, with the package itself, against the same scripted model."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.adapters.scripted import WAYS, Turn, playing
from tests.pictures import png
from tests.servers import eventually
from toolbus import Blob, ToolBus, ToolResult, ToolService, Worker, invocation, tool
from toolbus.bus.client.executor.executor import ToolExecutor

pytestmark = pytest.mark.anyio

PACKAGES = {
    "chat": "openai",
    "responses": "openai",
    "anthropic": "anthropic",
    "openai-agents": "agents",
    "pydantic-ai": "pydantic_ai",
    "langgraph": "langgraph",
    "langgraph in a thread": "langgraph",
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """Name each adapter whose package is installed."""
    for package in (PACKAGES[request.param], "openai"):
        pytest.importorskip(package)
    return str(request.param)


class Desk(ToolService):
    """Files on a desk, whose calls must not overtake each other."""

    id = "desk"
    sequential = True

    def __init__(self) -> None:
        self.where = "/"
        self.log: list[str] = []
        self.running = 0
        self.most = 0

    @tool(effect="once")
    async def mkdir(self, name: str) -> str:
        """Make a folder."""
        await self._work(f"mkdir {name}", 0.03)
        return f"made {name}"

    @tool(effect="once")
    async def cd(self, name: str) -> str:
        """Go to a folder."""
        await self._work(f"cd {name}", 0.0)
        if f"mkdir {name}" not in self.log:
            raise RuntimeError(f"there is no {name}")
        self.where += name
        return self.where

    async def _work(self, what: str, seconds: float) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(seconds)
        self.log.append(what)
        self.running -= 1


class Sums(ToolService):
    """Answers, fails and hangs."""

    id = "sums"

    def __init__(self) -> None:
        self.hanging = 0
        self.ended = 0
        self.together = 0
        self.all_here = asyncio.Event()

    @tool(effect="read")
    async def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        return f"{a + b} for {invocation().user or 'nobody'}"

    @tool(effect="read")
    async def broken(self) -> str:
        """Fail on every call."""
        raise RuntimeError("out of order")

    @tool(effect="read")
    async def hang(self) -> str:
        """Run until it is cancelled."""
        self.hanging += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.ended += 1
        return ""

    @tool(effect="read")
    async def draw(self) -> ToolResult:
        """Draw a picture, and say so in a file that no model reads."""
        return ToolResult(True, output="drawn", content=[Blob("image/png", png()), Blob("text/x-note", b"drawn")])

    @tool(effect="read")
    async def meet(self, count: int) -> str:
        """Wait until as many calls run at once."""
        self.together += 1
        if self.together == count:
            self.all_here.set()
        await self.all_here.wait()
        return "met"


@asynccontextmanager
async def serving(*services: ToolService, namespace: str, **options: Any) -> AsyncIterator[ToolExecutor]:
    """Provide an executor of these services' tools."""
    async with (
        Worker(list(services), url="memory://", namespace=namespace, concurrency=64),
        ToolBus("memory://", namespace=namespace) as bus,
    ):
        yield bus.executor(model="m", **options)


async def test_each_adapter_tells_a_model_the_same(way: str, namespace: str) -> None:
    """Results, failures, casts and refused arguments reach the model as the executor says them, whichever adapter runs it."""
    turns: list[Turn] = [[("add", {"a": 1, "b": "2"}), ("broken", {})], [("add", {"a": "x", "b": 1}), ("add", {"a": 1})], "done"]
    async with serving(Sums(), namespace=namespace, user="ada") as executor, playing(lambda _, turn: turns[turn]) as model:
        assert await WAYS[way](model, executor, "one") == "done"
        told = model.told()
        calls = {f"t{turn}c{index}": call for turn, each in enumerate(turns[:2]) for index, call in enumerate(each)}
        expected = [(await executor.process_tool_calls([{"name": name, "arguments": given}]))[0] for name, given in calls.values()]
    assert told == {call: message["content"] for call, message in zip(calls, expected, strict=True)}
    assert told["t0c0"] == "3 for ada"


async def test_a_turns_sequential_calls_run_in_the_models_order(way: str, namespace: str) -> None:
    """Calls of a sequential service run one by one, in the order of the model, also where a framework starts them at once."""
    names = [f"f{number}" for number in range(8)]
    turn: Turn = [call for name in names for call in (("mkdir", {"name": name}), ("cd", {"name": name}))]
    turns: list[Turn] = [turn, turn, "done"]
    desk = Desk()
    async with serving(desk, namespace=namespace) as executor, playing(lambda _, turn: turns[turn]) as model:
        assert await WAYS[way](model, executor, "one") == "done"
    once = [f"{what} {name}" for name in names for what in ("mkdir", "cd")]
    assert desk.log == once * 2
    assert desk.most == 1


async def test_other_calls_of_a_turn_run_together(way: str, namespace: str) -> None:
    """Calls of a service that is not sequential run at once."""
    turns: list[Turn] = [[("meet", {"count": 4})] * 4, "done"]
    async with serving(Sums(), namespace=namespace) as executor, playing(lambda _, turn: turns[turn]) as model:
        async with asyncio.timeout(60):
            assert await WAYS[way](model, executor, "one") == "done"


@pytest.mark.usefixtures("slow")
async def test_fifty_agents_at_once_each_get_their_own_answers(way: str, namespace: str) -> None:
    """Fifty agents on one bus, whose models give their calls the same ids, do not get each other's results."""

    def script(agent: str, turn: int) -> Turn:
        return [("add", {"a": int(agent), "b": turn})] * 2 if turn < 2 else f"done {agent}"

    agents = [str(number) for number in range(50)]
    async with serving(Sums(), namespace=namespace) as executor, playing(script) as model:
        answers = await asyncio.gather(*(WAYS[way](model, executor, agent) for agent in agents))
        assert answers == [f"done {agent}" for agent in agents]
        for agent in agents:
            assert set(model.told(agent).values()) == {f"{int(agent) + turn} for nobody" for turn in (0, 1)}


# A thread can't be cancelled.
@pytest.mark.parametrize("way", [each for each in WAYS if each != "langgraph in a thread"], indirect=True)
async def test_a_cancelled_run_ends_its_calls(way: str, namespace: str) -> None:
    """Cancelling an agent in the middle of a turn ends what runs for it, and the next agent is served."""
    sums, desk = Sums(), Desk()

    def script(agent: str, turn: int) -> Turn:
        if turn:
            return "done"
        return [("mkdir", {"name": "a"}), ("hang", {}), ("hang", {})] if agent == "one" else [("mkdir", {"name": "b"})]

    async with serving(sums, desk, namespace=namespace) as executor, playing(script) as model:
        running = asyncio.create_task(WAYS[way](model, executor, "one"))
        await eventually(lambda: sums.hanging == 2 and desk.log == ["mkdir a"])
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await eventually(lambda: sums.ended == 2)
        assert await WAYS[way](model, executor, "other") == "done"
    assert desk.log == ["mkdir a", "mkdir b"]


async def test_an_unknown_tool_is_an_answer(way: str, namespace: str) -> None:
    """A model that calls a tool that does not exist is told so, and its other calls run."""
    turns: list[Turn] = [[("ad", {"a": 1, "b": 2}), ("add", {"a": 1, "b": 2})], "done"]
    async with serving(Sums(), namespace=namespace) as executor, playing(lambda _, turn: turns[turn]) as model:
        assert await WAYS[way](model, executor, "one") == "done"
    told = model.told()
    assert told["t0c1"] == "3 for nobody"
    assert "ad" in told["t0c0"]
    assert "add" in told["t0c0"]


@pytest.mark.parametrize("way", ["chat", "responses", "openai-agents", "pydantic-ai"], indirect=True)
async def test_arguments_are_repaired_by_the_executor(way: str, namespace: str) -> None:
    """A model's text of arguments reaches the executor as it is: what is nearly JSON runs, and the model reads why the rest does not."""
    turns: list[Turn] = [[("add", "{'a': 1, 'b': 2,}"), ("add", ""), ("add", "[1]"), ("add", '{"a": 1, "b": ')], "done"]
    async with serving(Sums(), namespace=namespace) as executor, playing(lambda _, turn: turns[turn]) as model:
        assert await WAYS[way](model, executor, "one") == "done"
        texts = [text for _, text in turns[0]]
        expected = await executor.process_tool_calls([{"id": f"t0c{n}", "name": "add", "arguments": text} for n, text in enumerate(texts)])
    assert model.told() == {each["tool_call_id"]: each["content"] for each in expected}
    assert model.told()["t0c0"] == "3 for nobody"


async def test_pictures_reach_the_model(way: str, namespace: str) -> None:
    """A picture is an image part of the model's next request, and what it can't read is a mark in the text."""
    turns: list[Turn] = [[("draw", {})], "done"]
    async with serving(Sums(), namespace=namespace) as executor, playing(lambda _, turn: turns[turn]) as model:
        assert await WAYS[way](model, executor, "one") == "done"
    sent = json.dumps(model.bodies[-1])
    assert b64encode(png()).decode() in sent
    assert sent.count("image/png") >= 2
    assert "[attached: image/png, " in sent
    assert "[attached: text/x-note, 5 bytes]" in sent
