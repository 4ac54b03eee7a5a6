"""Bearer tokens from a file and from the server."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import httpx
import msgspec
import pytest
import redis

from tests.client.executing import chat, find_docs, info, repeat
from tests.contract import Place
from tests.gateway.running import client_of
from tests.servers import eventually
from toolbus import ConfigurationError, ToolBus, Worker
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.values.secrets import PERMISSIONS, Rate, TokenFile, TokenRecord, new_token
from toolbus.edges.gateway.auth.options import TRUSTED, AuthOptions, authenticator_of, file_tokens
from toolbus.edges.gateway.options import Permission

pytestmark = pytest.mark.anyio

TOOLS = [repeat, find_docs, info]


def made(name: str, **about: Any) -> tuple[str, TokenRecord]:
    """Return a new token and its record."""
    token, ident, hashed = new_token()
    return token, TokenRecord(ident, hashed, name, **about)


def bearer(token: str) -> dict[str, str]:
    """Return the headers of a request with a token."""
    return {"Authorization": f"Bearer {token}"}


def write(path: Path, *records: TokenRecord) -> None:
    """Write a file of tokens."""
    path.write_bytes(msgspec.json.encode(TokenFile(records)))


async def asked(client: httpx.AsyncClient, token: str = "", *calls: Any) -> httpx.Response:
    """Send a message of calls with a token."""
    return await client.post(
        "/v1/tool_calls", json=list(calls) or [chat("c", "repeat", {"text": "x"})], headers=bearer(token) if token else {}
    )


@asynccontextmanager
async def gateway(bus: ToolBus, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of a gateway with these options of authentication."""
    async with client_of(bus, authenticator_of(bus, AuthOptions(**options))) as client:
        yield client


def test_permissions_have_the_same_names_everywhere() -> None:
    """A token's permissions are those that routes ask for."""
    assert get_args(Permission) == PERMISSIONS


async def test_a_token_of_a_file_is_its_user(place: Place, tmp_path: Path) -> None:
    """A token's calls run for its user, and see its groups and tools alone."""
    token, record = made("ci", user="acme", groups=("docs",), tools=("info",))
    write(tmp_path / "tokens.json", record)
    async with place.serving(*TOOLS) as bus, gateway(bus, tokens=str(tmp_path / "tokens.json")) as client:
        answered = (await asked(client, token, chat("a", "info", {"ids": []}), chat("b", "find.docs", {"query": "q"}))).json()
        assert answered["messages"][0]["content"] == "[] for acme"
        assert [each["success"] for each in answered["calls"]] == [True, False]


WRONG = {
    "none": {},
    "empty": {"Authorization": ""},
    "basic": {"Authorization": "Basic YTpi"},
    "no token": {"Authorization": "Bearer"},
    "unknown": bearer("tb_000000000000_" + "A" * 43),
    "another form": bearer("hello"),
    "three parts": bearer("a.b.c"),
    "long": bearer("x" * 30_000),
    "spaces": bearer("a b"),
    "quotes": bearer('a", error="none'),
}


@pytest.mark.parametrize("headers", WRONG.values(), ids=WRONG)
async def test_a_request_without_a_known_token_is_refused(namespace: str, tmp_path: Path, headers: dict[str, str]) -> None:
    """The answer is 401, and says where to learn how a token is got."""
    write(tmp_path / "tokens.json", made("ci")[1])
    async with (
        ToolBus("memory://", namespace=namespace) as bus,
        gateway(bus, tokens=str(tmp_path / "tokens.json"), shared_tokens=True) as client,
    ):
        refused = await client.post("/v1/tool_calls", json=[], headers=headers)
        assert (refused.status_code, refused.json()["type"]) == (401, "urn:toolbus:error:unauthorized")
        challenge = refused.headers["www-authenticate"]
        assert challenge.startswith("Bearer ")
        url = challenge.partition('resource_metadata="')[2].partition('"')[0]
        metadata = (await client.get(url)).json()
        assert metadata["resource"] == str(client.base_url).rstrip("/")
        assert ("error=" in challenge) == bool(headers)


async def test_the_secret_part_of_a_token_counts(namespace: str, tmp_path: Path) -> None:
    """A token with the id of another and another secret is refused."""
    token, record = made("ci")
    write(tmp_path / "tokens.json", record)
    async with ToolBus("memory://", namespace=namespace) as bus, gateway(bus, tokens=str(tmp_path / "tokens.json")) as client:
        assert (await asked(client, token)).status_code == 200
        forged = token[:-1] + ("A" if token[-1] != "A" else "B")
        assert (await asked(client, forged)).status_code == 401
        assert (await asked(client, token.upper())).status_code == 401
        assert (await asked(client, record.hash)).status_code == 401
        two = httpx.Headers([("Authorization", f"Bearer {token}"), ("Authorization", "Bearer other")])
        assert (await client.post("/v1/tool_calls", json=[], headers=two)).status_code == 401


async def test_permissions_and_ends(namespace: str, tmp_path: Path) -> None:
    """A token without the permission to call is refused with 403, one whose time is over with 401."""
    watcher, first = made("watcher", permissions=("observe",))
    old, second = made("old", expires=time.time() - 1)
    write(tmp_path / "tokens.json", first, second)
    async with ToolBus("memory://", namespace=namespace) as bus, gateway(bus, tokens=str(tmp_path / "tokens.json")) as client:
        assert (await asked(client, watcher)).status_code == 403
        refused = await asked(client, old)
        assert (refused.status_code, refused.json()["detail"]) == (401, "the token has expired")


@pytest.mark.usefixtures("slow")
async def test_a_changed_file_counts(namespace: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A token that is added or taken out counts without a restart; a broken file changes nothing, one that is gone takes all."""
    path = tmp_path / "tokens.json"
    (kept, first), (added, second) = made("a"), made("b")
    write(path, first)
    async with ToolBus("memory://", namespace=namespace) as bus, gateway(bus, tokens=str(path)) as client:

        async def status(token: str) -> int:
            return (await asked(client, token)).status_code

        assert (await status(kept), await status(added)) == (200, 401)
        write(path, first, second)
        await eventually(lambda: _is(status(added), 200), timeout=30.0, interval=0.1)
        write(path, second)
        await eventually(lambda: _is(status(kept), 401), timeout=30.0, interval=0.1)
        path.write_text('{"tokens": [{"id"')
        await eventually(lambda: _told(status(added), caplog, "tokens.unreadable"), timeout=30.0, interval=0.1)
        assert await status(added) == 200
        path.unlink()
        await eventually(lambda: _is(status(added), 401), timeout=30.0, interval=0.1)


async def _is(status: Any, wanted: int) -> bool:
    return await status == wanted


async def _told(status: Any, caplog: pytest.LogCaptureFixture, event: str) -> bool:
    await status
    return event in caplog.text


@pytest.mark.usefixtures("slow")
async def test_a_token_of_the_server_counts_at_every_gateway_until_it_is_revoked(place: Place) -> None:
    """Every replica accepts a token of the namespace, and refuses it soon after its revocation."""
    token, record = made("shared", user="alice")
    async with (
        place.serving(*TOOLS) as bus,
        place.bus() as other,
        gateway(bus, shared_tokens=True) as here,
        gateway(other, shared_tokens=True) as there,
    ):
        assert (await asked(here, token)).status_code == 401
        await bus.tokens.add(record)
        for client in (here, there):
            await eventually(lambda client=client: _is(_status(client, token), 200), timeout=TRUSTED + 30.0, interval=0.1)
        assert await bus.tokens.revoke(record.id)
        for client in (here, there):
            await eventually(lambda client=client: _is(_status(client, token), 401), timeout=TRUSTED + 30.0, interval=0.1)


async def _status(client: httpx.AsyncClient, token: str) -> int:
    return (await asked(client, token)).status_code


@pytest.mark.parametrize(
    "value", [b"", b"{", b"[1]", b"\xff", b'{"id":"000000000000","hash":"x","name":"n"}', b"[" * 50_000], ids=lambda value: str(value)[:20]
)
async def test_hostile_records_are_no_tokens(url: str, namespace: str, value: bytes) -> None:
    """A record that nothing of toolbus wrote is nobody's token, and hides no other."""
    token, record = made("good")
    (torn, other), (borrowed, third) = made("torn"), made("borrowed")
    keys = Keys(namespace)
    async with ToolBus(url, namespace=namespace) as bus, gateway(bus, shared_tokens=True) as client:
        await bus.tokens.add(record)
        with redis.Redis.from_url(url) as server:
            server.hset(keys.tokens, other.id, value)
            # A record under the id of another.
            server.hset(keys.tokens, third.id, msgspec.json.encode(record))
        assert [(await asked(client, each)).status_code for each in (token, torn, borrowed)] == [200, 401, 401]
        assert [each.name for each in await bus.tokens.all()] == ["good"]


@pytest.mark.usefixtures("slow")
async def test_a_server_that_is_away_lets_nobody_in(fresh_server: Any, namespace: str) -> None:
    """While the server can't be asked whose a token is, the answer is 503, never a success."""
    server = fresh_server()
    token, record = made("t")
    async with ToolBus(server.url, namespace=namespace) as bus, gateway(bus, shared_tokens=True) as client:
        await bus.tokens.add(record)
        server.kill()
        refused = await asked(client, token)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        server.start()


async def test_a_rate_is_counted_by_all_replicas(place: Place, tmp_path: Path) -> None:
    """Requests beyond a token's rate are answered 429 with Retry-After, whichever replica got the others; other tokens go on."""
    token, record = made("limited", rate=Rate(3, 3600.0))
    free, other = made("free")
    write(tmp_path / "tokens.json", record, other)
    options = {"tokens": str(tmp_path / "tokens.json")}
    async with (
        place.serving(*TOOLS) as bus,
        place.bus() as second,
        gateway(bus, **options) as here,
        gateway(second, **options) as there,
    ):
        found = [await asked(client, token) for client in (here, there, here, there, here)]
        assert [each.status_code for each in found] == [200, 200, 200, 429, 429]
        assert 0 < int(found[-1].headers["retry-after"]) <= 1200
        assert found[-1].json()["type"] == "urn:toolbus:error:rate_limited"
        assert (await asked(there, free)).status_code == 200


async def test_nothing_secret_is_logged_or_answered(namespace: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither a token nor its hash stands in a log, an answer, or the error of a bad file."""
    caplog.set_level(logging.DEBUG)
    token, record = made("ci")
    path = tmp_path / "tokens.json"
    write(path, record)
    secret = token[-20:]
    async with ToolBus("memory://", namespace=namespace) as bus, gateway(bus, tokens=str(path)) as client:
        texts = [(await asked(client, token + "x")).text, (await asked(client, token)).text]
    path.write_text(json.dumps({"tokens": [{"id": record.id, "hash": record.hash + secret, "name": 7}]}))
    with pytest.raises(ConfigurationError) as refused:
        file_tokens(path)
    for text in (*texts, caplog.text, str(refused.value)):
        assert secret not in text
        assert record.hash not in text


def test_two_records_of_one_id_are_refused(tmp_path: Path) -> None:
    """It can't be said which of them counts."""
    _, record = made("a")
    write(tmp_path / "t", record, record)
    with pytest.raises(ConfigurationError, match="two tokens of one id"):
        file_tokens(tmp_path / "t")
    with pytest.raises(ConfigurationError, match="can't be read"):
        file_tokens(tmp_path / "absent")


async def test_options_without_keys_are_refused(namespace: str) -> None:
    """An issuer alone verifies nothing, and no option at all means no authentication."""
    async with Worker(TOOLS, url="memory://", namespace=namespace), ToolBus("memory://", namespace=namespace) as bus:
        with pytest.raises(ConfigurationError, match="keys"):
            authenticator_of(bus, AuthOptions(issuer="https://issuer"))
        with pytest.raises(ConfigurationError, match="rate"):
            authenticator_of(bus, AuthOptions(shared_tokens=True, rate="lots"))
        assert authenticator_of(bus, AuthOptions()) is None


def test_a_file_of_others_rights_keeps_them(tmp_path: Path) -> None:
    """A file of tokens that is replaced has the rights of the one before."""
    from toolbus.operations.cli.secure import _write_tokens as _write

    path = tmp_path / "tokens.json"
    _write(path, [])
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    _write(path, [made("a")[1]])
    assert path.stat().st_mode & 0o777 == 0o640


async def test_mcp_clients_learn_where_tokens_come_from(namespace: str, tmp_path: Path) -> None:
    """A request to /mcp without a token is told of the metadata of that resource, and one with a token goes on."""
    token, record = made("ci")
    write(tmp_path / "tokens.json", record)
    async with ToolBus("memory://", namespace=namespace) as bus, gateway(bus, tokens=str(tmp_path / "tokens.json")) as client:
        refused = await client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert refused.status_code == 401
        url = refused.headers["www-authenticate"].partition('resource_metadata="')[2].partition('"')[0]
        assert url.endswith("/.well-known/oauth-protected-resource/mcp")
        assert (await client.get(url)).json()["resource"].endswith("/mcp")
        assert (await client.post("/mcp", json={}, headers=bearer(token))).status_code != 401


@pytest.mark.parametrize(("public", "caching"), [("", "no-store"), ("https://tools.example", "public, max-age=300")])
async def test_metadata_of_a_made_up_host_is_kept_by_no_cache(namespace: str, tmp_path: Path, public: str, caching: str) -> None:
    """Without a URL of the gateway's own the metadata name what the request named, which others must not be given."""
    write(tmp_path / "tokens.json", made("ci")[1])
    options = {"tokens": str(tmp_path / "tokens.json"), "public_url": public}
    async with ToolBus("memory://", namespace=namespace) as bus, gateway(bus, **options) as client:
        answer = await client.get("/.well-known/oauth-protected-resource", headers={"Host": "evil.example"})
        assert answer.json()["resource"] == (public or "http://evil.example")
        assert answer.headers["cache-control"] == caching
