"""Streams: how the items of a handler become frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.worker.unit.fakes import Bench, hold
from toolbus import Blob, Progress, ToolResult, tool

pytestmark = pytest.mark.anyio

Made = tuple[str, Any]


async def stream_of(*items: Any, settings: dict[str, Any] | None = None, congested: bool = False) -> Bench:
    """Run a handler that yields these items; None lets the loop turn."""

    @tool(service="unit_stream", replace=True)
    async def stream() -> AsyncIterator[Any]:
        """Yield the items."""
        for item in items:
            if item is None:
                await asyncio.sleep(0.1)
            else:
                yield item

    bench = Bench(stream, **(settings or {}))
    bench.broker.congested = congested
    bench.slots.start(bench.delivery("stream"))
    await asyncio.sleep(5)
    assert len(bench.broker.ends) == 1
    return bench


def made(bench: Bench) -> list[Made]:
    """The kind and content of each frame."""
    return [(frame.kind, frame.texts or frame.response or frame.blob or frame.progress) for frame in bench.broker.frames]


async def test_texts_of_one_turn_go_as_one_frame() -> None:
    """Texts gather until earlier frames leave; the end carries no output of its own."""
    bench = await stream_of("a", "b", None, "", "c")
    assert made(bench) == [("text", ["a", "b"]), ("text", "c")]
    end = bench.broker.ends[0].frame
    assert (end.response, end.error, end.seq) == (None, None, 2)


async def test_a_stream_without_text_has_empty_output() -> None:
    """The caller can tell it from the text that was sent."""
    assert (await stream_of("")).broker.ends[0].frame.response == ""


async def test_text_goes_before_the_item_that_follows_it() -> None:
    """Progress, blobs and data keep their places between texts."""
    bench = await stream_of("a", Progress(1), "b", Blob("x/y", b"1"), {"n": 1}, ToolResult(data=2))
    assert made(bench) == [
        ("text", "a"),
        ("progress", Progress(1)),
        ("text", "b"),
        ("blob", Blob("x/y", b"1")),
        ("text", '{"n":1}'),
    ]
    assert bench.broker.ends[0].frame.data == 2
    assert [frame.seq for frame in bench.broker.frames] == [0, 1, 2, 3, 4]


async def test_text_that_fills_a_frame_is_sent_at_once() -> None:
    """With frames of 256 bytes about 128 gather; a longer text is cut into pieces of at most a frame."""
    bench = await stream_of("a" * 100, "b" * 28, "c", "d", settings={"max_frame": 256})
    assert made(bench) == [("text", ["a" * 100, "b" * 28, "c"]), ("text", "d")]
    bench = await stream_of("a", "b" * 300, settings={"max_frame": 256})
    assert made(bench) == [("text", "a"), ("text", "b" * 256), ("text", "b" * 44)]


async def test_text_is_measured_in_bytes() -> None:
    """65 letters of two bytes are over half a frame of 256."""
    bench = await stream_of("é" * 65, "x", settings={"max_frame": 256})
    assert made(bench) == [("text", "é" * 65), ("text", "x")]
    bench = await stream_of("é" * 64, "x", settings={"max_frame": 256})
    assert made(bench) == [("text", ["é" * 64, "x"])]


async def test_lone_surrogates_are_replaced() -> None:
    """A text that UTF-8 can't express is sent all the same."""
    [(kind, text)] = made(await stream_of("a\ud800b"))
    assert (kind, text[0], text[-1]) == ("text", "a", "b")
    assert "\ud800" not in text


async def test_a_subclass_of_text_is_text() -> None:
    """It is not encoded as data."""

    class Title(str):
        __slots__ = ()

    assert made(await stream_of(Title("t"))) == [("text", "t")]


async def test_large_blobs_are_cut() -> None:
    """Each part fits a frame as base64, and all but the last say that more follows."""
    bench = await stream_of(Blob("x/y", bytes(400)), Blob("x/z", b""), settings={"max_frame": 256})
    assert [(frame.blob, frame.more) for frame in bench.broker.frames] == [
        (Blob("x/y", bytes(192)), True),
        (Blob("x/y", bytes(192)), True),
        (Blob("x/y", bytes(16)), False),
        (Blob("x/z", b""), False),
    ]


@pytest.mark.parametrize(
    ("items", "fits"),
    [
        (["a" * 60, "b" * 40], True),
        (["a" * 60, "b" * 41], False),
        (["a" * 200], False),
        ([Blob("x/y", bytes(100))], True),
        ([Blob("x/y", bytes(101))], False),
        ([Blob("x/y", bytes(60)), "b" * 41], False),
    ],
)
async def test_the_output_of_a_call_is_bounded(items: list[Any], fits: bool) -> None:
    """Text and blobs count together; one byte over the limit fails the call."""
    bench = await stream_of(*items, settings={"max_output": 100})
    error = bench.broker.ends[0].frame.error
    if fits:
        assert error is None
    else:
        assert error is not None
        assert (error.code, error.message) == ("output_limit", "the output is over the limit of 100 bytes (TOOLBUS_MAX_OUTPUT)")


async def test_a_result_must_be_the_last_item() -> None:
    """Another item after a ToolResult fails the call."""
    error = (await stream_of(ToolResult(output="x"), "more")).broker.ends[0].frame.error
    assert error is not None
    assert (error.code, error.message) == ("bad_stream", "the handler yielded more after its ToolResult")


async def test_a_result_after_text_has_its_own_output() -> None:
    """Its output is on the last frame; a long one goes in frames that replace the text sent."""
    assert (await stream_of("a", ToolResult(output="whole"))).broker.ends[0].frame.response == "whole"
    bench = await stream_of("a", ToolResult(output="w" * 300), settings={"max_frame": 256})
    assert made(bench) == [("text", "a"), ("output", "w" * 256), ("output", "w" * 44)]


async def test_a_stream_waits_while_frames_can_not_leave() -> None:
    """It waits for room only when nothing gathers here, since only what left can have filled the way."""
    bench = await stream_of(Progress(1), Progress(2), congested=True)
    assert bench.broker.rooms == 1
    assert (await stream_of("a", congested=True)).broker.rooms == 0


async def test_a_generator_that_swallows_its_cancellation_is_closed() -> None:
    """The next item of an answered run ends the stream, and the generator's own clean-up runs."""
    closed: list[str] = []

    @tool(service="unit_stream", replace=True)
    async def stubborn() -> AsyncIterator[str]:
        """Go on and on."""
        try:
            for _ in range(10):
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    yield "still here"
        finally:
            closed.append("closed")

    bench = Bench(stubborn)
    delivery = bench.delivery("stubborn")
    bench.slots.start(delivery)
    await bench.settle()
    bench.slots.on_cancelled(delivery.request.id)
    await bench.settle()
    assert closed == ["closed"]
    assert bench.slots.running == 0
    assert bench.broker.frames == []
    assert bench.broker.errors() == [("cancelled", "")]


async def test_frames_fill_evenly() -> None:
    """Items that gather after a full frame are measured anew."""
    filling = ["a" * 100, "b" * 28, "c"]
    bench = await stream_of(*filling, *filling, settings={"max_frame": 256})
    assert made(bench) == [("text", filling), ("text", filling)]


@pytest.mark.parametrize(("size", "parts"), [(384, [(192, True), (192, False)]), (400, [(192, True), (192, True), (16, False)])])
async def test_a_blob_of_several_frames_counts_its_bytes_once(size: int, parts: list[tuple[int, bool]]) -> None:
    """It may fill the output of a call exactly, and its frames, too."""
    bench = await stream_of(Blob("x/y", bytes(size)), settings={"max_frame": 256, "max_output": size})
    assert bench.broker.ends[0].frame.error is None
    assert [(len(frame.blob.data), frame.more) for frame in bench.broker.frames if frame.blob] == parts


class Items:
    """An asynchronous iterable of one text, which can't be closed."""

    def __init__(self) -> None:
        self._left = ["text"]

    def __aiter__(self) -> Items:
        return self

    async def __anext__(self) -> str:
        if self._left:
            return self._left.pop()
        raise StopAsyncIteration


class ClosingItems(Items):
    """One that notes that it was closed."""

    closed = False

    async def aclose(self) -> None:
        self.closed = True


async def test_what_is_iterated_is_closed() -> None:
    """At its end, if it can be closed at all."""
    bench = Bench(hold)
    held = await bench.begin("hold")
    stream = held.open_stream()
    closing = ClosingItems()
    for items in (Items(), closing):
        assert (await stream.consume(items)).output is None
    assert closing.closed
    assert held.open_stream() is stream
    await bench.settle()
    assert made(bench) == [("text", ["text", "text"])]
