"""Streams of events end with the token of their sender."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.gateway.page.serving import Tokens, gateway
from toolbus import ToolBus, Worker, tool
from toolbus.edges.gateway import guards
from toolbus.edges.gateway.app import OPERATIONS
from toolbus.edges.gateway.auth.credentials import Credential, Refused
from toolbus.edges.gateway.auth.options import BearerAuthenticator
from toolbus.edges.gateway.bodies import Problem
from toolbus.edges.gateway.options import Principal

pytestmark = pytest.mark.anyio

MCP = {"accept": "application/json, text/event-stream"}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
CALL = {"tool_id": "chat", "params": {"message": "x", "chat_id": "y"}}
BODIES: dict[str, Any] = {
    "run_tool": CALL,
    "invoke": CALL["params"],
    "chat": CALL["params"],
    "tool_calls": {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "chat", "arguments": '{"message":"x"}'}}]},
}
STREAMS = [("GET", "/ui/events", None), *((each.method, each.path, BODIES[each.handler.__name__]) for each in OPERATIONS if each.calls)]
OLGA = Principal("olga", may=frozenset({"call", "observe", "operate"}))


@tool(service="waiting", timeout=60)
async def chat(message: str, chat_id: str = "") -> str:
    """Answer nothing."""
    await asyncio.Event().wait()
    return message


@asynccontextmanager
async def client_of(namespace: str, tokens: Tokens) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of a gateway, with a token."""
    sent = {"Authorization": "Bearer it", "Accept": "text/event-stream"}
    async with (
        Worker([chat], url="memory://", namespace=namespace),
        ToolBus("memory://", namespace=namespace) as bus,
        gateway(bus, tokens) as url,
        httpx.AsyncClient(base_url=url, headers=sent, trust_env=False, timeout=30.0) as client,
    ):
        await bus.wait_for_tool("chat")
        yield client


async def ended(client: httpx.AsyncClient, tokens: Tokens, request: tuple[str, str, Any], headers: dict[str, str] | None = None) -> None:
    """Open a stream, revoke its token, and read the stream to its end."""
    method, path, body = request
    async with client.stream(method, path.replace("{name:path}", "chat"), json=body, headers=headers) as answer:
        assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
        tokens.revoke("it")
        async for _ in answer.aiter_bytes():
            pass
    assert (await client.get("/v1/tools")).status_code == 401


@pytest.mark.parametrize("request_", STREAMS, ids=lambda each: each[1])
async def test_a_stream_ends_with_its_token(namespace: str, request_: tuple[str, str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of any operation ends when its sender's token is revoked, whether anything happens in it or not."""
    monkeypatch.setattr(guards, "RECHECK", 0.05)
    tokens = Tokens(it=OLGA)
    async with client_of(namespace, tokens) as client:
        await ended(client, tokens, request_)


async def test_a_stream_of_an_mcp_session_ends_with_its_token(namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream on which a session waits for notifications ends, too."""
    monkeypatch.setattr(guards, "RECHECK", 0.05)
    tokens = Tokens(it=OLGA)
    async with client_of(namespace, tokens) as client:
        hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO}
        begun = await client.post("/mcp", json=hello, headers=MCP)
        session = {**MCP, "mcp-session-id": begun.headers["mcp-session-id"], "mcp-protocol-version": HELLO["protocolVersion"]}
        await client.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)
        await ended(client, tokens, ("GET", "/mcp", None), session)


async def test_a_token_holds_while_nobody_knows_better() -> None:
    """A token holds with the same principal, and while nobody can be asked; not when it is refused or has other rights."""
    answers: list[Any] = [
        Credential(OLGA),
        Problem(503, "unavailable", "nobody can say"),
        Refused("x"),
        Credential(Principal("olga")),
        None,
    ]

    async def source(token: str) -> Credential | None:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    authenticator = BearerAuthenticator(None, [source])
    connection = guards.HTTPConnection({"type": "http", "headers": [(b"authorization", b"Bearer it")]})
    assert [await authenticator.holds(connection, OLGA) for _ in range(5)] == [True, True, False, False, False]
