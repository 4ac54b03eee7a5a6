"""The records of which a conversation consists, and their JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from toolbus.agent.endpoint import OPENAI, ChatEndpoint
from toolbus.bus.client.executor.observers import LIMIT, shortened
from toolbus.bus.client.executor.toolcalls import ModelCall
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.values.envelope import encode
from toolbus.bus.values.results import ConfigurationError, EnvelopeError, ToolResult

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


# Bytes of one token, about: a token of English has four, one of Chinese three.
_BYTES = 3


def with_instruction(messages: Sequence[dict[str, Any]], more: str) -> list[dict[str, Any]]:
    """Return the conversation with a further instruction at its start."""
    if not more:
        return [*messages]
    if not messages or messages[0]["role"] != "system":
        return [{"role": "system", "content": more}, *messages]
    return [{**messages[0], "content": f"{messages[0]['content']}\n\n{more}"}, *messages[1:]]


def tokens(messages: Sequence[dict[str, Any]]) -> int:
    """Return how many tokens messages have, rather too many than too few; each endpoint counts in its own way."""
    return sum(len(msgspec.json.encode(message)) // _BYTES + 1 for message in messages)


def transcript(messages: Sequence[dict[str, Any]], most: int) -> str:
    """Return a conversation as a text for people and models; each message has at most ``most`` characters."""
    lines: list[str] = []
    for message in messages:
        said = _shortened(_text(message.get("content")), most)
        calls = [
            f"{call['function']['name']}({_shortened(call['function']['arguments'], most)})" for call in message.get("tool_calls") or ()
        ]
        who = f"tool {message.get('name', '')}".rstrip() if message["role"] == "tool" else message["role"]
        lines.append(f"{who}: {' '.join([*filter(None, [said]), *(f'[calls {call}]' for call in calls)])}")
    return "\n".join(lines)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(part["text"] if isinstance(part.get("text"), str) else f"[{part.get('type', 'file')}]" for part in content)
    return content or ""


def _shortened(text: str, most: int) -> str:
    """Return a text without its middle, if it is too long."""
    if len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]} … {text[len(text) - most // 3 :]}"


KEY, MODEL, BASE_URL = "OPENAI_API_KEY", "OPENAI_MODEL", "OPENAI_BASE_URL"


def missing(environ: Mapping[str, str], *, model: str = "") -> str:
    """Return the message for what is not set, and has to be; empty when nothing is missing."""
    if not environ.get(KEY, "").strip():
        return f"set {KEY} to your endpoint's key (any word for one that needs none), and {BASE_URL} unless it is OpenAI"
    if not (model or environ.get(MODEL, "")).strip():
        return f"which model? pass --model or set {MODEL}"
    return ""


def endpoint_of(environ: Mapping[str, str], *, base_url: str = "", model: str = "") -> tuple[ChatEndpoint, str]:
    """Return the endpoint and the model's name; what is given stands before the environment.

    Raises:
        ConfigurationError: one is missing or wrong; the message says what to set.
    """
    if wrong := missing(environ, model=model):
        raise ConfigurationError(wrong)
    endpoint = ChatEndpoint(base_url or environ.get(BASE_URL) or OPENAI, environ[KEY].strip())
    return endpoint, (model or environ[MODEL]).strip()
