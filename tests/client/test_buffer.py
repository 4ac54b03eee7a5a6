"""The events of a call that wait for its reader."""

from __future__ import annotations

import asyncio

import pytest

from tests.servers import eventually
from toolbus import Blob
from toolbus.bus.client.calls.assembly import EventBuffer
from toolbus.bus.values.events import Started, Text

pytestmark = pytest.mark.anyio


async def test_events_are_read_in_order_and_counted() -> None:
    """The first event is taken first, and the size is that of the events that are left."""
    buffer = EventBuffer()
    buffer.put(Text("one"))
    buffer.put(Started("w", 1, 0.0))
    assert buffer.size == 3 + 64
    assert buffer.take() == Text("one")
    assert buffer.size == 64
    assert buffer.take() == Started("w", 1, 0.0)
    assert buffer.size == 0
    buffer.put(Blob("a/b", b"12345"))
    assert (buffer.size, buffer.take(), buffer.size) == (5, Blob("a/b", b"12345"), 0)
    buffer.put(Text("two"))
    buffer.clear()
    assert (buffer.size, len(buffer.events)) == (0, 0)
    with pytest.raises(IndexError):
        buffer.take()


async def test_an_event_wakes_the_one_reader() -> None:
    """A reader that waits is woken by the next event, and a second reader is refused."""
    buffer = EventBuffer()
    assert buffer.is_awaited is False
    reader = asyncio.create_task(buffer.arrival())
    await eventually(lambda: buffer.is_awaited)
    with pytest.raises(RuntimeError, match="somebody else"):
        await buffer.arrival()
    buffer.put(Text("x"))
    async with asyncio.timeout(2):
        await reader
    assert buffer.is_awaited is False


async def test_a_cancelled_reader_leaves_its_place() -> None:
    """After the reader was cancelled another task may wait."""
    buffer = EventBuffer()
    reader = asyncio.create_task(buffer.arrival())
    await eventually(lambda: buffer.is_awaited)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    other = asyncio.create_task(buffer.arrival())
    await eventually(lambda: buffer.is_awaited)
    buffer.wake()
    async with asyncio.timeout(2):
        await other
