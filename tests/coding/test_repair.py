"""Repairs: which tools count as failing, and that each gets one repair at a time and few a day."""

from __future__ import annotations

import msgspec
import pytest

from tests.contract import Place
from toolbus import ToolBus
from toolbus.bus.broker.protocols import Creation, CreationOverview, Spent
from toolbus.bus.broker.statistics.recent import RecentCall
from toolbus.platform.coding.options import CodingOptions
from toolbus.platform.coding.repair import Repairs, failed_everywhere, failing_calls
from toolbus.platform.records import RecordedTool, State, ToolMeta, ToolRoute, ToolSource
from toolbus.platform.states import costs_of
from toolbus.platform.store import Records

pytestmark = pytest.mark.anyio

TOOL = RecordedTool(
    meta=ToolMeta(tool_id="stitch", description="Stitch images."),
    sources=(ToolSource(type="local", host_dir="/tools/stitch"),),
    made_by="create_00000001",
)


def call(outcome: str = "succeeded", error: str = "", ended: float = 100.0) -> RecentCall:
    """An attempt of a call of the tool."""
    return RecentCall("c", tool="stitch", outcome=outcome, error=error, message="no such file", ended=ended)  # type: ignore[arg-type]


def test_a_tool_has_failed_when_every_host_has_given_it_up() -> None:
    """One host that can run it is enough."""
    failed = ToolRoute(tool_id="stitch", state="failed", last_error="it ended with 1")
    assert failed_everywhere(TOOL, [], []) is None
    assert failed_everywhere(TOOL, [failed, msgspec.structs.replace(failed, tool_id="other", state="running")], []).why.endswith(
        "it ended with 1"
    )
    assert failed_everywhere(TOOL, [failed, msgspec.structs.replace(failed, state="stopped")], []) is None


def test_a_share_of_calls_that_fail_by_the_tools_own_fault_counts() -> None:
    """Refused arguments, cancelled calls and those before the present form say nothing of it."""
    bad, good = call("failed", "tool_error"), call()
    options = {"since": 50.0, "share": 0.5, "least": 4}
    found = failing_calls(TOOL, [bad, bad, bad, good], **options)
    assert found.why == "3 of its last 4 calls failed"
    assert found.calls == ("tool_error: no such file",)
    assert failing_calls(TOOL, [bad, bad, good, good], **options) is None
    assert failing_calls(TOOL, [bad, bad, bad], **options) is None
    assert failing_calls(TOOL, [call("failed", "invalid_arguments")] * 9, **options) is None
    assert failing_calls(TOOL, [call("cancelled", "cancelled")] * 9, **options) is None
    assert failing_calls(TOOL, [call("failed", "tool_error", ended=10.0)] * 9, **options) is None


async def _has(bus: ToolBus, tool: RecordedTool, state: State) -> None:
    """Record a tool, and tell where it runs."""
    await Records(bus).put(tool)
    route = ToolRoute(tool_id=tool.tool_id, state=state, last_error="it ended with 1")
    await bus.routes.renew("host", 60.0, changed={tool.tool_id: msgspec.json.encode(route)})
    await bus.tools.catalogue.wait(lambda: f"recorded/{tool.tool_id}" in bus.tools.catalogue.documents.by_key)


async def test_a_failing_tool_gets_one_repair_at_a_time_and_few_a_day(place: Place) -> None:
    """However many workers look; none while a repaired form waits for approval."""
    options = CodingOptions(repair=True, repairs_a_day=2)
    async with place.bus(role="operator") as bus, place.bus(role="operator") as other:
        first = await bus.creations.submit("stitch images")
        await _has(bus, msgspec.structs.replace(TOOL, made_by=first.id), "failed")
        await other.tools.catalogue.wait(lambda: "recorded/stitch" in other.tools.catalogue.documents.by_key)
        watchers = [Repairs(each, options, 60.0) for each in (bus, other)]
        assert await bus.creations.cancel(first.id) == "cancelled"
        [task] = await watchers[0].look()
        assert await watchers[1].look() == []
        found = await bus.creations.get(task)
        assert found.about == "stitch"
        assert "it ended with 1" in found.spec
        assert "stitch images" in found.spec
        await bus.creations.cancel(task)
        [second] = await watchers[1].look()
        assert second != task
        await bus.creations.cancel(second)
        assert await watchers[0].look() == []


async def test_others_tools_and_healthy_ones_are_left_alone(place: Place) -> None:
    """Only what a coding agent wrote is repaired, and not while its repaired form waits."""
    async with place.bus(role="operator") as bus:
        watcher = Repairs(bus, CodingOptions(repair=True), 60.0)
        await _has(bus, msgspec.structs.replace(TOOL, made_by="import"), "failed")
        assert await watcher.look() == []
        await _has(bus, TOOL, "stopped")
        await Records(bus).put(TOOL, pending=True)
        await bus.tools.catalogue.wait(lambda: "pending/stitch" in bus.tools.catalogue.documents.by_key)
        await _has(bus, TOOL, "failed")
        assert await watcher.look() == []


def test_the_costs_of_tasks_are_told_by_tool() -> None:
    """A repair counts for the tool that it is about, a task that failed for none."""
    task = Creation(
        id="create_1", status="done", spec="s", by="alice", result='{"tool_id":"stitch"}', created=9e9, spent=Spent(10, 5, 1_500_000)
    )
    repair = msgspec.structs.replace(task, id="create_2", about="stitch", by="repair", status="running", created=9.1e9)
    failed = msgspec.structs.replace(task, id="create_3", status="failed", result="no")
    old = msgspec.structs.replace(task, id="create_4", created=1.0)
    odd = msgspec.structs.replace(task, id="create_5", result='{"tool_id":5}')
    found = costs_of(CreationOverview([repair], [], [task, failed, old, odd]), 1)
    assert [(each.tool, each.task, each.user) for each in found] == [
        ("", "create_3", "alice"), ("", "create_5", "alice"), ("stitch", "create_1", "alice"), ("stitch", "create_2", "repair"),
    ]  # fmt: skip
    assert (found[2].prompt_tokens, found[2].completion_tokens, found[2].price) == (10, 5, 1.5)
