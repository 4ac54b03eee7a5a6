"""The state of recorded tools over all hosts, and the document of the system's status."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec
import pytest

from tests.records.made import recorded
from tests.servers import eventually
from toolbus import ToolBus
from toolbus.agent.history import HeldConversation
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.protocols import CHAT, Messenger
from toolbus.bus.values.settings import Settings
from toolbus.edges.gateway.options import Principal
from toolbus.edges.gateway.supply import Supply
from toolbus.platform.records import BackendRuntime, State, ToolRoute
from toolbus.platform.states import get_system_status, states_of
from toolbus.platform.store import LiveRecords, Records

pytestmark = pytest.mark.anyio

TOOLS = {name: recorded(name) for name in ("a", "b", "c")}


@pytest.fixture
async def bus(server: str, namespace: str) -> AsyncIterator[ToolBus]:
    """A bus."""
    async with ToolBus(settings=Settings(url=server, namespace=namespace)) as made:
        yield made


async def tell(bus: ToolBus, host: str, **states: State) -> None:
    """Keep a host's routes for a minute."""
    routes = {
        tool: msgspec.json.encode(ToolRoute(tool_id=tool, state=state, host=host, pid=5, instances=int(state == "running")))
        for tool, state in states.items()
    }
    await bus.routes.renew(host, 60, changed=routes)


async def stored(bus: ToolBus) -> Records:
    """Record the three tools, and wait until the bus has heard of them."""
    records = Records(bus)
    await records.put_all(list(TOOLS.values()))
    async with asyncio.timeout(30):
        await bus.tools.catalogue.wait(lambda: len(bus.tools.catalogue.documents.by_key) == len(TOOLS))
    return records


async def test_the_best_state_of_all_hosts_counts(bus: ToolBus) -> None:
    """A tool that runs somewhere runs; one without a host is stopped; a route that can't be read is none."""
    await tell(bus, "h1", a="failed", b="stopped", c="failed")
    await tell(bus, "h2", a="running", b="starting", z="running")
    await bus.routes.renew("h3", 60, changed={"c": b"{"})
    found = await states_of(bus, {**TOOLS, "d": recorded("d")})
    assert {name: each.state for name, each in found.items()} == {"a": "running", "b": "starting", "c": "failed", "d": "stopped"}
    assert (found["a"].host, found["a"].hosts, found["a"].pid, found["a"].instances) == ("h2", ("h1", "h2"), 5, 1)
    assert found["a"].source == "local"


async def test_the_status_is_one_document(bus: ToolBus) -> None:
    """Of recorded tools, tasks and chats; with nothing in it, it has the same form."""
    records = Records(bus)
    assert await get_system_status(bus, await records.all()) == {
        "tools": {"total": 0, "active": 0},
        "coding_agent": {"running_count": 0, "running_task_ids": [], "queued_count": 0, "recent_tasks": []},
        "service_agent": {"total_windows": 0, "im_connected": False, "windows": []},
    }
    await stored(bus)
    await records.put(recorded("c", status="inactive"))
    async with asyncio.timeout(30):
        live = LiveRecords(bus)
        await bus.tools.catalogue.wait(lambda: live.snapshot().tools["c"].meta.status == "inactive")
    first, submitted = await bus.creations.submit("make a"), time.time_ns() // 1_000_000
    # Tasks of one millisecond have no order.
    await eventually(lambda: time.time_ns() // 1_000_000 > submitted + 1, interval=0.001)
    second = await bus.creations.submit("make b")
    claimed = await bus.creations.claim("w")
    assert claimed is not None
    await bus.chats.tell(Messenger("im", connected=True, windows=("one",)), 60)
    for chat in ("one", "two"):
        async with HeldConversation(bus._dispatcher.opened().broker.steps.conversations, "", f"{CHAT}{chat}") as held:
            await held.append(b"{}", keep=0)
    found = await get_system_status(bus, await records.all())
    assert found["tools"] == {"total": 3, "active": 2}
    assert found["coding_agent"] == {
        "running_count": 1,
        "running_task_ids": [first.id],
        "queued_count": 1,
        "recent_tasks": [
            {"task_id": first.id, "status": "running", "task_spec": "make a"},
            {"task_id": second.id, "status": "queued", "task_spec": "make b"},
        ],
    }
    assert (found["service_agent"]["total_windows"], found["service_agent"]["im_connected"]) == (2, True)
    windows = {each["chat_id"]: each for each in found["service_agent"]["windows"]}
    assert windows["one"] == {"chat_id": "one", "session_id": f"{CHAT}one", "has_im_window": True}
    assert windows["two"]["has_im_window"] is False


async def test_a_gateway_lists_recorded_tools_that_nobody_serves(bus: ToolBus) -> None:
    """With their state, their runtime's name and their fields, to those who may see them."""
    records = await stored(bus)
    await records.put(BackendRuntime(backend_runtime="local", name="On this machine"))
    await tell(bus, "h1", a="starting")
    async with asyncio.timeout(30):
        await bus.tools.catalogue.wait(lambda: len(bus.tools.catalogue.documents.by_key) == 1 + len(TOOLS))
    supply = Supply(bus)
    found = await supply.of(Principal("me"))
    assert [(each["tool_id"], each["state"]) for each in found["tools"]] == [("a", "starting"), ("b", "stopped"), ("c", "stopped")]
    assert found["backend_runtimes"] == [{"backend_runtime": "local", "name": "On this machine", "tool_count": 3}]
    assert found["tools"][0]["stream_support"] is False
    few = await supply.of(Principal("other", tools=frozenset({"b"})))
    assert [each["tool_id"] for each in few["tools"]] == ["b"]
    assert (await supply.of(Principal("none", groups=frozenset({"x"}))))["tools"] == []


async def test_an_operator_reads_the_same(server: str, namespace: str) -> None:
    """``Admin`` has all that the status is made of."""
    async with Admin(Settings(url=server, namespace=namespace)) as admin:
        await Records(admin).put(recorded("a"))
        found = await Records(admin).all()
        assert (await get_system_status(admin, found))["tools"] == {"total": 1, "active": 1}
        assert (await states_of(admin, found.tools))["a"].state == "stopped"
