"""Lists of tools: what is in them, their pages, and who hears that they change."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from tests.mcp.conftest import listed
from tests.mcp.site import MODERN, Raw, Site
from tests.servers import eventually
from toolbus import ToolBus, ToolService, Worker
from toolbus.edges.mcp.listing import PAGE, page_of

pytestmark = pytest.mark.anyio


@pytest.mark.usefixtures("slow")
async def test_a_tool_says_what_it_does(raw: Raw) -> None:
    """Effects become hints, names fit MCP's alphabet, and lists may be kept for a while by one caller."""
    found = await raw.ask("tools/list")
    tools = {tool["name"]: tool for tool in found["tools"]}
    assert tools["echo"]["annotations"] == {"readOnlyHint": True, "idempotentHint": True, "destructiveHint": False}
    assert tools["pay"]["annotations"] == {"readOnlyHint": False, "idempotentHint": False}
    (named,) = [name for name in tools if name.startswith("m_t_o_paris--")]
    assert tools[named]["annotations"] == {"readOnlyHint": False, "idempotentHint": True}
    assert tools["add"]["outputSchema"]["required"] == ["sum"]
    assert tools["echo"]["inputSchema"]["required"] == ["text"]
    assert found["cacheScope"] == "private"
    assert found["ttlMs"] > 0
    assert sorted(tools) == [tool["name"] for tool in found["tools"]]
    assert (await raw.call(named))["content"][0]["text"] == "rain"


@pytest.mark.usefixtures("slow")
async def test_a_caller_sees_its_own_tools(url: str) -> None:
    """A tool for one tenant is neither listed nor called by another, who is told what anybody is told of no tool."""
    async with Raw(url, "alice") as alice, Raw(url, "bob") as bob:
        assert "secret_of_alice" in [tool["name"] for tool in (await alice.ask("tools/list"))["tools"]]
        assert "secret_of_alice" not in [tool["name"] for tool in (await bob.ask("tools/list"))["tools"]]
        assert (await alice.call("secret_of_alice"))["content"][0]["text"] == "hers"
        assert await bob.call("secret_of_alice") == {"code": -32602, "message": "Unknown tool: secret_of_alice"}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_real_clients_list(url: str, mode: Any) -> None:
    """The Python SDK and FastMCP list the tools; a client of an older revision is spared schemas that it can't read."""
    from fastmcp import Client as FastClient

    async with Client(url, mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert client.protocol_version == (MODERN if mode == "auto" else "2025-11-25")
        assert (tools["numbers"].output_schema is None) is (mode == "legacy")
    async with FastClient(url) as fast:
        assert {tool.name for tool in await fast.list_tools()} == set(tools)


@pytest.mark.usefixtures("slow")
async def test_pages_hold_every_tool_once(namespace: str) -> None:
    """A list of many pages has each tool once, in order; a cursor that is none of ours is refused."""
    described = [{"name": f"tool_{number:04}", "description": "One of many.", "arguments": []} for number in range(2 * PAGE + 7)]

    class Many(ToolService):
        id = "many"
        tools = described  # type: ignore[assignment]

        async def invoke(self, user: str, config: Any, arguments: Any) -> str:
            return ""

    place = {"url": "memory://", "namespace": namespace}
    async with Worker([Many()], **place), ToolBus(**place) as bus:
        names: list[str] = []
        pages, cursor = 0, None
        while pages == 0 or cursor is not None:
            page = page_of(bus.tools, cursor, modern=True)
            names += [tool["name"] for tool in page["tools"]]
            pages, cursor = pages + 1, page.get("nextCursor")
        assert pages == 3
        assert names == sorted(str(tool["name"]) for tool in described)
        for wrong in ("", "x", "YWZ0ZXI=", "é", "A" * 10_000):
            with pytest.raises(MCPError, match="cursor"):
                page_of(bus.tools, wrong, modern=True)


@pytest.mark.usefixtures("slow")
async def test_changes_reach_every_replica(site: Site, url: str, urls: list[str]) -> None:
    """A worker that starts, and one that leaves, is heard of by the subscribers of both gateways, in both revisions."""
    (site.folder / "late.py").write_text('from toolbus import tool\n@tool\ndef late() -> str:\n    "Come late."\n    return ""\n')
    heard: list[str] = []
    quiet: list[str] = []

    async def older(message: Any) -> None:
        heard.append(f"older {getattr(message, 'method', '')}")

    async def stranger(message: Any) -> None:
        quiet.append(getattr(message, "method", ""))

    add = heard.append

    async def follow(url: str, name: str) -> None:
        async with Client(url) as client, client.listen(tools_list_changed=True) as events:
            heard.append(f"{name} listens")
            async for _ in events:
                add(name)

    async with (
        Client(urls[0], mode="legacy", message_handler=older),
        Client(urls[0], mode="legacy", message_handler=stranger) as other,
        anyio.create_task_group() as group,
    ):
        await other.call_tool("echo", {"text": "x"})
        group.start_soon(follow, urls[0], "first")
        group.start_soon(follow, urls[1], "second")
        await eventually(lambda: {"first listens", "second listens"} <= set(heard), timeout=20)
        worker = site.worker("late.py")
        await eventually(lambda: {"first", "second", "older notifications/tools/list_changed"} <= set(heard), timeout=30)
        await listed(urls[1], "late")
        heard.clear()
        worker.terminate()
        worker.wait()
        await eventually(lambda: {"first", "second", "older notifications/tools/list_changed"} <= set(heard), timeout=30)
        await listed(urls[0], "late", there=False)
        group.cancel_scope.cancel()


@pytest.mark.usefixtures("slow")
async def test_nobody_hears_of_tools_that_they_do_not_see(site: Site, url: str) -> None:
    """A subscriber hears nothing of another tenant's tools."""
    (site.folder / "hers.py").write_text(
        'from toolbus import tool\n@tool(tenants=["alice"])\ndef hers() -> str:\n    "Hers."\n    return ""\n'
    )
    lines: dict[str, list[str]] = {"alice": [], "bob": []}

    async def follow(user: str) -> None:
        async with Raw(url, user) as raw:
            headers, body = raw.request("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            async with raw.http.stream("POST", url, headers=headers, json=body, timeout=None) as answer:
                async for line in answer.aiter_lines():
                    lines[user].append(line)

    tasks = [asyncio.create_task(follow(user)) for user in lines]
    await eventually(lambda: all("acknowledged" in "".join(each) for each in lines.values()), timeout=20)
    worker = site.worker("hers.py")
    await eventually(lambda: "list_changed" in "".join(lines["alice"]), timeout=30)
    worker.terminate()
    worker.wait()
    (site.folder / "all.py").write_text('from toolbus import tool\n@tool\ndef of_all() -> str:\n    "Of all."\n    return ""\n')
    assert "list_changed" not in "".join(lines["bob"])
    worker = site.worker("all.py")
    await eventually(lambda: "list_changed" in "".join(lines["bob"]), timeout=30)
    worker.terminate()
    worker.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
