"""Requests that are too large, too slow, or sent by pages of other sites."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any, ClassVar
from urllib.parse import urlsplit

import httpx
import pytest

from tests.gateway.running import listening
from toolbus import ConfigurationError, ToolBus
from toolbus.edges.gateway import app as gateway_app
from toolbus.edges.gateway.app import application
from toolbus.edges.gateway.gateway import Gateway
from toolbus.edges.gateway.guards import GuardOptions, Guards, origin_of
from toolbus.edges.gateway.options import Everyone
from toolbus.edges.gateway.serving import GuardedProtocol

pytestmark = pytest.mark.anyio


JSON = {"Content-Type": "application/json"}


class Hasty(GuardedProtocol):
    """Waits for headers only as long as a test does."""

    headers_within = 0.5


@asynccontextmanager
async def served(namespace: str, protocol: type[GuardedProtocol] = Hasty, **options: Any) -> AsyncIterator[str]:
    """Serve a guarded gateway without tools, and yield its URL."""
    async with ToolBus("memory://", namespace=namespace) as bus:
        app = Guards(application(Gateway(bus, Everyone())), GuardOptions(**options))
        async with listening(app, http=protocol) as url:
            yield url


@asynccontextmanager
async def client(namespace: str, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of a guarded gateway."""
    async with served(namespace, **options) as url, httpx.AsyncClient(base_url=url, timeout=60.0, trust_env=False) as made:
        yield made


async def said(url: str, *parts: bytes) -> bytes:
    """Return what the gateway answers to bytes, until it closes the connection."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_every_answer_has_an_id(namespace: str) -> None:
    """A client's own id comes back, one that could not stand in a log is replaced, and errors have one, too."""
    async with client(namespace) as made:
        assert (await made.get("/health", headers={"X-Request-Id": "mine-1"})).headers["x-request-id"] == "mine-1"
        ids = {(await made.get("/health", headers={"X-Request-Id": wrong})).headers["x-request-id"] for wrong in ("a b", "x" * 200, "")}
        assert len(ids) == 3
        assert all(len(each) == 16 for each in ids)
        missing = await made.get("/absent")
        assert (missing.status_code, "x-request-id" in missing.headers) == (404, True)
        assert missing.headers["x-content-type-options"] == "nosniff"


async def test_pages_of_other_sites_are_kept_out(namespace: str) -> None:
    """A page of another site can't send what changes anything, also where its browser asks nobody; the gateway's own page can."""
    async with client(namespace) as made:
        own = f"http://{made.base_url.netloc.decode()}"
        for origin, status in ((own, 200), ("https://evil.example", 403), ("null", 403), (f"{own}.evil.example", 403)):
            kind = "application/json" if origin == own else "text/plain"
            answered = await made.post("/v1/tool_calls", content=b"[]", headers={"Origin": origin, "Content-Type": kind})
            assert answered.status_code == status, origin
            assert "access-control-allow-origin" not in answered.headers
        preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
        assert "access-control-allow-origin" not in (await made.options("/v1/tool_calls", headers=preflight)).headers


async def test_named_sites_may_use_the_gateway(namespace: str) -> None:
    """A site that is named passes the browser's question, and its pages read the answers; others don't."""
    async with client(namespace, origins=("https://app.example",)) as made:
        asked = {
            "Origin": "https://app.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization",
        }
        answered = await made.options("/v1/tool_calls", headers=asked)
        assert answered.status_code == 204
        assert "Authorization" in answered.headers["access-control-allow-headers"]
        sent = await made.post("/v1/tool_calls", json=[], headers={"Origin": "https://app.example"})
        assert (sent.status_code, sent.headers["access-control-allow-origin"], sent.headers["vary"]) == (
            200,
            "https://app.example",
            "Origin",
        )
        foreign = await made.get("/health", headers={"Origin": "https://app.example.evil"})
        assert "access-control-allow-origin" not in foreign.headers


def test_wrong_sites_are_refused() -> None:
    """A path or a word is no site."""
    for wrong in ("app.example", "https://app.example/", "https://*.example", ""):
        with pytest.raises(ConfigurationError, match="site"):
            GuardOptions(origins=(wrong,))


def test_the_gateways_own_site() -> None:
    """The site of the gateway's own page is that of its URL."""
    assert origin_of("https://Tools.example:8443/base/") == "https://tools.example:8443"
    for wrong in ("", "tools.example", "ftp://tools.example", "https://", "https://a b", "http://[::1"):
        with pytest.raises(ConfigurationError):
            origin_of(wrong)


async def test_large_bodies(namespace: str) -> None:
    """A body beyond the limit is refused, whether its length is told before or it comes in pieces."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 100_000

    async with client(namespace, body=1_000_000) as made:
        for body in (b" " * 1_000_001, pieces()):
            assert (await made.post("/v1/tool_calls", content=body, headers=JSON)).status_code == 413
    async with served(namespace) as url:
        for length in (b"9" * 30, b"-1", b"x"):
            head = await said(url, b"POST /v1/tool_calls HTTP/1.1\r\nHost: x\r\nContent-Length: " + length + b"\r\n\r\n")
            assert head.split(b" ")[1] in {b"400", b"413"}, head


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\n",
        b"GET /health HTTP/1.1\r\nHost:\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n",
        b"GET http://other.example/health HTTP/1.1\r\nHost: x\r\n",
    ],
    ids=["none", "empty", "two", "foreign"],
)
async def test_a_request_names_one_host(namespace: str, head: bytes) -> None:
    """A request without a host, or with another one in its absolute form than in its header, is refused."""
    async with served(namespace) as url:
        assert (await said(url, head + b"Connection: close\r\n\r\n")).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "head", [b"GET http://X:80/health HTTP/1.1\r\nHost: x:80\r\n", b"GET /health HTTP/1.0\r\n"], ids=["absolute", "old"]
)
async def test_a_host_may_stand_twice_or_be_of_an_old_client(namespace: str, head: bytes) -> None:
    """The absolute form of the same host is answered, and so is HTTP 1.0, which knows no hosts."""
    async with served(namespace) as url:
        assert (await said(url, head + b"Connection: close\r\n\r\n")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("path", ["/run_tool", "/v1/tool_calls", "/mcp", "/chat"])
async def test_compressed_bodies_are_415(namespace: str, path: str) -> None:
    """A body that the gateway would not read is refused by its encoding, and the answer says how to send it."""
    async with client(namespace) as made:
        answered = await made.post(path, content=b"\x1f\x8b", headers={**JSON, "Content-Encoding": "gzip"})
        assert (answered.status_code, answered.headers["accept-encoding"]) == (415, "identity")


async def test_a_body_that_does_not_arrive(namespace: str) -> None:
    """A client that sends a part of its body and then nothing is answered 408, and its connection closed."""
    async with served(namespace, body_within=0.5) as url:
        answered = await said(
            url, b"POST /v1/tool_calls HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n["
        )
        assert answered.startswith(b"HTTP/1.1 408")
        assert b"connection: close" in answered.lower()


@pytest.mark.parametrize(
    "parts", [(), (b"GET /health HT",), (b"GET /health HTTP/1.1\r\nHost: x\r\n", b"A: b\r\n")], ids=["nothing", "a line", "headers"]
)
async def test_headers_that_do_not_arrive(namespace: str, parts: tuple[bytes, ...]) -> None:
    """A connection without a whole request is closed, and others are answered meanwhile."""
    async with served(namespace) as url:
        waiting = asyncio.create_task(said(url, *parts))
        async with httpx.AsyncClient(trust_env=False) as made:
            assert (await made.get(f"{url}/health")).status_code == 200
        assert await waiting == b""


async def test_a_second_request_has_its_own_time(namespace: str) -> None:
    """On a kept connection the time for headers begins with each request."""
    request = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    async with served(namespace) as url:
        answered = await said(url, request, request, b"GET /hea")
        assert answered.count(b"HTTP/1.1 200") == 2


async def test_endless_headers(namespace: str) -> None:
    """Headers without end are refused before they fill the memory."""
    lines = b"".join(b"X-%d: %s\r\n" % (number, b"y" * 1000) for number in range(200))
    async with served(namespace) as url:
        answered = await said(url, b"GET /health HTTP/1.1\r\nHost: x\r\n" + lines[:60_000], lines[60_000:])
        assert answered == b"" or answered.startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("before", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"], ids=["first", "second"])
async def test_a_large_head_in_one_piece(namespace: str, before: bytes) -> None:
    """Headers beyond the limit are refused also when all of them arrive at once."""
    async with served(namespace) as url:
        answered = await said(url, before + b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: %s\r\n\r\n" % (b"y" * 60_000))
        assert answered.count(b"HTTP/1.1 200") <= before.count(b"GET")
        assert b"HTTP/1.1 431" in answered or before
        # What fits is answered.
        request = before + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-A: %s\r\n\r\n" % (b"y" * 30_000)
        assert (await said(url, request)).count(b"HTTP/1.1 200") == request.count(b"GET")


CHUNKED = b"POST /%b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


class Watched(Hasty):
    """Keeps the lists of headers that it made, and counts the bytes that it read."""

    kept: ClassVar[list[list[tuple[bytes, bytes]]]] = []
    taken = 0

    def data_received(self, data: bytes) -> None:
        """Count bytes."""
        Watched.taken += len(data)
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Keep a list."""
        super().on_message_begin()
        Watched.kept.append(self.headers)


@pytest.mark.parametrize("path", [b"health", b"run_tool"])
@pytest.mark.parametrize("lines", [b"X-A: %s\r\n" % (b"y" * 1000), b"y" * 1000], ids=["many", "one"])
async def test_endless_trailers(namespace: str, path: bytes, lines: bytes) -> None:
    """Trailers are kept nowhere, and a connection with too many is closed, whether or not the body is read."""
    Watched.kept.clear()
    Watched.taken = 0
    parts = [CHUNKED % path + b"2\r\n{}\r\n0\r\nX-B: 1\r\nX-C: "] + [lines * 64] * 600
    async with served(namespace, protocol=Watched) as url:
        await said(url, *parts)
        assert Watched.taken < 4_000_000
        assert [name for headers in Watched.kept for name, _ in headers] == [b"host", b"content-type", b"transfer-encoding"]


@pytest.mark.usefixtures("slow")
async def test_few_trailers_are_dropped(namespace: str) -> None:
    """A request with trailers is answered, and so is the next one of its connection."""
    request = CHUNKED % b"v1/nothing" + b"2\r\n{}\r\n0\r\nX-B: 1\r\n\r\n"
    async with served(namespace) as url:
        answered = await said(url, request, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (answered.count(b"HTTP/1.1 404"), answered.count(b"HTTP/1.1 200")) == (1, 1)


class Brief(Hasty):
    """Waits for the end of a request only as long as a test does."""

    body_within = 0.5


@pytest.mark.parametrize("end", [b"", b"2\r\n{}\r\n0\r\nX-B: 1\r\n"], ids=["body", "trailers"])
async def test_a_request_that_never_ends(namespace: str, end: bytes) -> None:
    """A connection whose request was answered and does not end is closed."""
    async with served(namespace, protocol=Brief) as url:
        place = urlsplit(url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(CHUNKED % b"health" + end)
        closed = asyncio.create_task(reader.read())
        try:
            async with asyncio.timeout(60):
                while not closed.done():
                    writer.write(b"X-A: 1\r\n" if end else b"1\r\nx\r\n")
                    await asyncio.wait([closed], timeout=0.05)
                await asyncio.gather(closed, return_exceptions=True)
        finally:
            writer.close()
        assert closed.done()


async def test_bytes_that_are_no_http(namespace: str) -> None:
    """Garbage is answered with 400, and the gateway goes on."""
    async with served(namespace) as url:
        assert (await said(url, b"\x16\x03\x01\x00\xff\r\n\r\n")).startswith(b"HTTP/1.1 400")
        async with httpx.AsyncClient(trust_env=False) as made:
            assert (await made.get(f"{url}/health")).status_code == 200


async def test_others_are_answered_while_mcp_is_loaded(namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request of an MCP client loads the SDK beside the event loop."""
    answered = threading.Event()

    def loaded(name: str) -> ModuleType:
        assert answered.wait(30)
        return importlib.import_module(name)

    monkeypatch.setattr(gateway_app, "import_module", loaded)
    async with client(namespace) as made:
        first = [asyncio.create_task(made.post("/mcp", json={})) for _ in range(2)]
        assert (await made.get("/health")).status_code == 200
        answered.set()
        assert {(await each).status_code // 100 for each in first} == {4}
