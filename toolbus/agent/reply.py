"""Assemble one turn of a model from the chunks of a chat completion."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from toolbus.bus.client.executor.toolcalls import MOST_ID, ModelCall
from toolbus.bus.values.encoding import DECODE_ERRORS

_MOST_CALLS = 128
_MOST_CHARACTERS = 4_194_304
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
# Some models think aloud, at the beginning of what they say.
_THOUGHT, _THOUGHT_ENDS = "<think>", "</think>"


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: _Function | None = None


class _Message(msgspec.Struct):
    role: str | None = None
    content: str | list[Any] | None = None
    refusal: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: dict[str, Any] | None = None
    message: dict[str, Any] | None = None
    finish_reason: str | None = None


_T = TypeVar("_T", _Message, _Call)


class Chunk(msgspec.Struct):
    """One event of the stream, or the whole answer of an endpoint that does not stream."""

    choices: list[_Choice] | None = None
    error: Any = None
    usage: Any = None


class _PartialCall(msgspec.Struct):
    """A tool call whose arguments are still arriving; the provider's own fields of it and of its function are in ``more…``."""

    index: int | None
    id: str = ""
    name: str = ""
    arguments: list[str] = []
    more: dict[str, Any] = {}
    more_of_function: dict[str, Any] = {}


class _Speech:
    """Passes on what a model says as it comes, see ``spoken``."""

    __slots__ = ("_held", "_thinks")

    def __init__(self) -> None:
        # None until it is known; then what is held back is the end of a thought, or the space behind it.
        self._thinks: bool | None = None
        self._held = ""

    def add(self, text: str) -> str:
        """Return what of the text so far is to be passed on now."""
        if self._thinks is False:
            return text
        self._held += text
        if self._thinks is None:
            begun = self._held.lstrip()
            if begun.startswith(_THOUGHT):
                self._thinks = True
            elif not _THOUGHT.startswith(begun):
                self._thinks = False
                return self._held
            else:
                return ""
        _, ended, said = self._held.partition(_THOUGHT_ENDS)
        said = said.lstrip()
        if said:
            self._thinks = False
        elif not ended:
            self._held = self._held[-len(_THOUGHT_ENDS) :]
        return said


class Reply:
    """One turn of the model while it arrives.

    Attributes:
        finish_reason: the reason why the model stopped; empty until then.
        usage: what the endpoint says of the tokens, whatever that is; None when it says nothing.
    """

    def __init__(self) -> None:
        self._text: list[str] = []
        # Fields of the message that are the provider's own, and what it refused: they go back to it as they came.
        self._more: dict[str, Any] = {}
        self._speech = _Speech()
        self._calls: list[_PartialCall] = []
        # The call that stands for all beyond the most, and how many those are.
        self._surplus: _PartialCall | None = None
        self._cut = 0
        self._size = 0
        self.finish_reason = ""
        self.usage: Any = None

    @property
    def text(self) -> str:
        """The text of the model, without its thoughts."""
        return spoken("".join(self._text))

    def add(self, chunk: Chunk) -> str:
        """Add a chunk and return its text, without the model's thoughts.

        Raises:
            ValueError: the turn has too many characters, or its parts are of other kinds than they must be.
        """
        self.usage = self.usage if chunk.usage is None else chunk.usage
        choice = next((each for each in chunk.choices or () if each.index == 0), None)
        if choice is None:
            return ""
        self.finish_reason = choice.finish_reason or self.finish_reason
        given = choice.delta or choice.message
        if given is None:
            return ""
        message = _read(given, _Message)
        self._keep(self._more, given, _Message)
        text = _text(message.content) + (message.refusal or "")
        if text:
            self._text.append(text)
            self._count(text)
        for each in message.tool_calls or ():
            self._add(_read(each, _Call), each)
        return self._speech.add(text)

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
        message: dict[str, Any] = {**self._more, "role": "assistant", "content": "".join(self._text) or None}
        calls = self.calls()
        if calls:
            message["tool_calls"] = [
                {
                    **partial.more,
                    "id": call.id,
                    "type": "function",
                    "function": {**partial.more_of_function, "name": valid_name(call.name), "arguments": _object(call.arguments)},
                }
                for call, partial in zip(calls, self._calls, strict=True)
            ]
        return message

    def _keep(self, kept: dict[str, Any], given: dict[str, Any], known: type[msgspec.Struct]) -> None:
        """Keep the fields that are the provider's own; those of several chunks are one."""
        more = {name: value for name, value in given.items() if name not in known.__struct_fields__ and value is not None}
        if more:
            self._count(msgspec.json.encode(more).decode())
            _merge(kept, more)

    def _add(self, part: _Call, given: dict[str, Any]) -> None:
        call = self._of(part)
        call.id = call.id or (part.id or "")
        if len(call.id) > MOST_ID:
            raise ValueError(f"the id of a tool call has more than {MOST_ID:,} characters")
        if call is not self._surplus:
            self._keep(call.more, given, _Call)
            self._keep(call.more_of_function, given.get("function") or {}, _Function)
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


def spoken(text: str) -> str:
    """Return what a model says without what it thinks aloud, in ``<think>`` at the beginning; empty while it only thinks."""
    begun = text.lstrip()
    return begun.partition(_THOUGHT_ENDS)[2].lstrip() if begun.startswith(_THOUGHT) else text


def _read(given: dict[str, Any], kind: type[_T]) -> _T:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def _merge(kept: dict[str, Any], more: dict[str, Any]) -> None:
    """Add what a further chunk says to the fields of those before it: texts and lists grow."""
    for name, value in more.items():
        before = kept.get(name)
        if isinstance(before, str) and isinstance(value, str):
            kept[name] = before + value
        elif isinstance(before, list) and isinstance(value, list):
            kept[name] = [*before, *value]
        elif isinstance(before, dict) and isinstance(value, dict):
            _merge(before, value)
        else:
            kept[name] = value


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
    except DECODE_ERRORS:
        return False
    return True
