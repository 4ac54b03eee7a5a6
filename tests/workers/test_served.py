"""The example workers over the bus: found, called and streamed, in process and over a server."""

import json

import pytest
from toolbus_workers.joke import joke

from toolbus import ToolBus, ToolError, Worker
from toolbus.bus.worker.loading import examples

pytestmark = pytest.mark.anyio

TOOLS = {
    "calculator", "json_diff", "json_format", "json_query", "tell-knock-knock", "tell-limerick", "tell-pun",
    "text_outline", "text_search", "text_stats", "text_stream", "text_summary",
}  # fmt: skip

DOCUMENT = "# A heading\n\nBees make honey in a hive. Honey keeps for years.\n\n" * 40


@pytest.fixture
async def bus(server, namespace):
    """Provide a bus with every example worker behind it."""
    modules = examples()
    async with Worker(modules, url=server, namespace=namespace), ToolBus(server, namespace=namespace) as opened:
        for name in sorted(TOOLS):
            await opened.wait_for_tool(name, 10)
        yield opened


async def test_every_tool_is_listed_with_a_description_and_its_arguments(bus):
    """An agent sees the tools that the modules define, and no others."""
    assert set(bus.tools) == TOOLS


@pytest.mark.parametrize(
    ("tool", "arguments", "data"),
    [
        ("calculator", {"expression": "2 ** 10"}, {"result": 1024}),
        ("calculator", {"expression": "7 ** 4000"}, {"result": 7**4000}),
        ("json_query", {"document": {"a": [1, 2]}, "expression": "a[-1]"}, {"result": 2}),
        ("json_query", {"document": '{"a": [1, 2]}', "expression": "a[-1]"}, {"result": 2}),
        ("text_outline", {"text": "# One"}, {"headings": [{"level": 1, "title": "One", "line": 1}]}),
    ],
)
async def test_a_call_answers_with_data(bus, tool, arguments, data):
    """Programs read the data of a result."""
    result = await bus.call(tool, arguments)
    assert result.success, result.error
    assert result.data == data


async def test_a_joke_reaches_the_user_it_is_for(bus):
    """User and style arrive through the two tiers: the tool's descriptor configures the shared service."""
    result = await bus.call("tell-limerick", {"topic": "cats"}, user="alice")
    assert result.output == f"Hey alice! Here's a limerick for you:\n\n{joke('limerick', 'cats')}"


async def test_a_document_is_streamed_in_parts(bus):
    """The parts arrive as text, in order, and make up the document."""
    async with bus.stream("text_stream", {"text": DOCUMENT, "part": 64}) as call:
        texts = [text async for text in call]
        result = await call.result()
    assert "".join(texts) == DOCUMENT == result.output
    assert len(texts) > 1


async def test_a_long_document_is_formatted_whole(bus):
    """Output larger than a frame arrives complete."""
    numbers = list(range(20_000))
    result = await bus.call("json_format", {"document": numbers})
    assert json.loads(result.output) == numbers


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("calculator", {"expression": "1 / 0"}, "division_by_zero"),
        ("json_query", {"document": "{", "expression": "a"}, "bad_json"),
        ("text_search", {"text": "x", "query": ""}, "bad_query"),
        ("tell-pun", {"topic": ["cats"]}, "bad_topic"),
    ],
)
async def test_a_failure_arrives_with_its_code(bus, tool, arguments, code):
    """A tool's failure is a value with type and code, and an exception for whoever iterates the stream."""
    result = await bus.call(tool, arguments)
    assert not result.success
    assert (result.error.type, result.error.code) == ("invalid_arguments", code)
    async with bus.stream(tool, arguments) as call:
        with pytest.raises(ToolError) as failure:
            [text async for text in call]
    assert failure.value.error.code == code
