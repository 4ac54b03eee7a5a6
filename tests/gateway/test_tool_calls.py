"""A model's whole message, answered by one request."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.client.executing import TwoTier, chat, crash, find_docs, info, pay, pieces, repeat
from tests.contract import Place, first_of
from tests.gateway.running import client_of, events_of
from tests.servers import eventually
from toolbus import Blob, ToolBus, Worker, invocation, tool
from toolbus.bus.client.tools.tool import wire_name
from toolbus.edges.gateway.options import Everyone, Principal

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + b"\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x02\x00\x00\x00\x90wS\xde"
TOOLS = [repeat, pieces, crash, find_docs, info, pay, TwoTier]


@tool(service="slow", effect="read")
async def hang() -> str:
    """Wait until it is cancelled."""
    stopped.clear()
    begun.set()
    try:
        await asyncio.sleep(600)
    finally:
        stopped.set()
    return "never"


begun, stopped = asyncio.Event(), asyncio.Event()


def anthropic(id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a call as Anthropic's models write it."""
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


async def test_each_provider_gets_its_own_answer(place: Place) -> None:
    """One request answers a message of chat completions, of responses and of Anthropic's in the shape in which it was asked."""
    async with place.serving(*TOOLS) as bus, client_of(bus) as client:
        arguments = '```json\n{"text": "a", "times": "3",}\n```'
        message = {"role": "assistant", "content": None, "tool_calls": [chat("c1", "repeat", arguments)]}
        answered = (await client.post("/v1/tool_calls", json=message)).json()
        assert answered["messages"] == [{"role": "tool", "tool_call_id": "c1", "name": "repeat", "content": "aaa"}]
        assert answered["calls"][0]["changes"][0] == "a code fence was taken off"
        whole = {"id": "x", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
        assert (await client.post("/v1/tool_calls", json=whole)).json()["messages"] == answered["messages"]
        items = {"output": [{"type": "function_call", "call_id": "r1", "name": "repeat", "arguments": '{"text": "b"}'}]}
        found = (await client.post("/v1/tool_calls", json=items)).json()["messages"]
        assert found == [{"type": "function_call_output", "call_id": "r1", "output": "b"}]
        blocks = {
            "role": "assistant",
            "content": [{"type": "text", "text": "hm"}, anthropic("a1", "repeat", {"text": "c"}), anthropic("a2", "crash", {})],
        }
        [turn] = (await client.post("/v1/tool_calls", json=blocks)).json()["messages"]
        assert turn["role"] == "user"
        assert [each["tool_use_id"] for each in turn["content"]] == ["a1", "a2"]
        assert turn["content"][1]["is_error"] is True


async def test_an_answer_in_words_has_no_messages(place: Place) -> None:
    """A message without calls is answered with none."""
    async with place.serving(repeat) as bus, client_of(bus) as client:
        answered = await client.post("/v1/tool_calls", json={"role": "assistant", "content": "hello"})
        assert (answered.status_code, answered.json()) == (200, {"messages": [], "calls": []})


async def test_a_later_turn_at_another_replica_refers_to_results(place: Place) -> None:
    """``$from`` finds the results of a session's earlier turns whichever gateway ran them, and those of no other user or session."""
    first_call = [chat("c1", wire_name("find.docs"), {"query": "q"})]
    refers = [chat("c2", "info", {"ids": [{"$from": "c1", "path": "results[1].id"}]})]
    alice = Everyone(Principal("alice", user="alice"))
    async with (
        place.serving(*TOOLS) as bus,
        place.bus() as other,
        client_of(bus, alice) as here,
        client_of(other, alice) as there,
        client_of(other, Everyone(Principal("b", user="bob"))) as bobs,
    ):
        assert (await here.post("/v1/tool_calls", json={"message": first_call, "session": "s"})).status_code == 200
        found = (await there.post("/v1/tool_calls", json=refers, headers={"Toolbus-Session": "s"})).json()
        assert found["messages"][0]["content"] == "['q-2'] for alice"
        by_tool = [chat("c3", "info", {"ids": [{"$from": "find.docs", "path": "results[0].id"}]})]
        assert (await there.post("/v1/tool_calls", json=by_tool, headers={"Toolbus-Session": "s"})).json()["messages"][0][
            "content"
        ] == "['q-1'] for alice"
        elsewhere = (await there.post("/v1/tool_calls", json=refers, headers={"Toolbus-Session": "t"})).json()
        strangers = (await bobs.post("/v1/tool_calls", json=refers, headers={"Toolbus-Session": "s"})).json()
        assert [each["calls"][0]["error"]["code"] for each in (elsewhere, strangers)] == ["bad_reference"] * 2


async def test_the_user_is_the_tokens(place: Place) -> None:
    """Handlers see the principal's user; a body that names another is refused, whether as an option or within the message."""
    async with place.serving(*TOOLS) as bus, client_of(bus, Everyone(Principal("t", user="alice"))) as client:
        message = [chat("c1", "info", {"ids": []})]
        refused = await client.post("/v1/tool_calls", json={"message": message, "user": "mallory"})
        assert (refused.status_code, refused.json()["type"]) == (422, "urn:toolbus:error:invalid_options")
        within = {"role": "assistant", "tool_calls": message, "user": "mallory"}
        for each in (within, {"message": within}):
            assert (await client.post("/v1/tool_calls", json=each)).json()["messages"][0]["content"] == "[] for alice"


async def test_other_tools_do_not_exist(place: Place) -> None:
    """A principal with some groups calls the tools of these; for it the others are not there, by definition or call."""
    principal = Principal("docs", groups=frozenset({"docs"}))
    async with place.serving(*TOOLS) as bus, client_of(bus, Everyone(principal)) as client:
        listed = (await client.get("/v1/tools", params={"format": "bare"})).json()
        assert [each["name"] for each in listed] == ["find.docs", "info"]
        answered = (
            await client.post("/v1/tool_calls", json=[chat("c1", "repeat", {"text": "x"}), chat("c2", "info", {"ids": ["a"]})])
        ).json()
        assert [each["success"] for each in answered["calls"]] == [False, True]
        assert answered["calls"][0]["error"]["code"] == "unknown_tool"


async def test_a_stream_tells_what_happens_and_ends_with_the_messages(place: Place) -> None:
    """With ``Accept: text/event-stream`` the text comes in pieces, each call's events in order, and the messages come last."""
    async with place.serving(*TOOLS) as bus, client_of(bus) as client:
        body = [chat("c1", "pieces", {"count": 3}), chat("c2", "crash", {})]
        plain = (await client.post("/v1/tool_calls", json=body)).json()
        answered = await client.post("/v1/tool_calls", json=body, headers={"Accept": "text/event-stream"})
        assert answered.headers["content-type"].startswith("text/event-stream")
        events = [(kind, json.loads(data)) for kind, data in events_of(answered.text)]
        first = [(kind, data) for kind, data in events if data.get("id") == "c1"]
        assert [kind for kind, _ in first] == ["requested", "started", "text", "text", "text", "end"]
        assert "".join(data["text"] for kind, data in first if kind == "text") == "0 1 2 "
        kind, last = events[-1]
        assert (kind, last["messages"]) == ("messages", plain["messages"])


async def test_a_client_that_leaves_cancels_its_calls(place: Place) -> None:
    """The handlers of a client that disconnects are cancelled, whether it asked for a stream or not."""
    async with place.serving(hang) as bus, client_of(bus) as client:
        for accept in ("application/json", "text/event-stream"):
            begun.clear()
            asking = asyncio.create_task(client.post("/v1/tool_calls", json=[chat("c1", "hang", {})], headers={"Accept": accept}))
            await eventually(begun.is_set, timeout=20.0)
            asking.cancel()
            await asyncio.wait({asking})
            await eventually(stopped.is_set, timeout=20.0)


async def test_a_confirmation_is_answered_elsewhere(place: Place) -> None:
    """A tool that needs a person's permission waits until any process of the namespace answers."""
    async with place.serving(*TOOLS) as bus, place.bus() as person, client_of(bus) as client:
        asking = asyncio.create_task(client.post("/v1/tool_calls", json=[chat("c1", "pay", {"amount": 5})]))
        await person.confirmations.allow((await first_of(person)).id)
        assert (await asking).json()["messages"][0]["content"] == "paid 5"


async def test_the_same_key_runs_a_call_once(place: Place) -> None:
    """A repeated request with an ``Idempotency-Key`` gets the same answer without another execution."""
    runs: list[str] = []

    @tool(service="counted", effect="once")
    async def count() -> int:
        """Count."""
        runs.append(invocation().user)
        return len(runs)

    async with place.serving(count) as bus, client_of(bus) as client:
        asked = [await client.post("/v1/tool_calls", json=[chat("c1", "count", {})], headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert [each.json()["messages"][0]["content"] for each in asked] == ["1", "1"]
        assert len(runs) == 1


async def test_an_image_goes_beside_the_answer(place: Place) -> None:
    """Bytes reach the model as the provider takes them, base64 within the JSON."""

    @tool(service="drawn", effect="read")
    async def draw():
        """Draw."""
        yield Blob("image/png", PNG)

    async with place.serving(draw) as bus, client_of(bus) as client:
        streamed = await client.post("/v1/tool_calls", json=[chat("c1", "draw", {})], headers={"Accept": "text/event-stream"})
        kinds = dict(events_of(streamed.text))
        assert json.loads(kinds["blob"])["media_type"] == "image/png"
        assert json.loads(kinds["end"])["success"] is True


HOSTILE = [
    (b"", 400),
    (b"{", 400),
    (b"\xff\xfe", 400),
    (b"[" * 100_000, 400),
    (b"7", 422),
    (b'"text"', 422),
    (b"null", 422),
    (b'{"message": null}', 422),
    (b"{}", 422),
    (b'{"message": 7}', 422),
    (b'{"message": [], "session": 7}', 422),
    (b'{"message": [], "sesion": "s"}', 422),
    (b'{"message": [], "timeout": -1}', 422),
    (b'{"message": [], "timeout": 1e9}', 422),
    (b'{"message": [], "session": "a\\nb"}', 422),
    (b'{"message": [], "session": "' + b"s" * 300 + b'"}', 422),
    (b'{"message": [], "idempotency_key": ""}', 422),
    (b'{"message": [], "idempotency_key": "' + b"k" * 300 + b'"}', 422),
    (b'{"message": [], "metadata": {"a": "' + b"m" * 20_000 + b'"}}', 422),
    (b'{"message": [], "output_limit": 0}', 422),
    (b'{"message": [], "metadata": {"a": 1}}', 422),
    (json.dumps([{"name": "repeat"}] * 300).encode(), 422),
    (b'{"message": [], "session": "' + b"s" * 2_000_000 + b'"}', 413),
]


@pytest.mark.few(6)
@pytest.mark.parametrize(("body", "status"), HOSTILE, ids=lambda value: str(value)[:30])
async def test_bad_bodies_are_problems(namespace: str, body: bytes, status: int) -> None:
    """A body that holds no message is refused with a problem that says why."""
    async with (
        Worker([repeat], url="memory://", namespace=namespace),
        ToolBus("memory://", namespace=namespace) as bus,
        client_of(bus) as client,
    ):
        refused = await client.post("/v1/tool_calls", content=body, headers={"Content-Type": "application/json"})
        assert refused.status_code == status
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["detail"]


@pytest.mark.parametrize("path", ["/v1/tool_calls", "/run_tool"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Content-Type": "text/plain"}, 415), ({"Toolbus-Timeout": "-1"}, 422), ({"Toolbus-Timeout": "99999"}, 422)],
    ids=["type", "negative", "long"],
)
async def test_requests_are_checked_as_those_of_one_call(namespace: str, path: str, headers: dict[str, str], status: int) -> None:
    """A whole message and a single call are refused for the same headers."""
    body = {"/run_tool": {"tool_id": "repeat", "params": {"text": "a"}}}.get(path, [chat("c1", "repeat", {"text": "a"})])
    async with (
        Worker([repeat], url="memory://", namespace=namespace),
        ToolBus("memory://", namespace=namespace) as bus,
        client_of(bus) as client,
    ):
        sent = {"Content-Type": "application/json", **headers}
        assert (await client.post(path, content=json.dumps(body), headers=sent)).status_code == status


async def test_bad_calls_are_answered_beside_good_ones(namespace: str) -> None:
    """A call of nothing, of an unknown tool or with hostile names is answered with an observation, and its siblings run."""
    async with (
        Worker([repeat], url="memory://", namespace=namespace),
        ToolBus("memory://", namespace=namespace) as bus,
        client_of(bus) as client,
    ):
        calls = [
            7,
            {"id": "a", "function": {}},
            chat("b", "</script>\x00\u202e", {}),
            chat("c", "repeat", {"text": "\u202e"}),
            chat("d", "repeat", [1]),
        ]
        answered = (await client.post("/v1/tool_calls", json=calls)).json()
        assert [each["success"] for each in answered["calls"]] == [False, False, False, True, False]
        assert len(answered["messages"]) == 5


FORMATS = ["openai", "anthropic", "responses", "mcp", "bare"]


@pytest.mark.parametrize("format", FORMATS)
async def test_definitions_are_those_of_the_bus(namespace: str, format: str) -> None:
    """Each format is what ``bus.tools.definitions`` makes, strict or not, and unchanged definitions are not sent again."""
    async with (
        Worker([*TOOLS], url="memory://", namespace=namespace),
        ToolBus("memory://", namespace=namespace) as bus,
        client_of(bus) as client,
    ):
        for strict in (False, True):
            found = await client.get("/v1/tools", params={"format": format, "strict": str(strict).lower()})
            assert found.json() == bus.tools.definitions(format, strict=strict)
            again = await client.get("/v1/tools", params=dict(found.url.params), headers={"If-None-Match": found.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")


async def test_wrong_formats_and_flags_are_problems(namespace: str) -> None:
    """An unknown format or flag names those that there are."""
    async with ToolBus("memory://", namespace=namespace) as bus, client_of(bus) as client:
        for query in ({"format": "xml"}, {"format": "bare", "strict": "maybe"}):
            refused: httpx.Response = await client.get("/v1/tools", params=query)
            assert (refused.status_code, refused.json()["type"]) == (422, "urn:toolbus:error:invalid_query")
