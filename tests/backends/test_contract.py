"""Promises that the instances of every kind of source keep."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.backends.places import Heard, Place, call
from tests.servers import eventually
from toolbus.bus.values.results import Blob, ToolError, ToolResult
from toolbus.platform.backends.runner import CannotStart, Instance

pytestmark = pytest.mark.anyio


async def test_arguments_are_the_json_body(place: Place) -> None:
    """The arguments arrive as the JSON body of a POST to the endpoint's path, and JSON is the data."""
    instance = await place.start(endpoint_path="/run")
    answer = await instance.call({"text": "grüß", "n": [1, None]}, Heard())
    assert answer.success
    assert answer.data["arguments"] == {"text": "grüß", "n": [1, None]}
    assert (answer.data["path"], answer.data["method"]) == ("/run", "POST")
    assert answer.data["headers"]["Content-Type"] == "application/json"
    await instance.stop(5)


async def test_headers_and_query_of_a_record_are_sent(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their values are the host's; a program that serves several names is asked for the one of its record alone."""
    monkeypatch.setenv("TOOL_KEY", "hush")
    headers = {"host": "tools.example", "accept": "text/plain", "X-Key": "Key {env:TOOL_KEY}"}
    instance = await place.start(headers=headers, query={"k": "env:TOOL_KEY"})
    seen = (await instance.call({}, Heard())).data
    assert (seen["hosts"], seen["accepts"]) == (["tools.example"], ["text/plain"])
    assert (seen["headers"]["X-Key"], seen["path"]) == ("Key hush", "/?k=hush")
    await instance.stop(5)


@pytest.mark.parametrize("field", ["headers", "query"])
async def test_nothing_starts_without_a_value_of_its_record(place: Place, field: str) -> None:
    """A header or parameter that this host has no value for is told of at the start."""
    with pytest.raises(CannotStart, match="NO_SUCH_KEY"):
        await place.start(**{field: {"k": "env:NO_SUCH_KEY"}})


async def test_arguments_fill_in_the_path_and_the_query(place: Place) -> None:
    """Arguments that the path names are quoted into it; of a GET the others are the query."""
    instance = await place.start(endpoint_path="/jobs/{id}?v=1", http_method="GET")
    answer = await instance.call({"id": "a b/ü", "tags": ["x", "y"], "deep": {"a": 1}, "on": True, "none": None}, Heard())
    assert answer.data["path"] == "/jobs/a%20b%2F%C3%BC?v=1&tags=x&tags=y&deep=%7B%22a%22%3A1%7D&on=true"
    await instance.stop(5)


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("do", "expected"),
    [
        ("text", ToolResult(output="grüß")),
        ("empty", ToolResult(output="")),
        ("image", ToolResult(output="", content=(Blob("image/png", bytes.fromhex("89504e470d0a1a0a") + b"picture"),))),
        ("unsaid", ToolResult(output="", content=(Blob("image/png", bytes.fromhex("89504e470d0a1a0a") + b"picture"),))),
        ("file", ToolResult(output="", content=(Blob("application/zip", b"\0\1"),))),
        ("chunked", ToolResult(output="grü!")),
        ("events", ToolResult(output="one two", data={"pages": 2})),
    ],
)
async def test_answers_are_results(place: Place, do: str, expected: ToolResult) -> None:
    """Text is the output, files are blobs, and of a tool that does not stream the pieces are put together."""
    instance = await place.start()
    assert await call(instance, do) == expected
    assert (await call(instance, "value", value="plain")).output == "plain"
    await instance.stop(5)


async def test_text_is_streamed(place: Place) -> None:
    """Of a tool that streams each piece is passed on when it comes: texts, events, progress."""
    instance = await place.start(streams=True)
    heard = Heard()
    first = asyncio.Event()
    heard.on_text = first.set
    running = asyncio.create_task(call(instance, "slow_text", output=heard))
    await first.wait()
    assert heard.pieces == ["first"]
    await call(instance, "hurry")
    assert await running == ToolResult()
    assert heard.pieces == ["first", "last"]
    heard = Heard()
    assert await call(instance, "events", output=heard) == ToolResult(data={"pages": 2})
    assert (heard.pieces, heard.told) == (["one ", "two"], [(1.0, 2.0, "half")])
    await instance.stop(5)


@pytest.mark.few(9)
@pytest.mark.parametrize(
    ("do", "code", "said"),
    [
        ("refuse", "http_404", 'POST / answered 404 Not Found: {"detail": "no such page"}'),
        ("busy", "http_503", "come back"),
        ("crash", "http_500", "Traceback"),
        ("redirect", "http_307", "redirected to http://169.254.169.254/latest, which is not followed"),
        ("bad_json", "bad_answer", "says that it is JSON, and is not"),
        ("bad_gzip", "bad_answer", ""),
        ("nonsense", "bad_answer", "not HTTP"),
        ("endless_head", "bad_answer", ""),
        ("short", "connection_lost", "closed the connection before its answer was complete"),
        ("close", "connection_lost", "closed the connection"),
        ("reset", "connection_lost", "closed the connection"),
        ("cut", "connection_lost", "closed the connection"),
        ("bomb", "too_long", "has more than"),
        ("failing_events", "program", "out of paper"),
    ],
)
async def test_failures_say_what_is_wrong(place: Place, do: str, code: str, said: str) -> None:
    """A refusal, nonsense, and an answer that is cut off are short, clear errors; the next call is answered."""
    instance = await place.start()
    with pytest.raises(ToolError) as raised:
        await call(instance, do)
    error = raised.value.error
    assert (error.type, error.code) == ("tool_error", code)
    assert said in error.message
    assert len(error.message) <= 1_000
    assert (await call(instance, "value", value=1)).data == 1
    if do == "refuse":
        assert error.details == {"detail": "no such page"}
    if do == "busy":
        assert (error.retryable, error.retry_after) == (True, 7.0)
    await instance.stop(5)


@pytest.mark.few(3)
@pytest.mark.parametrize("do", ["short", "close", "nonsense"])
async def test_lost_calls_of_once_tools_are_unknown(place: Place, do: str) -> None:
    """A call that must not run twice and is lost after it was sent may have had its effect, and says so."""
    instance = await place.start(effect="once")
    with pytest.raises(ToolError) as raised:
        await call(instance, do)
    assert raised.value.error.type == "outcome_unknown"
    await instance.stop(5)


@pytest.mark.parametrize("do", ["hang", "drip"])
async def test_cancelling_closes_the_connection(place: Place, do: str) -> None:
    """A program sees that its caller is gone, before its answer and within it."""
    instance = await place.start(streams=True)
    running = asyncio.create_task(call(instance, do))
    await eventually(lambda: _seen(instance, ["begun"]), timeout=30)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await eventually(lambda: _seen(instance, ["begun", "closed"]), timeout=30)
    await instance.stop(5)


async def test_deadlines_close_the_connection(place: Place) -> None:
    """A program that never answers ends with the time of the call."""
    instance = await place.start()
    soon = asyncio.get_running_loop().time() + 0.2
    with pytest.raises(ToolError) as raised:
        await instance.call({"do": "hang"}, Heard(), deadline=soon)
    assert raised.value.error.type == "deadline_exceeded"
    await eventually(lambda: _seen(instance, ["begun", "closed"]), timeout=30)
    await instance.stop(5)


async def test_what_is_not_reached_has_not_run(place: Place) -> None:
    """A call to a program that does not listen is unavailable."""
    instance = await place.start()
    await instance.stop(5)
    await instance.stop(5)
    if place.source.type == "remote":
        instance = await place.start(url="http://127.0.0.1:9")
    with pytest.raises(ToolError) as raised:
        await call(instance, "echo")
    assert raised.value.error.type == "unavailable"
    await instance.stop(5)


async def test_health(place: Place) -> None:
    """A path that answers badly is why an instance is not well."""
    instance = await place.start(ready="path:/well")
    assert not await instance.health()
    await instance.stop(5)
    if place.source.type == "remote":
        return
    assert await instance.health()
    assert await asyncio.wait_for(instance.ended(), 30)


async def test_arguments_that_fit_nowhere_are_refused(place: Place) -> None:
    """Dots, lists and nothing at all can't be in a path."""
    instance = await place.start(endpoint_path="/jobs/{id}")
    for arguments in ({}, {"id": ""}, {"id": ".."}, {"id": ["a"]}):
        with pytest.raises(ToolError) as raised:
            await instance.call(arguments, Heard())
        assert raised.value.error.type == "invalid_arguments"
    await instance.stop(5)


async def test_many_calls_at_once(place: Place) -> None:
    """Each of many calls at once gets its own answer."""
    instance = await place.start()
    answers = await asyncio.gather(*(call(instance, "value", value=n) for n in range(64)))
    assert [answer.data for answer in answers] == list(range(64))
    await instance.stop(5)


async def _seen(instance: Instance, expected: list[str]) -> bool:
    seen = (await call(instance, "seen")).data or []
    assert isinstance(seen, list), json.dumps(seen)
    return seen == expected
