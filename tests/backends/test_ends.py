"""Answers that have no length and are not chunked, so that nothing but the end of the connection ends them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.places import Heard, Place, call
from tests.tiers import pairs
from toolbus.bus.values.results import ToolError, ToolResult
from toolbus.platform.backends import instances as programs
from toolbus.platform.backends.http import HttpCalls

pytestmark = pytest.mark.anyio

EVENTS = "text/event-stream"
BODIES = {
    "nothing": ("application/json", ""),
    "json": ("application/json", '{"a": 1}'),
    "half json": ("application/json", '{"a": '),
    "text": ("text/plain", "begun"),
    "file": ("application/zip", "PK"),
    "no events": (EVENTS, ""),
    "events": (EVENTS, "data: one\n\n"),
    "half result": (EVENTS, 'event: result\ndata: {"a": 1'),
    "half blob": (EVENTS, 'event: blob\ndata: {"media_type": "image'),
}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a slow machine all the time that it needs to tell of a death."""
    monkeypatch.setattr(programs, "HttpCalls", lambda *given, **more: HttpCalls(*given, **{**more, "told_within": 60.0}))


@pytest.mark.few(4)
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("body", "streams", "effect"), pairs([*BODIES], [False, True], ["", "once"]))
async def test_a_program_that_dies_has_not_answered(local: Place, body: str, streams: bool, effect: str) -> None:
    """Of a program that dies after a part of its answer, or all of it, the call is lost, whatever it answers."""
    kind, text = BODIES[body]
    instance = await local.start(streams=streams, effect=effect)
    with pytest.raises(ToolError) as raised:
        await call(instance, "open", kind=kind, body=text, die=True)
    assert (raised.value.error.type, raised.value.error.code) == ("outcome_unknown" if effect else "tool_error", "connection_lost")
    await instance.stop(5)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("application/json", '{"a": 1}', ToolResult(data={"a": 1})),
        ("text/plain", "all", ToolResult(output="all")),
        ("text/plain", "", ToolResult(output="")),
        (EVENTS, 'data: one\n\nevent: result\ndata: {"a": 1}\n\n', ToolResult(output="one", data={"a": 1})),
        (EVENTS, 'data: one\n\nevent: end\ndata: {"a": 1}', ToolResult(output="one", data={"a": 1})),
        (EVENTS, "data: one\n\ndata: [DONE]\n\n", ToolResult(output="one")),
    ],
)
async def test_a_program_that_lives_has_answered(place: Place, kind: str, body: str, expected: ToolResult) -> None:
    """The end of the connection ends an answer of a program that lives, and of an API."""
    instance = await place.start()
    assert await call(instance, "open", kind=kind, body=body) == expected
    await instance.stop(5)


@pytest.mark.few(3)
@pytest.mark.parametrize("effect", ["", "once"])
@pytest.mark.parametrize("streams", [False, True])
async def test_a_stream_of_events_has_a_last_one(place: Place, streams: bool, effect: str) -> None:
    """A stream of events that breaks off without ``result``, ``end`` or ``[DONE]`` is cut off, also when its program lives."""
    instance = await place.start(streams=streams, effect=effect)
    heard: Any = Heard()
    with pytest.raises(ToolError, match="neither an event 'result' nor 'end'") as raised:
        await call(instance, "open", kind=EVENTS, body="data: one\n\n", output=heard)
    assert raised.value.error.type == ("outcome_unknown" if effect else "tool_error")
    assert heard.pieces == (["one"] if streams else [])
    await instance.stop(5)


@pytest.mark.usefixtures("patient")
async def test_a_last_event_is_an_answer(local: Place) -> None:
    """A program that dies after its event ``result`` has answered."""
    instance = await local.start(effect="once")
    answer = await call(instance, "open", kind=EVENTS, body="event: result\ndata: 1\n\n", die=True)
    assert answer == ToolResult(data=1, output="")
    await instance.stop(5)
