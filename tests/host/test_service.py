"""A recorded tool on the bus: its descriptor, its answers, its streams, and what ends a call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.contract import Place
from tests.host.fakes import FakeInstance, FakeRunner, echo
from tests.servers import eventually
from toolbus import Blob, Progress, ToolBus
from toolbus.bus.values.events import Text
from toolbus.bus.values.results import RegistrationRefused, ToolResult
from toolbus.bus.worker.service import ToolService
from toolbus.platform.backends.runner import Output
from toolbus.platform.host.pool import Pool, RecordedService
from toolbus.platform.records import RecordedTool, Running, ToolMeta, ToolSource

pytestmark = pytest.mark.anyio

RECORD = RecordedTool(
    meta=ToolMeta(
        tool_id="image_stitcher",
        name="Image stitcher",
        description="Put images side by side.",
        category="media",
        group_ids=("images",),
        input_schema={"type": "object", "properties": {"count": {"type": "integer"}}},
        output_schema={"type": "object"},
        stream_support=True,
    ),
    sources=(ToolSource(type="local", host_dir="a"),),
    running=Running(effect="read", timeout=20.0),
)


@pytest.fixture
def place(server: str, namespace: str) -> Place:
    """A namespace of the test's own."""
    return Place(server, namespace)


@asynccontextmanager
async def served(place: Place, runner: FakeRunner, record: RecordedTool = RECORD) -> AsyncIterator[tuple[ToolBus, Pool]]:
    """The tool, served by a worker."""
    pool = Pool(record, runner, "host-1", lambda _: None, lambda _: None)
    await pool.open()
    try:
        async with place.serving(RecordedService(record, pool)) as bus:
            yield bus, pool
    finally:
        await pool.aclose()


async def test_the_descriptor_says_what_the_record_says(place: Place) -> None:
    """Callers see the record's name, schemas, labels, timeout and effect; the runtime is the type of its source."""
    async with served(place, FakeRunner(delay=0.0)) as (bus, _):
        tool = bus.tools["image_stitcher"]
        about = tool.descriptor
        assert (tool.service, about.category, about.groups, about.timeout, about.effect) == (
            "image_stitcher",
            "media",
            ("images",),
            20.0,
            "read",
        )
        assert about.description == "Put images side by side."
        assert about.extensions["runtime"] == "local"
        assert about.extensions["output_schema"] == {"type": "object"}
        assert about.parameters == RECORD.meta.input_schema


async def test_a_record_that_says_little_is_served(place: Place) -> None:
    """A record with an id and a source alone is a tool that takes any arguments."""
    record = RecordedTool(meta=ToolMeta(tool_id="bare"), sources=RECORD.sources)
    async with served(place, FakeRunner(delay=0.0), record) as (bus, _):
        result = await bus.call("bare", {"anything": [1]})
        assert result.data["arguments"] == {"anything": [1]}


async def test_a_call_is_told_of_the_start_and_streams(place: Place) -> None:
    """The caller hears of the start, gets text and files as they come, and the result at the end."""

    async def answer(instance: FakeInstance, arguments: dict[str, Any], output: Output) -> ToolResult:
        for number in range(100):
            await output(f"{number},")
        await output(Progress(1, 2, "half"))
        await output(Blob("image/png", b"\x89PNG"))
        return ToolResult(output=None, data={"done": True})

    async with served(place, FakeRunner(delay=0.1, answer=answer)) as (bus, _), bus.stream("image_stitcher", {"count": 1}) as call:
        events = [event async for event in call.events()]
        result = await call.result()
    progress = [event.message for event in events if isinstance(event, Progress)]
    assert progress == ["starting image_stitcher", "half"]
    text = "".join(f"{number}," for number in range(100))
    assert "".join(event.text for event in events if isinstance(event, Text)) == text
    assert [event.data for event in events if isinstance(event, Blob)] == [b"\x89PNG"]
    assert (result.output, result.data) == (text, {"done": True})


async def test_a_tool_that_cannot_start_says_why(place: Place) -> None:
    """A caller is told in one line why the tool can't be started, and that it may call again."""
    runner = FakeRunner(delay=0.0)
    runner.broken = {"a"}
    record = RecordedTool(meta=RECORD.meta, sources=RECORD.sources, running=Running(restarts=1))
    async with served(place, runner, record) as (bus, _):
        result = await bus.call("image_stitcher", {})
        assert result.error is not None
        assert (result.error.type, result.error.code, result.error.retryable) == ("unavailable", "tool_failed", True)
        assert "a is broken" in result.error.message


async def test_the_deadline_reaches_the_program(place: Place) -> None:
    """An instance is told when the call ends."""
    async with served(place, runner := FakeRunner(delay=0.0)) as (bus, _):
        assert (await bus.call("image_stitcher", {}, timeout=15)).success
        assert runner.started[0].deadline > 0


async def test_a_cancellation_reaches_the_program(place: Place) -> None:
    """A call that its caller cancels ends at the instance, also while it streams more than anybody reads."""
    ended = asyncio.Event()

    async def answer(instance: FakeInstance, arguments: dict[str, Any], output: Output) -> ToolResult:
        try:
            while True:
                await output("more")
                await asyncio.sleep(0)
        finally:
            ended.set()

    async with served(place, runner := FakeRunner(delay=0.0, answer=answer)) as (bus, pool):
        call = bus.stream("image_stitcher", {})
        async with call:
            async for _ in call:
                break
        async with asyncio.timeout(10):
            await ended.wait()
        assert runner.started[0].calls == 0
        await eventually(lambda: not any(member.calls for member in pool._places.members))


async def test_two_hosts_serve_one_tool_and_nobody_takes_its_name(place: Place) -> None:
    """Two hosts may serve the tool; a service of another program with its id is refused."""

    class Other(ToolService):
        """Somebody else's."""

        id = "image_stitcher"
        tools = ({"name": "image_stitcher", "description": "Mine."},)

        def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> str:
            return "mine"

    async with served(place, FakeRunner(delay=0.0, answer=echo)), served(place, FakeRunner(delay=0.0)) as (bus, _):
        assert (await bus.call("image_stitcher", {})).success
        with pytest.raises(RegistrationRefused):
            async with place.worker(Other()):
                pass
