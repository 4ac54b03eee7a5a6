"""The records of which a conversation consists, and their JSON."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from toolbus.client.executor.observations import LIMIT, shortened
from toolbus.client.executor.toolcalls import ModelCall
from toolbus.client.tools.tool import Tool
from toolbus.envelope import encode
from toolbus.results import EnvelopeError, ToolResult

Reason = Literal["answered", "length", "turns", "time", "full"]

# A result with more bytes is kept as the text and the attachments that models see of it, and one with still more as the text.
_MOST_RESULT = 262_144
_MOST_SHOWN = 1_048_576


class Question(msgspec.Struct, frozen=True, tag="question"):
    """The user asked; ``key`` is the caller's own key of the question, if there is one."""

    text: str
    key: str = ""


class ModelReply(msgspec.Struct, frozen=True, tag="reply"):
    """The model answered, in words or with calls.

    Attributes:
        message: the model's message, as it stands in the conversation.
        calls: the calls as the model made them.
        finish: the reason why the model stopped.
        at: the agent's actions in the toolkit graph at that moment, if it walks.
    """

    message: dict[str, Any]
    calls: list[ModelCall] = []
    finish: str = ""
    at: list[str] = []


class CallResult(msgspec.Struct, frozen=True, tag="result"):
    """One call of the last reply ended, while others of it still run."""

    id: str
    result: ToolResult


class TurnResults(msgspec.Struct, frozen=True, tag="results"):
    """The last call of the last reply ended.

    Attributes:
        messages: those that answer the model's calls.
        results: by the calls' ids, of those that ended with no record of their own.
    """

    messages: list[dict[str, Any]]
    results: dict[str, ToolResult] = {}


class End(msgspec.Struct, frozen=True, tag="end"):
    """The question ended without an answer, after so many requests to the model."""

    reason: Reason
    turns: int


class Summary(msgspec.Struct, frozen=True, tag="summary"):
    """The model's own words for the questions before the record with the number ``before``, in their place."""

    text: str
    before: int


Record = Question | ModelReply | CallResult | TurnResults | End | Summary

_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def encoded(record: Record) -> bytes:
    """Return a record's JSON.

    Raises:
        EnvelopeError: JSON can't express it.
    """
    return encode(record)


def decoded(document: bytes) -> Record:
    """Return the record that a JSON text is.

    Raises:
        ValueError: it is none.
    """
    try:
        return _decoder.decode(document)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise ValueError(str(error)) from None


def storable(result: ToolResult, tool: Tool | None = None, *, limit: int = LIMIT) -> ToolResult:
    """Return a result as it is kept: whole, or as what models see of it when it is large or JSON can't express it.

    Args:
        tool: the tool that was called, if there is one.
        limit: most characters of an observation.
    """
    if _fits(result, _MOST_RESULT):
        return result
    error = None if result.error is None else msgspec.structs.replace(result.error, details=None)
    text = shortened(result, tool, limit=limit)
    seen = ToolResult(error is None, text, content=result.content, error=error, meta=result.meta)
    return seen if _fits(seen, _MOST_SHOWN) else msgspec.structs.replace(seen, content=())


def _fits(result: ToolResult, most: int) -> bool:
    try:
        return len(encode(result)) <= most
    except EnvelopeError:
        return False
