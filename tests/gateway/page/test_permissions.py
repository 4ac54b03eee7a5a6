"""Every route of the page asks who sends a request, and only operators change anything."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.routing import Route

from tests.gateway.page.serving import Tokens, gateway
from toolbus import ToolBus
from toolbus.edges.gateway.operations import routes_of
from toolbus.edges.gateway.options import Permission, Principal
from toolbus.edges.gateway.page.routes import OPERATIONS

pytestmark = pytest.mark.anyio

ASKING = routes_of(OPERATIONS)
CHANGING = [route for route in ASKING if "POST" in (route.methods or ())]
READING = [route for route in ASKING if route not in CHANGING]
NEEDED: dict[str, set[Permission]] = {"/ui/events": {"call", "observe"}, "/ui/tools/{name}": {"call", "observe"}}
"""Which permissions open a route that needs none to observe."""

PRINCIPALS = {
    "nothing": Principal("nobody", may=frozenset()),
    "call": Principal("carl", may=frozenset({"call"})),
    "observe": Principal("otto", may=frozenset({"observe"})),
    "operate": Principal("olga", may=frozenset({"operate"})),
}


def place(route: Route) -> str:
    """Return an address of a route."""
    return route.path.replace("{name}", "x").replace("{queue:path}", "x").replace("{id}", "1-1")


@pytest.fixture
async def client(bus: ToolBus) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway that wants tokens."""
    async with gateway(bus, Tokens(**PRINCIPALS)) as url, httpx.AsyncClient(base_url=url, trust_env=False, timeout=30.0) as made:
        yield made


async def status(client: httpx.AsyncClient, route: Route, token: str, headers: dict[str, str] | None = None, body: str = "{}") -> int:
    """Return the status of an answer; a stream is not read."""
    method = "POST" if route in CHANGING else "GET"
    sent = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
    content = body if route in CHANGING else None
    async with client.stream(method, place(route), headers=sent, content=content) as answer:
        return answer.status_code


@pytest.mark.few(4)
@pytest.mark.parametrize("route", ASKING, ids=lambda route: route.path)
async def test_a_route_wants_a_token_with_its_permission(client: httpx.AsyncClient, route: Route) -> None:
    """Without a token it is 401, with one that lacks the permission 403, and with one that has it neither."""
    needed: set[str] = {"operate"} if route in CHANGING else set(NEEDED.get(route.path, {"observe"}))
    assert await status(client, route, "") == 401
    assert await status(client, route, "forged") == 401
    for name in PRINCIPALS:
        refused = await status(client, route, name) == 403
        assert refused is (name not in needed), name


@pytest.mark.parametrize("route", CHANGING, ids=lambda route: route.path)
async def test_no_other_site_can_change_anything(client: httpx.AsyncClient, route: Route) -> None:
    """A request of another site's page is refused, and so is a body that a page may send anywhere without asking."""
    for site in ("cross-site", "same-site"):
        assert await status(client, route, "operate", {"Sec-Fetch-Site": site}) == 403
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert await status(client, route, "operate", {"Content-Type": kind}) == 415
    assert await status(client, route, "operate", {"Sec-Fetch-Site": "same-origin"}) == 422


@pytest.mark.parametrize("route", CHANGING, ids=lambda route: route.path)
async def test_wrong_bodies_are_refused(client: httpx.AsyncClient, route: Route) -> None:
    """A body that is no JSON, or of another form, is the sender's mistake."""
    for body in ("", "{", "[]", "null", '{"id": 1}', '{"queue": {}, "id": []}', '{"more": 1}', "\\ud800", "[" * 5000):
        assert await status(client, route, "operate", body=body) in {400, 422}, body


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/ui/dead/redrive", {"queue": "nobody", "id": "1-1"}, 409),
        ("/ui/dead/redrive", {"queue": "x" * 9_000, "id": "' OR 1"}, 409),
        ("/ui/dead/drop", {"queue": "nobody", "id": "1-1"}, 409),
        ("/ui/confirmations/answer", {"id": "nobody", "allowed": True}, 409),
        ("/ui/services/pause", {"service": "nobody"}, 404),
    ],
)
async def test_what_is_not_there_is_a_conflict(client: httpx.AsyncClient, path: str, body: dict[str, object], expected: int) -> None:
    """A thing that somebody else settled meanwhile is told, and breaks nothing."""
    answer = await client.post(path, json=body, headers={"Authorization": "Bearer operate"})
    assert answer.status_code == expected
    assert answer.json()["detail"]


@pytest.mark.parametrize("path", ["/ui/dead/nobody/1-1", "/ui/dead/nobody/x", "/ui/confirmations/nobody"])
async def test_what_is_gone_is_not_found(client: httpx.AsyncClient, path: str) -> None:
    """A letter or a request that is not there any more is 404."""
    assert (await client.get(path, headers={"Authorization": "Bearer observe"})).status_code == 404
