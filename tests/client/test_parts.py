"""Images and files as parts of a model's messages.

Tests import the SDKs where they use them: each takes a second of every process's collection.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter

from tests.pictures import gif, jpeg, pdf, png, webp
from toolbus import Blob, ToolResult
from toolbus.bus.client.executor.observers import ATTACHMENTS, observe
from toolbus.bus.client.executor.toolcalls import MOST_BLOB, ModelCall, Observation, PartFormat, Shape, answers, parts_of, shown
from toolbus.bus.values.media import READABLE

ALL = (
    Blob("image/png", png()),
    Blob("image/jpeg", jpeg()),
    Blob("image/gif", gif()),
    Blob("image/webp", webp()),
    Blob("application/pdf", pdf()),
)


def texts(value: Any) -> list[str]:
    """Return all texts within a JSON value."""
    if isinstance(value, dict):
        return [text for part in value.values() for text in texts(part)]
    if isinstance(value, list):
        return [text for part in value for text in texts(part)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("format", get_args(PartFormat))
@pytest.mark.parametrize("blob", ALL, ids=lambda blob: blob.media_type)
def test_every_format_carries_the_bytes_of_every_kind(format: PartFormat, blob: Blob) -> None:
    """A part holds the whole bytes in base64 and the media type, after the part of the text."""
    first, second = parts_of(Observation("see", shown=(blob,)), format)
    assert first["text"] == "see"
    encoded = b64encode(blob.data).decode()
    assert [text for text in texts(second) if text in {encoded, f"data:{blob.media_type};base64,{encoded}"}]
    assert any(blob.media_type in text for text in texts(second))


def test_an_empty_text_is_no_part() -> None:
    """Providers refuse an empty text, so it is left out."""
    assert all(len(parts_of(Observation("", shown=ALL[:1]), each)) == 1 for each in get_args(PartFormat))


def test_blobs_are_chosen_within_the_limit() -> None:
    """Blobs of a turn are shown as long as the limit holds them, in order over its results; others are only mentioned."""
    size = len(png())
    results = [ToolResult(content=(Blob("image/png", png(colour=each)),)) for each in range(4)]
    assert [len(each) for each in shown(results)] == [1, 1, 1, 1]
    assert [len(each) for each in shown(results, 2 * size)] == [1, 1, 0, 0]
    assert [len(each) for each in shown(results, 0)] == [0, 0, 0, 0]


def test_what_can_not_be_read_is_mentioned_only() -> None:
    """Unknown media types, broken images, wrong media types and blobs that are too large are no parts."""
    large = Blob("application/pdf", pdf(b" " * MOST_BLOB))
    bad = (Blob("image/svg+xml", b"<svg/>"), Blob("image/png", b"123"), Blob("image/png", gif()), Blob("image/png", b""), large)
    result = ToolResult(output="", content=(*bad, ALL[0]))
    assert shown([result]) == [(ALL[0],)]
    lines = observe(result, shown=shown([result])[0]).split("\n")
    assert lines == [
        "[attached: image/svg+xml, 6 bytes]",
        "[attached: image/png, 3 bytes]",
        f"[attached: image/png, {len(gif())} bytes]",
        "[attached: image/png, 0 bytes]",
        f"[attached: application/pdf, {len(large.data)} bytes]",
        f"[attached: image/png, {len(png())} bytes, shown beside this text]",
    ]
    assert MOST_BLOB * 4 / 3 <= 5_000_000
    assert ATTACHMENTS * 4 / 3 <= 20_000_000


def of_shape(shape: Shape) -> list[dict[str, Any]]:
    """Return the messages that answer two calls of one shape, of which the second has every kind of blob."""
    calls = [ModelCall("a", "one", {}, shape), ModelCall("b", "two", {}, shape)]
    return answers(calls, [Observation("plain"), Observation("see", success=False, shown=ALL)])


def test_chat_completions_get_them_in_a_message_after_the_answers() -> None:
    """All answers follow the calls, then one message of the user's, which says whose output it is; the SDK's types agree."""
    from openai.types.chat import ChatCompletionToolMessageParam, ChatCompletionUserMessageParam

    first, second, beside = of_shape("chat")
    for answer in (first, second):
        TypeAdapter(ChatCompletionToolMessageParam).validate_python(answer)
    TypeAdapter(ChatCompletionUserMessageParam).validate_python(beside, extra="forbid")
    assert [part["type"] for part in beside["content"]] == ["text", *["image_url"] * 4, "file"]
    assert "call b of the tool two" in beside["content"][0]["text"]
    assert [answer["content"] for answer in (first, second)] == ["plain", "see"]


def test_responses_get_them_in_the_output() -> None:
    """The output is a list of parts as the SDK's types want it, and a text where there is nothing to show."""
    from openai.types.responses.response_input_item_param import FunctionCallOutput

    first, second = of_shape("responses")
    assert first["output"] == "plain"
    TypeAdapter(FunctionCallOutput).validate_python(second)
    assert [part["type"] for part in second["output"]] == ["input_text", *["input_image"] * 4, "input_file"]


@pytest.mark.usefixtures("slow")
def test_anthropic_gets_them_in_the_result() -> None:
    """The content is a list of blocks as the SDK's types want it, and a text where there is nothing to show."""
    from anthropic.types import ToolResultBlockParam

    (message,) = of_shape("anthropic")
    first, second = message["content"]
    assert first["content"] == "plain"
    TypeAdapter(ToolResultBlockParam).validate_python(second)
    assert [part["type"] for part in second["content"]] == ["text", *["image"] * 4, "document"]
    assert second["is_error"] is True


def test_the_agents_sdk_and_langchain_take_their_parts() -> None:
    """OpenAI's Agents SDK and LangChain read the parts that are made for them."""
    from agents.tool import ToolOutputFileContent, ToolOutputImage, ToolOutputText
    from langchain_core.messages import ToolMessage

    observation = Observation("see", shown=ALL)
    kinds = {"text": ToolOutputText, "image": ToolOutputImage, "file": ToolOutputFileContent}
    for part in parts_of(observation, "openai_agents"):
        assert kinds[part["type"]].model_validate(part, extra="forbid")
    blocks: list[Any] = [*ToolMessage(parts_of(observation, "langchain"), tool_call_id="a").content_blocks]
    assert [block["type"] for block in blocks] == ["text", *["image"] * 4, "file"]
    assert {block["mime_type"] for block in blocks[1:]} == READABLE
