"""Chat2Graph's tools on a worker: objects, classes and graphs of a module, with their services filled in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compat import chat2graph_app as app
from tests.compat.chat2graph_groups import Listed
from tests.contract import Place
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.worker.loading import defined_in, load
from toolbus.compat.chat2graph.core.common.type import FunctionCallStatus, McpTransportType, ToolGroupType
from toolbus.compat.chat2graph.core.sdk.init_server import init_server
from toolbus.compat.chat2graph.core.sdk.wrapper.toolkit_wrapper import ToolkitWrapper
from toolbus.compat.chat2graph.core.service.toolkit_service import ToolkitService
from toolbus.compat.chat2graph.core.toolkit.action import Action
from toolbus.compat.chat2graph.core.toolkit.mcp.mcp_connection import McpConnection
from toolbus.compat.chat2graph.core.toolkit.mcp_service import McpService
from toolbus.compat.chat2graph.core.toolkit.tool import FunctionCallResult
from toolbus.compat.chat2graph.core.toolkit.tool_config import McpConfig, McpTransportConfig
from toolbus.compat.chat2graph.core.toolkit.toolkit import Toolkit
from toolbus.toolkit import ToolkitWrapper as OwnWrapper
from toolbus.toolkit import group_of_definitions
from toolbus.toolkit.graph import Tool as GraphTool
from toolbus.toolkit.graph import ToolGroup

pytestmark = pytest.mark.anyio


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that writes a module of this text and loads it as ``toolbus worker`` does."""
    names: list[str] = []

    def make(name: str, text: str) -> Any:
        (tmp_path / f"{name}.py").write_text(text)
        names.append(name)
        return load(str(tmp_path / f"{name}.py"))

    monkeypatch.setattr(sys, "path", [*sys.path])
    yield make
    for name in names:
        sys.modules.pop(name, None)


async def test_a_module_of_tool_classes_is_served(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Each class is made once; services and the context are filled in and no part of the schema; what can't be made is told."""
    with pytest.raises(ConfigurationError, match="two different tools are named 'run_cypher'"):
        defined_in(app)
    async with place.serving(app.SchemaGetter(), app.CypherExecutor(), app.NeedsArguments("Rome")) as bus:
        assert sorted(bus.tools) == ["get_schema", "run", "run_cypher"]
        about = bus.tools["get_schema"]
        assert about.parameters["properties"] == {"label": {"type": "string", "description": "which one"}}
        assert about.description.startswith("Get the schema of a label.")
        result = await bus.call("get_schema", {"label": "Person"}, session="job 7")
        assert result.output == "Person in ['Person'] for job 7/get_schema"
        assert (await bus.call("run_cypher", {"query": "MATCH"})).output == "match"
        assert (await bus.call("run", {"text": "x"})).output == "Rome: x"
    assert app.GraphDbService.made == 1


TOOLKIT = """
import threading

from toolbus.compat.chat2graph.core.sdk.wrapper.toolkit_wrapper import ToolkitWrapper
from toolbus.compat.chat2graph.core.toolkit.action import Action
from toolbus.compat.chat2graph.core.toolkit.tool import Tool
from toolbus.compat.chat2graph.core.toolkit.toolkit import Toolkit


class Base(Tool):
    def __init__(self, name: str) -> None:
        super().__init__(name=name, description="", function=self.run)

    def run(self, text: str) -> str:
        "Run."
        return f"{self.name} {text}"


class Alone(Base):
    def __init__(self) -> None:
        super().__init__("alone")


class Locked(Base):
    def __init__(self, place: str) -> None:
        self.lock = threading.Lock()
        self.place = place
        super().__init__("locked")


class Lost(Tool):
    def __init__(self, place: str) -> None:
        super().__init__(name="lost", description="", function=print)


def shout(text: str) -> str:
    "Say it loudly."
    return text.upper()


loud = Tool("shout", "", shout)
several = (Base("first"), Base("first"), Base("second"), loud, Locked("a"), Locked("a"))
wrapper = ToolkitWrapper(Toolkit()).chain(Action("plan", "plan", ""), several)
"""


async def test_objects_and_graphs_of_a_file_are_served(place: Place, module: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Objects at the top of a file, those within its graph, and classes without an object are tools; equal objects are one."""
    with caplog.at_level("WARNING"):
        loaded = module("served_toolkit", TOOLKIT)
        async with place.serving(loaded) as bus:
            assert {name: tool.service for name, tool in bus.tools.items()} == dict.fromkeys(
                ["alone", "first", "locked", "second", "shout"], "served_toolkit"
            )
            assert [(await bus.call(name, {"text": "a"})).output for name in sorted(bus.tools)] == [
                "alone a",
                "first a",
                "locked a",
                "second a",
                "A",
            ]
    assert "Lost can't be made without arguments" in caplog.text


def test_a_module_is_collected_again(module: Any) -> None:
    """Loading a file twice serves the same tools, not half of them."""
    loaded = module("twice_toolkit", TOOLKIT)
    from toolbus.bus.values.settings import Settings
    from toolbus.bus.worker.collect import collect

    names = [sorted(name for each in collect(loaded, Settings()) for name in each.tools) for _ in range(2)]
    assert names == [["alone", "first", "locked", "second", "shout"]] * 2


def test_objects_that_differ_are_not_one_tool(module: Any) -> None:
    """Two objects of one class and name with other data are refused: one would answer for the other."""
    with pytest.raises(ConfigurationError, match="two different tools are named 'locked'"):
        defined_in(module("differing_toolkit", TOOLKIT.replace('Locked("a"))', 'Locked("b"))')))


def test_a_module_with_only_classes_that_need_arguments_says_so(module: Any) -> None:
    """The error of a worker with nothing to serve names the class and what to do."""
    text = TOOLKIT.partition("class Base")[0] + "class Lost(Tool):\n    def __init__(self, place):\n        pass\n"
    with pytest.raises(ConfigurationError, match=r"has no Tool object; Lost can't be made .* make an object of it in the module"):
        defined_in(module("lost_toolkit", text))


async def test_toolbus_own_graph_is_served(place: Place) -> None:
    """The tools of toolbus's own graphs and groups are served, too, without those that are tools of the bus already."""

    def here(text: str) -> str:
        """Be here."""
        return text

    group = ToolGroup("g", "g", "", [GraphTool.from_function(here), GraphTool("there", "there")])
    wrapper = OwnWrapper().chain(Action("a", "a", ""), GraphTool.from_function(here))
    for target in (group, wrapper, wrapper.service, wrapper.toolkit):
        async with place.serving(target) as bus:
            assert list(bus.tools) == ["here"]


def test_small_parts_of_that_project() -> None:
    """init_server does nothing; a FunctionCallResult is made for success and for an error."""
    init_server()
    assert FunctionCallResult("f", {"a": 1}, "why", "out").status is FunctionCallStatus.SUCCEEDED
    failed = FunctionCallResult.error("no")
    assert (failed.output, failed.func_name, failed.status) == ("no", "", FunctionCallStatus.FAILED)


# -- MCP servers --------------------------------------------------------------------------------------

SERVER = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("words")


@server.tool()
def shout(text: str) -> str:
    "Say it loudly."
    return text.upper()


server.run("stdio")
"""


def _server(folder: Path) -> McpService:
    (folder / "words.py").write_text(SERVER)
    transport = McpTransportConfig(McpTransportType.STDIO, command=sys.executable, args=[str(folder / "words.py")])
    return McpService(McpConfig(ToolGroupType.MCP, "words", transport))


@pytest.mark.usefixtures("slow")
async def test_an_mcp_server_is_started_listed_and_called(tmp_path: Path) -> None:
    """A group of the graph has the server's tools with their schemas, and calling one calls the server."""
    service = ToolkitService.instance or ToolkitService()
    service._toolkit = Toolkit()
    plan = Action("plan", "plan", "")
    ToolkitWrapper(service.get_toolkit()).chain(plan, _server(tmp_path))
    [tool] = service.get_toolkit()._tools.values()
    assert (tool.name, tool.description, list(tool.parameters["properties"])) == ("shout", "Say it loudly.", ["text"])
    assert tool.function is not None
    assert await tool.function(text="abc") == "ABC"


@pytest.mark.usefixtures("slow")
async def test_an_mcp_servers_tools_are_served(place: Place, tmp_path: Path) -> None:
    """A worker of a graph serves them as a service named after the server, and calls start the server."""
    wrapper = ToolkitWrapper(Toolkit()).chain(Action("plan", "plan", ""), _server(tmp_path))
    async with place.serving(wrapper) as bus:
        assert {name: tool.service for name, tool in bus.tools.items()} == {"shout": "mcp.words"}
        assert (await bus.call("shout", {"text": "abc"})).output == "ABC"


async def test_a_server_that_can_not_be_reached_is_named(tmp_path: Path) -> None:
    """The error names the server and the reason; an unknown transport is a ValueError, and an unopened connection can't call."""
    transport = McpTransportConfig(McpTransportType.STDIO, command=str(tmp_path / "nothing"))
    connection = McpConnection(McpConfig(ToolGroupType.MCP, "words", transport))
    with pytest.raises(RuntimeError, match="MCP server 'words' can't be reached"):
        await connection.connect()
    with pytest.raises(RuntimeError, match=r"'words' is not open: call connect\(\) first"):
        await connection.call("shout")
    transport.transport_type = "INVALID"  # type: ignore[assignment]
    with pytest.raises(ValueError, match="Unsupported transport type: 'INVALID'"):
        await connection.connect()


def test_definitions_of_newer_mcp_clients_keep_their_schema() -> None:
    """``input_schema`` is read like ``inputSchema``."""
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    newer = type("Newer", (), {"name": "n", "description": "d", "input_schema": schema})()
    group = group_of_definitions("g", [newer, Listed("o", "d", schema)])
    assert [tool.parameters for tool in group.tools] == [schema, schema]
