"""Assemble one turn of a model from the chunks of a chat completion."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from toolbus.client.executor.toolcalls import ModelCall

_MOST_CALLS = 128
_MOST_CHARACTERS = 4_194_304
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Message(msgspec.Struct):
    content: str | list[Any] | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Message | None = None
    message: _Message | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct):
    """One event of the stream, or the whole answer of an endpoint that does not stream."""

    choices: list[_Choice] | None = None
    error: Any = None
    usage: Any = None


class _PartialCall:
    """A tool call whose arguments are still arriving."""

    __slots__ = ("arguments", "id", "index", "name")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id = self.name = ""
        self.arguments: list[str] = []


class Reply:
    """One turn of the model while it arrives.

    Attributes:
        finish_reason: the reason why the model stopped; empty until then.
        usage: what the endpoint says of the tokens, whatever that is; None when it says nothing.
    """

    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls: list[_PartialCall] = []
        # The call that stands for all beyond the most, and how many those are.
        self._surplus: _PartialCall | None = None
        self._cut = 0
        self._size = 0
        self.finish_reason = ""
        self.usage: Any = None

    @property
    def text(self) -> str:
        """The text of the model."""
        return "".join(self._text)

    def add(self, chunk: Chunk) -> str:
        """Add a chunk and return its text.

        Raises:
            ValueError: the turn has too many characters.
        """
        self.usage = self.usage if chunk.usage is None else chunk.usage
        choice = next((each for each in chunk.choices or () if each.index == 0), None)
        if choice is None:
            return ""
        self.finish_reason = choice.finish_reason or self.finish_reason
        message = choice.delta or choice.message
        if message is None:
            return ""
        text = _text(message.content) + (message.refusal or "")
        if text:
            self._text.append(text)
            self._count(text)
        for part in message.tool_calls or ():
            self._add(part)
        return text

    def calls(self) -> list[ModelCall]:
        """Return the calls in order, each with a unique id; beyond 128 of them there is one more, which says that the others are cut."""
        made: list[ModelCall] = []
        seen: set[str] = set()
        for number, call in enumerate(self._calls):
            ident = call.id if call.id and call.id not in seen else f"call_{number}_{len(call.id)}"
            seen.add(ident)
            problem = "" if call.name else "the call names no tool"
            if call is self._surplus:
                problem = f"more than {_MOST_CALLS} calls at once: this one and those after it, {self._cut} in all, did not run; make fewer"
            made.append(ModelCall(ident, call.name, "".join(call.arguments) or "{}", problem=problem))
        return made

    def message(self) -> dict[str, Any]:
        """Return the model's message for the conversation.

        Endpoints refuse conversations with calls of invalid tool names or arguments that are not JSON, so both are replaced here. The
        observations tell the model what was wrong.
        """
        message: dict[str, Any] = {"role": "assistant", "content": self.text or None}
        calls = self.calls()
        if calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": valid_name(call.name), "arguments": _object(call.arguments)}}
                for call in calls
            ]
        return message

    def _add(self, part: _Call) -> None:
        call = self._of(part)
        call.id = call.id or (part.id or "")[:256]
        if part.function is None:
            return
        call.name = call.name or part.function.name or ""
        arguments = part.function.arguments or ""
        text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        if call is not self._surplus:
            call.arguments.append(text)
        self._count(text)

    def _of(self, part: _Call) -> _PartialCall:
        """Return the call that a part belongs to; the surplus one for all beyond the most."""
        known = next((call for call in reversed(self._calls) if call.index == part.index), None)
        if part.index is None and not part.id and self._calls:
            known = self._calls[-1]
        if known is not None and not _begins_another(part, known, complete=known is self._surplus):
            return known
        if self._surplus is not None:
            self._cut += 1
            self._surplus.index, self._surplus.id = part.index, part.id or ""
            return self._surplus
        made = _PartialCall(part.index)
        if len(self._calls) == _MOST_CALLS:
            self._surplus, self._cut = made, 1
        self._calls.append(made)
        return made

    def _count(self, text: str) -> None:
        self._size += len(text)
        if self._size > _MOST_CHARACTERS:
            raise ValueError(f"more than {_MOST_CHARACTERS} characters at once")


def valid_name(name: str) -> str:
    """Return a name that endpoints accept in a conversation."""
    return _NOT_IN_NAMES.sub("_", name)[:64] or "unnamed"


def _begins_another(part: _Call, known: _PartialCall, *, complete: bool) -> bool:
    """Return whether a part with the index of a known call begins another one.

    Some endpoints give no index, or the same one to all calls, and others a new id to each part of one call: then a call is over when its
    arguments are complete, or when a part names another tool.
    """
    if not (part.id and known.id and part.id != known.id):
        return False
    name = part.function.name if part.function is not None else None
    return bool(name) and (name != known.name or complete or _is_object("".join(known.arguments)))


def _text(content: str | list[Any] | None) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return content or ""


def _object(arguments: str) -> str:
    return arguments if _is_object(arguments) else "{}"


def _is_object(arguments: str) -> bool:
    try:
        msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False
    return True
