"""Names that belong to others are refused in the same words on every transport; a server's record is named besides."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from typing import Any

import pytest

from tests.contract import Place
from toolbus import ConfigurationError, ToolBus, ToolService, Worker, tool
from toolbus.bus.values.results import RegistrationRefused

pytestmark = pytest.mark.anyio


def service(id: str, name: str, queue: str = "") -> type[ToolService]:
    """A service with one tool."""

    def handler(params: dict[str, Any]) -> str:
        return ""

    made = tool(name, "Do it.", {"type": "object"}, replace=True)(handler)
    return type(id, (ToolService,), {"id": id, "request_queue": queue, "response_queue": queue, "handler": staticmethod(made)})


def item(name: str, service: str) -> bytes:
    """A static descriptor."""
    return json.dumps({"type": "tool-service", "name": name, "description": "d", "service": service}).encode()


async def refusal(work: Awaitable[object]) -> str:
    """Return the start of a refusal, before it says what to do: names become free at once in process, where a worker does not die alone."""
    with pytest.raises(RegistrationRefused) as refused:
        await work
    return str(refused.value).partition(". ")[0].partition(";")[0]


def recorded(place: Place, field: str) -> str:
    """Return what a refusal says of the record that holds a document's name; in process there is none."""
    return "" if place.settings.url == "memory://" else f" (record {field!r} of tb:{{{place.settings.namespace}}}:reg:names)"


async def served(place: Place, owner: str, made: type[ToolService]) -> None:
    """Serve for a moment."""
    async with Worker([made], settings=place.with_(owner=owner)):
        pass


async def test_services_and_tools_of_others_are_refused(place: Place) -> None:
    """A name, a queue and a static descriptor each have one holder, who is named."""
    async with Worker([service("s4", "t4", "q4")], settings=place.with_(owner="a")), place.bus(role="operator") as bus:
        await bus.put("tool/t9", item("t9", "s4"))
        assert await refusal(served(place, "b", service("s5", "t4"))) == "not registered as 'b': tool/t4 belongs to 'a'"
        assert await refusal(served(place, "a", service("s5", "t4"))) == "not registered as 'a': tool/t4 belongs to 'a (service s4)'"
        assert await refusal(served(place, "a", service("s6", "t6", "q4"))) == "not registered as 'a': queue/q4 belongs to 'a (service s4)'"
        assert await refusal(served(place, "a", service("s9", "t9"))) == "not registered as 'a': tool/t9 belongs to 'operator'"
        assert await refusal(bus.put("tool/t4", item("t4", "s4"))) == f"tool/t4 is published by 'a'{recorded(place, 't:t4')}"
        assert await refusal(bus.put("tool-service/s4", b"{}")) == f"tool-service/s4 is published by 'a'{recorded(place, 's:s4')}"


async def test_a_document_with_an_owner_is_nobody_elses(place: Place) -> None:
    """Another owner can't change or delete it, and nobody changes it without an owner; without one it can be deleted."""
    async with place.bus(role="operator") as bus:
        await bus.put("toolkit/k", b"{}", owner="o1")
        await bus.put("toolkit/k", b'{"a":1}', owner="o1")
        record = recorded(place, "k:k")
        assert await refusal(bus.put("toolkit/k", b"{}", owner="o2")) == f"toolkit/k belongs to 'o1'{record}"
        assert await refusal(bus.delete("toolkit/k", owner="o2")) == f"toolkit/k belongs to 'o1'{record}"
        assert await refusal(bus.put("toolkit/k", b"{}")) == f"toolkit/k is published by 'o1'{record}"
        assert await bus.delete("toolkit/k")
        await bus.put("toolkit/k", b"{}", owner="o2")


async def test_a_key_that_can_not_travel_is_refused(place: Place) -> None:
    """Half of a surrogate pair is an error of the caller's, wherever the document would have been kept."""
    async with place.bus() as bus:
        with pytest.raises(ConfigurationError, match="surrogate"):
            await bus.put("tool/\ud800", b"{}")
        with pytest.raises(ConfigurationError, match="surrogate"):
            await bus.delete("tool/\ud800")


async def test_a_document_that_nobody_would_read_is_not_stored(place: Place) -> None:
    """One over the limit of what is read from the server is refused where it is put."""
    async with ToolBus(settings=place.settings) as bus:
        with pytest.raises(ConfigurationError, match="over the limit of 4,194,304"):
            await bus.put("tool/large", b'{"description":"' + b"d" * 4_194_304 + b'"}')
