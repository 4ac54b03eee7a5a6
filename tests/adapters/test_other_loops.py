"""Adapters whose agents run in other event loops and threads than the bus."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from tests.adapters.scripted import Model, Turn, Way, by_langgraph, by_openai_agents, by_pydantic_ai, graph, playing
from tests.adapters.test_scripted import Desk, Sums, serving
from tests.servers import eventually
from toolbus import ConfigurationError, Settings, ToolBus, Worker
from toolbus.adapters import home
from toolbus.sync import ToolBus as SyncBus

pytestmark = pytest.mark.anyio

WAYS: dict[str, Way] = {"agents": by_openai_agents, "pydantic_ai": by_pydantic_ai, "langgraph": by_langgraph}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    """Provide each framework that is installed."""
    for package in (request.param, "openai"):
        pytest.importorskip(package)
    return WAYS[request.param]


def alone(way: Way, turns: list[Turn], executor: Any, agent: str = "one") -> tuple[str, dict[str, str]]:
    """Run an agent and its model in an event loop of this thread; return its answer and what its model was told."""

    async def run() -> tuple[str, dict[str, str]]:
        async with playing(lambda _, turn: turns[turn]) as model:
            return await way(model, executor, agent), model.told(agent)

    return asyncio.run(run())


async def test_an_agent_runs_in_another_event_loop_than_the_bus(way: Way, namespace: str) -> None:
    """Calls run in the bus's event loop, in the model's order, and the agent's loop gets their answers."""
    desk = Desk()
    turns: list[Turn] = [[("mkdir", {"name": "a"}), ("cd", {"name": "a"}), ("add", {"a": 1, "b": 2}), ("broken", {})], "done"]
    async with serving(desk, Sums(), namespace=namespace) as executor:
        answer, told = await asyncio.to_thread(alone, way, turns, executor)
    assert answer == "done"
    assert (told["t0c0"], told["t0c1"], told["t0c2"]) == ("made a", "/a", "3 for nobody")
    assert "Next:" in told["t0c3"]


@pytest.fixture
def bus(server: str, namespace: str) -> Iterator[SyncBus]:
    """Provide a synchronous bus, with a worker in a loop of its own."""
    settings = Settings.load({}, url=server, namespace=namespace)
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(portal.call(lambda: Worker([Desk(), Sums()], settings=settings, concurrency=64))),
        SyncBus(settings=settings) as made,
    ):
        made.wait_for_tool("add")
        made.wait_for_tool("mkdir")
        yield made


@pytest.mark.usefixtures("slow")
def test_an_agent_per_thread_shares_a_synchronous_bus(way: Way, bus: SyncBus) -> None:
    """Agents in event loops of their own, one in each thread, each get their own answers."""
    with ThreadPoolExecutor(8) as pool:
        runs = {
            number: pool.submit(alone, way, [[("add", {"a": number, "b": 1})] * 2, "done"], bus.executor(user=f"u{number}"))
            for number in range(16)
        }
        for number, run in runs.items():
            answer, told = run.result()
            assert (answer, set(told.values())) == ("done", {f"{number + 1} for u{number}"})


def test_synchronous_graphs_run_in_threads(bus: SyncBus) -> None:
    """LangGraph's invoke needs no event loop at all, and keeps the order of sequential calls in each thread."""
    pytest.importorskip("langgraph")
    names = [f"f{number}" for number in range(8)]
    turn: Turn = [call for name in names for call in (("mkdir", {"name": name}), ("cd", {"name": name}))]

    def run(model: Model, agent: str) -> dict[str, str]:
        state = graph(model, bus.executor(user=agent)).invoke({"messages": [("user", f"agent {agent}")]})
        assert state["messages"][-1].content == "done"
        return model.told(agent)

    async def play(agents: list[str]) -> list[dict[str, str]]:
        async with playing(lambda _, number: turn if number == 0 else "done") as model:
            return await asyncio.gather(*(asyncio.to_thread(run, model, agent) for agent in agents))

    for told in asyncio.run(play(["a", "b", "c", "d"])):
        assert [told[f"t0c{2 * number}"] for number in range(8)] == [f"made {name}" for name in names]
        assert all(told[f"t0c{2 * number + 1}"].endswith(names[number]) for number in range(8))


def test_a_tool_is_invoked_without_a_graph(bus: SyncBus) -> None:
    """A tool's invoke returns a message with the call's id, or the observation alone; a failure has the status error."""
    pytest.importorskip("langchain_core")
    from toolbus.adapters.langchain import structured_tools

    tools = {each.name: each for each in structured_tools(bus.executor())}
    message = tools["add"].invoke({"type": "tool_call", "id": "c1", "name": "add", "args": {"a": 1, "b": "2"}})
    assert (message.content, message.tool_call_id, message.artifact.success) == ("3 for nobody", "c1", True)
    assert tools["add"].invoke({"a": 1, "b": 2}) == "3 for nobody"
    assert tools["broken"].invoke({"type": "tool_call", "id": "c2", "name": "broken", "args": {}}).status == "error"
    assert len(repr(tools["add"])) < 2000


async def test_cancelling_in_another_loop_ends_the_call(way: Way, namespace: str) -> None:
    """An agent that is cancelled in its own event loop ends what runs for it in the bus's."""
    sums = Sums()
    turns: list[Turn] = [[("hang", {})], "done"]
    tasks: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]]] = []

    async def cancelled(executor: Any) -> bool:
        async with playing(lambda _, turn: turns[turn]) as model:
            task = asyncio.ensure_future(way(model, executor, "one"))
            tasks.append((asyncio.get_running_loop(), task))
            await asyncio.wait([task])
            return task.cancelled()

    async with serving(sums, namespace=namespace) as executor:
        running = asyncio.create_task(asyncio.to_thread(asyncio.run, cancelled(executor)))
        await eventually(lambda: sums.hanging == 1, timeout=30)
        loop, task = tasks[0]
        loop.call_soon_threadsafe(task.cancel)
        assert await running
        await eventually(lambda: sums.ended == 1, timeout=30)


async def test_closing_the_bus_ends_calls_of_other_loops(way: Way, namespace: str) -> None:
    """A bus that is closed meanwhile leaves no agent of another thread waiting."""
    sums = Sums()
    async with Worker([sums], url="memory://", namespace=namespace):
        async with ToolBus("memory://", namespace=namespace) as bus:
            running = asyncio.create_task(asyncio.to_thread(alone, way, [[("hang", {})], "done"], bus.executor()))
            await eventually(lambda: sums.hanging == 1, timeout=30)
        async with asyncio.timeout(60):
            (outcome,) = await asyncio.gather(running, return_exceptions=True)
    # The model is told, unless the framework asks the closed bus for its tools first.
    if isinstance(outcome, BaseException):
        assert "not open" in str(outcome)
    else:
        assert "cancelled" in outcome[1]["t0c0"]


async def test_waiting_for_the_own_event_loop_is_an_error(namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A synchronous call in the bus's own thread, or in one that this thread waits for, is told instead of waiting for ever."""
    pytest.importorskip("langgraph")
    from toolbus.adapters.langchain import structured_tools

    monkeypatch.setattr(home, "BEGIN_SECONDS", 0.2)
    async with serving(Sums(), namespace=namespace) as executor, playing(lambda _, turn: "done") as model:
        tools = {each.name: each for each in structured_tools(executor)}
        with pytest.raises(ConfigurationError, match="ainvoke"):
            tools["add"].invoke({"a": 1, "b": 2})
        outcome: list[BaseException] = []

        def invoke() -> None:
            try:
                tools["add"].invoke({"a": 1, "b": 2})
            except BaseException as error:
                outcome.append(error)

        thread = threading.Thread(target=invoke)
        thread.start()
        # As a synchronous graph does that is run in the bus's own thread.
        thread.join(30)
        assert isinstance(outcome[0], ConfigurationError)
        assert "ainvoke" in str(outcome[0])
        assert await by_langgraph(model, executor, "one") == "done"
