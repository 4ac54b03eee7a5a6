"""Chat2Graph's tools and groups: functions, services, servers and packages."""

from __future__ import annotations

import asyncio
import logging
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from tests.compat.chat2graph_groups import Connection, ExampleQuery, Listing
from toolbus.compat.chat2graph.core.common.type import McpTransportType, ToolGroupType, ToolResourceType, ToolType
from toolbus.compat.chat2graph.core.service.toolkit_service import ToolkitService
from toolbus.compat.chat2graph.core.toolkit.action import Action
from toolbus.compat.chat2graph.core.toolkit.mcp_service import McpService
from toolbus.compat.chat2graph.core.toolkit.mcp_tool import McpTool
from toolbus.compat.chat2graph.core.toolkit.tool import Tool
from toolbus.compat.chat2graph.core.toolkit.tool_config import McpConfig, McpTransportConfig, ToolGroupConfig
from toolbus.compat.chat2graph.core.toolkit.tool_connection import ToolConnection
from toolbus.compat.chat2graph.core.toolkit.tool_group import ToolPackage
from toolbus.toolkit import ToolkitError, group_of_definitions

# -- tools and groups ---------------------------------------------------------------------------------


def test_tools_of_functions() -> None:
    """Coroutine functions and plain ones are tools with ids of their own, and say what their signature and docstring say."""

    def shout(text: str) -> str:
        """Say it loudly."""
        return text.upper()

    plain, query = Tool("shout", "", shout), ExampleQuery()
    assert (plain.id != Tool("shout", "", shout).id, Tool("a", "b", shout, id="c").id) == (True, "c")
    assert (plain.description, plain.tool_type, plain.function) == ("Say it loudly.", ToolType.LOCAL_TOOL, shout)
    assert plain.parameters["required"] == query.parameters["required"] == ["text"]
    assert plain.function is not None
    assert query.function is not None
    assert (plain.function("a"), asyncio.run(query.function("a"))) == ("A", "found a")
    assert plain.copy().id == plain.id


def test_a_group_is_asked_for_its_tools(populated: ToolkitService, actions: list[Action]) -> None:
    """Each tool that a server lists is called by the action and held by the group, with its schema; calls go through a connection."""
    group, toolkit = Listing("api", "Search", "Calculate"), populated.get_toolkit()
    populated.add_tool_group(tool_group=group, connected_actions=[(actions[0], 0.95)])
    assert (len(toolkit.vertices()), len(toolkit.edges())) == (8 + 1 + 2, 9 + 2 + 2)
    assert toolkit.get_tool_group(group.get_id()) is group
    held = [toolkit.get_tool(id_) for id_ in toolkit.successors(group.get_id())]
    assert [(tool.name, tool.description, tool.tool_type) for tool in held if isinstance(tool, McpTool)] == [
        ("Search", "about Search", ToolType.MCP_TOOL),
        ("Calculate", "about Calculate", ToolType.MCP_TOOL),
    ]
    search = held[0]
    assert isinstance(search, McpTool)
    assert search.get_tool_group() is group
    assert list(search.parameters["properties"]) == ["query"]
    assert search.function is not None
    assert asyncio.run(search.function(query="x")) == ("Search", {"query": "x"})
    names = {tool.name for tool in populated.recommend_tools_actions([actions[0]])[0]}
    assert names == {"query_tool", "Search", "Calculate"}


@pytest.mark.anyio
async def test_a_group_is_asked_from_within_an_event_loop(service: ToolkitService, actions: list[Action]) -> None:
    """Adding a group is a plain call, also where a loop runs."""
    service.add_action(actions[0], [], [])
    service.add_tool_group(Listing("api", "Search"), [(actions[0], 1.0)])
    assert [tool.name for tool in service.recommend_tools_actions(actions)[0]] == ["Search"]


@pytest.mark.parametrize("wrong", ["group", None, ["Search"]])
def test_a_mistake_with_a_group_adds_nothing(populated: ToolkitService, actions: list[Action], wrong: Any) -> None:
    """Something that is no group, or an id where an action is wanted, is a ToolkitError, and the graph is as before."""
    before = populated.get_toolkit().vertices()
    with pytest.raises(ToolkitError, match="tool_group has the type"):
        populated.add_tool_group(wrong, [(actions[0], 1.0)])
    with pytest.raises(ToolkitError, match="is no pair of an Action and a score"):
        populated.add_tool_group(Listing("api", "Search"), [(wrong, 1.0)])
    assert populated.get_toolkit().vertices() == before


def test_a_group_that_is_added_again(service: ToolkitService, actions: list[Action]) -> None:
    """Tools that it lists no more go, those that stay are the same for another action, and new ones come."""
    first, second = actions[:2]
    toolkit = service.get_toolkit()
    for action in (first, second):
        service.add_action(action, [], [])
    service.add_tool_group(Listing("api", "Old", "Kept"), [(first, 0.9)])
    old, kept = toolkit.successors("group_api")
    service.add_tool_group(Listing("api", "Kept", "New"), [(second, 0.4)])
    assert toolkit.get_tool(old) is None
    assert [tool.name for tool in map(toolkit._tools.__getitem__, toolkit.successors("group_api"))] == ["Kept", "New"]
    assert (toolkit.get_score(first.id, kept), toolkit.get_score(second.id, kept)) == (0.9, 0.4)
    service.add_tool_group(Listing("api", "Last"), [(second, 0.4)])
    assert [tool.name for tool in toolkit._tools.values()] == ["Last"]


def test_a_group_and_its_tools_go_together(service: ToolkitService, actions: list[Action], caplog: pytest.LogCaptureFixture) -> None:
    """Removing the group removes its tools; removing its last tool removes the group; a group without callers is warned of."""
    service.add_action(actions[0], [], [])
    toolkit = service.get_toolkit()
    service.add_tool_group(Listing("api", "Search", "Calculate"), [(actions[0], 0.9)])
    toolkit.remove_vertex("group_api")
    assert (toolkit.get_tool_group("group_api"), len(toolkit._tools)) == (None, 0)
    service.add_tool_group(Listing("solo", "Solo"), [(actions[0], 0.9)])
    service.remove_tool(toolkit.successors("group_solo")[0])
    assert toolkit.vertices() == ["action 1"]
    service.add_tool_group(Listing("api", "Search"), [(actions[1], 0.9)])
    warned = [record.getMessage().split()[0] for record in caplog.records if record.levelno == logging.WARNING]
    assert warned == ["toolkit.action_unknown", "toolkit.group_unreachable"]


def test_groups_over_connections_and_groups_of_toolbus(service: ToolkitService, actions: list[Action]) -> None:
    """A server that only says how to connect is listed over a connection that is closed; toolbus's own groups are groups, too."""

    class Connecting(McpService):
        async def create_connection(self, tool_call_ctx: Any = None) -> ToolConnection:
            return Connection()

    config = McpConfig(ToolGroupType.MCP, "web", McpTransportConfig(McpTransportType.SSE))
    service.add_action(actions[0], [], [])
    Connection.closed = 0
    service.add_tool_group(Connecting(config), [(actions[0], 1.0)])
    service.add_tool_group(group_of_definitions("g", [{"name": "defined"}]), [(actions[0], 1.0)])
    assert Connection.closed == 1
    assert [tool.name for tool in service.recommend_tools_actions(actions)[0]] == ["connected", "defined"]
    nowhere = McpTransportConfig(McpTransportType.STDIO, command="/nowhere/at-all")
    with pytest.raises(RuntimeError, match="MCP server 'gone' can't be reached"):
        service.add_tool_group(McpService(McpConfig(ToolGroupType.MCP, "gone", nowhere)), [(actions[0], 1.0)])


@pytest.fixture
def sums() -> Iterator[str]:
    """Return the name of a module with a plain function and a coroutine function."""
    module = types.ModuleType("chat2graph_sums")
    exec("def add(a: int, b: int): return a + b\nasync def double(a: int): return 2 * a", vars(module))
    sys.modules[module.__name__] = module
    yield module.__name__
    del sys.modules[module.__name__]


def test_a_package_is_a_group_of_its_functions(service: ToolkitService, actions: list[Action], sums: str) -> None:
    """The public functions of the module that the group is named after are its tools, and are called through its connection."""
    package = ToolPackage(ToolGroupConfig(ToolGroupType.PACKAGE, sums))
    service.add_action(actions[0], [], [])
    service.add_tool_group(package, [(actions[0], 1.0)])
    assert [tool.name for tool in service.recommend_tools_actions(actions)[0]] == ["add", "double"]

    async def call() -> list[Any]:
        connection = await package.create_connection()
        return [await connection.call("add", a=1, b=2), await connection.call("double", a=4), len(await connection.list_tools())]

    assert asyncio.run(call()) == [3, 8, 2]


def test_transport_configurations_go_to_json_and_back() -> None:
    """The result of ``to_dict`` can be read by ``from_dict``; missing fields get Chat2Graph's defaults."""
    config = McpTransportConfig(McpTransportType.STDIO, command="uvx", args=["x"], env={"A": "b"})
    assert McpTransportConfig.from_dict(config.to_dict()) == config
    assert config.to_dict()["transport_type"] == "STDIO"
    assert McpTransportConfig.from_dict({"url": "u", "more": 1}) == McpTransportConfig(
        McpTransportType.STDIO, ToolResourceType.STATELESS, url="u"
    )
