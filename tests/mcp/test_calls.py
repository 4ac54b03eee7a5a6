"""Calls of tools: results, failures, progress, cancellation and questions, in every revision."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitResult

from tests.mcp.site import OLDER, Raw, Site, messages, text_of
from tests.servers import eventually
from tests.tiers import some

pytestmark = pytest.mark.anyio

MODES = ["auto", "legacy"]


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("mode", some(["auto"], MODES))
async def test_results_of_all_kinds(url: str, mode: Any) -> None:
    """Text, data, images, sounds and files arrive as what they are; data beside a schema is checked."""
    async with Client(url, mode=mode) as client:
        echoed = await client.call_tool("echo", {"text": "hällo\u2028"})
        assert (echoed.content[0].text, echoed.is_error) == ("hällo\u2028", False)  # type: ignore[union-attr]
        assert (await client.call_tool("pay", {"amount": "3"})).structured_content == {"paid": 3}
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"sum": 3}
        wrong = await client.call_tool("add", {"a": 100, "b": 2})
        assert wrong.is_error
        assert "output schema" in wrong.content[0].text  # type: ignore[union-attr]
        assert (await client.call_tool("numbers", {})).structured_content == ([1, 2] if mode == "auto" else None)
        image, sound, table, file = (await client.call_tool("media", {})).content
        assert (image.type, image.mime_type, base64.b64decode(image.data)) == ("image", "image/png", b"png")  # type: ignore[union-attr]
        assert (sound.type, sound.mime_type) == ("audio", "audio/wav")  # type: ignore[union-attr]
        assert table.resource.text == "a,b"  # type: ignore[union-attr]
        assert base64.b64decode(file.resource.blob) == b"%PDF"  # type: ignore[union-attr]


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("mode", MODES)
async def test_failures_are_results_and_unknown_tools_are_errors(url: str, mode: Any) -> None:
    """A tool that fails, or refuses its arguments, answers with isError and what to do; a tool that is not there is an error."""
    async with Client(url, mode=mode) as client:
        broken = await client.call_tool("broken", {})
        assert broken.is_error
        assert "it broke" in broken.content[0].text  # type: ignore[union-attr]
        assert broken.meta is not None
        assert broken.meta["toolbus/error"] == {
            "type": "tool_error",
            "code": "E1",
            "message": "it broke",
            "retryable": True,
            "origin": "tool",
        }
        wrong = await client.call_tool("echo", {"txt": 1})
        assert wrong.is_error
        assert "Missing required `text`" in wrong.content[0].text  # type: ignore[union-attr]
        with pytest.raises(MCPError, match="Unknown tool: ecko; did you mean echo"):
            await client.call_tool("ecko", {})


@pytest.mark.usefixtures("slow")
async def test_the_quick_answer_is_that_of_the_sdk(raw: Raw) -> None:
    """An answer without the SDK is the same as one of the SDK, which a trace in the request enforces."""
    plain = {"_meta": {"io.modelcontextprotocol/clientCapabilities": {}}}
    traced = {"_meta": {**plain["_meta"], "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("echo", {"text": "x"}), ("pay", {"amount": 1}), ("broken", {}), ("echo", {"wrong": 1}), ("media", {}), ("nobody", {}),
        ("add", {"a": "1", "b": 2}), ("add", {"a": 500, "b": 2}), ("numbers", {}),
    ]  # fmt: skip
    for name, arguments in calls:
        quick, whole = [await raw.ask("tools/call", name=name, arguments=arguments, **meta) for meta in (plain, traced)]
        for each in (quick, whole):
            for block in each.get("content", []):
                # It has the id of the call.
                block.get("resource", {}).pop("uri", None)
        assert quick == whole, name


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("mode", MODES)
async def test_text_and_progress_are_heard(url: str, mode: Any) -> None:
    """Every piece of text and every progress arrives in order, and the numbers only grow."""
    heard: list[tuple[float, float | None, str]] = []

    async def hear(done: float, total: float | None, message: str | None) -> None:
        heard.append((done, total, message or ""))

    async with Client(url, mode=mode) as client:
        result = await client.call_tool("count", {"to": 5}, progress_callback=hear)
        assert result.content[0].text == "0 1 2 3 4 "  # type: ignore[union-attr]
        await eventually(lambda: any(message == "at 4" for _, _, message in heard))
    assert [done for done, _, _ in heard] == sorted({done for done, _, _ in heard})
    assert [message for _, total, message in heard if total == 5] == [f"at {number}" for number in range(5)]
    assert "".join(message for _, total, message in heard if total is None) == "0 1 2 3 4 "


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("mode", MODES)
async def test_a_cancelled_request_cancels_the_handler(site: Site, url: str, mode: Any) -> None:
    """The worker stops a call whose client has cancelled it."""
    name = f"cancelled-{mode}"
    async with Client(url, mode=mode) as client:
        task = asyncio.create_task(client.call_tool("wait", {"name": name}))
        await eventually((site.folder / f"{name}.began").exists, timeout=20)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await eventually((site.folder / f"{name}.cancelled").exists, timeout=20)


@pytest.mark.usefixtures("slow")
async def test_a_client_that_vanishes_cancels_the_handler(site: Site, url: str, raw: Raw) -> None:
    """A connection that is lost ends the call, whether it is answered with or without the SDK, or could be asked questions."""
    for name, tasks, elicits, meta in (
        ("quick", False, False, {}), ("whole", True, False, {"progressToken": 1}), ("durable", True, True, {})
    ):  # fmt: skip
        async with Raw(url, tasks=tasks, elicits=elicits) as client:
            headers, body = client.request("tools/call", {"name": "wait", "arguments": {"name": name}, "_meta": meta})
            sending = asyncio.create_task(client.http.post(url, headers=headers, json=body))
            await eventually((site.folder / f"{name}.began").exists, timeout=20)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        await eventually((site.folder / f"{name}.cancelled").exists, timeout=20)


@pytest.mark.usefixtures("slow")
async def test_fastmcp_calls(url: str) -> None:
    """FastMCP's client calls, and raises the failure of a tool."""
    from fastmcp import Client as FastClient

    async with FastClient(url) as client:
        assert (await client.call_tool("add", {"a": 2, "b": 2})).data is not None
        failed = await client.call_tool("broken", {}, raise_on_error=False)
        assert failed.is_error


@pytest.mark.parametrize("version", OLDER)
async def test_older_revisions_have_a_handshake(url: str, version: str) -> None:
    """A client of an older revision gets the revision that it asks for, and a session that only it may use."""
    headers = {"Accept": "application/json, text/event-stream", "X-User": "alice"}
    hello = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}

    def message(method: str, **params: Any) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}

    async with httpx.AsyncClient() as http:
        answer = await http.post(url, headers=headers, json=message("initialize", **hello))
        (greeting,) = messages(answer)
        assert greeting["result"]["protocolVersion"] == version
        assert greeting["result"]["capabilities"] == {"tools": {"listChanged": True}}
        mine = {**headers, "Mcp-Session-Id": answer.headers["mcp-session-id"], "MCP-Protocol-Version": version}
        await http.post(url, headers=mine, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        call = message("tools/call", name="secret_of_alice", arguments={})
        assert text_of(messages(await http.post(url, headers=mine, json=call))[-1]["result"]) == "hers"
        assert (await http.post(url, headers={**mine, "X-User": "bob"}, json=call)).status_code == 404
        tasks = message("tasks/get", taskId="x")
        assert messages(await http.post(url, headers=mine, json=tasks))[-1]["error"]["code"] == -32601


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("allow", [True, False])
async def test_the_user_of_a_client_is_asked(url: str, mode: Any, allow: bool) -> None:
    """A tool that needs a permission, and a handler that asks, get the answer of the client's user."""
    asked: list[str] = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"allow": True}) if allow else ElicitResult(action="decline")

    async with Client(url, mode=mode, elicitation_callback=answer) as client:
        deleted = await client.call_tool("delete", {"path": "/tmp/x"})
        said = await client.call_tool("ask", {"question": "Really so?"})
    assert [deleted.is_error, said.is_error] == [not allow, not allow]
    assert "/tmp/x" in asked[0]
    assert "Really so?" in asked[1]
    if allow:
        assert [each.content[0].text for each in (deleted, said)] == ["deleted /tmp/x", "allowed Really so?"]  # type: ignore[union-attr]
    else:
        assert "forbidden" in said.content[0].text  # type: ignore[union-attr]


async def test_a_permission_is_for_one_call(url: str) -> None:
    """An answer for other arguments, or with a state that was made up, allows nothing."""
    async with Raw(url, elicits=True) as raw:
        asked = await raw.call("delete", path="/tmp/a")
        assert asked["resultType"] == "input_required"
        yes = {"confirm": {"action": "accept", "content": {"allow": True}}}
        for path, state in (("/tmp/b", asked["requestState"]), ("/tmp/a", "confirm 00"), ("/tmp/a", "task x"), ("/tmp/a", "junk")):
            params = {"name": "delete", "arguments": {"path": path}, "requestState": state, "inputResponses": yes}
            answer = await raw.ask("tools/call", **params)
            assert "deleted" not in str(answer), state
        params = {"name": "delete", "arguments": {"path": "/tmp/a"}, "requestState": asked["requestState"], "inputResponses": yes}
        assert text_of(await raw.ask("tools/call", **params)) == "deleted /tmp/a"


async def test_a_question_is_answered_at_another_gateway(url: str, urls: list[str]) -> None:
    """A call whose handler asks goes on at the gateway to which the client's next request comes, and once only."""
    async with Raw(urls[0], elicits=True) as first, Raw(urls[1], elicits=True) as second, Raw(urls[1], "mallory", elicits=True) as thief:
        asked = await first.call("ask", question="Which way?")
        (key,) = asked["inputRequests"]
        yes = {key: {"action": "accept", "content": {"allow": True}}}
        params = {"name": "ask", "arguments": {"question": "Which way?"}, "requestState": asked["requestState"], "inputResponses": yes}
        assert (await thief.ask("tools/call", **params))["code"] == -32602
        again = await second.ask("tools/call", **{**params, "inputResponses": {}})
        assert again["resultType"] == "input_required"
        assert again["requestState"] != asked["requestState"]
        assert text_of(await second.ask("tools/call", **params)) == "allowed Which way?"
