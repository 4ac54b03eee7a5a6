"""Bad requests, hostile strings, a server that is away, and what is left over of clients that vanish."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.forking import ForkServer
from tests.mcp.conftest import listed
from tests.mcp.site import MODERN, Raw, Site, messages, text_of
from tests.servers import eventually
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.edges.mcp.http import MOST_BODY

pytestmark = pytest.mark.anyio

HOSTILE = "\x1b[2J\u202eevil\u2028</script><system>\x00\ud7ff\uffff{}\r\nMcp-Name: x"


@pytest.mark.usefixtures("slow")
async def test_bodies_that_are_no_requests(raw: Raw) -> None:
    """Each is refused with a status of the client's fault, and the gateway goes on."""
    headers, body = raw.request("tools/call", {"name": "echo", "arguments": {"text": "x"}})
    whole = json.dumps(body)
    wrong: list[str | bytes] = [
        "", "x", "[]", "[" * 100_000, "null", "1", '"a"', "{}", whole[:-1], whole.replace('"2.0"', '"1.0"'), f"[{whole}]",
        whole.replace('"id": 7', '"id": null'), whole.replace('"id": 7', '"id": {}'), whole.replace('"id": 7', '"id": 1.5'),
        whole.replace('"arguments": {', '"arguments": ["'), b"\xff\xfe", whole.replace('"params": {', '"params": [{'),
        whole.replace(MODERN, "1999-01-01"), '{"jsonrpc": "2.0", "id": 1' + ", \"a\": 1" * 1000 + "}",
    ]  # fmt: skip
    for each in wrong:
        answer = await raw.http.post(raw.url, headers=headers, content=each)
        assert 400 <= answer.status_code < 500, each[:80]
    huge = json.dumps({**body, "params": {**body["params"], "arguments": {"text": "x" * MOST_BODY}}})
    assert (await raw.http.post(raw.url, headers=headers, content=huge)).status_code == 413
    assert text_of(await raw.call("echo", text="still here")) == "still here"


@pytest.mark.usefixtures("slow")
async def test_headers_that_say_something_else(raw: Raw) -> None:
    """A header that differs from the body, is missing, or is there twice, is refused; so are other media types."""
    headers, body = raw.request("tools/call", {"name": "echo", "arguments": {"text": "x"}})
    for change, status in (
        ({"Mcp-Name": "pay"}, 400), ({"Mcp-Method": "tools/list"}, 400), ({"MCP-Protocol-Version": "2030-01-01"}, 400),
        ({"Accept": "text/html"}, 406), ({"Content-Type": "text/plain"}, 400), ({"Host": "evil.example"}, 421),
        ({"Origin": "https://evil.example"}, 403), ({"X-User": "nobody"}, 401),
    ):  # fmt: skip
        answer = await raw.http.post(raw.url, headers={**headers, **change}, json=body)
        assert answer.status_code == status, change
    for missing in ("Mcp-Name", "Mcp-Method"):
        answer = await raw.http.post(raw.url, headers={name: value for name, value in headers.items() if name != missing}, json=body)
        assert answer.status_code == 400, missing
    twice = [*headers.items(), ("Mcp-Name", "pay")]
    assert (await raw.http.post(raw.url, headers=twice, json=body)).status_code == 400
    for method in ("PUT", "PATCH", "DELETE", "GET"):
        assert (await raw.http.request(method, raw.url, headers=headers)).status_code == 405


@pytest.mark.usefixtures("slow")
async def test_unknown_methods(raw: Raw) -> None:
    """A method that the server does not know is answered with an error, whatever its name."""
    for method in ("tools/destroy", "initialize", "ping", "logging/setLevel", "tasks/result", "a" * 10_000):
        answer = await raw.ask(method)
        assert answer["code"] == -32601, method


@pytest.mark.usefixtures("slow")
async def test_hostile_names_and_arguments(raw: Raw) -> None:
    """A hostile name is no tool, and what is said of it can't be taken for anything else; a hostile text comes back as it was."""
    headers, body = raw.request("tools/call", {"name": HOSTILE, "arguments": {}})
    headers["Mcp-Name"] = "x"
    assert (await raw.http.post(raw.url, headers=headers, json=body)).status_code == 400
    odd = await raw.ask("tools/call", name="x\u202ey", arguments={})
    assert odd["code"] in {-32602, -32020}
    assert text_of(await raw.call("echo", text=HOSTILE)) == HOSTILE
    for arguments in ({"text": "\ud800"}, {"text": {"a": [[[]]]}}, {"text": "x", "\ud800": 1}):
        headers, body = raw.request("tools/call", {"name": "echo", "arguments": arguments})
        (message,) = messages(await raw.http.post(raw.url, headers=headers, content=json.dumps(body)))
        assert "error" in message or message["result"]["isError"], arguments
    headers, body = raw.request("tools/call", {"name": "echo", "arguments": {"text": "DEEP"}})
    for depth in (100, 5_000, 100_000):
        content = json.dumps(body).replace('"DEEP"', '{"a":' * depth + "1" + "}" * depth)
        answer = await raw.http.post(raw.url, headers=headers, content=content)
        (message,) = messages(answer)
        assert "error" in message or message["result"]["isError"], depth


async def test_too_much_of_a_subscription_is_refused(raw: Raw) -> None:
    """A subscription has a bounded number of tasks, which are texts."""
    for ids in (["x"] * 1000, [str(number) for number in range(65)], "x", [1], {"a": 1}):
        answer = await raw.ask("subscriptions/listen", notifications={"taskIds": ids})
        assert answer.get("code") == -32602 or ids == ["x"] * 1000, ids


@pytest.mark.usefixtures("slow")
async def test_a_server_that_is_away(forks: ForkServer, tmp_path: Path, fresh_server: Callable[..., EmbeddedServer]) -> None:
    """Lists are answered from what is known, calls and tasks say that the server is away, and all goes on when it is back."""
    server = fresh_server()
    site = Site(forks, tmp_path, server.url)
    site.environment["TOOLBUS_TIMEOUT"] = "2"
    try:
        site.worker()
        _, url = site.gateway()
        await listed(url, "echo")
        async with Raw(url) as raw, Raw(url, elicits=True) as asking:
            assert text_of(await raw.call("echo", text="x")) == "x"
            made = await raw.call("job", name="away", parts=1)
            server.kill()
            assert "echo" in str(await raw.ask("tools/list"))
            failed = await raw.call("echo", text="x")
            assert failed["isError"] is True
            task = made["taskId"]
            sent = [raw.ask("tasks/get", taskId=task), raw.ask("tasks/cancel", taskId=task), raw.call("job", name="b", parts=1)]
            for answer in await asyncio.gather(*sent, asking.call("ask", question="x")):
                assert answer.get("code") == -32603 or answer.get("isError"), answer
            server.start()

            async def back() -> bool:
                return (await raw.call("echo", text="back")).get("content") == [{"type": "text", "text": "back"}]

            await eventually(back, timeout=40)
    finally:
        site.close()


@pytest.mark.usefixtures("slow")
async def test_nothing_is_left_of_clients_that_vanish(url: str, raw: Raw) -> None:
    """Connections that end in the middle of a head, a body or an answer leave the gateway as it was."""
    host, port = url.removeprefix("http://").removesuffix("/mcp").split(":")
    headers, body = raw.request("tools/call", {"name": "wait", "arguments": {"name": "vanish"}})
    content = json.dumps(body).encode()
    head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + f"Content-Length: {len(content)}\r\n\r\n"
    for sent in (head.encode()[:40], head.encode(), head.encode() + content[:20], head.encode() + content):
        for _ in range(20):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            await writer.drain()
            writer.close()
    assert text_of(await raw.call("echo", text="x")) == "x"
