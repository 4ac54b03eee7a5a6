"""Descriptors: both tiers are read, checked, told what is wrong with them, and written back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbus.bus.values.canonical import own_digest
from toolbus.bus.values.descriptors import (
    RESERVED_KEYS,
    Argument,
    ConfigParam,
    Publication,
    ServiceDescriptor,
    ToolDescriptor,
    check_config,
    check_service,
    check_tool,
    is_tool_document,
    parse_service,
    parse_tool,
    tool_document,
)
from toolbus.bus.values.results import DescriptorError

JOKES = {
    "id": "joke-service",
    "config-params": [{"name": "style", "required": False}],
    "request-queue": "non-persistent://tg/request/joke",
}
PUN: dict[str, Any] = {
    "type": "tool-service",
    "name": "tell-pun",
    "description": "Tell a pun on a topic",
    "service": "joke-service",
    "style": "pun",
    "arguments": [{"name": "topic", "type": "string", "description": "what the joke is about"}],
}
SERVICE = ServiceDescriptor("joke-service", config_params=(ConfigParam("style"),))


def service(**changes: Any) -> dict[str, Any]:
    return {"id": "joke-service", "config-params": ["style"], **changes}


def pun(**changes: Any) -> dict[str, Any]:
    document = {**PUN, **changes}
    return {key: value for key, value in document.items() if value is not ...}


# --- Services ---


def test_service_is_read() -> None:
    """A service's id, config params (names or objects) and options are read."""
    found = parse_service(
        service(**{"config-params": ["style", {"name": "key", "required": True}], "scale_to_zero": True, "queue_limit": 5})
    )
    assert found.config_params == (ConfigParam("style"), ConfigParam("key", required=True))
    assert (found.scale_to_zero, found.queue_limit, found.queue) == (True, 5, "joke-service")


def test_request_queue_names_the_stream() -> None:
    """An outside name for the request stream takes the id's place in keys."""
    assert parse_service(service(**{"request-queue": "jokes.v2"})).queue == "jokes.v2"
    assert parse_service(service(**{"request-queue": None})).queue == "joke-service"


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ([], "$"),
        ({}, "$.id"),
        (service(id=""), "$.id"),
        (service(id="a b"), "$.id"),
        (service(id="a\n"), "$.id"),
        (service(id="é"), "$.id"),
        (service(id="a" * 129), "$.id"),
        (service(id=7), "$.id"),
        (service(**{"request-queue": "a:{b}"}), "$.request-queue"),
        (service(**{"config-params": "style"}), "$.config-params"),
        (service(**{"config-params": [7]}), "$.config-params[0]"),
        (service(**{"config-params": ["a", {"required": True}]}), "$.config-params[1]"),
        (service(**{"config-params": ["a", ""]}), "$.config-params[1].name"),
        (service(**{"config-params": ["a", "a"]}), "$.config-params[1].name"),
        (service(**{"config-params": ["description"]}), "$.config-params[0].name"),
        (service(queue_limit=-1), "$.queue_limit"),
        (service(configparams=[]), "$.configparams"),
    ],
)
def test_wrong_service_names_its_field(document: object, path: str) -> None:
    """An invalid service descriptor is refused with the path of the field that is wrong."""
    with pytest.raises(DescriptorError) as raised:
        parse_service(document)
    assert raised.value.path == path
    assert str(raised.value).endswith(f" - at `{path}`")


def test_good_service_passes_unchanged() -> None:
    """check_service() returns what it was given."""
    assert check_service(SERVICE) is SERVICE


# --- Tools ---


def test_two_tier_tool_is_read() -> None:
    """The inline config values and arguments of a two-tier tool are read."""
    tool = parse_tool(PUN, SERVICE)
    assert tool.config == {"style": "pun"}
    assert tool.arguments == (Argument("topic", "string", "what the joke is about"),)
    assert (tool.name, tool.service, tool.parameters) == ("tell-pun", "joke-service", None)


def test_service_lends_type_and_name() -> None:
    """Inside a known service a tool may leave out type and service."""
    assert parse_tool(pun(type=..., service=...), SERVICE) == parse_tool(PUN, SERVICE)


def test_unknown_service_leaves_config_unchecked() -> None:
    """While the service is not known, every key that is not reserved is a config value."""
    assert parse_tool(pun(anything=[1]), None).config == {"style": "pun", "anything": [1]}


def test_schema_shows_arguments_to_the_model() -> None:
    """Arguments become a JSON Schema; type words have synonyms, and unknown ones mean any type."""
    words = {"TEXT": "string", "int": "integer", "float": "number", "bool": "boolean", "dict": "object", "list": "array", "date": None}
    arguments = [{"name": word, "type": word, "description": word, "required": word == "int"} for word in words]
    schema = parse_tool(pun(arguments=arguments), SERVICE).schema
    assert schema is not None
    assert schema.pop("properties") == {
        name: {"description": name} if meant is None else {"type": meant, "description": name} for name, meant in words.items()
    }
    assert schema == {"type": "object", "required": ["int"]}


def test_schema_of_parameters_is_passed_through() -> None:
    """A JSON Schema is the schema; a tool with neither form has none."""
    parameters = {"type": "object", "properties": {"x": {"type": "integer"}}}
    assert parse_tool(pun(arguments=..., parameters=parameters), SERVICE).schema == parameters
    assert parse_tool(pun(arguments=...), SERVICE).schema is None
    assert parse_tool(pun(arguments=[]), SERVICE).schema == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ("tool", "$"),
        (pun(name=...), "$.name"),
        (pun(name=""), "$.name"),
        (pun(name=7), "$.name"),
        (pun(name="two words"), "$.name"),
        (pun(name="a/b"), "$.name"),
        (pun(name="a{b}"), "$.name"),
        (pun(name="a\n"), "$.name"),
        (pun(name="a\x00"), "$.name"),
        (pun(name="a" * 129), "$.name"),
        (pun(description=...), "$.description"),
        (pun(type="mcp-tool"), "$.type"),
        (pun(service=7), "$.service"),
        (pun(service="a b"), "$.service"),
        (pun(parameters={}), "$.parameters"),
        (pun(arguments=..., parameters={"type": "array"}), "$.parameters.type"),
        (pun(arguments=..., parameters=[]), "$.parameters"),
        (pun(arguments={}), "$.arguments"),
        (pun(arguments=["topic"]), "$.arguments[0]"),
        (pun(arguments=[{"name": "a", "type": "string"}]), "$.arguments[0].description"),
        (pun(arguments=[{"name": "a", "type": 1, "description": ""}]), "$.arguments[0].type"),
        (pun(arguments=[{"name": "a", "type": "string", "description": "", "default": 1}]), "$.arguments[0].default"),
        (pun(arguments=[{"name": "a", "type": "string", "description": "", "required": "yes"}]), "$.arguments[0].required"),
        (pun(arguments=[PUN["arguments"][0], PUN["arguments"][0]]), "$.arguments[1].name"),
        (pun(timeout=-1), "$.timeout"),
        (pun(timeout=float("nan")), "$.timeout"),
        (pun(timeout=float("inf")), "$.timeout"),
        (pun(timeout="1"), "$.timeout"),
        (pun(effect="twice"), "$.effect"),
        (pun(output_limit=-1), "$.output_limit"),
        (pun(groups="a"), "$.groups"),
        (pun(groups=["a", 7]), "$.groups[1]"),
        (pun(confirm="yes"), "$.confirm"),
        (pun(**{"x-toolbus": 7}), "$.extensions"),
        (pun(stile="pun"), "$.stile"),
    ],
)
def test_wrong_tool_names_its_field(document: object, path: str) -> None:
    """An invalid tool descriptor is refused with the path of the field that is wrong."""
    with pytest.raises(DescriptorError) as raised:
        parse_tool(document, SERVICE if isinstance(document, dict) and document.get("service") == "joke-service" else None)
    assert raised.value.path == path


def test_errors_name_the_tool_and_what_is_allowed() -> None:
    """An undeclared key's error names the tool, the key and the config params there are."""
    with pytest.raises(DescriptorError, match=r"'tell-pun' has the undeclared key 'stile' \(config params of 'joke-service': style\)"):
        parse_tool(pun(stile="pun"), SERVICE)
    with pytest.raises(DescriptorError, match=r"config params of 'plain': none"):
        check_config(ToolDescriptor("t", "d", "plain", config={"a": 1}), ServiceDescriptor("plain"))


def test_required_config_must_be_there() -> None:
    """A tool that lacks a required config param is refused by the param's name."""
    needy = ServiceDescriptor("joke-service", config_params=(ConfigParam("style"), ConfigParam("key", required=True)))
    with pytest.raises(DescriptorError, match="lacks the required config param 'key'") as raised:
        parse_tool(PUN, needy)
    assert raised.value.path == "$.key"


def test_good_tool_passes_unchanged() -> None:
    """check_tool() returns what it was given."""
    tool = parse_tool(PUN, SERVICE)
    assert check_tool(tool) is tool


@pytest.mark.parametrize(
    ("document", "ours"),
    [(PUN, True), ({"name": "x"}, True), ({"type": "mcp-tool"}, False), ([], False), (None, False), ("tool-service", False)],
)
def test_documents_of_others_are_left_alone(document: object, ours: bool) -> None:
    """Only objects of type ``tool-service``, or without a type, are ours."""
    assert is_tool_document(document) is ours


# --- Writing back, digests ---

NAMES = st.text(st.sampled_from("abc-_.é9"), min_size=1, max_size=20).filter(lambda name: name not in {".", ".."})
VALUES = st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
KEYS = NAMES.filter(lambda name: name not in RESERVED_KEYS)
ARGUMENTS = st.lists(st.builds(Argument, NAMES, NAMES, st.text("ab "), st.booleans()), max_size=3, unique_by=lambda each: each.name).map(
    tuple
)
TOOLS = st.builds(
    ToolDescriptor,
    name=NAMES,
    description=NAMES,
    service=st.text(st.sampled_from("abc-_.9"), min_size=1, max_size=20).filter(lambda name: name not in {".", ".."}),
    config=st.dictionaries(KEYS, VALUES, max_size=3),
    groups=st.lists(NAMES, max_size=3).map(tuple),
    category=NAMES | st.just(""),
    timeout=st.floats(0, 1e6),
    effect=st.sampled_from(["", "read", "idempotent", "once"]),
    output_limit=st.integers(0, 1000),
    confirm=st.booleans(),
    external=st.booleans(),
    extensions=st.dictionaries(NAMES, VALUES, max_size=2),
).flatmap(
    lambda tool: (
        st.just(tool)
        | ARGUMENTS.map(lambda arguments: msgspec.structs.replace(tool, arguments=arguments))
        | st.just(msgspec.structs.replace(tool, parameters={"type": "object", "required": ["x"]}))
    )
)


@given(TOOLS)
def test_tool_document_reads_back(tool: ToolDescriptor) -> None:
    """The JSON form of any tool reads back as the same tool."""
    document = msgspec.json.decode(msgspec.json.encode(tool_document(tool)))
    assert parse_tool(document, None) == tool


@given(TOOLS)
def test_digest_is_of_the_content(tool: ToolDescriptor) -> None:
    """Equal content has one digest whatever the order of its keys; other content has another."""
    turned = msgspec.structs.replace(tool, config=dict(reversed(tool.config.items())))
    assert own_digest(turned) == own_digest(tool)
    assert own_digest(msgspec.structs.replace(tool, description=tool.description + "!")) != own_digest(tool)
    assert len(own_digest(tool)) == 32


def test_publications_digest_leaves_the_owner_out() -> None:
    """The same service and tools have one digest whoever publishes them, and computing it twice changes nothing."""
    mine = Publication(SERVICE, (parse_tool(PUN, SERVICE),), owner="me").with_digest()
    yours = Publication(SERVICE, (parse_tool(PUN, SERVICE),), owner="you").with_digest()
    assert mine.digest == yours.digest != ""
    assert mine.owner == "me"
    assert mine.with_digest() == mine
    assert Publication(SERVICE).with_digest().digest != mine.digest
