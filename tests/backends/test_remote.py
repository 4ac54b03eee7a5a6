"""APIs that others run: which may be reached, and how requests to them are authorized."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.backends.places import Heard, Place
from toolbus.bus.outbound import Guard
from toolbus.bus.values.results import ToolError
from toolbus.platform.backends.remote import RemoteRunner
from toolbus.platform.backends.runner import CannotStart
from toolbus.platform.checks import AUTH
from toolbus.platform.records import ToolSource

pytestmark = pytest.mark.anyio

_KEY = {"type": "apiKey", "name": "k", "value": "env:API_SECRET"}
_CASES = {
    "apiKey header": (_KEY | {"in": "header"}, {"k": "hush"}),
    "apiKey cookie": (_KEY | {"in": "cookie"}, {"Cookie": "k=hush"}),
    "apiKey query": (_KEY | {"in": "query"}, {}),
    "basic": (
        {"type": "basic", "username": "me", "password": "env:API_SECRET"},
        {"Authorization": "Basic " + base64.b64encode(b"me:hush").decode()},
    ),
    "bearer": ({"type": "bearer", "token": "env:API_SECRET"}, {"Authorization": "Bearer hush"}),
}


class Api:
    """An API that shows what it gets, and gives out tokens, of which it takes the last one."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.forms: list[dict[str, Any]] = []

    async def show(self, request: web.Request) -> web.Response:
        """Show a request."""
        if self.tokens and request.headers.get("Authorization") != f"Bearer {self.tokens[-1]}":
            return web.json_response({"detail": "expired"}, status=401)
        return web.json_response({"headers": dict(request.headers), "query": dict(request.query), "body": await request.text()})

    async def token(self, request: web.Request) -> web.StreamResponse:
        """Give out a token."""
        self.forms.append({**await request.post(), "by": request.headers.get("Authorization", "")})
        self.tokens.append(f"t{len(self.tokens)}")
        answer = web.StreamResponse()
        await answer.prepare(request)
        # It comes in two pieces, of which the first one is read before the other is sent.
        await answer.write(f'{{"access_token": "{self.tokens[-1]}", "token_type": '.encode())
        await asyncio.sleep(0.05)
        await answer.write(b'"bearer", "expires_in": 3600}')
        return answer


@asynccontextmanager
async def served(api: Api) -> AsyncIterator[str]:
    """Serve an API, and yield its address."""
    app = web.Application()
    app.router.add_post("/token", api.token)
    app.router.add_route("*", "/{rest:.*}", api.show)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def at(url: str, **fields: Any) -> Place:
    """A place of an API that this host allows."""
    return Place(RemoteRunner(["127.0.0.1"]), ToolSource(type="remote", url=url, **fields))


async def test_an_api_is_named_by_the_fields_of_its_design() -> None:
    """A whole URL as the endpoint's path, or a port of the host's machine, stand for the base URL."""
    async with served(Api()) as url:
        for fields in (
            {"endpoint_path": f"{url}/show/{{a}}"},
            {"endpoint_path": "/show/{a}", "internal_port": int(url.rpartition(":")[2])},
        ):
            instance = await at("", **fields).start()
            got = (await instance.call({"a": "x", "b": 1}, Heard())).data
            assert json.loads(got["body"]) == {"b": 1}
            await instance.stop(0)


def test_every_kind_of_authorization_is_tried() -> None:
    """The cases here are all kinds that there are."""
    assert {fields["type"] for fields, _ in _CASES.values()} | {"oauth2"} == set(AUTH)


@pytest.mark.parametrize("case", _CASES)
async def test_requests_are_authorized(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The secret of the host's environment is where the kind of authorization puts it."""
    monkeypatch.setenv("API_SECRET", "hush")
    fields, expected = _CASES[case]
    async with served(Api()) as url:
        instance = await at(url, auth=fields).start()
        got = (await instance.call({}, Heard())).data
        assert expected.items() <= got["headers"].items()
        assert got["query"] == ({"k": "hush"} if case == "apiKey query" else {})
        await instance.stop(0)


async def test_tokens_are_asked_for_once_and_again_when_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials of a client become a token that many calls use; one that is refused is replaced for the next call."""
    monkeypatch.setenv("API_SECRET", "hush")
    api = Api()
    async with served(api) as url:
        auth = {"type": "oauth2", "token_url": f"{url}/token", "client_id": "me", "client_secret": "env:API_SECRET", "scope": "all"}
        instance = await at(url, auth=auth).start()
        for _ in range(3):
            assert (await instance.call({}, Heard())).data["headers"]["Authorization"] == "Bearer t0"
        assert api.forms == [
            {"grant_type": "client_credentials", "scope": "all", "by": "Basic " + base64.b64encode(b"me:hush").decode()},
        ]
        api.tokens.append("another")
        with pytest.raises(ToolError, match="answered 401"):
            await instance.call({}, Heard())
        assert (await instance.call({}, Heard())).success
        await instance.stop(0)


async def test_values_of_headers_and_query_are_the_hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Headers and query take values from the environment and from files, which are read each time."""
    monkeypatch.setenv("API_SECRET", "hush")
    file = tmp_path / "key"
    file.write_text("old\n")
    async with served(Api()) as url:
        instance = await at(url, headers={"X-Key": "Key {env:API_SECRET}"}, query={"k": f"file:{file}"}).start()
        got = (await instance.call({"a": 1}, Heard(), user="ann")).data
        assert (got["headers"]["X-Key"], got["query"], json.loads(got["body"])) == ("Key hush", {"k": "old"}, {"a": 1})
        # Others are not told on whose behalf a call runs.
        assert "Toolbus-User" not in got["headers"]
        file.write_text("new")
        assert (await instance.call({}, Heard())).data["query"] == {"k": "new"}
        file.unlink()
        with pytest.raises(ToolError) as raised:
            await instance.call({}, Heard())
        assert (raised.value.error.type, raised.value.error.code) == ("unavailable", "no_secret")
        await instance.stop(0)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"url": "http://10.0.0.1"}, "start the host with --allow-host 10.0.0.1"),
        ({"url": "http://[::1]:80"}, "--allow-host ::1"),
        ({"url": "ftp://example.com"}, "an http:// or https:// URL"),
        ({"url": "http://example.com:99999"}, "it is no URL"),
        ({"url": "https://me:hush@example.com"}, "has a user or password"),
        ({"url": "http://8.8.8.8", "headers": {"X": "env:NOT_SET_ANYWHERE"}}, "has no value"),
        ({"url": "http://8.8.8.8", "headers": {"X": "env:TOOLBUS_URL"}}, "is a setting of toolbus"),
        ({"url": "http://8.8.8.8", "auth": {"type": "bearer"}}, "bearer needs it"),
        ({"url": "http://8.8.8.8", "auth": {**_KEY, "type": "oauth2", "token_url": "http://127.0.0.1/t"}}, ""),
    ],
)
async def test_what_can_not_be_called_is_not_started(fields: dict[str, Any], said: str) -> None:
    """Private addresses, addresses that are none, and secrets that are missing are told at the start."""
    place = Place(RemoteRunner(), ToolSource(type="remote", **fields))
    with pytest.raises(CannotStart) as raised:
        await place.start()
    assert said in str(raised.value)
    assert "hush" not in str(raised.value)
    assert raised.value.permanent


async def test_names_of_private_hosts_are_refused() -> None:
    """A name that leads to a private address is not connected to, whenever it comes to lead there."""
    addresses = ["127.0.0.1"]

    async def resolve(host: str, port: int) -> list[str]:
        return addresses

    async with served(Api()) as url:
        port = url.rpartition(":")[2]
        place = Place(RemoteRunner(guard=Guard(resolve=resolve)), ToolSource(type="remote", url=f"http://api.example:{port}"))
        instance = await place.start()
        with pytest.raises(ToolError) as raised:
            await instance.call({}, Heard())
        assert raised.value.error.type == "forbidden"
        assert "--allow-host api.example" in raised.value.error.message
        await instance.stop(0)
        with pytest.raises(CannotStart, match=r"--allow-host api\.example") as refused:
            await place.start(ready="path:/health")
        assert refused.value.permanent
        allowed = Place(RemoteRunner([f"localhost:{port}"]), ToolSource(type="remote", url=f"http://localhost:{port}"))
        instance = await allowed.start()
        assert (await instance.call({}, Heard())).success
        await instance.stop(0)


async def test_a_path_that_is_ill_is_no_start() -> None:
    """An API whose path for health answers badly is not used, so that the next source is."""
    api = Api()
    api.tokens.append("locked")
    async with served(api) as url:
        with pytest.raises(CannotStart, match="GET /health answered 401") as raised:
            await at(url, ready="path:/health").start()
        assert not raised.value.permanent
