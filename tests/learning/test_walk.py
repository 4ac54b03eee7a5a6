"""A walk records where in the graph each call was made, and what the model was shown there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from toolbus import ToolBus, Worker, tool
from toolbus.bus.values.results import ConfigurationError, ToolkitError
from toolbus.toolkit import Toolkit, Walk, toolkit_of
from toolbus.toolkit.learning import Execution, Recorder, open_store
from toolbus.toolkit.presets import read_preset

pytestmark = pytest.mark.anyio

PRESET = b"""
name: walks
tools: [{id: ask, bus: walked_ask}, {id: rare, bus: walked_rare}, {id: gone, bus: walked_gone}, {id: tell, bus: walked_tell}]
groups: [{id: live, service: walks}, {id: fixed, tools: [rare]}]
actions:
  - {id: a, name: Ask, call: [ask, gone, {to: fixed, score: 0.2}], next: [{to: b, score: 0.6}, {to: c, score: 0.1}]}
  - {id: b, call: [live]}
  - {id: c, call: [tell]}
"""


def serve(name: str):
    """A tool of the service of the walks."""

    @tool(name, f"Walked {name}.", service="walks", effect="read", replace=True)
    async def walked() -> str:
        return name

    return walked


GRAPH = toolkit_of(read_preset(PRESET))


@asynccontextmanager
async def served() -> AsyncIterator[ToolBus]:
    """A bus with all tools but one."""
    tools = [serve(f"walked_{name}") for name in ("ask", "rare", "tell")]
    async with Worker(tools, url="memory://"), ToolBus("memory://") as bus:
        yield bus


async def recorded(folder: Path, walk_of, calls: list[str], graph: Toolkit = GRAPH) -> list[Execution]:
    """Make calls along a walk, as turns of one episode, and return what was recorded of them."""
    async with served() as bus:
        with open_store(folder / "log.jsonl") as store, Recorder(store, bus.events) as recorder:
            walk = walk_of(bus, recorder, graph)
            with walk.recording("a question"):
                for name in calls:
                    await bus.executor(tools=walk.view).execute(name)
                    walk.after([name])
            await bus.executor().execute("walked_tell")
        return [*open_store(folder / "log.jsonl").read()]


def plain(bus: ToolBus, recorder: Recorder, graph: Toolkit) -> Walk:
    """A walk from the first action."""
    return Walk(bus.tools, ["Ask"], toolkit=graph, recorder=recorder)


async def test_calls_are_recorded_with_their_edges(tmp_path: Path) -> None:
    """An edge is that to the tool or to its group; what was not shown is in no record, and calls after the episode are not recorded."""
    first, second = await recorded(tmp_path, plain, ["walked_ask", "walked_tell"])
    assert (first.action, first.tool, first.target, first.outcome) == ("a", "walked_ask", "ask", "success")
    assert (first.shown, first.next_shown, first.query) == ({"ask": 1.0}, {"b": 1.0}, "a question")
    assert (second.action, second.target, second.position, second.shown) == ("b", "live", 1, {"live": 1.0})
    assert first.episode == second.episode


async def test_an_unknown_tool_and_one_that_is_not_in_view_leave_no_record(tmp_path: Path) -> None:
    """They are of no edge."""
    assert await recorded(tmp_path, plain, ["nothing", "walked_gone"]) == []


@pytest.mark.usefixtures("slow")
async def test_tools_below_the_threshold_are_explored(tmp_path: Path) -> None:
    """With the probability 1 they are always shown; otherwise in that share of the episodes, and the record has the probability."""

    def exploring(bus: ToolBus, recorder: Recorder, graph: Toolkit) -> Walk:
        return Walk(bus.tools, ["a"], toolkit=graph, recorder=recorder, explore=1.0, hops=0)

    (found,) = await recorded(tmp_path, exploring, ["walked_rare"])
    assert (found.action, found.target, found.shown) == ("a", "fixed", {"ask": 1.0, "fixed": 1.0})
    async with served() as bus:
        walk = Walk(bus.tools, ["a"], toolkit=GRAPH, explore=0.25, hops=0)
        seen: list[bool] = []
        for _ in range(400):
            with walk.recording():
                views = [walk.view for _ in range(3)]
            assert len({"walked_rare" in view for view in views}) == 1
            seen.append("walked_rare" in views[0])
        assert 50 < sum(seen) < 150
        assert all("walked_ask" in view for view in views)


async def test_walks_at_the_same_time_are_kept_apart(tmp_path: Path) -> None:
    """Each call is recorded in its own walk's episode."""
    async with served() as bus:
        with open_store(tmp_path / "log.jsonl") as store, Recorder(store, bus.events) as recorder:

            async def ask(number: int) -> None:
                walk = plain(bus, recorder, GRAPH)
                with walk.recording(str(number)):
                    for name in ("walked_ask", "walked_tell"):
                        await bus.executor(tools=walk.view).execute(name)
                        walk.after([name])

            await asyncio.gather(*map(ask, range(20)))
        found = [*open_store(tmp_path / "log.jsonl").read()]
    assert sorted((each.query, each.position, each.target) for each in found) == sorted(
        (str(number), position, target) for number in range(20) for position, target in enumerate(("ask", "live"))
    )


async def test_mistakes_are_told(tmp_path: Path) -> None:
    """A share that is none, and a recorder that nobody started, are refused before anything is called."""
    async with served() as bus:
        with pytest.raises(ToolkitError, match="explore is 2"):
            Walk(bus.tools, ["a"], toolkit=GRAPH, explore=2)
        walk = plain(bus, Recorder(open_store(tmp_path / "log.jsonl"), bus.events), GRAPH)
        with pytest.raises(ConfigurationError, match="not running"), walk.recording("q"):
            pass
