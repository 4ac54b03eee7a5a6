"""Publications in the registry: what is read of one whose tools are good, bad, or no JSON, and what is said of the bad ones."""

from __future__ import annotations

import msgspec
import pytest

from toolbus.bus.broker.protocols import ServiceRecord
from toolbus.bus.broker.registry.publications import read_record
from toolbus.bus.values.descriptors import Publication, ServiceDescriptor, ToolDescriptor
from toolbus.bus.values.results import DescriptorError

GOOD = ToolDescriptor(name="good", description="Is good.", service="pool")
SERVICE = ServiceDescriptor("pool")
PUBLICATION = Publication(SERVICE, (GOOD,), "owner", "digest")
GOOD_JSON = msgspec.json.encode(GOOD)


def document(*tools: bytes, service: bytes = b'{"id":"pool"}') -> bytes:
    """Return a publication with these tools, as they stand in it."""
    return b'{"service":%b,"tools":[%b],"owner":"owner","digest":"digest"}' % (service, b",".join(tools))


@pytest.mark.parametrize(("mark", "live"), [(b"+", True), (b"-", False)])
def test_a_good_publication_is_read_as_it_is(mark: bytes, live: bool) -> None:
    """Its mark says whether workers serve it now."""
    assert read_record(mark + msgspec.json.encode(PUBLICATION)) == ServiceRecord(PUBLICATION, live)


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize(
    ("bad", "name", "reason"),
    [
        # The parser reads the whole list, but not this tool.
        (b'{"name":"bad","description":5,"service":"pool"}', "bad", "Expected `str`, got `int` - at `$.description`"),
        # The parser reads this tool, but it is impossible.
        (b'{"name":"a b","description":"x","service":"pool"}', "a b", "slashes or braces - at `$.name`"),
        (b'{"description":"x","service":"pool"}', "tool #2", "missing required field `name`"),
        (b'{"name":"","description":"x"}', "tool #2", ""),
        (b"5", "tool #2", "Expected `object`, got `int`"),
        # No parser takes the document as it is.
        (rb'{"name":"bad","description":"\ud800"}', "bad", "surrogate"),
        (rb'{"description":"\ud800"}', "tool #2", "surrogate"),
        (rb'{"name":5,"description":"\ud800"}', "tool #2", "Expected `str`, got `int` - at `$.name`"),
        (rb'"\ud800"', "tool #2", "surrogate"),
        (rb'{"NAME":"no","description":"\ud800"}', "tool #2", "surrogate"),
        (b'{"name":"bad","description":"a\tb"}', "bad", "malformed"),
    ],
)
def test_a_bad_tool_hides_none_of_its_siblings(bad: bytes, name: str, reason: str, live: bool) -> None:
    """It is named, or counted where it has no name, with one line that says why; the others are as they were published."""
    record = read_record((b"+" if live else b"-") + document(GOOD_JSON, bad, GOOD_JSON))
    assert record.publication == Publication(SERVICE, (GOOD, GOOD), "owner", "digest")
    assert record.live is live
    [refused] = record.refused
    assert (refused.name, refused.service) == (name, "pool")
    assert reason in refused.reason
    assert "\n" not in refused.reason
    assert refused.reason
    assert refused.reason.count(" - at ") <= 1, "its place is named once"


def test_a_long_name_and_a_long_reason_are_cut() -> None:
    """A long name or reason is cut, so that a worker that writes nonsense does not flood the readers of the registry."""
    name = b"n" * 200
    many = b",".join(b'"%d":{}' % number for number in range(400))
    record = read_record(b"+" + document(b'{"name":"%b","description":"x","service":"pool","parameters":{"type":[%b]}}' % (name, many)))
    [refused] = record.refused
    assert refused.name == "n" * 128
    assert len(refused.reason) <= 300


@pytest.mark.parametrize("tools", [rb'"\ud800"', rb'{"a":"\ud800"}', b"5", b'"text"'])
def test_what_is_no_list_of_tools_is_refused_as_a_whole(tools: bytes) -> None:
    """The service stays, without tools."""
    record = read_record(b"+" + b'{"service":{"id":"pool"},"tools":%b,"owner":"owner"}' % tools)
    assert record.publication == Publication(SERVICE, (), "owner")
    [refused] = record.refused
    assert (refused.name, refused.service) == ("all tools", "pool")
    assert refused.reason


def test_blanks_around_a_list_are_none_of_its_tools() -> None:
    """Other makes may lay their JSON out."""
    record = read_record(b"+" + b'{"service":{"id":"pool"},"tools": \n [ "\\ud800" , %b ] \n ,"owner":"owner"}' % GOOD_JSON)
    assert record.publication.tools == (GOOD,)
    assert [refused.name for refused in record.refused] == ["tool #1"]


@pytest.mark.parametrize(
    ("service", "reason"),
    [
        (b'{"id":5}', "Expected `str`, got `int` - at `$.service.id`"),
        (b'{"id":"a b"}', "or '-' - at `$.id`"),
        (rb'{"id":"\ud800"}', "surrogate"),
        (b"5", "Expected `object`"),
    ],
)
@pytest.mark.parametrize("tool", [GOOD_JSON, rb'"\ud800"'])
def test_a_service_that_can_not_be_read_is_refused_with_the_reason(service: bytes, reason: str, tool: bytes) -> None:
    """None of its tools could be called."""
    with pytest.raises(DescriptorError) as caught:
        read_record(b"+" + document(tool, service=service))
    assert reason in str(caught.value)
