"""What travels when a person is asked about a call: the request that the person reads, and the answer."""

from __future__ import annotations

import json
from typing import Any, Literal, Self

import msgspec

from toolbus.results import ErrorInfo

PATIENCE = 300.0
"""Seconds for which a person may answer, unless whoever asks says otherwise."""

MOST_OPEN = 1_000
"""Most requests of a namespace that wait for an answer."""

MARK = 60.0
"""Seconds for which an answered request says who answered it."""

_MOST_QUESTION = 2_000
_MOST_ARGUMENTS = 4_000
_MOST_NAME = 256


class ConfirmationRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that waits until a person allows or denies something; ``str()`` is what the person reads.

    Attributes:
        id: what the answer names.
        call: the call's id; the model's own when an agent asks.
        tool, service, owner: what would run, and who published it.
        question: what is to be allowed.
        asker: ``agent`` asks before the call is published, ``worker`` while its handler runs.
        user, session: on whose behalf.
        arguments: what the call was given, or what the handler shows, as JSON; the middle of much is left out.
        asked_at, expires_at: seconds since 1970, of the server's clock.
    """

    id: str
    call: str
    tool: str
    question: str
    asker: Literal["agent", "worker"] = "agent"
    service: str = ""
    owner: str = ""
    user: str = ""
    session: str = ""
    arguments: str = ""
    asked_at: float = 0.0
    expires_at: float = 0.0

    def bounded(self) -> Self:
        """The same with every text at most as long as may travel."""
        names = {name: cut(getattr(self, name), _MOST_NAME) for name in ("call", "tool", "service", "owner", "user", "session")}
        return msgspec.structs.replace(self, question=cut(self.question, _MOST_QUESTION), **names)

    def __str__(self) -> str:
        text = self.question
        if self.asker == "worker":
            behalf = f" for {self.user}" if self.user else ""
            text = f"{self.tool or self.service}{behalf} asks:\n  {self.question}"
        return visible(f"{text}\n  Arguments: {self.arguments}" if self.arguments else text)


class ConfirmationAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a person said.

    Attributes:
        allowed: whether it may happen.
        reason: why not, or a note.
        by: who said so.
    """

    allowed: bool
    reason: str = ""
    by: str = ""

    def bounded(self) -> Self:
        """The same with every text at most as long as may travel."""
        return msgspec.structs.replace(self, reason=cut(self.reason, _MOST_QUESTION), by=cut(self.by, _MOST_NAME))

    def __str__(self) -> str:
        by = f" by {self.by}" if self.by else ""
        return f"{'allowed' if self.allowed else 'denied'}{by}{f': {self.reason}' if self.reason else ''}"


def readable(value: Any) -> str:
    """A value as JSON that a person can read, of bounded length: the middle of much is left out."""
    text = json.dumps(value, ensure_ascii=False, indent=2, default=str)
    if len(text) <= _MOST_ARGUMENTS:
        return text
    head, tail = _MOST_ARGUMENTS * 3 // 4, _MOST_ARGUMENTS // 4
    return f"{text[:head]}\n… {len(text) - head - tail} characters are left out …\n{text[-tail:]}"


def visible(text: str) -> str:
    """The text with everything that could hide or turn around a part of it written out."""
    return "".join(character if character.isprintable() or character == "\n" else f"\\u{ord(character):04x}" for character in text)


def cut(text: str, limit: int) -> str:
    """The text, or its start and an ellipsis; lone surrogates, which can't travel, are replaced."""
    text = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return text.encode("utf-8", "replace").decode()


def denied(what: str, reason: str = "", by: str = "") -> ErrorInfo:
    """How a call ends that a person did not allow."""
    why = f": {cut(reason, 500)}" if reason else ""
    return ErrorInfo("forbidden", "denied", f"{by or 'a person'} did not allow {what}{why}")
