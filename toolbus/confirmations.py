"""What travels when a person is asked about a call: the request that the person reads, and the answer."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal, Self

import msgspec

from toolbus.display import TooMuch, pretty, readable, shortened, visible, visible_lines
from toolbus.envelope import encode
from toolbus.results import EnvelopeError, ErrorInfo, ToolError

PATIENCE = 300.0
"""Seconds for which a person may answer, unless whoever asks says otherwise."""

MOST_OPEN = 1_000
"""Most requests of a namespace that wait for an answer."""

MARK = 60.0
"""Seconds for which an answered request says who answered it."""

MOST_QUESTION = 2_000
"""Most characters of a question."""

MOST_NAME = 256
"""Most characters of a tool's, user's or session's name that a person is shown."""

_MOST_DESCRIPTION = 500
_MOST_REASON = 2_000
_EFFECTS = {"read": "only reads", "idempotent": "may be repeated without harm", "once": "takes effect each time it runs"}


class ConfirmationRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that waits until a person allows or denies something; ``str()`` is what the person reads.

    Attributes:
        id: what the answer names.
        call: the call's id; the model's own when an agent asks.
        tool, service, owner: what would run, and who published it.
        question: what is to be allowed.
        asker: ``agent`` asks before the call is published, ``worker`` while its handler runs.
        user, session: on whose behalf.
        arguments: what the call was given, or what the handler shows, for a person to read: JSON, unless ``shortened``.
        shortened: whether parts of ``arguments`` are left out; each says so itself.
        whole: all of the arguments as JSON when some are shortened; only ``get`` of one request brings it.
        digest: of what would be done, see ``digest_of``; an answer allows what has this digest, and nothing else.
        description, effect, external: the tool, as its publisher describes it, when an agent asks.
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
    digest: str = ""
    shortened: bool = False
    whole: str = ""
    description: str = ""
    effect: str = ""
    external: bool = False

    def bounded(self) -> Self:
        """The same with every text at most as long as may travel."""
        names = {name: shortened(getattr(self, name), MOST_NAME) for name in ("call", "tool", "service", "owner", "user", "session")}
        description = shortened(" ".join(self.description.split()), _MOST_DESCRIPTION)
        return msgspec.structs.replace(self, question=shortened(self.question, MOST_QUESTION), description=description, **names)

    def __str__(self) -> str:
        return self.text()

    def text(self, *, full: bool = False) -> str:
        """What the person reads; with all of the arguments when ``full``, where ``whole`` has them.

        Only the first line starts at the margin, and no field can begin another line.
        """
        lines = [self._first_line(), *self._about()]
        arguments = pretty(json.loads(self.whole)) if full and self.whole else visible_lines(self.arguments)
        if arguments:
            lines += f"Arguments: {arguments}".split("\n")
        if self.shortened and not (full and self.whole):
            lines.append(f"Parts are shortened; the whole: toolbus confirm show {visible(self.id)} --full")
        return "\n  ".join(lines)

    def _first_line(self) -> str:
        if self.asker == "agent":
            return visible(self.question)
        behalf = f" for {visible(self.user)}" if self.user else ""
        return f"{visible(self.tool or self.service)}{behalf} asks:"

    def _about(self) -> list[str]:
        if self.asker == "worker":
            return [visible(self.question)]
        if not self.digest:
            # Of an asker that says all in its question.
            return []
        effect = _EFFECTS.get(self.effect, "does not say what it does to the world")
        described = [visible(self.description)] if self.description else []
        return [*described, f"This tool {effect}{'; it is external' if self.external else ''}."]


class ConfirmationAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a person said.

    Attributes:
        allowed: whether it may happen.
        reason: why not, or a note.
        by: who said so.
        digest: of what is allowed, as the request states it; a permission for anything else is none.
    """

    allowed: bool
    reason: str = ""
    by: str = ""
    digest: str = ""

    def bounded(self) -> Self:
        """The same with every text at most as long as may travel."""
        return msgspec.structs.replace(self, reason=shortened(self.reason, _MOST_REASON), by=shortened(self.by, MOST_NAME))

    def to(self, request: ConfirmationRequest) -> Self:
        """The answer to a request as its asker takes it: a permission for something else is a refusal."""
        if not self.allowed or self.digest == request.digest:
            return self
        what = f"digest {self.digest[:16]}" if self.digest else "no digest"
        return msgspec.structs.replace(self, allowed=False, reason=f"the permission names {what}, and the call has {request.digest[:16]}")

    def __str__(self) -> str:
        by = f" by {visible(self.by)}" if self.by else ""
        return f"{'allowed' if self.allowed else 'denied'}{by}{f': {visible(self.reason)}' if self.reason else ''}"


def digest_of(asker: str, service: str, tool: str, user: str, session: str, question: str, arguments: Any) -> str:
    """What an answer is for: BLAKE2b (32 bytes, hexadecimal) of these as canonical JSON.

    Args:
        question: of a handler; empty for a call that has not begun.
        arguments: plain values of JSON, as they travel.
    """
    parts = (asker, service, tool, user, session, question, arguments)
    return hashlib.blake2b(msgspec.json.encode(parts, order="deterministic"), digest_size=32).hexdigest()


def plain(value: Any, *, anything: bool = False) -> tuple[Any, bytes]:
    """A value as it arrives on the other side, and the JSON that it travels as.

    Args:
        anything: objects that JSON can't express are shown as their ``str()``.

    Raises:
        EnvelopeError: JSON can't express it.
    """
    try:
        document = msgspec.json.encode(value, enc_hook=str) if anything else encode(value)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise EnvelopeError(f"not expressible in JSON: {error}") from None
    try:
        return msgspec.json.decode(document), document
    except (msgspec.DecodeError, RecursionError) as error:
        raise EnvelopeError(f"not expressible in JSON that can be read again: {error}") from None


def shown(value: Any, document: bytes, limit: int) -> dict[str, Any]:
    """The fields of a request that show a value of at most ``limit`` bytes.

    Raises:
        ToolError: ``invalid_arguments``: it is too large, or can't be shown without hiding keys of it.
    """
    try:
        if len(document) > limit:
            raise TooMuch(f"{len(document):,} bytes are over the limit of {limit:,}")  # noqa: TRY301 - told like the other
        arguments, cut_short = readable(value)
    except TooMuch as error:
        message = f"a person is to allow this, and can't be shown it: {error}; pass fewer and shorter ones"
        raise ToolError(message, type="invalid_arguments", code="unreadable") from None
    return {"arguments": arguments, "shortened": cut_short, "whole": document.decode() if cut_short else ""}


def denied(what: str, reason: str = "", by: str = "") -> ErrorInfo:
    """How a call ends that a person did not allow."""
    why = f": {visible(shortened(reason, 500))}" if reason else ""
    return ErrorInfo("forbidden", "denied", f"{visible(by) or 'a person'} did not allow {what}{why}")
