"""Definitions, held to the types that the providers' own packages publish."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.schema.test_mend import PARTS, WORDS
from tests.schema.test_strict import SCHEMAS
from toolbus.bus.broker.protocols import ServiceRecord
from toolbus.bus.client.tools.catalogue import Catalogue
from toolbus.bus.client.tools.definitions import Format
from toolbus.bus.client.tools.view import ToolView
from toolbus.bus.schema.mend import mended
from toolbus.bus.values.descriptors import Publication, ServiceDescriptor, ToolDescriptor

pydantic = pytest.importorskip("pydantic")


def adapter(package: str, name: str) -> Any:
    """Return the validator of a definition."""
    return pydantic.TypeAdapter(getattr(pytest.importorskip(package), name))


FORMATS: list[tuple[Format, str, str]] = [
    ("openai", "openai.types.chat", "ChatCompletionToolParam"),
    ("responses", "openai.types.responses", "ToolParam"),
    ("anthropic", "anthropic.types", "ToolParam"),
    ("mcp", "mcp.types", "Tool"),
]


def tools(*schemas: dict[str, Any]) -> ToolView:
    """Return a catalogue with one tool for each schema."""
    catalogue = Catalogue()
    described = [
        ToolDescriptor(f"tool.{index}", "A tool", "s", parameters=schema, groups=("g",) if index % 2 else ())
        for index, schema in enumerate(schemas)
    ]
    catalogue.on_registry({"s": ServiceRecord(Publication(ServiceDescriptor("s"), tuple(described)), True)}, {})
    return ToolView(catalogue)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("format", "package", "name"), FORMATS, ids=[each[0] for each in FORMATS])
def test_definitions_are_what_the_sdk_says_they_are(format: Format, package: str, name: str, strict: bool) -> None:
    """Each format's definitions pass the type checks of the package that sends them."""
    check = adapter(package, name)

    @settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
    @given(SCHEMAS)
    def hold(schema: dict[str, Any]) -> None:
        for definition in tools(schema, schema).definitions(format, strict=strict):
            check.validate_python(definition)

    hold()


@pytest.mark.parametrize(("format", "package", "name"), FORMATS, ids=[each[0] for each in FORMATS])
def test_mended_schemas_make_definitions_too(format: Format, package: str, name: str) -> None:
    """Every format can express any corrected schema."""
    check = adapter(package, name)
    given_ = [{"type": "object", "properties": {"a": part}} for part, _ in PARTS]
    given_ += [{"type": "dict", "properties": {"a": {"type": word}}, "required": ["a"]} for word, _ in WORDS]
    schemas = [mended(schema)[0] for schema in given_]
    definitions = tools(*schemas).definitions(format, strict=True, namespaces=False)
    assert len(definitions) == len(schemas)
    for definition in definitions:
        check.validate_python(definition)
