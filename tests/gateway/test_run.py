"""``POST /run_tool`` and ``POST /v1/tools/{name}/invoke`` without streams."""

from __future__ import annotations

import asyncio
import base64
import secrets
from typing import Any

import httpx
import pytest

from tests.gateway.served import events, noted, run, stream

pytestmark = pytest.mark.anyio


@pytest.mark.usefixtures("slow")
async def test_a_result_is_answered_as_json(client: httpx.AsyncClient) -> None:
    """The answer has the fields of ToolResult."""
    answer = await run(client, "add", {"left": 2, "right": 3})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()
    assert set(found) == {"success", "output", "data", "error", "content", "meta"}
    assert (found["success"], found["data"], found["error"]) == (True, {"sum": 5}, None)
    assert found["meta"]["attempts"] == 1


async def test_invoke_takes_the_arguments_as_its_body(client: httpx.AsyncClient) -> None:
    """It answers like /run_tool."""
    answer = await client.post("/v1/tools/add/invoke", json={"left": 2, "right": 3})
    assert (answer.status_code, answer.json()["data"]) == (200, {"sum": 5})


async def test_bytes_are_base64(client: httpx.AsyncClient) -> None:
    """A blob comes with its media type."""
    [blob] = (await run(client, "picture")).json()["content"]
    assert (blob["media_type"], base64.b64decode(blob["data"])) == ("image/png", b"\x89PNG\x00\xff")


@pytest.mark.parametrize(
    "text", ["", "é漢🎉", "\x00\x1b[2J\r\n\u2028", "<script>", "x" * 100_000], ids=["empty", "wide", "control", "markup", "long"]
)
async def test_any_text_comes_back_as_it_is(client: httpx.AsyncClient, text: str) -> None:
    """The gateway changes no text."""
    assert (await run(client, "echo", {"text": text})).json()["output"] == text


@pytest.mark.parametrize(("tool", "message"), [("refuses", "not today"), ("crashes", "out of order")])
async def test_a_failure_of_the_tools_own_is_a_result(client: httpx.AsyncClient, tool: str, message: str) -> None:
    """It is answered with 200 and success false."""
    answer = await run(client, tool, {"code": "tired"} if tool == "refuses" else {})
    assert (answer.status_code, answer.json()["success"]) == (200, False)
    assert answer.json()["error"]["type"] == "tool_error"
    assert message in answer.json()["error"]["message"]


async def problem(answer: httpx.Response, status: int, type: str) -> dict[str, Any]:
    """The problem that an answer must be."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found = dict(answer.json())
    assert (found["status"], found["type"]) == (status, f"urn:toolbus:error:{type}")
    assert found["detail"]
    return found


async def test_an_unknown_tool_is_404_with_names_like_it(client: httpx.AsyncClient) -> None:
    """A misspelt name finds the right one."""
    found = await problem(await run(client, "ecko"), 404, "not_found")
    assert found["details"]["near"] == ["echo"]


async def test_wrong_arguments_are_422_with_their_place(client: httpx.AsyncClient) -> None:
    """The detail names the argument."""
    found = await problem(await run(client, "add", {"left": "two", "right": 3}), 422, "invalid_arguments")
    assert "$.left" in found["detail"]


BODIES: list[tuple[str, bytes, int, str]] = [
    ("no json", b"{", 400, "invalid_json"),
    ("no utf-8", b'{"tool_id": "\xff"}', 400, "invalid_json"),
    ("half a surrogate pair", rb'{"tool_id": "\ud800"}', 400, "invalid_json"),
    ("nothing", b"", 400, "invalid_json"),
    ("a list", b"[]", 422, "invalid_body"),
    ("no tool", b"{}", 422, "invalid_body"),
    ("an empty name", b'{"tool_id": ""}', 422, "invalid_body"),
    ("a wrong kind", b'{"tool_id": 1}', 422, "invalid_body"),
    ("params as text", b'{"tool_id": "echo", "params": "x"}', 422, "invalid_body"),
    ("a user", b'{"tool_id": "echo", "params": {"text": ""}, "user": "root"}', 422, "invalid_body"),
    ("too deep", b'{"tool_id": "echo", "params": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001, 400, "invalid_json"),
    ("too large", b'{"tool_id": "' + b"x" * 1_100_000 + b'"}', 413, "body_too_large"),
    ("too large for a call", b'{"tool_id": "echo", "params": {"text": "' + b"x" * 262_144 + b'"}}', 413, "invalid_arguments"),
    ("a hostile name", rb'{"tool_id": "\u0000\u001b[2J\r\nSet-Cookie: x"}', 404, "not_found"),
]


@pytest.mark.parametrize(("body", "status", "type"), [each[1:] for each in BODIES], ids=[each[0] for each in BODIES])
async def test_a_wrong_body_is_a_problem(client: httpx.AsyncClient, body: bytes, status: int, type: str) -> None:
    """Each mistake has its status, and the gateway goes on."""
    answer = await client.post("/run_tool", content=body, headers={"content-type": "application/json"})
    await problem(answer, status, type)
    assert (await run(client, "echo", {"text": "on"})).json()["output"] == "on"


@pytest.mark.parametrize("path", ["/run_tool", "/v1/tools/echo/invoke", "/chat"])
async def test_a_body_that_is_not_said_to_be_json_is_415(client: httpx.AsyncClient, path: str) -> None:
    """A page of another site can send such bodies without asking, so that none of them may call a tool."""
    for kind in ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonx"):
        request = client.build_request("POST", path, content=b'{"tool_id":"echo","params":{"text":"x"}}', headers={"content-type": kind})
        if not kind:
            del request.headers["content-type"]
        await problem(await client.send(request), 415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/run_tool", 405),
        ("DELETE", "/tools", 405),
        ("POST", "/v1/tools", 405),
        ("GET", "/v1/tools/echo/invoke", 405),
    ],
)
async def test_unknown_paths_and_methods_are_problems(client: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    """They are answered in the same form as everything else."""
    await problem(await client.request(method, path), status, {404: "no_such_path", 405: "wrong_method"}[status])


async def test_a_deadline_in_the_header_ends_the_call(client: httpx.AsyncClient) -> None:
    """It is answered with 504 or, when it may have run, with 409, and the handler is cancelled."""
    mark = secrets.token_hex(4)
    answer = await run(client, "sleeps", {"seconds": 60, "mark": mark}, Toolbus_Timeout="0.5")
    await problem(answer, 409, "outcome_unknown")
    await noted(client, f"{mark}-cancelled")
    answer = await run(client, "counts", {"upto": 100, "pause": 1}, Toolbus_Timeout="0.5")
    found = await problem(answer, 504, "deadline_exceeded")
    assert found["result"]["output"].startswith("0\n")


@pytest.mark.parametrize("value", ["", "0", "-1", "nan", "inf", "1e3", "5s", "99999999999", "999999999"])
async def test_a_wrong_deadline_is_422(client: httpx.AsyncClient, value: str) -> None:
    """Nothing is called with it."""
    answer = await run(client, "echo", {"text": "x"}, Toolbus_Timeout=value)
    assert answer.status_code == 422, answer.text


async def test_the_session_is_a_header(client: httpx.AsyncClient) -> None:
    """The handler knows it; the user is nobody's to say."""
    found = (await run(client, "caller", Toolbus_Session="s-1", Idempotency_Key="k")).json()["data"]
    assert found == {"user": "", "session": "s-1", "key": "k"}


async def test_requests_with_one_key_share_one_execution(client: httpx.AsyncClient, other: httpx.AsyncClient) -> None:
    """Also at two replicas, and later; with or without quotes around the key."""
    mark = secrets.token_hex(4)
    sent = {"seconds": 0.3, "mark": mark}
    answers = await asyncio.gather(
        run(client, "sleeps", sent, Idempotency_Key=mark), run(other, "sleeps", sent, Idempotency_Key=f'"{mark}"')
    )
    answers.append(await run(other, "sleeps", sent, Idempotency_Key=mark))
    assert [answer.json()["output"] for answer in answers] == ["rested"] * 3
    await noted(client, mark, 1)


async def test_a_key_of_other_work_is_a_conflict(client: httpx.AsyncClient) -> None:
    """Neither other arguments nor another tool are run under a key, which stays that of the first call."""
    key, mark = secrets.token_hex(4), secrets.token_hex(4)
    await run(client, "echo", {"text": "a"}, Idempotency_Key=key)
    for tool, params in (("echo", {"text": "b"}), ("sleeps", {"seconds": 0, "mark": mark}), ("add", {"left": 1, "right": 2})):
        found = await problem(await run(client, tool, params, Idempotency_Key=key), 409, "invalid_arguments")
        assert found["code"] == "idempotency_conflict"
    assert (await run(client, "echo", {"text": "a"}, Idempotency_Key=key)).json()["output"] == "a"
    await noted(client, mark, 0)


@pytest.mark.parametrize("key", ["", "a\tb", "é", "x" * 256])
async def test_a_key_that_no_line_can_carry_is_422(client: httpx.AsyncClient, key: str) -> None:
    """It would end an event's line, or fill the server's memory."""
    body = {"tool_id": "echo", "params": {"text": "x"}}
    answer = await client.post("/run_tool", json=body, headers=[(b"idempotency-key", key.encode())])
    assert answer.status_code == 422, answer.text


async def test_a_client_that_leaves_cancels_its_call(client: httpx.AsyncClient) -> None:
    """The handler is told."""
    mark = secrets.token_hex(4)
    calling = asyncio.create_task(run(client, "sleeps", {"seconds": 60, "mark": mark}))
    await noted(client, mark)
    calling.cancel()
    await noted(client, f"{mark}-cancelled")


@pytest.mark.usefixtures("slow")
async def test_a_call_that_others_wait_for_goes_on_when_one_leaves(client: httpx.AsyncClient, other: httpx.AsyncClient) -> None:
    """Only the last of them ends it."""
    mark = secrets.token_hex(4)
    sent = {"seconds": 6, "mark": mark}
    leaving = asyncio.create_task(run(client, "sleeps", sent, Idempotency_Key=mark))
    await noted(client, mark)
    async with stream(other, "sleeps", sent, Idempotency_Key=mark) as staying:
        reading = events(staying)
        # Whoever hears of the start has joined.
        assert (await anext(reading)).name == "started"
        leaving.cancel()
        assert [event async for event in reading][-1].data["output"] == "rested"
    await noted(client, f"{mark}-cancelled", 0)


@pytest.mark.usefixtures("slow")
async def test_the_last_client_of_a_key_has_a_time_to_come_back(client: httpx.AsyncClient) -> None:
    """Then its call is cancelled."""
    mark = secrets.token_hex(4)
    calling = asyncio.create_task(run(client, "sleeps", {"seconds": 60, "mark": mark}, Idempotency_Key=mark))
    await noted(client, mark)
    calling.cancel()
    await noted(client, f"{mark}-cancelled")


@pytest.mark.usefixtures("slow")
async def test_many_requests_at_once_get_their_own_answers(client: httpx.AsyncClient) -> None:
    """None is swapped."""
    answers = await asyncio.gather(*(run(client, "add", {"left": number, "right": 1}) for number in range(200)))
    assert [answer.json()["data"]["sum"] for answer in answers] == [number + 1 for number in range(200)]
