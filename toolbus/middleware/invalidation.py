"""``Invalidation``: which answers of a cache are out of date."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from typing import Any

import msgspec

from toolbus.middleware.chain import ToolCall

# Of changes of different answers, more at once make the cache forget everything.
_MOST_CHANGED = 10_000

_SHORT = 32

Owner = str | tuple[str, ...]
"""Whose answers: what a cache's ``by`` returns."""

_Part = tuple[str, str, bytes | None, bytes | None]


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a cache's answers: those that fit everything that is given.

    Attributes:
        service: the service's id; empty for any.
        tool: the tool's name; empty for any.
        arguments: exactly what the calls passed; None for any.
        by: whose answers, as the cache's ``by`` returns it; None for everybody's.
    """

    service: str = ""
    tool: str = ""
    arguments: Mapping[str, Any] | None = None
    by: Owner | None = None


class Invalidation:
    """Numbers the changes of answers: a cache keeps an answer under the numbers that hold when its call begins.

    So what was begun before a change is neither found after it nor joined, and nothing has to be searched.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._changed: dict[_Part, int] = {}
        self._everything = 0
        # Until when what runs may still change answers (monotonic seconds), and all of them.
        self._unsettled: dict[_Part, float] = {}
        self._all_unsettled = 0.0

    def forget(self, answers: Answers) -> None:
        """Find nothing any more that was kept of these answers, or is being computed.

        Raises:
            TypeError: JSON can't express their arguments.
        """
        part = _part(answers)
        if len(self._changed) >= _MOST_CHANGED:
            self._changed.clear()
            self._everything = next(self._numbers)
        self._changed[part] = next(self._numbers)

    def unsettle(self, answers: Answers, until: float) -> None:
        """Keep and find nothing of these answers until then: what changes them may go on."""
        if len(self._unsettled) >= _MOST_CHANGED:
            self._unsettled.clear()
            self._all_unsettled = until
        self._unsettled[_part(answers)] = until

    def state(self, call: ToolCall, by: Owner, now: float) -> tuple[int, ...] | None:
        """Return the numbers under which a call's answer may be kept and found now; None while it may be changing.

        Raises:
            TypeError: JSON can't express the call's arguments.
        """
        if not (self._changed or self._unsettled or self._all_unsettled):
            return (self._everything,)
        if self._all_unsettled > now:
            return None
        parts = _parts_with(call, by)
        for part in parts if self._unsettled else ():
            if self._unsettled.get(part, 0.0) > now:
                return None
            self._unsettled.pop(part, None)
        # No two changes have one number, so those of the parts that never changed can be left out.
        return (self._everything, *(self._changed[part] for part in parts if part in self._changed))


def check(answers: Answers) -> Answers:
    """Return the answers, whose arguments JSON can express.

    Raises:
        TypeError: it can't.
    """
    _part(answers)
    return answers


def _parts_with(call: ToolCall, by: Owner) -> list[_Part]:
    """Return all parts that a call's answer belongs to."""
    arguments, owner = _text(call.arguments), _text(by)
    return [
        (service, tool, given, whose)
        for service in ("", call.service)
        for tool in ("", call.tool)
        for given in (None, arguments)
        for whose in (None, owner)
    ]


def _part(answers: Answers) -> _Part:
    arguments = None if answers.arguments is None else _text(answers.arguments)
    return answers.service, answers.tool, arguments, None if answers.by is None else _text(answers.by)


def _text(value: Any) -> bytes:
    """Return the same bytes for equal values; long ones in short."""
    text = msgspec.json.encode(value, order="deterministic")
    return text if len(text) <= _SHORT else hashlib.blake2b(text, digest_size=_SHORT).digest()
