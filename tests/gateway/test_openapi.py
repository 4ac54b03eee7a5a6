"""The OpenAPI document is valid, and true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.routing import Route

from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.values.descriptors import ToolDescriptor
from toolbus.bus.values.results import ERROR_KINDS, ErrorInfo
from toolbus.edges.gateway.app import OPERATIONS, ROUTES
from toolbus.edges.gateway.bodies import Problem
from toolbus.edges.gateway.openapi import document, located

DOCS = Path(__file__).parents[2] / "docs/how-to"

pytestmark = pytest.mark.anyio


def references(value: Any) -> set[str]:
    """Every reference in a document."""
    if isinstance(value, list):
        return set().union(*map(references, value))
    if not isinstance(value, dict):
        return set()
    found = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
    return found.union(*map(references, value.values()))


def at(document: Any, reference: str) -> Any:
    """The place that a reference leads to, if there is one."""
    for part in reference.removeprefix("#/").split("/"):
        document = None if document is None else document.get(part.replace("~1", "/").replace("~0", "~"))
    return document


@pytest.mark.usefixtures("slow")
async def test_every_live_tool_has_an_operation(client: httpx.AsyncClient) -> None:
    """With the schema of its arguments; every reference leads somewhere."""
    found = (await client.get("/openapi.json")).json()
    names = [each["name"] for each in (await client.get("/v1/tools")).json()["tools"]]
    assert {f"/v1/tools/{name}/invoke" for name in names} <= set(found["paths"])
    assert found["openapi"] == "3.1.0"
    for reference in references(found):
        assert at(found, reference) is not None
    ids = [each["operationId"] for path in found["paths"].values() for each in path.values()]
    assert len(ids) == len(set(ids))
    assert found["components"]["schemas"]["tool.add"]["required"] == ["left", "right"]


@pytest.mark.usefixtures("slow")
async def test_the_answers_are_as_described(client: httpx.AsyncClient) -> None:
    """Each answer that can be had without a body meets its schema."""
    found = (await client.get("/openapi.json")).json()
    for path, operations in found["paths"].items():
        if "get" not in operations or "{" in path:
            continue
        content = operations["get"]["responses"]["200"]["content"]
        answer = await client.get(path)
        assert answer.status_code == 200, path
        [kind] = content
        assert answer.headers["content-type"].startswith(kind)
        if kind == "application/json":
            schema = {**content[kind]["schema"], "components": found["components"]}
            jsonschema_rs.validator_for(schema).validate(answer.json())


@pytest.mark.usefixtures("slow")
async def test_a_whole_message_is_described(client: httpx.AsyncClient) -> None:
    """The operation that takes a model's message has the schema of its answer, and those timeouts are allowed that are taken."""
    found = (await client.get("/openapi.json")).json()
    about = found["paths"]["/v1/tool_calls"]["post"]
    call = [{"id": "c1", "type": "function", "function": {"name": "echo", "arguments": '{"text": "x"}'}}]
    answer = await client.post("/v1/tool_calls", json=call, headers={"Toolbus-Timeout": "0.9"})
    assert answer.status_code == 200
    schema = {**about["responses"]["200"]["content"]["application/json"]["schema"], "components": found["components"]}
    jsonschema_rs.validator_for(schema).validate(answer.json())
    timeout = at(found, about["parameters"][0]["$ref"])
    assert timeout["name"] == "Toolbus-Timeout"
    checked = jsonschema_rs.validator_for(timeout["schema"])
    for seconds, taken in ((0.2, True), (86_400, True), (0, False), (-1, False), (86_401, False)):
        assert checked.is_valid(seconds) == taken
        answer = await client.post("/v1/tool_calls", json=call, headers={"Toolbus-Timeout": str(seconds)})
        assert answer.status_code == (200 if taken else 422)


@pytest.mark.usefixtures("slow")
async def test_a_document_is_made_once_for_a_state_of_the_catalogue(client: httpx.AsyncClient) -> None:
    """The same tools give the same bytes."""
    first, second = [(await client.get("/openapi.json")).content for _ in range(2)]
    assert first == second


def tool(name: str, parameters: dict[str, Any]) -> Tool:
    """A tool with these parameters."""
    return Tool(ToolDescriptor(name, "d", "s", parameters=parameters), None, available=True, owner="o", digest="d")


@pytest.mark.parametrize("name", ["a/b", "a b", "a{b}", "é", "..", "a%2Fb", "a~1b", "a_20_b"])
def test_any_name_of_a_tool_makes_a_valid_path_and_component(name: str) -> None:
    """Different names never share one."""
    made = document(OPERATIONS, [tool(name, {"type": "object"}), tool("a_2f_b", {"type": "object"})], 60.0)
    [key] = [each for each in made["components"]["schemas"] if each.startswith("tool.") and each != "tool.a_2f_b"] or ["tool.a_2f_b"]
    assert key.isascii()
    assert key.replace(".", "").replace("-", "").replace("_", "").isalnum()
    assert sum(path.endswith("/invoke") for path in made["paths"]) == 2


def test_every_route_is_described() -> None:
    """With its methods, and on the page of its guide; only the page, what other specifications describe, and the document are left out."""
    routes = {
        (re.sub(r":\w+}", "}", route.path), method.lower())
        for route in ROUTES
        if isinstance(route, Route)
        and not route.path.startswith(("/ui/", "/.well-known/"))
        and route.path not in {"/", "/mcp", "/openapi.json"}
        for method in (route.methods or set()) - {"HEAD"}
    }
    made = document(OPERATIONS, [], 60.0)
    paths = made["paths"]
    described = {(path, method) for path, operations in paths.items() for method in operations} | {("/v1/tools/{name}/invoke", "post")}
    assert described <= routes
    assert routes - described == set(), "give their operations a summary"
    unknown = {each for each in references(made) if at(made, each) is None}
    assert unknown == set(), "describe these statuses in the table of problems of openapi.py"
    guide = "".join((DOCS / name).read_text("utf-8") for name in ("gateway.md", "gateway-auth.md"))
    assert {path for path, _ in routes if path.partition("{")[0] not in guide} == set(), "tell of them in docs/how-to/gateway.md"


def test_every_error_has_a_status() -> None:
    """An error type that a call may end with is a problem of the gateway, whichever it is, and a response of each operation that calls."""
    made = document(OPERATIONS, [], 60.0)
    for kind, about in ERROR_KINDS.items():
        assert Problem.of(ErrorInfo(kind, "code", "message")).document()["status"] == about.status
        assert str(about.status) in made["paths"]["/run_tool"]["post"]["responses"], kind


def test_references_within_a_schema_lead_to_its_place() -> None:
    """Also from nested definitions; values that look like references are left alone."""
    schema = {
        "type": "object",
        "properties": {"$ref": {"$ref": "#/$defs/node"}, "plain": {"const": {"$ref": "#/$defs/node"}}},
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#"}}}},
    }
    made = document(OPERATIONS, [tool("t", schema)], 60.0)
    found = made["components"]["schemas"]["tool.t"]
    assert found["properties"]["$ref"] == {"$ref": "#/components/schemas/tool.t/$defs/node"}
    assert found["properties"]["plain"] == {"const": {"$ref": "#/$defs/node"}}
    assert found["$defs"]["node"]["properties"]["next"] == {"$ref": "#/components/schemas/tool.t"}
    # What the schema took and refused it takes and refuses at its place.
    moved = jsonschema_rs.validator_for({"$ref": "#/components/schemas/tool.t", "components": made["components"]})
    for value in ({"$ref": {"next": {"plain": {"$ref": "#/$defs/node"}}}}, {"$ref": 1}, {"plain": 2}, []):
        assert moved.is_valid(value) == jsonschema_rs.validator_for(schema).is_valid(value)


@pytest.mark.usefixtures("slow")
@given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10))
def test_a_schema_without_references_stays_as_it_is(value: Any) -> None:
    """Only references change, and what says where a schema is."""
    if not any(word in str(value) for word in ("$ref", "$schema", "$id", "$dynamicRef")):
        assert located(value, "#/x") == value
