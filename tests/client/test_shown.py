"""Images of tools as a model gets them, through an executor."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.client.executing import chat
from tests.contract import Place
from tests.pictures import png
from toolbus import tool

pytestmark = pytest.mark.anyio

PICTURE = b64encode(png()).decode()


@tool(service="shown", effect="read")
async def draw() -> bytes:
    """Draw."""
    return png()


@tool(service="shown", effect="read")
async def draw_slowly() -> AsyncIterator[Any]:
    """Draw, with words and a value."""
    yield "here: "
    yield png()
    yield None
    yield {"size": len(png()), "again": png()}


@tool(service="shown", effect="read")
async def nothing() -> None:
    """Do something."""


def bytes_of(parts: list[dict[str, Any]]) -> list[str]:
    """Return the base64 of the images among parts of a chat completion."""
    return [part["image_url"]["url"].partition(",")[2] for part in parts if part["type"] == "image_url"]


async def test_images_of_a_turn_follow_its_answers(place: Place) -> None:
    """Returned or yielded, alone or in a value: the model is shown them, and no text has base64 in it."""
    async with place.serving(draw) as bus:
        one, two, three, beside = await bus.process_tool_calls(
            [chat(*call) for call in (("a", "draw", {}), ("b", "draw_slowly", {}), ("c", "nothing", {}))]
        )
    assert [message["tool_call_id"] for message in (one, two, three)] == ["a", "b", "c"]
    mark = f"[attached: image/png, {len(png())} bytes, shown beside this text]"
    assert one["content"] == mark
    value = f'{{"size":{len(png())},"again":{{"attachment":1,"media_type":"image/png","bytes":{len(png())}}}}}'
    assert two["content"] == f"here: {value}\n{mark}\n{mark}"
    assert three["content"] == "[The tool succeeded and returned nothing.]"
    assert beside["role"] == "user"
    assert bytes_of(beside["content"]) == [PICTURE] * 3


async def test_a_limit_of_zero_shows_none(place: Place) -> None:
    """A model that reads text alone gets the marks of today."""
    async with place.serving(draw) as bus:
        (answer,) = await bus.executor(attachment_limit=0).process_tool_calls([chat("a", "draw", {})])
    assert answer["content"] == f"[attached: image/png, {len(png())} bytes]"


async def test_anthropic_gets_the_image_in_the_result(place: Place) -> None:
    """The block of the result holds the text and the image."""
    async with place.serving(draw) as bus:
        (message,) = await bus.process_tool_calls({"type": "tool_use", "id": "a", "name": "draw", "input": {}})
    (block,) = message["content"]
    assert [part["type"] for part in block["content"]] == ["text", "image"]
    assert block["content"][1]["source"]["data"] == PICTURE
