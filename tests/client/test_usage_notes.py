"""A model is told in which order the tools of a group are used."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.client.test_definitions import FORMATS, catalogue_of, described
from toolbus.bus.client.tools.catalogue import Catalogue
from toolbus.bus.client.tools.definitions import usage_notes
from toolbus.bus.client.tools.tool import ToolGroup
from toolbus.bus.client.tools.view import ToolView
from toolbus.bus.values import pins

ORDER = ("launch", "run", "stop")
CYCLE = ToolGroup("cycle", "Life cycle", tool_ids=ORDER, usage_order=ORDER, usage_example="launch, then run twice, then stop")


def grouped(*groups: ToolGroup, **more: Any) -> Catalogue:
    """Return a catalogue with three tools and groups of them."""
    catalogue = catalogue_of(*(described(name, **more) for name in (*ORDER, "other")))
    for group in groups:
        catalogue.on_item(f"group/{group.group_id}", msgspec.json.encode(group))
    return catalogue


def told(catalogue: Catalogue, format: str, **options: Any) -> dict[str, str]:
    """Return the descriptions that a model is shown."""
    found: dict[str, str] = {}
    for each in ToolView(catalogue).definitions(format, **options):
        function = each.get("function", each)
        found[function["name"]] = function["description"]
    return found


@pytest.mark.parametrize("format", FORMATS)
def test_a_tool_says_what_comes_before_and_after_it(format: str) -> None:
    """In every format, with the example at the first of them; other tools say nothing."""
    found = told(grouped(CYCLE), format)
    assert found["run"] == "Does run\n\nIn the group 'Life cycle' it is used after launch and before stop."
    assert "before run. Example of the group 'Life cycle': launch, then run twice, then stop" in found["launch"]
    assert found["stop"].endswith("it is used after run.")
    assert found["other"] == "Does other"


def test_a_change_of_a_group_is_shown() -> None:
    """Lists that were kept are made anew; the digest by which tools are pinned stays."""
    catalogue = grouped()
    before = {name: pins.digest_of(tool.descriptor) for name, tool in catalogue.tools.items()}
    assert told(catalogue, "openai")["run"] == "Does run"
    catalogue.on_item("group/cycle", msgspec.json.encode(CYCLE))
    assert "after launch" in told(catalogue, "openai")["run"]
    catalogue.on_item("group/cycle", msgspec.json.encode(msgspec.structs.replace(CYCLE, usage_order=("run", "stop"))))
    assert "after launch" not in told(catalogue, "openai")["run"]
    catalogue.on_item("group/cycle", None)
    assert told(catalogue, "openai")["run"] == "Does run"
    assert {name: pins.digest_of(tool.descriptor) for name, tool in catalogue.tools.items()} == before
    version = catalogue.version
    catalogue.on_item("group/cycle", msgspec.json.encode(CYCLE))
    catalogue.on_registry(catalogue.services, {"group/cycle": msgspec.json.encode(CYCLE)})
    assert catalogue.version == version + 1


def test_a_list_is_kept_until_something_changes() -> None:
    """The same list is given, so that it costs nothing."""
    view = ToolView(grouped(CYCLE))
    assert view.definitions("openai")[0] is view.definitions("openai")[0]


def test_only_tools_that_the_model_is_shown_are_named() -> None:
    """A tool that it can't call is left out of the order."""
    catalogue = grouped(CYCLE)
    catalogue.on_item("pin/run", pins.encoded(pins.Pin("rejected")))
    assert told(catalogue, "openai")["stop"].endswith("it is used after launch.")
    assert usage_notes({"cycle": CYCLE}, {"launch", "stop"})["stop"] == "In the group 'Life cycle' it is used after launch."
    assert usage_notes({"cycle": CYCLE}, {"launch"}) == {"launch": "Example of the group 'Life cycle': launch, then run twice, then stop"}


def test_a_long_description_gives_way_to_the_order() -> None:
    """The note stays where a provider bounds descriptions."""
    found = told(grouped(CYCLE, description="word " * 500), "openai")
    assert len(found["run"]) <= 1024
    assert found["run"].endswith("after launch and before stop.")
    assert len(told(grouped(CYCLE, description="word " * 500), "anthropic")["run"]) > 2000
