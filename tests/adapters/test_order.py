"""The order of sequential calls, where a framework's own hooks let them overtake each other."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.adapters.scripted import WAYS, Turn, by_openai_agents, by_pydantic_ai, graph, playing
from tests.adapters.test_scripted import PACKAGES, Desk, Sums, serving
from tests.servers import eventually
from toolbus import ToolBus, ToolService, Worker, invocation, tool
from toolbus.bus.client.executor.executor import ToolExecutor

pytestmark = pytest.mark.anyio

NAMES = [f"f{number}" for number in range(6)]
CALLS: Turn = [call for name in NAMES for call in (("mkdir", {"name": name}), ("cd", {"name": name}))]
LOG = [f"{what} {name}" for name in NAMES for what in ("mkdir", "cd")]
TURNS: list[Turn] = [CALLS, CALLS, "done"]


class Hooks:
    """Hooks that let the later calls of a turn overtake the earlier ones."""

    def __init__(self) -> None:
        self._turns = itertools.cycle(reversed(range(len(CALLS))))

    async def wait(self) -> None:
        """Wait, each call less than the one before it."""
        await asyncio.sleep(0.02 * next(self._turns))


@pytest.mark.usefixtures("slow")
async def test_hooks_of_the_agents_sdk_change_no_order(namespace: str) -> None:
    """Calls keep the model's order though hooks of earlier ones take longer."""
    pytest.importorskip("agents")
    from agents import RunHooks

    hooks, desk = Hooks(), Desk()

    class Waiting(RunHooks[Any]):
        async def on_tool_start(self, *_: Any) -> None:
            await hooks.wait()

    async with serving(desk, namespace=namespace) as executor, playing(lambda _, turn: TURNS[turn]) as model:
        assert await by_openai_agents(model, executor, "one", hooks=Waiting()) == "done"
    assert desk.log == LOG * 2


@pytest.mark.usefixtures("slow")
async def test_a_hook_that_fails_holds_up_nothing(namespace: str) -> None:
    """A call that a hook of the Agents SDK has ended leaves its place, and the next agent is served."""
    pytest.importorskip("agents")
    from agents import RunHooks

    desk = Desk()

    class Failing(RunHooks[Any]):
        async def on_tool_start(self, *_: Any) -> None:
            raise RuntimeError("the hook is broken")

    async with serving(desk, namespace=namespace) as executor, playing(lambda _, turn: TURNS[turn]) as model:
        with pytest.raises(Exception, match="the hook is broken"):
            await by_openai_agents(model, executor, "one", hooks=Failing())
        async with asyncio.timeout(30):
            assert await by_openai_agents(model, executor, "other") == "done"
    assert desk.log == LOG * 2


async def test_wrapped_toolsets_of_pydantic_ai_change_no_order(namespace: str) -> None:
    """Calls keep the model's order though what is wrapped around the toolset takes longer for earlier ones."""
    pytest.importorskip("pydantic_ai")
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.toolsets import WrapperToolset

    from toolbus.adapters.pydantic_ai import BusToolset

    hooks, desk = Hooks(), Desk()

    class Waiting(WrapperToolset[Any]):
        async def call_tool(self, *given: Any) -> Any:
            await hooks.wait()
            return await super().call_tool(*given)

    async with serving(desk, namespace=namespace) as executor, playing(lambda _, turn: TURNS[turn]) as model:
        played = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=model.openai))
        agent: Any = Agent(played, toolsets=[Waiting(BusToolset(executor))])
        assert (await agent.run("agent one")).output == "done"
    assert desk.log == LOG * 2


async def test_wrapped_calls_of_langgraph_change_no_order(namespace: str) -> None:
    """Calls keep the model's order though what is wrapped around a ToolNode's calls takes longer for earlier ones."""
    pytest.importorskip("langgraph")
    hooks, desk = Hooks(), Desk()

    async def waiting(request: Any, execute: Any) -> Any:
        await hooks.wait()
        return await execute(request)

    async with serving(desk, namespace=namespace) as executor, playing(lambda _, turn: TURNS[turn]) as model:
        program = graph(model, executor, awrap_tool_call=waiting)
        state = await program.ainvoke({"messages": [("user", "agent one")]})
    assert state["messages"][-1].content == "done"
    assert desk.log == LOG * 2


@pytest.mark.usefixtures("slow")
async def test_a_call_that_langgraph_answers_itself_holds_up_nothing(namespace: str) -> None:
    """A wrapper that answers a call instead of running it delays those after it for a moment only."""
    pytest.importorskip("langgraph")
    from langchain_core.messages import ToolMessage

    desk = Desk()

    async def answering(request: Any, execute: Any) -> Any:
        if request.tool_call["name"] == "mkdir":
            return ToolMessage("not allowed", tool_call_id=request.tool_call["id"], name="mkdir")
        return await execute(request)

    turns: list[Turn] = [[("mkdir", {"name": "a"}), ("cd", {"name": "a"})], "done"]
    async with serving(desk, namespace=namespace) as executor, playing(lambda _, turn: turns[turn]) as model:
        async with asyncio.timeout(30):
            state = await graph(model, executor, awrap_tool_call=answering).ainvoke({"messages": [("user", "agent one")]})
    assert "there is no a" in state["messages"][-2].content
    assert desk.log == ["cd a"]


async def test_a_graph_that_runs_its_calls_again_is_served(namespace: str) -> None:
    """A ToolNode that gets the same message once more, as after an interrupt, runs its calls in order again."""
    pytest.importorskip("langgraph")
    from langchain_core.messages import AIMessage
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    from toolbus.adapters.langchain import structured_tools

    desk = Desk()
    calls = [{"type": "tool_call", "id": f"c{n}", "name": name, "args": given} for n, (name, given) in enumerate(CALLS)]
    message = AIMessage("", tool_calls=calls)
    async with serving(desk, namespace=namespace) as executor:
        node = ToolNode(structured_tools(executor))
        program: Any = StateGraph(MessagesState).add_node("tools", node).add_edge(START, "tools").compile()
        for _ in range(3):
            await asyncio.to_thread(program.invoke, {"messages": [message]})
    assert desk.log == LOG * 3


async def test_a_run_cancelled_in_the_middle_of_a_sequential_turn_frees_it(namespace: str) -> None:
    """Calls that waited for their turn when their agent was cancelled never run, and the next agent does not wait for them."""
    pytest.importorskip("agents")
    sums, desk = Sums(), Desk()

    def script(agent: str, turn: int) -> Turn:
        if turn:
            return "done"
        return [("hang", {}), ("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})] if agent == "one" else [("add", {"a": 5, "b": 6})]

    names = ["hang", "add"]
    async with serving(sums, desk, namespace=namespace, sequential=names) as executor, playing(script) as model:
        for way in (by_openai_agents, by_pydantic_ai):
            running = asyncio.create_task(way(model, executor, "one"))
            await eventually(lambda: sums.hanging > sums.ended)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            async with asyncio.timeout(30):
                assert await way(model, executor, "other") == "done"
            assert model.told("other")["t0c0"] == "11 for nobody"
    assert model.told("one") == {}


class Walk(ToolService):
    """Walks through folders, each session at a place of its own; nothing is declared about its order."""

    id = "walk"
    sticky_sessions = True

    def __init__(self) -> None:
        self.steps: dict[str, list[str]] = {}

    @tool(effect="once")
    async def step(self, to: str, seconds: float = 0.0) -> str:
        """Go on to a folder."""
        await asyncio.sleep(seconds)
        steps = self.steps.setdefault(invocation().session, [])
        steps.append(to)
        return "/".join(steps)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("way", WAYS)
async def test_calls_of_a_sticky_session_run_in_the_models_order(way: str, namespace: str) -> None:
    """By default a session's calls run one after another in the model's order, through every adapter."""
    for package in (PACKAGES[way], "openai"):
        pytest.importorskip(package)
    count = 8
    calls: Turn = [("step", {"to": str(number), "seconds": 0.02 * (count - number)}) for number in range(count)]
    walk = Walk()

    async def run(executor: ToolExecutor) -> dict[str, str]:
        async with playing(lambda _, turn: calls if turn < 2 else "done") as model:
            assert await WAYS[way](model, executor, "one") == "done"
            return model.told()

    async with (
        Worker(walk, url="memory://", namespace=namespace, concurrency=32),
        ToolBus("memory://", namespace=namespace) as bus,
    ):
        sessions = ["a", "b"]
        told = await asyncio.gather(*(run(bus.executor(session=each, user="u")) for each in sessions))
    expected = [str(number) for number in range(count)] * 2
    assert walk.steps == dict.fromkeys(sessions, expected)
    for each in told:
        assert each["t1c7"] == "/".join(expected)


async def test_a_place_is_left_when_the_bus_was_closed_before(namespace: str) -> None:
    """A run of the Agents SDK may outlive the bus; the one that is opened next is not held up."""
    pytest.importorskip("agents")
    from toolbus.adapters.openai_agents import function_tools

    @tool(service="orders", effect="read")
    async def order(amount: int) -> str:
        """Order."""
        return f"{amount} ordered"

    bus, over, context = ToolBus("memory://", namespace=namespace), asyncio.Event(), Desk()
    async with Worker([order], url="memory://", namespace=namespace):
        async with bus:
            await bus.wait_for_tool("order")
            executor = bus.executor(sequential=["order"])
            [guardrail] = function_tools(executor)[0].tool_input_guardrails or []

            async def run() -> None:
                await guardrail.guardrail_function(cast("Any", SimpleNamespace(context=context)))
                over.set()
                await asyncio.Event().wait()

            running = asyncio.create_task(run())
            await asyncio.wait_for(over.wait(), 5)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        async with bus:
            await bus.wait_for_tool("order")
            assert (await asyncio.wait_for(executor.execute("order", {"amount": 1}), 5)).output == "1 ordered"
