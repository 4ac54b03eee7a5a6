"""Corrected schemas are told in one line of the log for each service."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolbus import Settings, ToolService, tool
from toolbus.bus.client.tools.catalogue import Catalogue
from toolbus.bus.schema.casting import summary
from toolbus.bus.telemetry.logger import FIELDS
from toolbus.bus.worker.collect import collect

WRONG = {"type": "dict", "properties": {"a": {"type": "float"}, "b": {"type": "boolean", "enum": ["True", "False"]}}}


class Wrong(ToolService):
    """Has tools in each form, all with schemas to correct."""

    id = "wrong-schemas"
    tools = tuple({"name": name, "description": "Does it.", "parameters": WRONG} for name in ("one", "two"))

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> str:
        """Return nothing."""
        return ""

    @tool(parameters=WRONG, effect="read")
    async def three(self, arguments: dict[str, Any]) -> str:
        """Do it."""
        return ""


def corrections(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the fields of the log's lines about corrected schemas."""
    fields = [getattr(record, FIELDS) for record in caplog.records if hasattr(record, FIELDS)]
    return [each for each in fields if each["event"] == "descriptor.mended"]


def test_a_service_tells_its_corrections_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """The line names the tools, and the changes with the tool of each."""
    collect([Wrong], Settings.load({}))
    (line,) = corrections(caplog)
    assert (line["service"], line["tools"]) == ("wrong-schemas", ["one", "three", "two"])
    assert "one: $.properties.b: made the values of 'enum' fit the type 'boolean'" in line["changes"]
    assert {change.partition(":")[0] for change in line["changes"]} == {"one", "two", "three"}


def test_an_agent_tells_those_of_static_tools_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Static tools that are read together are told together, by service."""
    documents = {
        f"tool/{name}": json.dumps(
            {"type": "tool-service", "name": name, "description": "Does it.", "service": service, "parameters": WRONG}
        ).encode()
        for name, service in (("a", "static-one"), ("b", "static-one"), ("c", "static-two"))
    }
    Catalogue().on_registry({}, documents)
    assert [(line["service"], line["tools"]) for line in corrections(caplog)] == [("static-one", ["a", "b"]), ("static-two", ["c"])]


def test_the_line_is_bounded() -> None:
    """Of many changes the first twenty are told, and how many more there are."""
    fields = summary({f"tool-{number:02}": ["one", "two"] for number in range(30)})
    assert (len(fields["tools"]), len(fields["changes"]), fields["further"]) == (20, 20, 40)
