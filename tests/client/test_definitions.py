"""Definitions of tools in every format, from a live bus."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import pytest

from tests.contract import Place
from tests.servers import eventually
from toolbus import ConfigurationError, ToolService, Worker, tool
from toolbus.bus.broker.protocols import ServiceRecord
from toolbus.bus.client.tools.catalogue import Catalogue
from toolbus.bus.client.tools.tool import wire_name
from toolbus.bus.client.tools.view import ToolView
from toolbus.bus.values.descriptors import Publication, ServiceDescriptor, ToolDescriptor

FORMATS = ["bare", "openai", "responses", "anthropic", "mcp"]
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer"}}, "required": ["q"]}


def described(name: str, **more: Any) -> ToolDescriptor:
    """Return a tool."""
    return ToolDescriptor(name, more.pop("description", f"Does {name}"), "svc", **{"parameters": SCHEMA, **more})


def catalogue_of(*tools: ToolDescriptor) -> Catalogue:
    """Return a catalogue that knows these tools."""
    catalogue = Catalogue()
    catalogue.on_service("svc", ServiceRecord(Publication(ServiceDescriptor("svc"), tools, "o").with_digest(), live=True))
    return catalogue


def view_of(*tools: ToolDescriptor) -> ToolView:
    """Return a view of these tools."""
    return ToolView(catalogue_of(*tools))


@tool(service="defined", effect="read", groups=["fun"], category="words")
async def joke(topic: str, n: int = 1) -> str:
    """Tell a joke.

    Args:
        topic: what it is about
    """
    return topic * n


@tool(service="defined", effect="once", name="mail.send", groups=["post"])
async def send(to: str) -> str:
    """Send a mail."""
    return to


class Untyped(ToolService):
    """A service with a tool in the two-tier form, and one of which nothing is known."""

    id = "untyped"
    effect = "read"
    tools = [  # noqa: RUF012 - as users write it
        {
            "name": "two-tier",
            "description": "Two",
            "arguments": [{"name": "when", "type": "string", "description": "day", "required": True}],
        },
        {"name": "free", "description": "Free"},
    ]

    async def invoke(self, user: str, config: Any, arguments: Any) -> Any:
        """Answer."""
        return "ok"


@pytest.mark.anyio
async def test_every_format_says_the_same_tools(place: Place) -> None:
    """A live bus describes its tools in each format, sorted, the same bytes each time, also on another bus and after a restart."""
    async with place.worker(joke, Untyped), place.bus() as bus, place.bus() as other:
        for each in (bus, other):
            await each.wait_for_tool("free")
            await each.wait_for_tool("joke")
        said = {name: json.dumps(bus.tools.definitions(name)) for name in FORMATS}  # type: ignore[arg-type]
        assert said == {name: json.dumps(other.tools.definitions(name)) for name in FORMATS}  # type: ignore[arg-type]
        assert [each["name"] for each in bus.tools.definitions()] == sorted(["free", "joke", "mail.send", "two-tier"])
        openai = {each["function"]["name"]: each["function"] for each in bus.tools.definitions("openai")}
        assert openai["joke"] == {
            "name": "joke",
            "description": "Tell a joke.",
            "parameters": {
                "type": "object",
                "properties": {
                    "topic": {"type": "string", "description": "what it is about"},
                    "n": {"type": "integer", "default": 1},
                },
                "required": ["topic"],
                "additionalProperties": False,
            },
        }
        assert openai["free"]["parameters"] == {"type": "object", "properties": {}}
        assert openai["two-tier"]["parameters"]["required"] == ["when"]
        assert wire_name("mail.send") in openai
        narrowed = bus.tools.filter(names=["joke", "free"]).filter(groups=["fun"])
        assert [each["name"] for each in narrowed.definitions("anthropic")] == ["joke"]
    async with place.worker(joke, Untyped), place.bus() as again:
        await again.wait_for_tool("free")
        await again.wait_for_tool("joke")
        assert said == {name: json.dumps(again.tools.definitions(name)) for name in FORMATS}  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_definitions_follow_the_registry(namespace: str) -> None:
    """A tool that comes is in the next list, and one that goes is not."""
    place = Place("memory://", namespace)
    async with place.serving(Untyped) as bus:
        await bus.wait_for_tool("free")
        assert len(bus.tools.definitions("openai")) == 2
        async with Worker(joke, settings=place.settings):
            await bus.wait_for_tool("joke")
            assert len(bus.tools.definitions("openai")) == 4
        await eventually(lambda: len(bus.tools.definitions("openai")) == 2)


def test_responses_have_namespaces() -> None:
    """Tools with a group stand in the namespace of their first one, others beside; both always say whether they are strict."""
    view = view_of(described("a", groups=("mail", "x")), described("b"), described("c", groups=("mail",)))
    namespace, function = view.definitions("responses", strict=True)
    assert (namespace["type"], namespace["name"]) == ("namespace", "mail")
    assert [each["name"] for each in namespace["tools"]] == ["a", "c"]
    assert (function["type"], function["name"], function["strict"]) == ("function", "b", True)
    flat = view.definitions("responses", namespaces=False)
    assert [(each["name"], each["strict"]) for each in flat] == [("a", False), ("b", False), ("c", False)]


def test_strict_where_possible() -> None:
    """With strict=True closed schemas are enforced by the provider, and free-form ones stay as they are."""
    view = view_of(described("closed"), described("open", parameters={"type": "object", "properties": {"o": {"type": "object"}}}))
    first, second = (each["function"] for each in view.definitions("openai", strict=True))
    assert first["strict"] is True
    assert first["parameters"]["properties"]["n"] == {"type": ["integer", "null"]}
    assert "strict" not in second
    assert second["parameters"] == {"type": "object", "properties": {"o": {"type": "object"}}}
    assert [each.get("strict") for each in view.definitions("anthropic", strict=True)] == [True, None]


@pytest.mark.parametrize("name", FORMATS[1:])
def test_a_schema_that_can_not_be_carried_is_set_aside(name: Any, caplog: pytest.LogCaptureFixture) -> None:
    """One impossible schema is left out with a warning, once, and the others stay."""
    view = view_of(
        described("bad", parameters={"type": "object", "properties": {"x": {"type": "nonsense"}}}),
        described("good"),
        described("lost", parameters={"type": "object", "properties": {"x": {"$ref": "#/$defs/none"}}}),
        described("odd", parameters={"type": "object", "properties": {"x": {"pattern": "("}}}),
    )
    with caplog.at_level(logging.WARNING, "toolbus"):
        for strict in (False, True):
            assert len(view.definitions(name, strict=strict)) == 1
        view.filter(names=["bad", "good"]).definitions(name)
    assert sum("definition.set_aside" in record.message for record in caplog.records) == 6
    assert "bad" in caplog.text
    assert len(view.definitions()) == 4


def test_external_tools_are_marked() -> None:
    """An external tool's description says so in every format; MCP has hints of what tools do."""
    view = view_of(described("far", external=True, effect="idempotent"), described("near", effect="once"), described("see", effect="read"))
    for name in FORMATS:
        far, near, _ = view.definitions(name)  # type: ignore[arg-type]
        assert far.get("function", far)["description"] == "(external) Does far"
        assert near.get("function", near)["description"] == "Does near"
    assert [each["annotations"] for each in view.definitions("mcp")] == [
        {"readOnlyHint": False, "idempotentHint": True, "openWorldHint": True},
        {"readOnlyHint": False, "idempotentHint": False},
        {"readOnlyHint": True, "idempotentHint": True, "destructiveHint": False},
    ]


def test_long_descriptions_are_cut_where_they_would_be_refused() -> None:
    """OpenAI refuses a whole request for a description over 1,024 characters, so it is cut there and nowhere else."""
    view = view_of(described("long", description="x" * 3000))
    assert len(view.definitions("openai")[0]["function"]["description"]) == 1024
    assert len(view.definitions("anthropic")[0]["description"]) == 3000


def test_nothing_is_an_empty_list() -> None:
    """Without tools there are no definitions, and a format that does not exist is named."""
    assert [view_of().definitions(name) for name in FORMATS] == [[]] * 5  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="openai"):
        view_of().definitions("grok")  # type: ignore[arg-type]


def test_the_list_is_the_callers_own() -> None:
    """Adding to the list that was given changes no later one."""
    view = view_of(described("a"))
    view.definitions("openai").append({})
    assert len(view.definitions("openai")) == 1


def test_both_names_lead_to_the_tool() -> None:
    """A tool is found by the name in its definition and by its own, but only where it is selected."""
    view = view_of(described("a.b", groups=("g",)), described(wire_name("a.b")), described("c"))
    for name in ("a.b", wire_name("a.b")):
        found = view.by_wire_name(name)
        assert found is not None
        assert found.name == "a.b"
    assert {each["name"] for each in view.definitions("mcp")} == {"c", wire_name("a.b"), wire_name(wire_name("a.b"))}
    assert view.filter(groups=["other"]).by_wire_name("a.b") is None
    assert view.by_wire_name("none") is None


def taking(required: int, optional: int) -> dict[str, Any]:
    """Return a schema of so many properties."""
    names = [f"p{number}" for number in range(required + optional)]
    properties = {name: {"type": "string"} for name in names}
    return {"type": "object", "properties": properties, "required": names[:required], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schemas", "enforced"),
    [
        ([taking(1, 0)] * 30, [True] * 20 + [None] * 10),
        ([taking(1, 6)] * 4, [True, True, None, None]),
        ([taking(1, 17), taking(1, 16), taking(1, 1), taking(1, 0)], [None, True, None, True]),
        ([{"type": "object", "additionalProperties": True}, taking(1, 16)], [None, True]),
        (
            [
                {**taking(0, 0), "properties": {"a": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}}}},
                taking(1, 14),
                taking(1, 1),
            ],
            [True, True, None],
        ),
    ],
)
def test_a_request_to_anthropic_stays_within_its_limits(schemas: list[dict[str, Any]], enforced: list[bool | None]) -> None:
    """It takes 20 strict tools and 16 parts of several types in all, and would refuse the whole list; other formats have no such limit."""
    tools = [described(f"tool{number:02}", parameters=schema) for number, schema in enumerate(schemas)]
    view = view_of(*tools)
    assert [each.get("strict") for each in view.definitions("anthropic", strict=True)] == enforced
    assert {len(each) for each in view.definitions("anthropic")} == {3}
    expressible = ["properties" in schema for schema in schemas]
    assert [each["strict"] for each in view.definitions("responses", strict=True)] == expressible


def test_ten_thousand_tools() -> None:
    """Definitions of 10,000 tools are made in well under a second and kept until a tool changes (generous: busy machines)."""
    catalogue = catalogue_of(*(described(f"tool-{number:05}") for number in range(10_000)))
    for name in FORMATS:
        view = ToolView(catalogue)
        started = time.process_time()
        made = view.definitions(name, strict=True)  # type: ignore[arg-type]
        assert time.process_time() - started < 1.0
        started = time.process_time()
        again = [view.definitions(name, strict=True) for _ in range(20)]  # type: ignore[arg-type]
        assert (time.process_time() - started) / 20 < 0.005
        assert all(each == made for each in again)
        assert again[0][17] is made[17]
