"""Messages that ask a person to confirm a call: the request and its answer."""

from __future__ import annotations

import json
from typing import Any, Literal, Self

import msgspec

from toolbus.bus.support.display import TooMuch, pretty, readable, shortened, visible, visible_lines
from toolbus.bus.values.canonical import digests
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.envelope import encode
from toolbus.bus.values.results import EnvelopeError, ErrorInfo, ToolError

CONFIRM_TIMEOUT = 300.0
"""Seconds that a person has to answer, unless the asker sets another limit."""

MOST_OPEN = 1_000
"""Most confirmation requests that may wait for an answer in one namespace."""

MARK = 60.0
"""Seconds for which the server remembers who answered a request."""

MOST_QUESTION = 2_000
"""Most characters of a question."""

MOST_NAME = 256
"""Most characters of the name of a tool, user or session in a request."""

_MOST_DESCRIPTION = 500
_MOST_REASON = 2_000
_EFFECTS = {"read": "only reads", "idempotent": "may be repeated without harm", "once": "takes effect each time it runs"}


class ConfirmationRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that waits until a person allows or denies it; ``str()`` is the text for that person.

    Attributes:
        id: the id that the answer refers to.
        call: the call's id; the model's own id when an agent asks.
        tool, service, owner: the tool that would run, its service, and its publisher.
        question: the question to answer.
        asker: ``agent`` asks before the call is published, ``worker`` while its handler runs.
        user, session: the user and session that the call is for.
        arguments: the call's arguments, or the value that the handler shows: JSON, unless ``shortened``.
        shortened: whether parts of ``arguments`` are left out; each gap is marked in the text.
        whole: all arguments as JSON when ``arguments`` is shortened; only a ``get`` of one request fills it in.
        digest: digest of the action, see ``digest_of``; an answer allows the action with this digest only.
        description, effect, external: the tool as its publisher describes it, when an agent asks.
        asked_at, expires_at: seconds since 1970, by the server's clock.
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
        """Return a copy with every text cut to its limit."""
        names = {name: shortened(getattr(self, name), MOST_NAME) for name in ("call", "tool", "service", "owner", "user", "session")}
        description = shortened(" ".join(self.description.split()), _MOST_DESCRIPTION)
        return msgspec.structs.replace(self, question=shortened(self.question, MOST_QUESTION), description=description, **names)

    def visible(self) -> Self:
        """Return a copy for a program that shows the fields itself: nothing in their texts hides or imitates anything."""
        shown_texts = {name: visible_lines(text) for name, text in msgspec.structs.asdict(self).items() if isinstance(text, str)}
        return msgspec.structs.replace(
            self, **{**shown_texts, "id": self.id, "whole": pretty(json.loads(self.whole)) if self.whole else ""}
        )

    def __str__(self) -> str:
        return self.text()

    def text(self, *, full: bool = False) -> str:
        """Return the text for the person who confirms.

        Only the first line starts at the margin, and no field's value can start a line of its own.

        Args:
            full: show all arguments where ``whole`` has them.
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
            # Without a digest there is no tool to describe: the question says everything.
            return []
        effect = _EFFECTS.get(self.effect, "does not say what it does to the world")
        described = [visible(self.description)] if self.description else []
        return [*described, f"This tool {effect}{'; it is external' if self.external else ''}."]


class ConfirmationAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person's answer to a confirmation request.

    Attributes:
        allowed: whether the action may happen.
        reason: why not, or a note.
        by: the name of the person who answered.
        digest: digest of the allowed action, copied from the request; any other digest allows nothing.
    """

    allowed: bool
    reason: str = ""
    by: str = ""
    digest: str = ""

    def bounded(self) -> Self:
        """Return a copy with every text cut to its limit."""
        return msgspec.structs.replace(self, reason=shortened(self.reason, _MOST_REASON), by=shortened(self.by, MOST_NAME))

    def to(self, request: ConfirmationRequest) -> Self:
        """Return the answer as it applies to ``request``: permission for another action becomes a refusal."""
        if not self.allowed or self.digest == request.digest:
            return self
        what = f"digest {self.digest[:16]}" if self.digest else "no digest"
        return msgspec.structs.replace(self, allowed=False, reason=f"the permission names {what}, and the call has {request.digest[:16]}")

    def __str__(self) -> str:
        by = f" by {visible(self.by)}" if self.by else ""
        return f"{'allowed' if self.allowed else 'denied'}{by}{f': {visible(self.reason)}' if self.reason else ''}"


def digest_of(asker: str, service: str, tool: str, user: str, session: str, question: str, arguments: Any) -> str:
    """Return the digest of an action: BLAKE2b (32 bytes, hexadecimal) over these values as canonical JSON.

    Args:
        question: the handler's question; empty for a call that has not started.
        arguments: plain JSON values, as they travel.
    """
    return digests_of(asker, service, tool, user, session, question, arguments)[0]


def digests_of(asker: str, service: str, tool: str, user: str, session: str, question: str, arguments: Any) -> list[str]:
    """Return the digest of an action and, if that is another, the one that earlier releases made of it."""
    return digests((asker, service, tool, user, session, question, arguments), 32)


def plain(value: Any, *, anything: bool = False) -> tuple[Any, bytes]:
    """Return a value as its receiver will see it, and the JSON that carries it.

    Args:
        anything: replace objects that JSON can't express by their ``str()`` instead of raising.

    Raises:
        EnvelopeError: JSON can't express it.
    """
    try:
        document = msgspec.json.encode(value, enc_hook=str) if anything else encode(value)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise EnvelopeError(f"not expressible in JSON: {error}") from None
    try:
        return msgspec.json.decode(document), document
    except DECODE_ERRORS as error:
        raise EnvelopeError(f"not expressible in JSON that can be read again: {error}") from None


def shown(value: Any, document: bytes, limit: int) -> dict[str, Any]:
    """Return the request fields that show a value whose JSON has at most ``limit`` bytes.

    Raises:
        ToolError: ``invalid_arguments``: the value is too large, or can't be shown without hiding some of its keys.
    """
    try:
        if len(document) > limit:
            raise TooMuch(f"{len(document):,} bytes are over the limit of {limit:,}")  # noqa: TRY301 - handled like the one that readable() raises
        arguments, cut_short = readable(value)
    except TooMuch as error:
        message = f"a person must confirm this call, but its arguments can't be shown: {error}; pass fewer and shorter ones"
        raise ToolError(message, type="invalid_arguments", code="unreadable") from None
    return {"arguments": arguments, "shortened": cut_short, "whole": document.decode() if cut_short else ""}


def denied(what: str, reason: str = "", by: str = "") -> ErrorInfo:
    """Return the error of a call that a person did not allow."""
    why = f": {visible(shortened(reason, 500))}" if reason else ""
    return ErrorInfo("forbidden", "denied", f"{visible(by) or 'a person'} did not allow {what}{why}")
