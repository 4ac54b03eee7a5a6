"""FastMCP both ways: server objects served by a worker, and the bus's tools in somebody's server."""

from __future__ import annotations

import asyncio
from typing import Any

import fastmcp
import pytest
from fastmcp import Context as FastContext
from fastmcp import FastMCP
from fastmcp.exceptions import ToolError as FastToolError
from fastmcp.utilities.types import Image
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError as OfficialToolError

from tests.cli.shell import Shell
from tests.contract import Place
from toolbus import Blob, Progress, tool
from toolbus.bus.values.results import ConfigurationError
from toolbus.edges.mounts import BusProvider, mount_of, serve

pytestmark = pytest.mark.anyio


def fast() -> Any:
    """A FastMCP with tools of several kinds."""
    mcp = FastMCP("Fast server")

    @mcp.tool(annotations={"readOnlyHint": True})
    def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        return a + b

    @mcp.tool
    async def count(steps: int, ctx: FastContext) -> str:
        """Count."""
        for step in range(steps):
            await ctx.report_progress(step, steps, f"step {step}")
        return "counted"

    @mcp.tool
    def picture() -> Image:
        """Draw."""
        return Image(data=b"\x89PNG\r\n", format="png")

    @mcp.tool
    def refuse() -> str:
        """Fail."""
        raise FastToolError("not today")

    return mcp


def official() -> Any:
    """The same with the official SDK."""
    mcp = MCPServer("official")

    @mcp.tool()
    def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        return a + b

    @mcp.tool()
    async def count(steps: int, ctx: Context) -> str:
        """Count."""
        for step in range(steps):
            await ctx.report_progress(step, steps, f"step {step}")
        return "counted"

    @mcp.tool()
    def refuse() -> str:
        """Fail."""
        raise OfficialToolError("not today")

    return mcp


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("made", [fast, official])
async def test_a_server_object_is_served_in_process(valkey: Place, made: Any) -> None:
    """Its tools are the worker's own: not external, with its schemas, its progress, its results and its failures."""
    async with serve(mount_of(made(), "objects"), settings=valkey.settings), valkey.bus() as bus:
        descriptor = bus.tools["add"].descriptor
        assert (descriptor.external, descriptor.service, descriptor.description) == (False, "objects", "Add two numbers.")
        assert [(await bus.call("add", {"a": 2})).data, (await bus.call("add", {"a": 2, "b": 3})).output] == [{"result": 3}, "5"]
        async with bus.stream("count", {"steps": 2}) as call:
            told = [event async for event in call.events()]
        assert [each for each in told if isinstance(each, Progress)] == [Progress(0, 2, "step 0"), Progress(1, 2, "step 1")]
        refused = (await bus.call("refuse")).error
        assert refused is not None
        assert "not today" in refused.message
        assert len(await asyncio.gather(*(bus.call("add", {"a": n}) for n in range(100)))) == 100
        if made is fast:
            assert (await bus.call("picture")).content == (Blob("image/png", b"\x89PNG\r\n"),)
            assert descriptor.effect == "read"


def test_only_server_objects_are_taken() -> None:
    """Anything else is refused by its class's name; a server's own name is the service's."""
    with pytest.raises(ConfigurationError, match="a dict is no FastMCP"):
        mount_of({})
    assert mount_of(fast()).id == "Fast_server"


@pytest.mark.usefixtures("slow")
def test_the_worker_command_serves_an_object(shell: Shell) -> None:
    """``toolbus worker server.py:mcp`` serves a FastMCP, in several processes if asked."""
    (shell.folder / "server.py").write_text(
        "from fastmcp import FastMCP\n\nmcp = FastMCP('mine')\n\n\n"
        "@mcp.tool\ndef shout(text: str) -> str:\n    '''Shout.'''\n    return text.upper()\n"
    )
    shell.start("worker", "server.py:mcp", "--processes", "2")
    done = shell.run("call", "shout", "text=hello", "--wait", "60")
    assert (done.returncode, done.stdout.strip()) == (0, "HELLO"), done.stderr


@tool(service="provided", effect="read")
async def greeting(name: str) -> Any:
    """Greet someone."""
    yield "hello "
    yield name


@tool(service="provided", effect="read")
async def counted() -> Any:
    """Count and draw."""
    yield Progress(1, 2, "half")
    yield Blob("image/png", b"picture")
    yield {"n": 2}


@tool(service="provided", tenants=["alice"])
async def private() -> str:
    """Be there for Alice."""
    return "alice's"


@tool(service="provided")
async def failing() -> str:
    """Fail."""
    raise ValueError("not today")


async def test_a_provider_lists_the_tools_of_the_bus(valkey: Place) -> None:
    """They are listed live with their schemas, and a call streams, has blobs and data, and fails as the tool does."""
    told: list[tuple[float, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    server: Any = FastMCP("mine", providers=[BusProvider(settings=valkey.settings)])
    async with valkey.worker(greeting), fastmcp.Client(server) as client:
        tools = {each.name: each for each in await client.list_tools()}
        assert {"greeting", "counted", "failing"} <= tools.keys()
        assert tools["greeting"].input_schema["required"] == ["name"]
        assert tools["greeting"].annotations is not None
        assert tools["greeting"].annotations.read_only_hint
        said = await client.call_tool("greeting", {"name": "you"}, progress_handler=on_progress)
        assert said.content[0].text == "hello you"
        assert told == [(1, "hello "), (2, "you")]
        drawn = await client.call_tool("counted", {})
        assert [each.type for each in drawn.content] == ["text", "image"]
        with pytest.raises(FastToolError, match="not today"):
            await client.call_tool("failing", {})
        assert "private" not in tools


async def test_a_provider_calls_for_the_user_that_it_is_told(valkey: Place) -> None:
    """Tools of one tenant are listed and called for that tenant only."""
    server: Any = FastMCP("mine", providers=[BusProvider(settings=valkey.settings, user=lambda _: "alice")])
    async with valkey.worker(greeting), fastmcp.Client(server) as client:
        assert "private" in {each.name for each in await client.list_tools()}
        assert (await client.call_tool("private", {})).content[0].text == "alice's"
