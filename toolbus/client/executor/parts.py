"""Parts of messages: the text of an observation and the images and files beside it, as each format writes them.

Adapters use ``Turn.observations()`` and ``parts_of``; the executor's own messages are made of the same.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from toolbus.client.executor.observations import ATTACHMENTS
from toolbus.media import is_readable
from toolbus.results import Blob, ToolResult

PartFormat = Literal["chat", "responses", "anthropic", "openai_agents", "langchain", "mcp"]

MOST_BLOB = 3_750_000
"""Most bytes of one blob that a model is shown; base64 makes 5 MB of it, the least limit of a provider."""


class Observation(msgspec.Struct, frozen=True):
    """The text and the blobs that a model gets as the answer of one call.

    Attributes:
        text: the text, with a mark for each blob.
        success: whether the call succeeded.
        shown: the blobs that the model is shown as parts of their own.
    """

    text: str
    success: bool = True
    shown: tuple[Blob, ...] = ()


def shown(results: Iterable[ToolResult], limit: int = ATTACHMENTS) -> list[tuple[Blob, ...]]:
    """Return the blobs of each result that a model's endpoint can read, in order, as long as ``limit`` bytes hold them all.

    What is left out is mentioned in the observation: other media types, bytes that are not what their media type says, images
    that are broken, animated or too large.
    """
    chosen: list[tuple[Blob, ...]] = []
    for result in results:
        blobs: list[Blob] = []
        for blob in result.content:
            size = len(blob.data)
            if size <= min(limit, MOST_BLOB) and is_readable(blob.media_type, blob.data):
                blobs.append(blob)
                limit -= size
        chosen.append(tuple(blobs))
    return chosen


def parts_of(observation: Observation, format: PartFormat) -> list[dict[str, Any]]:
    """Return an observation as parts of a message: its text first, then each blob that is shown."""
    return [*text_parts(observation.text, format), *blob_parts(observation.shown, format)]


def content_of(observation: Observation, format: PartFormat) -> str | list[dict[str, Any]]:
    """Return the content of a message: the text alone, or parts when something is shown beside it."""
    return parts_of(observation, format) if observation.shown else observation.text


def text_parts(text: str, format: PartFormat) -> list[dict[str, Any]]:
    """Return a text as a part; none for an empty text, which providers refuse."""
    return [{"type": "input_text" if format == "responses" else "text", "text": text}] if text else []


def blob_parts(blobs: Sequence[Blob], format: PartFormat) -> list[dict[str, Any]]:
    """Return the part of each image or file; the blobs are what ``shown`` chose."""
    make = _MAKERS[format]
    return [make(blob) for blob in blobs]


def data_url(blob: Blob) -> str:
    """Return a blob as a URL that holds its bytes."""
    return f"data:{blob.media_type};base64,{_base64(blob)}"


def file_name(blob: Blob) -> str:
    """Return the name of a file for a model, by its media type."""
    return f"attachment.{blob.media_type.rpartition('/')[2]}"


def _base64(blob: Blob) -> str:
    return b64encode(blob.data).decode()


def _is_image(blob: Blob) -> bool:
    return blob.media_type.startswith("image/")


def _chat(blob: Blob) -> dict[str, Any]:
    if _is_image(blob):
        return {"type": "image_url", "image_url": {"url": data_url(blob)}}
    return {"type": "file", "file": {"filename": file_name(blob), "file_data": data_url(blob)}}


def _responses(blob: Blob) -> dict[str, Any]:
    if _is_image(blob):
        return {"type": "input_image", "image_url": data_url(blob), "detail": "auto"}
    return {"type": "input_file", "filename": file_name(blob), "file_data": data_url(blob)}


def _anthropic(blob: Blob) -> dict[str, Any]:
    source = {"type": "base64", "media_type": blob.media_type, "data": _base64(blob)}
    return {"type": "image" if _is_image(blob) else "document", "source": source}


def _openai_agents(blob: Blob) -> dict[str, Any]:
    if _is_image(blob):
        return {"type": "image", "image_url": data_url(blob)}
    return {"type": "file", "filename": file_name(blob), "file_data": data_url(blob)}


def _langchain(blob: Blob) -> dict[str, Any]:
    part = {"type": "image" if _is_image(blob) else "file", "base64": _base64(blob), "mime_type": blob.media_type}
    return part if _is_image(blob) else {**part, "filename": file_name(blob)}


def _mcp(blob: Blob) -> dict[str, Any]:
    if _is_image(blob):
        return {"type": "image", "data": _base64(blob), "mimeType": blob.media_type}
    resource = {"uri": f"attachment:///{file_name(blob)}", "mimeType": blob.media_type, "blob": _base64(blob)}
    return {"type": "resource", "resource": resource}


_MAKERS: Mapping[str, Callable[[Blob], dict[str, Any]]] = {
    "chat": _chat,
    "responses": _responses,
    "anthropic": _anthropic,
    "openai_agents": _openai_agents,
    "langchain": _langchain,
    "mcp": _mcp,
}
