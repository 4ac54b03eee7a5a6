"""Lists of tools and groups, searches, metrics, and the chat."""

from __future__ import annotations

import asyncio
import re
import secrets
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from tests.gateway.served import Site
from tests.records.made import recorded
from tests.servers import eventually, plain_metrics
from toolbus.bus.broker.admin import Admin
from toolbus.bus.values.settings import Settings
from toolbus.edges.gateway.app import ROUTES
from toolbus.edges.gateway.page import files
from toolbus.platform.store import Records

pytestmark = pytest.mark.anyio


async def test_the_platform_lists_runtimes_groups_and_tools(client: httpx.AsyncClient) -> None:
    """The form of D1: every tool says its runtime, groups and state."""
    found = (await client.get("/tools")).json()
    assert set(found) == {"backend_runtimes", "groups", "tools"}
    [runtime] = found["backend_runtimes"]
    assert runtime == {"backend_runtime": "worker", "name": "worker", "tool_count": len(found["tools"])}
    echo = next(each for each in found["tools"] if each["tool_id"] == "echo")
    assert (echo["category"], echo["group_ids"], echo["state"]) == ("letters", ["words"], "running")
    assert {"group_id": "words", "name": "words", "tool_ids": ["echo"]}.items() <= found["groups"][0].items()
    assert [each["name"] for each in found["tools"]] == sorted(each["name"] for each in found["tools"])


async def test_what_is_recorded_of_tools_and_groups_is_shown_as_it_is(client: httpx.AsyncClient, site: Site) -> None:
    """The tools of a group keep the order in which they are stored, and a tool its entries of external catalogues."""
    ids = ["echo", "add"]
    assert (await client.put("/v1/groups/row", json={"tool_ids": ids, "usage_order": ids})).status_code in {200, 201}
    found = (await client.get("/tools")).json()
    assert next(each for each in found["groups"] if each["group_id"] == "row")["tool_ids"] == ids
    assert {tuple(each["tool_slug_ids"]) for each in found["tools"]} == {()}
    await client.delete("/v1/groups/row")
    slugs = ("text/zebra", "text/ape")
    async with Admin(Settings(url=site.environment["TOOLBUS_URL"], namespace=site.namespace)) as admin:
        records = Records(admin)
        await records.put(recorded("slugged", tool_slug_ids=slugs))

        async def listed() -> list[str]:
            found = (await client.get("/tools")).json()["tools"]
            return [slug for each in found if each["tool_id"] == "slugged" for slug in each["tool_slug_ids"]]

        assert tuple(await eventually(listed, timeout=10.0)) == slugs
        await records.remove("recorded/slugged")


SEARCHES: list[tuple[str, list[str]]] = [
    ("category=letters", ["echo"]),
    ("category=letters&category=numbers", ["add", "echo"]),
    ("group=words", ["echo"]),
    ("q=TEXT+return", ["echo"]),
    ("q=numbers&category=numbers", ["add"]),
    ("runtime=docker", []),
    ("available=false", []),
    ("category=letters&group=none", []),
    ("name=add&name=echo&q=text", ["echo"]),
]


@pytest.mark.parametrize(("query", "names"), SEARCHES)
async def test_tools_are_found(client: httpx.AsyncClient, query: str, names: list[str]) -> None:
    """By category, group, runtime and words, all of which must hold."""
    found = (await client.get(f"/v1/tools?{query}")).json()
    assert [each["name"] for each in found["tools"]] == names
    assert (found["total"], found["next"]) == (len(names), None)


async def test_pages_make_the_whole(client: httpx.AsyncClient) -> None:
    """Each page begins after the one before."""
    whole = (await client.get("/v1/tools")).json()["tools"]
    paged: list[Any] = []
    cursor = ""
    while cursor is not None:
        page = (await client.get("/v1/tools", params={"limit": 2, "cursor": cursor})).json()
        assert len(page["tools"]) <= 2
        paged += page["tools"]
        cursor = page["next"]
    assert paged == whole


@pytest.mark.parametrize(
    "query", [*(query for query, _ in SEARCHES if "available" not in query), "limit=2", "limit=2&cursor=counts", "cursor=echo&q=text"]
)
async def test_definitions_are_of_the_tools_that_are_found(client: httpx.AsyncClient, query: str) -> None:
    """Each parameter chooses the same tools with ``format`` as without, and ``Link`` leads through all pages of them."""
    found = (await client.get(f"/v1/tools?{query}")).json()
    names = [each["name"] for each in found["tools"]]
    answer = await client.get(f"/v1/tools?{query}&format=bare")
    if "limit" not in query:
        assert "link" not in answer.headers
    assert [each["name"] for each in answer.json()] == names
    while link := answer.links.get("next"):
        answer = await client.get(f"/v1/tools{link['url']}")
        names += [each["name"] for each in answer.json()]
    rest = query.replace("limit=2", "limit=1000")
    assert names == [each["name"] for each in (await client.get(f"/v1/tools?{rest}")).json()["tools"]]


def asked() -> list[tuple[str, str]]:
    """Return method and path of each route of the gateway that is no file of its page."""
    read = [route for route in ROUTES if isinstance(route, Route) and route not in files.ROUTES]
    return [
        (method, re.sub(r"\{\w+(:path)?\}", "x", route.path)) for route in read for method in sorted((route.methods or {"POST"}) - {"HEAD"})
    ]


@pytest.mark.parametrize(("method", "path"), asked())
async def test_an_unknown_parameter_is_422_everywhere(client: httpx.AsyncClient, method: str, path: str) -> None:
    """A parameter that a route does not read is refused, and named."""
    answer = await client.request(method, f"{path}?limt=2", headers={"content-type": "application/json"}, content=b"{}")
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:toolbus:error:invalid_query"), answer.text
    assert "'limt'" in answer.json()["detail"]


NO_SEARCHES = ["strict=true", "namespaces=false", "format=openai&namespaces=true", "format=bare&available=false", "limit=1&limit=2"]


@pytest.mark.parametrize("query", [*NO_SEARCHES, "limit=0", "limit=x", "limit=1001", "limit=٣", "available=maybe", "kategory=letters"])
async def test_a_wrong_search_is_422(client: httpx.AsyncClient, query: str) -> None:
    """A misspelt condition finds not everything."""
    assert (await client.get(f"/v1/tools?{query}")).status_code == 422


async def test_a_tool_is_described(client: httpx.AsyncClient) -> None:
    """With the schema of its arguments; one that is not there is 404."""
    found = (await client.get("/v1/tools/add")).json()
    assert found["parameters"]["required"] == ["left", "right"]
    assert (found["effect"], found["available"]) == ("read", True)
    assert (await client.get("/v1/tools/nothing")).status_code == 404


async def test_a_group_is_kept_for_every_replica(client: httpx.AsyncClient, other: httpx.AsyncClient) -> None:
    """It is stored, read, replaced and deleted."""
    path = f"/v1/groups/g-{secrets.token_hex(4)}"
    body = {"name": "Sums", "tool_ids": ["add", "gone"], "usage_order": ["add"], "usage_example": "add first"}
    assert (await client.put(path, json=body)).status_code == 201
    stored = (await client.get(path)).json()
    assert {"name": "Sums", "tool_ids": ["add"], "usage_order": ["add"]}.items() <= stored.items()
    await eventually(lambda: seen(other, path), timeout=10.0)
    assert stored["group_id"] in (await client.get("/v1/tools/add")).json()["groups"]
    assert [each["name"] for each in (await client.get(f"/v1/tools?group={stored['group_id']}")).json()["tools"]] == ["add"]
    assert (await client.put(path, json={"tool_ids": ["echo"]})).status_code == 200
    assert (await client.get(path)).json()["tool_ids"] == ["echo"]
    assert (await client.delete(path)).status_code == 204
    assert (await client.get(path)).status_code == 404
    assert (await client.delete(path)).status_code == 404


async def seen(client: httpx.AsyncClient, path: str) -> bool:
    """Return whether a replica knows a group."""
    return (await client.get(path)).status_code == 200


@pytest.mark.parametrize("path", ["/v1/groups/%20", "/v1/groups/" + "x" * 65, "/v1/groups/a%2Fb", "/v1/groups/%F0%9F%8E%89"])
async def test_a_hostile_id_of_a_group_is_refused(client: httpx.AsyncClient, path: str) -> None:
    """Nothing is stored under it."""
    assert (await client.put(path, json={})).status_code == 422
    assert (await client.delete(path)).status_code == 422
    assert (await client.get(path)).status_code == 404


async def test_a_wrong_method_is_told_of_the_right_ones(client: httpx.AsyncClient) -> None:
    """All of them are named, also where one path has several."""
    answer = await client.post("/v1/groups/words", json={})
    assert (answer.status_code, set(answer.headers["allow"].split(", "))) == (405, {"GET", "HEAD", "PUT", "DELETE"})


@pytest.mark.parametrize("body", [{"tool_ids": "add"}, {"unknown": 1}, {"tool_ids": ["add"], "usage_order": ["echo"]}, []])
async def test_a_wrong_group_is_422(client: httpx.AsyncClient, body: object) -> None:
    """The order is of the group's own tools."""
    assert (await client.put("/v1/groups/wrong", json=body)).status_code == 422


async def test_a_service_that_starts_is_listed_at_once(client: httpx.AsyncClient, site: Site) -> None:
    """Its tools are in every list, and gone when it stops; the description is made again."""
    (site.folder / "late.py").write_text(
        'from toolbus import tool\n\n@tool(effect="read")\ndef late() -> str:\n    "Come late."\n    return "x"\n'
    )

    async def listed() -> bool:
        return "/v1/tools/late/invoke" in (await client.get("/openapi.json")).json()["paths"]

    async def gone() -> bool:
        return not await listed()

    assert await gone()
    late = site.worker("late.py")
    await eventually(listed, timeout=20.0)
    assert (await client.post("/v1/tools/late/invoke", json={})).json()["output"] == "x"
    late.terminate()
    await eventually(gone, timeout=20.0)
    answer = await client.post("/v1/tools/late/invoke", json={})
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:toolbus:error:unavailable")
    assert answer.headers["retry-after"]
    assert await asyncio.to_thread(late.wait, 20) == 0


async def test_metrics_count_calls_by_tool_and_outcome(client: httpx.AsyncClient) -> None:
    """Names that somebody made up share one label."""
    for _ in range(3):
        await client.post("/v1/tools/add/invoke", json={"left": 1, "right": 2})
    await client.post("/v1/tools/crashes/invoke", json={})
    for number in range(5):
        await client.post(f"/v1/tools/made-up-{number}/invoke", json={})
    found = await client.get("/metrics")
    assert found.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = dict(line.rsplit(" ", 1) for line in plain_metrics(found.text).splitlines() if not line.startswith("#"))
    assert int(values['toolbus_calls_total{gen_ai_tool_name="add"}']) >= 3
    assert int(values['toolbus_calls_total{gen_ai_tool_name="crashes",error_type="tool_error"}']) >= 1
    assert int(values['toolbus_calls_total{gen_ai_tool_name="_OTHER",error_type="not_found"}']) >= 5
    name = "gen_ai_execute_tool_duration_seconds"
    assert values[f'{name}_bucket{{gen_ai_tool_name="add",le="+Inf"}}'] == values[f'{name}_count{{gen_ai_tool_name="add"}}']
    assert values["toolbus_up"] == "1"
    assert any(key.startswith("toolbus_queue_length{") for key in values)
    assert "made-up" not in found.text


async def test_a_message_is_answered_by_the_chat_tool(client: httpx.AsyncClient) -> None:
    """In the session that its id names; without one, a new one is made."""
    found = (await client.post("/chat", json={"message": "hello", "chat_id": "c1"})).json()
    assert found == {"response": "c1 said hello", "chat_id": "c1"}
    first, second = [(await client.post("/chat", json={"message": "hello"})).json() for _ in range(2)]
    assert first["response"] == f"{first['chat_id']} said hello"
    assert first["chat_id"] != second["chat_id"]


async def test_a_chat_that_fails_is_a_problem(client: httpx.AsyncClient) -> None:
    """It has no field for a failure."""
    answer = await client.post("/chat", json={"message": "fail", "chat_id": "c"})
    assert (answer.status_code, answer.json()["detail"]) == (502, "speechless")


async def test_a_chat_can_be_streamed(client: httpx.AsyncClient) -> None:
    """With the same events as a tool."""
    answer = await client.post("/chat", json={"message": "m", "chat_id": "c"}, headers={"accept": "text/event-stream"})
    assert 'event: text\ndata: {"text":"c said ' in answer.text
    assert "event: end\n" in answer.text
