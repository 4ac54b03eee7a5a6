"""The reference server of the protocol's authors, mounted on the bus: it answers as it does directly.

``npm install @modelcontextprotocol/server-everything`` anywhere, and TOOLBUS_TEST_EVERYTHING names its program.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import CallToolResult

from tests.contract import Place
from tests.servers import eventually
from toolbus import Progress, ToolResult
from toolbus.edges.mounts import Command, MountedServer, serve
from toolbus.edges.mounts.answers import result_of
from toolbus.edges.mounts.options import environment_for

pytestmark = pytest.mark.anyio

PROGRAM = os.environ.get("TOOLBUS_TEST_EVERYTHING") or shutil.which("mcp-server-everything")
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("echo", {"message": "héllo"}),
    ("get-sum", {"a": 2, "b": 40}),
    ("get-tiny-image", {}),
    ("get-annotated-message", {"messageType": "error", "includeImage": True}),
    ("get-structured-content", {"location": "Chicago"}),
    ("get-resource-links", {"count": 3}),
    ("get-resource-reference", {"resourceType": "Text", "resourceId": 1}),
]


def alike(result: ToolResult) -> Any:
    """The part that two answers have in common: all but the time of day, which is in some."""
    return re.sub(r"\d+:\d+:\d+", "", result.output or ""), result.data, result.content, result.success


@pytest.mark.skipif(PROGRAM is None, reason="npm's @modelcontextprotocol/server-everything is not installed; see above")
async def test_the_reference_server_answers_as_it_does_directly(valkey: Place) -> None:
    """Its tools are listed with their schemas, and its answers, progress, failures and resources are the same behind the bus."""
    words = (str(PROGRAM), "stdio")
    mount = MountedServer("everything", Command(words, environment_for()))
    async with (
        Client(StdioServerParameters(command=words[0], args=["stdio"]), mode="legacy") as direct,
        serve(mount, settings=valkey.settings),
        valkey.bus() as bus,
    ):
        listed = {tool.name: tool for tool in (await direct.list_tools()).tools}
        assert set(listed) <= set(bus.tools)
        for name, tool in listed.items():
            assert (bus.tools[name].descriptor.parameters or {}).get("properties") == tool.input_schema.get("properties"), name
        for name, arguments in CALLS:
            answered = await direct.call_tool(name, arguments)
            assert isinstance(answered, CallToolResult)
            assert alike(await bus.call(name, arguments)) == alike(result_of(answered)), name
        async with bus.stream("trigger-long-running-operation", {"duration": 1, "steps": 4}) as call:
            told = [event async for event in call.events() if isinstance(event, Progress)]
        assert [(each.done, each.total) for each in told] == [(1, 4), (2, 4), (3, 4), (4, 4)]
        wrong = await bus.call("get-sum", {"a": "x"})
        assert wrong.error is not None
        assert wrong.error.type == "invalid_arguments"
        resources = (await bus.call("everything_list_resources")).data["resources"]
        assert {str(each.uri) for each in (await direct.list_resources()).resources} <= {each.get("uri") for each in resources}
        prompts = (await bus.call("everything_list_prompts")).data["prompts"]
        assert [each["name"] for each in prompts] == [each.name for each in (await direct.list_prompts()).prompts]
        running = asyncio.create_task(bus.call("trigger-long-running-operation", {"duration": 60, "steps": 1}))
        await eventually(lambda: mount.connection.calls_running == 1, timeout=20.0)
        running.cancel()
        await eventually(lambda: mount.connection.calls_running == 0, timeout=20.0)
        assert (await bus.call("echo", {"message": "still here"})).success
