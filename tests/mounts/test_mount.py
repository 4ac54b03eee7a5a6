"""MCP servers mounted on the bus: what they list, what they answer, and what the child gets."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from tests.contract import Place
from tests.mounts.programs import USUAL, command, mounting, program
from tests.servers import eventually
from toolbus import Blob, Progress
from toolbus.bus.client.executor.observers import observe
from toolbus.bus.client.executor.toolcalls import Observation, PartFormat, content_of
from toolbus.bus.values.results import ConfigurationError
from toolbus.edges.mounts import Command, MountedServer, Options

pytestmark = pytest.mark.anyio


@pytest.fixture
def usual(tmp_path: Path) -> Path:
    """A server with a tool of every kind."""
    return program(tmp_path, USUAL)


@pytest.fixture
def valkey(server: str, namespace: str) -> Place:
    """A namespace of the test's own on Valkey."""
    return Place(server, namespace)


@pytest.mark.usefixtures("slow")
async def test_tools_are_described_as_the_server_does(valkey: Place, usual: Path) -> None:
    """Schemas, descriptions and effects are the server's; every tool is external, also for a model."""
    async with mounting(valkey, usual, groups=("g",), timeout=7.0) as (bus, _):
        add = bus.tools["add"]
        assert (add.description, add.descriptor.effect, add.descriptor.external) == ("Add two numbers.", "read", True)
        assert set((add.descriptor.parameters or {})["properties"]) == {"a", "b"}
        assert (bus.tools["put"].descriptor.effect, bus.tools["count"].descriptor.effect) == ("idempotent", "once")
        assert (add.descriptor.groups, add.descriptor.timeout, add.descriptor.service) == (("g",), 7.0, "demo")
        assert add.descriptor.extensions["output_schema"]["properties"]["result"]["type"] == "integer"
        [shown] = [each for each in bus.tools.definitions("openai") if each["function"]["name"] == "add"]
        assert shown["function"]["description"] == "(external) Add two numbers."


@pytest.mark.usefixtures("slow")
async def test_answers_are_results(valkey: Place, usual: Path) -> None:
    """Texts are the output, images blobs, structured content data; a failure of the tool is a tool_error with its words."""
    async with mounting(valkey, usual) as (bus, _):
        added = await bus.call("add", {"a": 1, "b": 2})
        assert (added.output, added.data) == ("3", {"result": 3})
        parts = await bus.call("parts")
        assert parts.output == "first\n[audio/wav: not base64, so it can't be read]\na note\n[b](note://b)"
        assert (parts.content, parts.data) == ((Blob("image/png", b"picture"),), {"n": 1})
        refused = await bus.call("refuse")
        assert not refused.success
        assert refused.error is not None
        assert (refused.error.type, refused.error.code) == ("tool_error", "mcp_tool_error")
        assert "not today" in refused.error.message
        wrong = await bus.call("add", {"a": "x", "b": 2})
        assert wrong.error is not None
        assert wrong.error.type == "invalid_arguments"


@pytest.mark.usefixtures("slow")
async def test_a_picture_that_is_repeated_as_data_is_no_text(valkey: Place, usual: Path) -> None:
    """A model sees the picture itself in every format that has pictures, and nowhere its bytes as text."""
    data = b"x" * 120_000
    repeated = base64.b64encode(data).decode()
    async with mounting(valkey, usual) as (bus, _):
        result = await bus.call("show", {"size": len(data)})
        assert result.content == (Blob("image/png", data),)
        assert result.data["content"][0]["data"] == repeated
        text = observe(result, shown=result.content)
        assert "[image/png, 120,000 bytes, is part of the answer]" in text
        assert len(text) < 300
        for each in get_args(PartFormat):
            shown = msgspec.json.encode(content_of(Observation(text, shown=result.content), each)).decode()
            assert shown.count(repeated) == 1, each


@pytest.mark.usefixtures("slow")
async def test_progress_is_passed_on(valkey: Place, usual: Path) -> None:
    """Each notification is a Progress of the call, with its message."""
    async with mounting(valkey, usual) as (bus, _):
        call = bus.stream("count", {"steps": 3})
        told = [event async for event in call.events()]
        assert [each for each in told if isinstance(each, Progress)] == [Progress(n, 3, f"step {n}") for n in range(3)]
        assert (await call.result()).output == "counted"


@pytest.mark.usefixtures("slow")
async def test_a_cancelled_call_is_cancelled_at_the_server(valkey: Place, usual: Path, tmp_path: Path) -> None:
    """The server hears of it, and goes on with other calls."""
    told = tmp_path / "told"
    async with mounting(valkey, usual) as (bus, server):
        before = (await bus.call("process")).output
        call = asyncio.create_task(bus.call("wait_for_cancel", {"file": str(told)}))
        await eventually(lambda: told.exists() and told.read_text() == "started", timeout=20.0)
        call.cancel()
        await eventually(lambda: told.read_text() == "cancelled", timeout=20.0)
        assert (await bus.call("process")).output == before
        assert server.connection.starts == 1


@pytest.mark.usefixtures("slow")
async def test_resources_and_prompts_are_tools_that_read(valkey: Place, usual: Path) -> None:
    """They can be listed, read and filled in; what there is not is said."""
    async with mounting(valkey, usual) as (bus, _):
        listed = (await bus.call("demo_list_resources")).data["resources"]
        assert [each.get("uri") or each["uri_template"] for each in listed] == ["note://hello", "note://by/{who}"]
        assert (await bus.call("demo_read_resource", {"uri": "note://by/me"})).output == "by me"
        [prompt] = (await bus.call("demo_list_prompts")).data["prompts"]
        assert (prompt["name"], prompt["arguments"][0]["name"]) == ("greet", "who")
        assert (await bus.call("demo_get_prompt", {"name": "greet", "arguments": {"who": "you"}})).output == "user: greet you"
        missing = await bus.call("demo_read_resource", {"uri": "note://nowhere"})
        assert missing.error is not None
        assert bus.tools["demo_read_resource"].descriptor.effect == "read"
    async with mounting(valkey, usual, resources=False) as (bus, _):
        assert "demo_read_resource" not in bus.tools


@pytest.mark.usefixtures("slow")
async def test_the_child_gets_no_secret(valkey: Place, usual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment has none of the worker's variables but harmless ones and those that are named."""
    monkeypatch.setenv("TOOLBUS_URL", "redis://:secret@host")
    monkeypatch.setenv("SOME_TOKEN", "secret")
    monkeypatch.setenv("WANTED", "value")
    async with mounting(valkey, usual) as (bus, _):
        names = json.loads((await bus.call("environment")).output or "")
        assert "PATH" in names
        assert not {"TOOLBUS_URL", "SOME_TOKEN", "WANTED"} & set(names)
    assert command(usual, "WANTED").environment["WANTED"] == "value"
    with pytest.raises(ConfigurationError, match="'NOWHERE' is not set"):
        command(usual, "NOWHERE")
    with pytest.raises(ConfigurationError, match="--env WANTED"):
        command(usual, "WANTED=value")


@pytest.mark.usefixtures("slow")
async def test_only_the_selected_tools_are_served_under_a_prefix(valkey: Place, usual: Path) -> None:
    """--include and --exclude are about the server's names, the prefix about those on the bus."""
    async with mounting(valkey, usual, include=("add", "p*"), exclude=("parts",), prefix="x.") as (bus, _):
        assert set(bus.tools) == {"x.add", "x.put", "x.process"}
        assert (await bus.call("x.put", {"key": "k"})).output == "put k"


@pytest.mark.usefixtures("slow")
async def test_a_command_that_cannot_start_says_why(tmp_path: Path) -> None:
    """A program that is not there, or ends at once, is one sentence with its last words."""
    with pytest.raises(ConfigurationError, match="no program 'no-such-program'"):
        await MountedServer("m", Command(("no-such-program",))).__aenter__()
    dying = tmp_path / "dying.py"
    dying.write_text("import sys\nsys.exit('I need a key')")
    with pytest.raises(ConfigurationError, match="its last words: I need a key"):
        await MountedServer("m", command(dying)).__aenter__()
    silent = tmp_path / "silent.py"
    silent.write_text("import time\ntime.sleep(600)")
    with pytest.raises(ConfigurationError, match=r"did not answer within 0\.5 s"):
        await MountedServer("m", command(silent), Options(start=0.5)).__aenter__()


@pytest.mark.usefixtures("slow")
async def test_two_workers_share_the_calls_of_one_mount(valkey: Place, usual: Path) -> None:
    """Each has a server of its own; one that leaves costs no call."""
    async with mounting(valkey, usual) as (bus, _):
        async with mounting(valkey, usual):
            many = await asyncio.gather(*(bus.call("process") for _ in range(200)))
            assert len({each.output for each in many}) == 2
        assert (await bus.call("add", {"a": 1, "b": 1})).output == "2"
