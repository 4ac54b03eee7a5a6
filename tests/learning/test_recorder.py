"""Recording what executors do, over real turns."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.learning.samples import execution
from tests.servers import eventually
from toolbus import ConfigurationError, ToolBus, ToolError, ToolResult, Worker, tool
from toolbus.bus.client.executor.observers import ToolEvent
from toolbus.bus.values.events import Finished
from toolbus.toolkit.learning import Execution, Recorder, RecordError, open_store
from toolbus.toolkit.learning.stores import JsonlStore

pytestmark = pytest.mark.anyio


@tool(service="recorded", effect="read")
async def count(month: str) -> int:
    """Count orders."""
    return len(month)


@tool(service="recorded", effect="read")
async def broken() -> str:
    """Fail."""
    raise ToolError("no such table")


@tool(service="recorded", effect="read")
async def hang() -> str:
    """Hang."""
    await asyncio.sleep(60)
    return ""


TOOLS = [count, broken, hang]


def asked(*names: str) -> list[dict[str, Any]]:
    """A turn's calls, with good arguments."""
    inputs = {"count": {"month": "March"}}
    return [{"id": f"c{index}", "name": name, "input": inputs.get(name, {}), "type": "tool_use"} for index, name in enumerate(names)]


async def test_calls_are_recorded_with_their_place(tmp_path: Path, server: str, namespace: str) -> None:
    """Each call of a turn becomes a record of its action with outcome, time and propensities; calls outside of actions become none."""
    store = open_store(tmp_path / "log.jsonl")
    async with Worker(TOOLS, url=server, namespace=namespace), ToolBus(server, namespace=namespace) as bus:
        await bus.wait_for_tool("count")
        executor = bus.executor()
        with Recorder(store, bus.events) as recorder:
            episode = recorder.episode("How many orders in March?", id="e1")
            with episode.action("count orders", shown={"count": 0.5, "broken": 1.0}, next_shown={"report": 0.9}, revision="0001-abcdef01"):
                await executor.process_tool_calls(asked("count", "broken", "missing"), concurrent=False)
            await executor.execute("count", {"month": "May"})
            with episode.action("report"):
                await executor.execute("count", {"month": "May"})
        await executor.execute("count", {"month": "May"})
    first, second, third = store.read()
    assert (first.episode, first.position, first.action, first.tool, first.outcome) == ("e1", 0, "count orders", "count", "success")
    assert (first.shown, first.next_shown, first.revision) == ({"count": 0.5, "broken": 1.0}, {"report": 0.9}, "0001-abcdef01")
    assert (first.query, first.ms > 0, first.at > 1.7e9) == ("How many orders in March?", True, True)
    assert (second.tool, second.outcome, second.position) == ("broken", "failure", 1)
    assert (third.action, third.position, third.shown) == ("report", 2, {})


async def test_episodes_at_the_same_time_do_not_mix(tmp_path: Path) -> None:
    """Turns of many episodes run together on one bus, and each record has its own episode and action."""
    store = open_store(tmp_path / "log.db")
    async with Worker(TOOLS, url="memory://"), ToolBus("memory://") as bus:
        await bus.wait_for_tool("count")
        with Recorder(store, bus.events) as recorder:

            async def one(number: int) -> None:
                with recorder.episode(id=f"e{number}").action(f"action {number}"):
                    await bus.executor(session=str(number)).process_tool_calls(asked("count", "broken"))

            await asyncio.gather(*(one(number) for number in range(20)))
    with store:
        found = [*store.read()]
    assert sorted((each.episode, each.action, each.position) for each in found) == sorted(
        (f"e{number}", f"action {number}", position) for number in range(20) for position in range(2)
    )


async def test_a_cancelled_call_says_nothing_of_its_tool(tmp_path: Path) -> None:
    """Leaving a turn early records its call as cancelled, which is not conclusive."""
    store = open_store(tmp_path / "log.jsonl")
    async with Worker(TOOLS, url="memory://"), ToolBus("memory://") as bus:
        await bus.wait_for_tool("hang")
        with Recorder(store, bus.events) as recorder, recorder.episode().action("wait"):
            async with bus.executor().stream_tool_calls([{"id": "c", "name": "hang", "input": {}, "type": "tool_use"}]) as turn:
                await anext(aiter(turn))
    (found,) = store.read()
    assert (found.tool, found.outcome, found.conclusive) == ("hang", "cancelled", False)


def test_a_place_that_cannot_be_recorded_is_refused_at_once(tmp_path: Path) -> None:
    """A propensity of 0 is an error where it is given, not a lost record later; a recorder runs once at a time."""
    recorder = Recorder(open_store(tmp_path / "log.jsonl"))
    with pytest.raises(RecordError, match=r"\$\.shown"), recorder.episode().action("count", shown={"sql": 0.0}):
        pytest.fail("the action began")
    with recorder, pytest.raises(ConfigurationError, match="in use"), recorder:
        pytest.fail("it was entered twice")


class _Slow(JsonlStore):
    """A store that waits until it may write, and then refuses."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.may = threading.Event()
        self.asked = threading.Event()

    def append(self, executions: Iterable[Execution]) -> int:
        self.asked.set()
        assert self.may.wait(30)
        raise ConfigurationError("the disk is full")


async def test_a_store_that_fails_costs_calls_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Observing returns at once while the store hangs; what does not fit or is refused is counted and logged."""
    monkeypatch.setattr("toolbus.toolkit.learning.recorder.WAITING", 3)
    store = _Slow(tmp_path / "log.jsonl")
    with caplog.at_level(logging.WARNING, "toolbus"), Recorder(store) as recorder, recorder.episode().action("count"):
        event = ToolEvent("c", "count", 0, Finished(ToolResult.ok(1)))
        recorder.observe(event)
        await eventually(store.asked.is_set)
        for _ in range(5):
            recorder.observe(event)
        assert recorder.dropped == 2
        store.may.set()
    assert recorder.dropped == 6
    assert {record.message.split()[0] for record in caplog.records} == {"executions.dropped"}


def test_a_tool_with_an_impossible_name_costs_only_its_own_record(tmp_path: Path) -> None:
    """A record that can't be written is dropped, and its neighbours are kept."""
    store = open_store(tmp_path / "log.jsonl")
    with Recorder(store) as recorder, recorder.episode().action("count"):
        for name in ("count", "n" * 300, "sum"):
            recorder.observe(ToolEvent("c", name, 0, Finished(ToolResult.ok(1))))
    assert [each.tool for each in store.read()] == ["count", "sum"]
    assert recorder.dropped == 1
    assert execution().conclusive
