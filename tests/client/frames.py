"""The frames of a call's runs, and the events that an assembly makes of them."""

from __future__ import annotations

from typing import Any

from toolbus import Blob, Progress, ToolResult
from toolbus.bus.client.calls.assembly import Assembly
from toolbus.bus.values.envelope import Frame
from toolbus.bus.values.events import Event, Finished, Reset, Text

Item = str | Blob | Progress


def run(attempt: int, *items: Item, end: bool = True, token: str = "", **ending: Any) -> list[Frame]:
    """Return the frames of one run of a handler that yields ``items``."""
    frames: list[Frame] = []
    for item in items:
        frame = Frame("call", token or f"run-{attempt}", attempt, len(frames))
        if isinstance(item, str):
            frame.response = item
        elif isinstance(item, Blob):
            frame.kind, frame.blob = "blob", item
        else:
            frame.kind, frame.progress = "progress", item
        frames.append(frame)
    if end:
        frames.append(Frame("call", token or f"run-{attempt}", attempt, len(frames), "end", end_of_stream=True, **ending))
    if frames:
        frames[0].worker = f"worker-{attempt}"
    return frames


def fed(*frames: Frame) -> list[Event]:
    """Return the events of a new assembly that takes in these frames."""
    taken = Assembly()
    return [event for frame in frames for event in taken.feed(frame)]


def seen(events: list[Event]) -> tuple[str, list[Blob]]:
    """Return the text and blobs of a caller that obeys every Reset."""
    text, blobs = "", []
    for event in events:
        if isinstance(event, Reset):
            text, blobs = "", []
        elif isinstance(event, Text):
            text += event.text
        elif isinstance(event, Blob):
            blobs.append(event)
    return text, blobs


def result(events: list[Event]) -> ToolResult:
    """Return the result of the one Finished, which comes last."""
    assert [type(event) for event in events].count(Finished) == 1
    assert isinstance(events[-1], Finished)
    return events[-1].result


def kinds(events: list[Event]) -> list[type]:
    """Return the events' types."""
    return [type(event) for event in events]


ONE, TWO = Blob("a/b", b"one"), Blob("a/b", b"two")
