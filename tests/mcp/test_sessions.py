"""Sessions of the revisions with a handshake: any gateway answers them, also when another one has died."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import httpx
import pytest
from mcp.client import Client
from mcp_types import ElicitResult

from tests.mcp.conftest import listed
from tests.mcp.site import OLDER, Proxy, Site, messages, text_of
from tests.servers import eventually
from toolbus import ToolBus
from toolbus.bus.broker.held import mcp as held
from toolbus.bus.broker.held.mcp import McpRequest, McpSession

pytestmark = pytest.mark.anyio

NEWEST = OLDER[0]


class Session:
    """A session whose requests are written by hand, each sent to the gateway that it names."""

    def __init__(self, http: httpx.AsyncClient, version: str, id: str, user: str = "") -> None:
        self.http = http
        self.headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": version, "Mcp-Session-Id": id}
        if user:
            self.headers["X-User"] = user

    @classmethod
    @asynccontextmanager
    async def begun(cls, url: str, version: str = NEWEST, *, user: str = "", forms: bool = False) -> AsyncIterator[Self]:
        """Begin a session at a gateway."""
        capabilities = {"elicitation": {}} if forms else {}
        hello = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": {"name": "x", "version": "1"}}
        async with httpx.AsyncClient(timeout=40) as http:
            made = cls(http, version, "", user)
            del made.headers["Mcp-Session-Id"]
            answer = await made.post(url, "initialize", 0, **hello)
            assert messages(answer)[0]["result"]["protocolVersion"] == version
            made.headers["Mcp-Session-Id"] = answer.headers["mcp-session-id"]
            assert (await made.post(url, "notifications/initialized")).status_code == 202
            yield made

    async def post(self, url: str, method: str, id: int | str | None = None, /, **params: Any) -> httpx.Response:
        """Send a request, or a notification without an id."""
        body: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
        if id is not None:
            body["id"] = id
        return await self.http.post(url, headers=self.headers, json=body)

    async def call(self, url: str, name: str, id: int | str = 1, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool; return the last message of the answer."""
        return messages(await self.post(url, "tools/call", id, name=name, arguments=arguments))[-1]

    @asynccontextmanager
    async def stream(self, url: str, last: str = "") -> AsyncIterator[Events]:
        """Open a stream, perhaps after an event."""
        headers = {**self.headers, "Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
        async with self.http.stream("GET", url, headers=headers, timeout=None) as answer:
            yield Events(answer)

    @asynccontextmanager
    async def calling(self, url: str, name: str, id: int, meta: dict[str, Any], /, **arguments: Any) -> AsyncIterator[Events]:
        """Call a tool and read the answer as it comes."""
        body = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name, "arguments": arguments, "_meta": meta}}
        async with self.http.stream("POST", url, headers=self.headers, json=body) as answer:
            yield Events(answer)


class Events:
    """The events of a stream; ``last`` is the id of the latest."""

    def __init__(self, answer: httpx.Response) -> None:
        self.status = answer.status_code
        self._lines = answer.aiter_lines()
        self.last = ""

    async def next(self) -> dict[str, Any] | None:
        """Return the next message; None for an event without one."""
        found = ""
        async with asyncio.timeout(30):
            async for line in self._lines:
                if line.startswith("id: "):
                    self.last = line[4:]
                elif line.startswith("data: "):
                    found = line[6:]
                elif not line and found is not None and self.last:
                    return json.loads(found) if found else None
        raise EOFError("the stream has ended")


@pytest.mark.parametrize("version", OLDER)
async def test_any_gateway_answers_a_session(url: str, urls: list[str], version: str) -> None:
    """A session that one gateway began is answered by another, for the one who began it alone, and ended there for both."""
    other = urls[1]
    async with Session.begun(url, version, user="alice") as session:
        assert text_of((await session.call(other, "secret_of_alice"))["result"]) == "hers"
        assert messages(await session.post(other, "ping", 2))[0] == {"jsonrpc": "2.0", "id": 2, "result": {}}
        found = messages(await session.post(other, "tools/list", 3))[0]["result"]
        assert "secret_of_alice" in [tool["name"] for tool in found["tools"]]
        assert "ttlMs" not in found
        assert messages(await session.post(other, "resources/list", 4))[0]["error"]["code"] == -32601
        for each in urls:
            thief = {**session.headers, "X-User": "bob"}
            body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            assert (await session.http.post(each, headers=thief, json=body)).status_code == 404
        assert (await session.http.delete(other, headers=session.headers)).status_code == 200

        async def ended() -> bool:
            return (await session.post(url, "ping", 5)).status_code == 404

        assert (await session.post(other, "ping", 5)).status_code == 404
        await eventually(ended, timeout=5)
        assert (await session.http.get(url, headers=session.headers)).status_code == 404


async def test_what_is_no_request_of_a_session(url: str) -> None:
    """Bodies and headers that are wrong are refused with a status, wrong parameters with an error, and the session goes on."""
    async with Session.begun(url) as session:
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        for change, status in (
            ({"Mcp-Session-Id": "x" * 48}, 404), ({"Mcp-Session-Id": "x" * 5_000}, 404), ({"Mcp-Session-Id": ""}, 400),
            ({"Accept": "application/json"}, 406), ({"Accept": "text/html"}, 406), ({"Content-Type": "text/plain"}, 400),
        ):  # fmt: skip
            assert (await session.http.post(url, headers={**session.headers, **change}, json=ping)).status_code == status, change
        whole = json.dumps(ping)
        for body in ("", "x", "[]", "[" * 100_000, "1", "{}", f"[{whole}]", whole.replace("2.0", "1.0"), whole.replace("1,", "null,"),
                     whole.replace("1,", "1.5,"), whole.replace("1,", "true,"), whole.replace('"ping"', "7"), b"\xff\xfe"):  # fmt: skip
            answer = await session.http.post(url, headers={**session.headers, "Content-Type": "application/json"}, content=body)
            assert answer.status_code == 400, body[:50]
        huge = json.dumps({**ping, "params": {"x": "x" * 1_100_000}})
        assert (
            await session.http.post(url, headers={**session.headers, "Content-Type": "application/json"}, content=huge)
        ).status_code == 413
        for params in ({}, {"name": 1}, {"name": "echo", "arguments": []}, {"name": "echo", "_meta": {"progressToken": {}}}):
            assert messages(await session.post(url, "tools/call", 1, **params))[0]["error"]["code"] == -32602, params
        assert messages(await session.post(url, "tools/list", 1, cursor="x"))[0]["error"]["code"] == -32602
        assert (await session.http.put(url, headers=session.headers)).status_code == 405
        for last in ("x", "1.2.3 4", "1.2.3.4 {}", "1.2.3.4 [1]", "9" * 4_000):
            async with session.stream(url, last) as events:
                assert events.status == 400, last
        async with session.stream(url, "0.0.0.0 77") as events:
            message = await events.next()
            assert message is not None
            assert (message["id"], message["error"]["code"]) == (77, -32603)
        async with session.stream(url, events.last) as again:
            assert again.status == 405
        for params in ({"protocolVersion": 1}, {}):
            assert messages(await session.post(url, "initialize", 1, **params))[0]["error"]["code"] == -32602
        assert text_of((await session.call(url, "echo", text="x"))["result"]) == "x"


@pytest.mark.usefixtures("slow")
async def test_a_lost_stream_goes_on_at_another_gateway(site: Site, url: str, urls: list[str]) -> None:
    """A client that comes back has every piece of text once, the call runs once, and its answer is there again for a while."""
    async with Session.begun(url) as session:
        heard: list[str] = []
        async with session.calling(url, "once_job", 7, {"progressToken": "p"}, name="lost") as events:
            while "begun " not in "".join(heard):
                message = await events.next()
                if message is not None:
                    assert message["params"]["progressToken"] == "p"
                    heard.append(message["params"]["message"])
        (site.folder / "lost.go").touch()
        async with session.stream(urls[1], events.last) as rest:
            while "params" in (message := await rest.next() or {"params": {"message": ""}}):
                heard.append(message["params"]["message"])
                before = rest.last
        assert message["id"] == 7
        assert text_of(message["result"]) == "".join(heard) == "begun done"
        async with session.stream(url, before) as again:
            while (answer := await again.next()) is None:
                pass
            assert answer == message
        assert (site.folder / "lost.runs").read_text() == "x"


@pytest.mark.usefixtures("slow")
async def test_a_request_that_comes_twice_runs_once(site: Site, url: str, urls: list[str]) -> None:
    """A proxy may send a request again to another gateway; the same id after the answer means another call."""
    async with Session.begun(url) as session:
        async with (
            session.calling(urls[0], "once_job", 7, {}, name="twice") as first,
            session.calling(urls[1], "once_job", 7, {}, name="twice") as second,
        ):
            assert [await first.next(), await second.next()] == [None, None]
            (site.folder / "twice.go").touch()
            for each in (first, second):
                while (message := await each.next()) is None:
                    pass
                assert text_of(message["result"]) == "begun done"
        assert (site.folder / "twice.runs").read_text() == "x"
        for gateway in urls:
            assert text_of((await session.call(gateway, "once_job", 7, name="twice"))["result"]) == "begun done"
        assert (site.folder / "twice.runs").read_text() == "xxx"


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("late", [False, True])
async def test_a_call_is_cancelled_from_another_gateway(site: Site, url: str, urls: list[str], late: bool) -> None:
    """The worker stops the handler, and the request is answered as cancelled, wherever and whenever it is cancelled."""
    async with Session.begun(url) as session:
        for number, gateway in enumerate(urls):
            name = f"session-{number}-{late}"
            cancel = session.post(gateway, "notifications/cancelled", requestId=number)
            if late:
                async with session.calling(url, "wait", number, {}, name=name) as events:
                    assert await events.next() is None
                    assert (await cancel).status_code == 202
                    while (answer := await events.next()) is None:
                        pass
            else:
                calling = asyncio.create_task(session.call(url, "wait", number, name=name))
                await eventually((site.folder / f"{name}.began").exists, timeout=20)
                assert (await cancel).status_code == 202
                answer = await calling
            await eventually((site.folder / f"{name}.cancelled").exists, timeout=20)
            assert answer["error"]["code"] == -32800


@pytest.mark.usefixtures("slow")
async def test_a_question_is_answered_through_another_gateway(url: str, urls: list[str]) -> None:
    """The answer of a client's user counts at whichever gateway it comes, only for its own user, and a client without forms has none."""
    async with Session.begun(url, forms=True) as session, Session.begun(url, user="mallory", forms=True) as thief:
        for tool, arguments in (("delete", {"path": "/tmp/x"}), ("ask", {"question": "Really?"})):
            async with session.calling(url, tool, 5, {}, **arguments) as events:
                while (message := await events.next()) is None or message.get("method") != "elicitation/create":
                    pass
                yes = {"jsonrpc": "2.0", "id": message["id"], "result": {"action": "accept", "content": {"allow": True}}}
                no = {**yes, "result": {"action": "decline"}}
                assert (await thief.http.post(urls[1], headers=thief.headers, json=no)).status_code == 202
                assert (await session.http.post(urls[1], headers=session.headers, json=yes)).status_code == 202
                while "result" not in (message := await events.next() or {}):
                    pass
                assert not message["result"].get("isError"), message


@pytest.mark.usefixtures("slow")
async def test_an_allowed_call_is_not_asked_about_again(site: Site, url: str, urls: list[str]) -> None:
    """A client that loses the stream after its user has allowed the call comes back for the result."""
    asked = 0

    async with Session.begun(url, forms=True) as session:
        async with session.calling(url, "delete", 9, {}, path="/tmp/once") as events:
            while (message := await events.next()) is None or message.get("method") != "elicitation/create":
                pass
        yes = {"jsonrpc": "2.0", "id": message["id"], "result": {"action": "accept", "content": {"allow": True}}}
        await session.http.post(urls[1], headers=session.headers, json=yes)
        async with session.stream(urls[1], events.last) as rest:
            while "result" not in (message := await rest.next() or {}):
                asked += message.get("method") == "elicitation/create"
        assert text_of(message["result"]) == "deleted /tmp/once"
    assert asked == 0


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("version", OLDER)
async def test_list_changes_are_heard_across_gateways(site: Site, url: str, urls: list[str], version: str) -> None:
    """A client that comes back to another gateway hears of what has changed meanwhile, and of nothing when nothing has."""
    (site.folder / f"late_{version[:4]}.py").write_text(
        'from toolbus import tool\n@tool\ndef of_sessions() -> str:\n    "Late."\n    return ""\n'
    )
    async with Session.begun(url, version) as session:
        async with session.stream(url) as events:
            first = await events.next()
            # Older clients can't be told a place without a message.
            assert (first is None) is (version == NEWEST)
        async with session.stream(urls[1], events.last) as same:
            if version == NEWEST:
                assert await same.next() is None
                assert same.last == events.last
            worker = site.worker(f"late_{version[:4]}.py")
            changed = await same.next()
            assert changed == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        await listed(url, "of_sessions")
        async with session.stream(url, events.last) as missed:
            if version == NEWEST:
                assert await missed.next() is None
            assert await missed.next() == changed
        worker.terminate()
        worker.wait()
        await listed(url, "of_sessions", there=False)
        await listed(urls[1], "of_sessions", there=False)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_gateway_that_goes_fails_no_call_of_the_sdk(own_site: Site, how: signal.Signals) -> None:
    """The official client loses no call, no piece of a stream and no change of the list when one of two gateways is killed or stopped."""
    (own_site.folder / "late.py").write_text('from toolbus import tool\n@tool\ndef late() -> str:\n    "Late."\n    return ""\n')
    own_site.worker()
    gateways = [own_site.gateway() for _ in range(2)]
    for _, url in gateways:
        await listed(url, "echo")
    changes: list[str] = []
    heard: list[str] = []

    async def change(message: Any) -> None:
        changes.append(getattr(message, "method", ""))

    async def hear(done: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")

    async def answer(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"allow": True})

    async def load(client: Client) -> int:
        calls = 0
        while "notifications/tools/list_changed" not in changes:
            assert (await client.call_tool("echo", {"text": f"{calls}"})).content[0].text == f"{calls}"  # type: ignore[union-attr]
            assert (await client.call_tool("pay", {"amount": calls})).structured_content == {"paid": calls}
            calls += 1
        return calls

    async with (
        Proxy(*(url for _, url in gateways)) as proxy,
        Client(proxy.url, mode="legacy", message_handler=change, elicitation_callback=answer) as client,
        asyncio.TaskGroup() as group,
    ):
        jobs = [group.create_task(client.call_tool("once_job", {"name": name}, progress_callback=hear)) for name in ("one", "two")]
        await eventually(lambda: heard == ["begun ", "begun "], timeout=30)
        loads = [group.create_task(load(client)) for _ in range(4)]
        gateways[0][0].send_signal(how)
        own_site.worker("late.py")
        assert all([await each for each in loads])
        for name in ("one", "two"):
            (own_site.folder / f"{name}.go").touch()
        assert [(await job).content[0].text for job in jobs] == ["begun done"] * 2  # type: ignore[union-attr]
        assert (await client.call_tool("ask", {"question": "Still?"})).content[0].text == "allowed Still?"  # type: ignore[union-attr]
    assert heard == ["begun ", "begun ", "done", "done"]
    assert [(own_site.folder / f"{name}.runs").read_text() for name in ("one", "two")] == ["x", "x"]


async def test_a_user_has_so_many_sessions(server: str, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session beyond the bound of its user is refused until another one ends; another user's is not; each has a TTL."""
    monkeypatch.setattr(held, "MOST_SESSIONS", 2)
    async with ToolBus(url=server, namespace=namespace) as bus:
        store, session = bus.mcp_sessions, McpSession(NEWEST, False)
        assert [await store.begin("alice", f"{number}", session) for number in range(3)] == [True, True, False]
        assert await store.begin("bob", "3", session)
        await store.use("alice", "0")
        await store.end("alice", "0")
        assert await store.find("0") is None
        assert await store.find("1") == session
        assert await store.begin("alice", "4", session)


async def test_a_request_is_kept_until_its_answer_is_old(server: str, namespace: str) -> None:
    """Another gateway finds what one keeps of a request, and a cancellation that came before it; what is dropped is gone."""
    request = McpRequest("echo", {"text": "x"}, "token")
    async with ToolBus(url=server, namespace=namespace) as bus:
        store = bus.mcp_sessions
        assert await store.request("d") is None
        assert await store.keep("d", request)
        await store.ask("d", "q")
        await store.permit("d")
        await store.answer("d", b"{}")
        kept = await store.request("d")
        assert kept is not None
        assert (kept.request, kept.question, kept.allowed, kept.cancelled, kept.answer) == (request, "q", True, False, b"{}")
        assert await store.keep("d", request), "the id of an answered request is used again"
        kept = await store.request("d")
        assert kept is not None
        assert (kept.question, kept.allowed, kept.answer) == ("", False, b"")
        await store.cancel("d")
        assert await store.is_cancelled("d")
        await store.drop("d")
        assert not await store.is_cancelled("d")
        await store.cancel("e")
        assert not await store.keep("e", request)


@pytest.mark.parametrize("last", ["x", "\xff", "list \xff", "list x", "0.0.0.0 1\xff", "0.0.0.0 {", "0.0.0.0 1e5"])
async def test_an_id_of_no_event_is_refused(url: str, last: str) -> None:
    """A client that comes back with an id that this server gave to no event is answered 400, and can still listen."""
    async with Session.begun(url) as session:
        headers = [*session.headers.items(), ("Last-Event-ID", last.encode("latin-1"))]
        async with session.http.stream("GET", url, headers=headers) as answer:
            assert answer.status_code == 400
            assert b"Last-Event-ID" in await answer.aread()
        async with session.stream(url) as events:
            assert events.status == 200
