"""Every value that a handler returns, yields or raises arrives in a documented form, or is its tool's clear error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from tests.contract import Place
from tests.tiers import some
from tests.worker import kinds
from tests.worker.kinds import BYTES, FIELDS, KINDS, TEXTS, Refused, attached
from toolbus import ErrorInfo, ToolBus, ToolResult

pytestmark = pytest.mark.anyio

RETURNING = ["returned", "returned_in_thread", "returned_in_child"]
YIELDING = ["yielded", "yielded_in_thread", "yielded_in_child"]
# What a child gives is slow: the values that can't be encoded cost their process.
WITHIN = ["held", "returned", "returned_in_thread", "yielded", "yielded_in_thread"]


@pytest.fixture(autouse=True)
def no_captured_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tracebacks with half characters out of pytest's reports: pytest-xdist can't send them."""
    monkeypatch.setattr(logging.getLogger("toolbus"), "disabled", True)


@pytest.fixture
def here(namespace: str) -> Place:
    """In process."""
    return Place("memory://", namespace)


def told(result: ToolResult) -> Any:
    """Return the answer as the caller sees it."""
    if result.error is None:
        return result.output if result.data is None else result.data
    if (result.error.type, result.error.code) == ("tool_error", "unencodable_result"):
        return Refused(result.error.message)
    return result.error


def is_as(found: Any, expected: Any) -> bool:
    """Return whether an answer is as a table says; of a refusal, the words must be in the message."""
    if isinstance(found, Refused) and isinstance(expected, Refused):
        return expected.words in found.words
    if isinstance(found, ErrorInfo) and isinstance(expected, tuple):
        return (found.type, found.code) == expected[:2] and expected[2] in found.message
    return type(found) is type(expected) and found == expected


async def results(bus: ToolBus, tool: str, table: str, names: Iterable[str]) -> dict[str, ToolResult]:
    """The results of a tool for entries of a table."""
    calls = {name: bus.call(tool, {"table": table, "kind": name}, timeout=60.0) for name in names}
    return dict(zip(calls, await asyncio.gather(*calls.values()), strict=True))


async def differing(bus: ToolBus, tool: str, table: str, expected: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the answers that differ from the expected ones."""
    found = {name: told(result) for name, result in (await results(bus, tool, table, expected)).items()}
    return {name: (ascii(found[name])[:300], ascii(each)[:300]) for name, each in expected.items() if not is_as(found[name], each)}


def expected_values(tool: str) -> dict[str, Any]:
    """Return the expected answers of the table of values; yielded ones arrive as the text of their JSON."""
    values = {name: expected for name, (_, expected) in KINDS.items()}
    if tool in YIELDING:
        return {name: each if isinstance(each, Refused) else msgspec.json.encode(each).decode() for name, each in values.items()}
    return values


def expected_texts() -> dict[str, str]:
    """Return the expected answers of the table of texts; None is no text."""
    return {name: expected for name, (_, expected) in TEXTS.items()}


async def differing_bytes(bus: ToolBus, tool: str) -> dict[str, Any]:
    """Return the results of the table of bytes that differ from the expected ones."""
    wrong: dict[str, Any] = {}
    for name, result in (await results(bus, tool, "bytes", BYTES)).items():
        _, data, content = BYTES[name]
        if tool == "held" and data is None:
            # As data of a ToolResult they have a place there, too.
            data = attached(0, content[0].data, content[0].media_type)
        text = "" if data is None else msgspec.json.encode(data).decode()
        expected = (None, None if tool in YIELDING else data, text, content)
        if (result.error, result.data, result.output, result.content) != expected:
            wrong[name] = result
    return wrong


async def differing_fields(bus: ToolBus, tool: str) -> dict[str, str]:
    """Errors that are not those of the table."""
    found = {name: result.error for name, result in (await results(bus, tool, "fields", FIELDS)).items()}
    right = {name: is_as(found[name], expected) for name, (_, expected) in FIELDS.items()}
    return {name: ascii(found[name])[:300] for name in FIELDS if not right[name]}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("tool", some(WITHIN, [*RETURNING, "held", *YIELDING]))
async def test_every_kind_of_value_arrives_or_is_refused(here: Place, tool: str) -> None:
    """From a coroutine, a thread or a child process, returned or yielded: what arrives is what the table says, never nothing."""
    async with here.serving(kinds) as bus:
        assert await differing(bus, tool, "kinds", expected_values(tool)) == {}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("tool", some(WITHIN[1:], [*RETURNING, *YIELDING]))
async def test_every_kind_of_text_arrives(here: Place, tool: str) -> None:
    """A text is told whole; half a surrogate pair, which can't travel, becomes U+FFFD."""
    async with here.serving(kinds) as bus:
        assert await differing(bus, tool, "texts", expected_texts()) == {}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("tool", some(WITHIN, [*RETURNING, "held", *YIELDING]))
async def test_bytes_become_blobs(here: Place, tool: str) -> None:
    """Wherever bytes are in a value, the caller gets a blob, and their place in the data says which; base64 is nowhere."""
    async with here.serving(kinds) as bus:
        assert await differing_bytes(bus, tool) == {}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("tool", some(WITHIN[1:], [*RETURNING, *YIELDING]))
async def test_fields_of_wrong_types_are_the_tools_error(here: Place, tool: str) -> None:
    """In a ToolResult, an error, a Blob or progress: the caller gets the error, or what can be told of it, and never waits."""
    async with here.serving(kinds) as bus:
        assert await differing_fields(bus, tool) == {}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("tool", some(["returned", "yielded"], ["returned", "yielded", "returned_in_child"]))
async def test_servers_carry_the_same(place: Place, tool: str) -> None:
    """All of it arrives over a server as it does in process."""
    async with place.serving(kinds) as bus:
        assert await differing(bus, tool, "kinds", expected_values(tool)) == {}
        assert await differing(bus, tool, "texts", expected_texts()) == {}
        assert await differing_bytes(bus, tool) == {}
        assert await differing_fields(bus, tool) == {}


@pytest.mark.usefixtures("slow")
async def test_a_text_of_control_characters_arrives_at_any_frame_size(place: Place) -> None:
    """JSON takes six bytes for one of them; the largest frame may be as large as that."""
    async with place.serving(kinds, max_frame=400_000) as bus:
        result = await bus.call("returned", {"table": "texts", "kind": "huge"}, timeout=20.0)
    assert result.output == "ä\0" * 200_000
