"""Tools that were there: what programs and models are told when they call them."""

from __future__ import annotations

import time

import msgspec
import pytest

from tests.contract import Place
from tests.servers import eventually
from toolbus import tool
from toolbus.bus.client.calls.refusals import unknown_tool
from toolbus.bus.client.tools.catalogue import Catalogue
from toolbus.bus.values.descriptors import ToolDescriptor, tool_document

pytestmark = pytest.mark.anyio


@tool(service="trips", effect="read")
async def book_flight() -> str:
    """Book a flight."""
    return "booked"


@tool(service="trips", effect="read", tenants=["alice"])
async def book_yacht() -> str:
    """Book a yacht."""
    return "booked"


async def test_a_model_is_told_that_a_tool_it_used_is_gone(place: Place) -> None:
    """It is unavailable with a next step that can work, for who could call it; for others it never was there."""
    async with place.bus() as bus:
        alice, bob = bus.bind(user="alice"), bus.bind(user="bob")
        async with place.worker([book_flight, book_yacht]):
            await bus.wait_for_tool("book_yacht", timeout=5)
            assert (await bob.executor().execute("book_flight")).success
            assert (await alice.executor().execute("book_yacht")).success
        await eventually(lambda: not list(bus.tools))
        [said] = await bob.executor().process_tool_calls([{"id": "1", "function": {"name": "book_flight", "arguments": "{}"}}])
        assert said["content"].startswith("Error (unavailable): the tool 'book_flight' was there until ")
        assert said["content"].endswith("Next: try again later, or use another tool.")
        for answer in (await alice.call("book_yacht"), await alice.executor().execute("book_yacht")):
            assert answer.error is not None
            assert (answer.error.type, answer.error.code, answer.error.retryable) == ("unavailable", "withdrawn", True)
        for answer in (await bob.call("book_yacht"), await bob.executor().execute("book_yacht"), await bob.call("book_hotel")):
            assert answer.error is not None
            assert answer.error.type == "not_found"
        narrow = bus.executor(tools=bus.tools.filter(names=["book_hotel"]))
        other = await narrow.execute("book_flight")
        assert other.error is not None
        assert other.error.type == "not_found"
        async with place.worker(book_flight):
            await bus.wait_for_tool("book_flight", timeout=5)
            assert (await bob.call("book_flight")).success


def test_former_tools_are_bounded() -> None:
    """The oldest is forgotten, and the time is that of the last departure."""
    catalogue = Catalogue()
    tools = {name: msgspec.json.encode(tool_document(ToolDescriptor(name, "d", "s"))) for name in (f"t{number}" for number in range(1_001))}
    catalogue.on_registry({}, {f"tool/{name}": document for name, document in tools.items()})
    began = time.monotonic()
    catalogue.on_registry({}, {})
    assert (catalogue.former.get("t0"), catalogue.former["t1"][0].name) == (None, "t1")
    assert began <= catalogue.former["t1000"][1] <= time.monotonic()
    catalogue.on_item("tool/t1000", tools["t1000"])
    assert catalogue.former.get("t1000") is None


def test_a_tool_that_never_was_is_not_found() -> None:
    """An empty catalogue knows of none."""
    assert unknown_tool("adder", Catalogue()).type == "not_found"
