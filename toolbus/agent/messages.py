"""Messages of a conversation as an endpoint takes them, and their size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

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
