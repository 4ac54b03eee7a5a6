"""APIs mounted by their OpenAPI documents: operations as tools, requests, answers, and hostile documents."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.contract import Place
from tests.mounts.api import Answer, Api, Asked, api, as_json
from toolbus import Blob, ToolBus, ToolResult
from toolbus.bus.values.results import ConfigurationError, ErrorInfo, ToolError
from toolbus.bus.values.secrets import Secret
from toolbus.edges.mounts import Options, serve
from toolbus.edges.mounts.openapi.operations import Document, Flawed, Operation, operations
from toolbus.edges.mounts.openapi.requests import request_of
from toolbus.edges.mounts.openapi.service import MountedApi

pytestmark = pytest.mark.anyio

PETS: dict[str, Any] = {
    "openapi": "3.0.3",
    "info": {"title": "Pets", "version": "1"},
    "servers": [{"url": "/v1"}],
    "paths": {
        "/pets/{id}": {
            "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}],
            "get": {"operationId": "getPet", "summary": "Get a pet."},
            "put": {
                "operationId": "replacePet",
                "requestBody": {"required": True, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}}},
            },
            "delete": {"deprecated": True},
        },
        "/pets": {
            "get": {
                "operationId": "find pets",
                "description": "Find pets.",
                "parameters": [
                    {"name": "tag", "in": "query", "schema": {"type": "array", "items": {"type": "string"}}},
                    {"name": "sizes", "in": "query", "explode": False, "schema": {"type": "array", "items": {"type": "integer"}}},
                    {"name": "near", "in": "query", "style": "deepObject", "schema": {"type": "object"}},
                    {"name": "where", "in": "query", "content": {"application/json": {"schema": {"type": "object"}}}},
                    {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
                    {"name": "Authorization", "in": "header", "schema": {"type": "string"}},
                    {"name": "api_key", "in": "query", "schema": {"type": "string"}},
                ],
            },
            "post": {
                "operationId": "addPet",
                "parameters": [{"name": "name", "in": "query", "schema": {"type": "boolean"}}],
                "requestBody": {"required": True, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}}},
            },
        },
        "/form": {
            "post": {
                "operationId": "form",
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/x-www-form-urlencoded": {"schema": {"type": "object", "properties": {"a": {"type": "string"}}}}
                    },
                },
            }
        },
        "/upload": {"post": {"operationId": "upload", "requestBody": {"required": True, "content": {"multipart/form-data": {}}}}},
    },
    "components": {
        "schemas": {
            "Pet": {
                "type": "object",
                "required": ["name", "id"],
                "properties": {
                    "id": {"type": "integer", "readOnly": True},
                    "name": {"type": "string", "nullable": True, "example": "Rex"},
                    "age": {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
                    "parents": {"type": "array", "items": {"$ref": "#/components/schemas/Pet"}},
                },
            }
        }
    },
}


def document(folder: Path, content: dict[str, Any]) -> str:
    """Write a document and return its place."""
    file = folder / "api.json"
    file.write_text(json.dumps(content))
    return str(file)


@asynccontextmanager
async def mounted(place: Place, content: Any, folder: Path, base: str, **more: Any) -> AsyncIterator[tuple[ToolBus, MountedApi]]:
    """A worker that serves an API at an address, and an open bus."""
    options = Options(**more.pop("options", {}))
    made = MountedApi("pets", document(folder, content), options, base_url=base, **more)
    async with serve(made, settings=place.settings), place.bus() as bus:
        yield bus, made


def echo(_: Asked) -> Answer:
    """Answer with nothing of interest."""
    return as_json({"ok": True})


@pytest.fixture
async def pets() -> AsyncIterator[Api]:
    """An API that accepts everything."""
    async with api(echo) as made:
        yield made


def failure(result: ToolResult) -> ErrorInfo:
    """The error of a failed call."""
    assert result.error is not None
    return result.error


async def test_operations_are_tools(valkey: Place, pets: Api, tmp_path: Path) -> None:
    """Each has its method's effect, one schema for all of its parameters, and definitions that may refer to themselves."""
    async with mounted(valkey, PETS, tmp_path, pets.address) as (bus, made):
        effects = {name: bus.tools[name].descriptor.effect for name in bus.tools}
        assert effects == {
            "getPet": "read",
            "replacePet": "idempotent",
            "delete_pets_id": "idempotent",
            "find_pets": "read",
            "addPet": "once",
            "form": "once",
        }
        assert made.left_out == {"post_upload": "it needs a body of 'multipart/form-data', which is not supported"}
        schema = bus.tools["addPet"].descriptor.parameters or {}
        assert list(schema["properties"]) == ["name", "name_body", "age", "parents"]
        assert schema["required"] == ["name_body"]
        assert schema["properties"]["name_body"]["type"] == ["string", "null"]
        assert schema["properties"]["age"] == {"type": "integer", "exclusiveMinimum": 0}
        assert schema["properties"]["parents"]["items"] == {"$ref": "#/$defs/Pet"}
        assert schema["$defs"]["Pet"]["required"] == ["name"]
        assert "Authorization" not in (bus.tools["find_pets"].descriptor.parameters or {})["properties"]
        assert bus.tools["getPet"].descriptor.external
        assert bus.tools["delete_pets_id"].description == "Deprecated."


async def test_arguments_go_where_they_belong(valkey: Place, pets: Api, tmp_path: Path) -> None:
    """Paths, queries, headers and bodies are written as the document says, and no value leaves its place."""
    async with mounted(valkey, PETS, tmp_path, f"{pets.address}/base/") as (bus, _):
        await bus.call("getPet", {"id": "a/b ?#{id}"})
        assert (pets.last.method, pets.last.target) == ("GET", "/base/pets/a%2Fb%20%3F%23%7Bid%7D")
        given = {"tag": ["a", "b&c"], "sizes": [1, 2], "near": {"x": 1}, "where": {"n": [1]}, "X-Trace": "t"}
        await bus.call("find_pets", given)
        assert pets.last.target == "/base/pets?tag=a&tag=b%26c&sizes=1,2&near%5Bx%5D=1&where=%7B%22n%22%3A%5B1%5D%7D"
        assert pets.last.headers["x-trace"] == "t"
        await bus.call("addPet", {"name": True, "name_body": "Rex", "age": 3})
        assert (pets.last.method, pets.last.target) == ("POST", "/base/pets?name=true")
        assert (json.loads(pets.last.body), pets.last.headers["content-type"]) == ({"name": "Rex", "age": 3}, "application/json")
        await bus.call("form", {"a": "x&y=z"})
        assert pets.last.body == b"a=x%26y%3Dz"
        asked = len(pets.asked)
        for wrong in ("..", ".", ""):
            assert failure(await bus.call("getPet", {"id": wrong})).type == "invalid_arguments"
        assert failure(await bus.call("find_pets", {"X-Trace": "a\r\nHost: b"})).type == "invalid_arguments"
        assert failure(await bus.call("addPet", {"age": 3})).type == "invalid_arguments"
        assert len(pets.asked) == asked


COLORS = ["blue", "black"]
SHADE = {"R": 100, "G": 200}
STYLES: list[tuple[str, str, bool, Any, str | None]] = [
    *(("path", "simple", explode, COLORS, "/blue,black") for explode in (False, True)),
    ("path", "simple", False, SHADE, "/R,100,G,200"),
    ("path", "simple", True, SHADE, "/R=100,G=200"),
    ("query", "form", False, COLORS, "/?color=blue,black"),
    ("query", "form", True, COLORS, "/?color=blue&color=black"),
    ("query", "form", False, SHADE, "/?color=R,100,G,200"),
    ("query", "form", True, SHADE, "/?R=100&G=200"),
    ("query", "spaceDelimited", False, COLORS, "/?color=blue%20black"),
    ("query", "spaceDelimited", False, SHADE, "/?color=R%20100%20G%20200"),
    ("query", "spaceDelimited", True, SHADE, None),
    ("query", "pipeDelimited", False, COLORS, "/?color=blue%7Cblack"),
    ("query", "pipeDelimited", False, SHADE, "/?color=R%7C100%7CG%7C200"),
    ("query", "deepObject", True, SHADE, "/?color%5BR%5D=100&color%5BG%5D=200"),
    ("query", "deepObject", True, COLORS, None),
    ("query", "deepObject", True, "blue", None),
    ("query", "deepObject", True, {"R": [1]}, None),
    ("query", "form", True, [SHADE], None),
    ("header", "simple", False, COLORS, "blue,black"),
    ("header", "simple", False, SHADE, "R,100,G,200"),
    ("header", "simple", True, SHADE, "R=100,G=200"),
    ("header", "simple", True, [COLORS], None),
    ("path", "", False, "blue", "/%22blue%22"),
    ("query", "", False, SHADE, "/?color=%7B%22R%22%3A100%2C%22G%22%3A200%7D"),
    ("header", "", False, COLORS, '["blue","black"]'),
]


@pytest.mark.parametrize(("place", "style", "explode", "value", "expected"), STYLES)
def test_a_parameter_is_written_in_its_style(place: str, style: str, explode: bool, value: Any, expected: str | None) -> None:
    """Each is written as the table of OpenAPI says, or as JSON where it has content; a value without a form is refused."""
    form = {"style": style, "explode": explode} if style else {"content": {"application/json": {}}}
    described = {"name": "color", "in": place, "required": True, **form}
    path = "/{color}" if place == "path" else "/"
    (operation,) = operations(Document({"paths": {path: {"get": {"parameters": [described]}}}}))
    assert isinstance(operation, Operation)
    if expected is None:
        with pytest.raises(ToolError, match="color"):
            request_of(operation, "http://x", {"color": value}, {}, {})
        return
    request = request_of(operation, "http://x", {"color": value}, {}, {})
    assert (request.headers.get("color") or request.url.raw_path.decode()) == expected


@pytest.mark.parametrize(
    "described",
    [
        {"parameters": [{"name": "color", "in": "path", "required": True, "style": "label"}]},
        {"parameters": [{"name": "color", "in": "path", "required": True, "style": "matrix"}]},
        {"parameters": [{"name": "color", "in": "query", "style": ["form"]}]},
        {"parameters": [{"name": "color", "in": "header", "style": "form"}]},
        {"parameters": [{"name": "color", "in": "cookie", "required": True}]},
        {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": {"type": "object"}}}}},
        {"requestBody": {"content": {"application/x-www-form-urlencoded": {"schema": {"properties": {"a": {}}}, "encoding": {"a": {}}}}}},
    ],
)
def test_an_operation_that_cannot_be_asked_for_is_left_out(described: dict[str, Any]) -> None:
    """One that could only be requested in another form than its document describes is no tool."""
    (found,) = operations(Document({"paths": {"/{color}" if "'path'" in str(described) else "/": {"post": described}}}))
    assert isinstance(found, Flawed)


async def test_secrets_are_sent_and_never_shown(
    valkey: Place, pets: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They come from files and the environment at each call, go to hosts that were named, and are no arguments."""
    monkeypatch.setenv("API_TOKEN", "first-secret")
    key = tmp_path / "key"
    key.write_text("second-secret\n")
    secrets = {"headers": {"Authorization": Secret("env:API_TOKEN", "Bearer ")}, "query": {"api_key": Secret(f"file:{key}")}}
    async with mounted(valkey, PETS, tmp_path, pets.address, **secrets) as (bus, _):
        assert "api_key" not in (bus.tools["find_pets"].descriptor.parameters or {})["properties"]
        await bus.call("find_pets", {})
        assert (pets.last.headers["authorization"], pets.last.target) == ("Bearer first-secret", "/pets?api_key=second-secret")
        key.write_text("third-secret")
        await bus.call("find_pets", {})
        assert pets.last.target.endswith("third-secret")
        key.unlink()
        assert failure(await bus.call("find_pets", {})).code == "no_secret"
    assert not [word for word in ("first-secret", "second-secret", "third-secret") if word in caplog.text]
    elsewhere = {**PETS, "servers": [{"url": "https://attacker.example"}]}
    hostile = MountedApi("pets", document(tmp_path, elsewhere), headers=secrets["headers"])
    with pytest.raises(ConfigurationError, match="only hosts that you name get your headers"):
        await hostile.__aenter__()


async def test_private_addresses_are_reached_only_when_named(valkey: Place, pets: Api, tmp_path: Path) -> None:
    """A host that the document alone names must be public; one that the operator names need not be."""
    local = {**PETS, "servers": [{"url": pets.address}]}
    async with mounted(valkey, local, tmp_path, "") as (bus, _):
        assert failure(await bus.call("getPet", {"id": "1"})).code == "forbidden_address"
    assert not pets.asked
    async with mounted(valkey, local, tmp_path, "", hosts=["127.0.0.1"]) as (bus, _):
        assert (await bus.call("getPet", {"id": "1"})).data == {"ok": True}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (as_json([1, {"a": None}]), ToolResult(data=[1, {"a": None}])),
        ((200, {"Content-Type": "text/plain; charset=latin-1"}, "é".encode("latin-1")), ToolResult(output="é")),
        ((200, {"Content-Type": "image/png"}, b"png"), ToolResult(output="", content=(Blob("image/png", b"png"),))),
        ((204, {}, b""), ToolResult(output="")),
        ((200, {"Content-Type": "application/json"}, b"{nonsense"), ToolResult(output="{nonsense")),
        ((200, {"Content-Type": "application/problem+json", "Content-Encoding": "gzip"}, gzip.compress(b"{}")), ToolResult(data={})),
    ],
)
async def test_answers_are_results(valkey: Place, tmp_path: Path, answer: Answer, expected: ToolResult) -> None:
    """JSON is data, text output, everything else a blob."""
    async with api(lambda _: answer) as served, mounted(valkey, PETS, tmp_path, served.address) as (bus, _):
        result = await bus.call("getPet", {"id": "1"})
        assert (result.success, result.data, result.content) == (True, expected.data, expected.content)
        assert expected.output is None or result.output == expected.output


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("answer", "code", "retryable", "wait"),
    [
        (as_json({"why": "gone"}, 404), "http_404", False, None),
        ((429, {"Retry-After": "7"}, b""), "http_429", True, 7.0),
        ((503, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, b""), "http_503", True, 0.0),
        ((503, {"Retry-After": "nonsense"}, b""), "http_503", True, None),
        ((302, {"Location": "http://169.254.169.254/latest"}, b""), "redirect_refused", False, None),
        ((302, {"Location": "/pets/1"}, b""), "too_many_redirects", False, None),
        ((200, {}, b"x" * 5_000), "too_long", False, None),
        ((200, {"Content-Encoding": "gzip"}, gzip.compress(b"x" * 10_000_000)), "too_long", False, None),
        ((200, {"Content-Encoding": "br"}, b"x"), "bad_answer", False, None),
    ],
)
async def test_what_goes_wrong_is_a_tool_error(
    valkey: Place, tmp_path: Path, answer: Answer, code: str, retryable: bool, wait: float | None
) -> None:
    """Statuses, redirects and floods are failures with a code; those that will pass say when to try again."""
    async with api(lambda _: answer) as served, mounted(valkey, PETS, tmp_path, served.address, options={"most_bytes": 2_000}) as (bus, _):
        error = failure(await bus.call("getPet", {"id": "1"}))
        assert (error.type, error.code, error.retryable, error.retry_after) == ("tool_error", code, retryable, wait)


@pytest.mark.usefixtures("slow")
async def test_a_lost_connection_says_whether_the_call_may_have_run(valkey: Place, tmp_path: Path) -> None:
    """A read is unavailable, an operation that may run once has an unknown outcome, and what was never sent is unavailable."""
    async with api(lambda _: (0, {}, b"")) as served, mounted(valkey, PETS, tmp_path, served.address) as (bus, _):
        assert failure(await bus.call("getPet", {"id": "1"})).type == "unavailable"
        assert failure(await bus.call("addPet", {"name_body": "Rex"})).type == "outcome_unknown"
    async with mounted(valkey, PETS, tmp_path, served.address) as (bus, _):
        error = failure(await bus.call("addPet", {"name_body": "Rex"}))
        assert (error.type, error.code, error.retryable) == ("unavailable", "unreachable", True)


async def test_a_document_is_fetched_from_its_address(valkey: Place) -> None:
    """Its host is named by that, and addresses in it may be relative to it."""

    def answer(asked: Asked) -> Answer:
        return as_json(PETS) if asked.target == "/docs/openapi.json" else as_json({"at": asked.target})

    async with api(answer) as served:
        made = MountedApi("pets", f"{served.address}/docs/openapi.json")
        async with serve(made, settings=valkey.settings), valkey.bus() as bus:
            assert (await bus.call("getPet", {"id": "1"})).data == {"at": "/v1/pets/1"}
        with pytest.raises(ConfigurationError, match="no OpenAPI document"):
            await MountedApi("pets", f"{served.address}/elsewhere").__aenter__()


def nested(levels: int) -> Any:
    """A value with this many levels."""
    value: Any = {}
    for _ in range(levels):
        value = {"a": value}
    return value


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 10)}]\n" for n in range(9)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no OpenAPI document"),
        ("[1]", "no OpenAPI document"),
        ("{]", "neither JSON nor YAML"),
        ('{"swagger": "2.0"}', "Swagger 2"),
        ('{"openapi": "3.1.0"}', "no paths"),
        (json.dumps({"openapi": "3.1.0", "paths": nested(200)}), "nested more than"),
        ("[" * 100_000, "nested"),
        (BOMB, "more than 2,000,000 parts"),
        ("a: &a [*a]", "nested more than"),
        ("openapi: !!python/object/apply:os.system [id]", "neither JSON nor YAML"),
        (json.dumps({**PETS, "servers": []}), "--base-url"),
    ],
)
async def test_a_hostile_document_is_refused_in_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    """Nonsense, bombs and cycles end with what is wrong."""
    file = tmp_path / "api.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=words):
        await MountedApi("pets", str(file)).__aenter__()


async def test_operations_that_cannot_be_served_are_left_out_alone(tmp_path: Path) -> None:
    """References to nothing, to elsewhere and to themselves, chains without end, and parts of wrong kinds cost their operation only."""
    chain = {f"S{n}": {"$ref": f"#/components/schemas/S{n + 1}"} for n in range(3_000)}
    wide = {f"p{n}": {"type": "object", "properties": {f"q{m}": {"type": "string"} for m in range(200)}} for n in range(200)}

    def body(schema: Any) -> dict[str, Any]:
        return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}

    content = {
        "openapi": "3.1.0",
        "servers": [{"url": "https://example.com"}],
        "paths": {
            "/good": {"get": {}},
            "/nowhere": {"post": body({"$ref": "#/components/schemas/None"})},
            "/file": {"post": body({"$ref": "file:///etc/passwd"})},
            "/self": {"post": {"$ref": "#/paths/~1self/post"}},
            "/chain": {"post": body({"type": "array", "items": {"$ref": "#/components/schemas/S0"}})},
            "/wide": {"post": body({"type": "object", "properties": wide})},
            "/none": {"get": {"parameters": [1]}},
            "/kind": {"get": {"parameters": [{"name": "a", "in": "moon"}]}},
            "/{missing}": {"get": {}},
            "no slash": {"get": {}},
            "/list": [],
            "/schema": {"post": body({"type": "nonsense", "pattern": "("})},
            "/twice": {"get": {"operationId": "get_good"}},
        },
        "components": {"schemas": {**chain, "S3000": {"type": "string"}}},
    }
    async with MountedApi("api", document(tmp_path, content)) as made:
        served = {tool["name"] for tool in made.tools}
    assert {"get_good", "get_twice"} <= served
    assert served <= {"get_good", "get_twice", "post_schema"}
    assert len(made.left_out) + len(served) == 13


def places(part: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a document with every key in it."""
    for key, below in list(part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()):
        yield part, key
        yield from places(below)


ODD = [None, 5, [[]], {"$ref": "#/servers/" + "9" * 5_000}, "//[::1"]


@pytest.mark.parametrize("step", [pytest.param(8, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)])
@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
async def test_no_part_of_a_document_can_break_the_mount(tmp_path: Path, value: Any, step: int) -> None:
    """With any part in place of any other it is mounted, or refused."""
    content = {**copy.deepcopy(PETS), "servers": [{"url": "https://{host}/", "variables": {"host": {"default": "example.com"}}}]}
    file, outcomes = tmp_path / "api.json", list[bool]()
    for part, key in list(places(content))[::step]:
        kept, part[key] = part[key], value
        file.write_text(json.dumps(content))
        part[key] = kept
        try:
            await MountedApi("pets", str(file)).__aenter__()
        except ConfigurationError:
            outcomes.append(False)
        else:
            outcomes.append(True)
    assert {True, False} == set(outcomes)


async def test_servers_of_a_hostile_document_are_refused(tmp_path: Path) -> None:
    """Variables that double each other, and addresses that are none, end with what is wrong."""
    doubling = {f"v{n}": {"default": f"{{v{n + 1}}}" * 10} for n in range(40)}
    endless = {**PETS, "servers": [{"url": "https://example.com/{v0}", "variables": doubling}]}
    async with MountedApi("pets", document(tmp_path, endless)) as made:
        assert made.tools
    with pytest.raises(ConfigurationError, match="no list"):
        await MountedApi("pets", document(tmp_path, {**PETS, "servers": 5})).__aenter__()
    broken = {**PETS, "servers": [{"url": "//[::1"}]}
    async with api(lambda _: as_json(broken)) as served:
        with pytest.raises(ConfigurationError, match="names no address"):
            await MountedApi("pets", f"{served.address}/openapi.json").__aenter__()


async def test_references_are_written_as_in_addresses(tmp_path: Path) -> None:
    """A reference may have percent-encoded characters."""
    content = {
        "openapi": "3.1.0",
        "servers": [{"url": "https://example.com"}],
        "paths": {"/a/{b}": {"get": {"parameters": [{"name": "b", "in": "path"}]}}, "/c/{b}": {"$ref": "#/paths/~1a~1%7Bb%7D"}},
    }
    async with MountedApi("api", document(tmp_path, content)) as made:
        assert {tool["name"] for tool in made.tools} == {"get_a_b", "get_c_b"}
