"""Earlier results as arguments: ``{"$from": <call id or tool name>, "path": "items[0].id"}``."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from toolbus.bus.values.results import ToolError, ToolResult

FROM = "$from"
_FORMS = (frozenset({FROM}), frozenset({FROM, "path"}))
_MOST_LEVELS = 64
# Per bus: results of sessions that were not used for the longest go first.
_MOST_RESULT = 1_048_576
_MOST_BYTES = 67_108_864
_MOST_SESSIONS = 1024
_MOST_RESULTS = 64
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(-?\d+)\]|\[(?:\"([^\"]*)\"|'([^']*)')\]")


class Kept(msgspec.Struct, frozen=True):
    """The result of a call as later calls may refer to it; ``size`` in bytes."""

    tool: str
    value: Any
    size: int
    problem: str = ""


class Memory(msgspec.Struct, eq=False):
    """The results of one session, by call id; a tool's name stands for its latest."""

    results: OrderedDict[str, Kept] = msgspec.field(default_factory=OrderedDict)
    size: int = 0

    def get(self, reference: str) -> Kept | None:
        """Return the result of a call, or the latest of a tool."""
        found = self.results.get(reference)
        if found is not None:
            return found
        return next((kept for kept in reversed(self.results.values()) if kept.tool == reference), None)


class Memories(msgspec.Struct, eq=False):
    """The results of every session of a bus, within bounds.

    Calls without a session have nothing in common but the bus, which may serve many conversations: nothing is kept of them.
    """

    _sessions: OrderedDict[tuple[str, str], Memory] = msgspec.field(default_factory=OrderedDict)
    _size: int = 0

    def of(self, user: str, session: str) -> Memory:
        """Return the memory of a session; without a session, a new empty one."""
        if not session:
            return Memory()
        memory = self._sessions.setdefault((user, session), Memory())
        self._sessions.move_to_end((user, session))
        return memory

    def keep(self, user: str, session: str, call: str, tool: str, result: ToolResult) -> None:
        """Remember a result, in a session; what is too large is remembered as that."""
        if session:
            self.put(user, session, call, kept_of(tool, result))

    def put(self, user: str, session: str, call: str, kept: Kept) -> None:
        """Remember what is kept of a result."""
        memory = self.of(user, session)
        before = memory.results.pop(call, None)
        self._grow(memory, kept.size - (0 if before is None else before.size))
        memory.results[call] = kept
        if len(memory.results) > _MOST_RESULTS:
            self._grow(memory, -memory.results.popitem(last=False)[1].size)
        while self._size > _MOST_BYTES or len(self._sessions) > _MOST_SESSIONS:
            self._size -= self._sessions.popitem(last=False)[1].size

    def forget(self, user: str, session: str) -> None:
        """Drop the results of a session that is over."""
        memory = self._sessions.pop((user, session), None)
        if memory is not None:
            self._size -= memory.size

    def _grow(self, memory: Memory, size: int) -> None:
        memory.size += size
        self._size += size


def kept_of(tool: str, result: ToolResult) -> Kept:
    """Return the value that a later call may refer to: the data of a success, or its text."""
    if result.error is not None:
        return Kept(tool, None, 0, f"failed ({result.error.type})")
    value = result.output if result.data is None else result.data
    try:
        size = len(value) if isinstance(value, str) else len(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return Kept(tool, None, 0, "gave nothing that JSON can express")
    return Kept(tool, value, size) if size <= _MOST_RESULT else Kept(tool, None, 0, "is too large to be referred to")


def references(value: dict[str, Any] | list[Any], level: int = 0) -> Iterator[str]:
    """Yield the calls and tools that arguments refer to."""
    if isinstance(value, dict) and _is_reference(value):
        yield value[FROM]
    elif level < _MOST_LEVELS:
        for part in value.values() if isinstance(value, dict) else value:
            if isinstance(part, (dict, list)):
                yield from references(part, level + 1)


def resolved(value: Any, find: Callable[[str], Kept | None], path: str = "$", level: int = 0, *, where: str = "in this session") -> Any:
    """Return the arguments with each reference replaced by its result; ``where`` tells the model which results it can refer to.

    Raises:
        ToolError: ``invalid_arguments``: there is no such result, or nothing at that path of it.
    """
    if level > _MOST_LEVELS:
        return value
    if isinstance(value, dict):
        if _is_reference(value):
            return _taken(value[FROM], value.get("path"), find, path, where)
        return {name: resolved(part, find, f"{path}.{name}", level + 1, where=where) for name, part in value.items()}
    if isinstance(value, list):
        return [resolved(part, find, f"{path}[{index}]", level + 1, where=where) for index, part in enumerate(value)]
    return value


def _is_reference(value: Mapping[str, Any]) -> bool:
    return FROM in value and isinstance(value[FROM], str) and value.keys() in _FORMS


def _taken(reference: str, inner: object, find: Callable[[str], Kept | None], path: str, where: str) -> Any:
    kept = find(reference)
    if kept is None:
        raise _wrong(f"there is no earlier result of {reference[:100]!r} {where}", path)
    if kept.problem:
        raise _wrong(f"the call {reference[:100]!r} {kept.problem}", path)
    value = kept.value
    for step in _steps(inner, path):
        try:
            value = value[int(step) if isinstance(value, list) else step]
        except (KeyError, IndexError, TypeError, ValueError):
            raise _wrong(f"the result of {reference[:100]!r} has nothing at {str(inner)[:100]!r}", path) from None
    return value


def _steps(inner: object, path: str) -> list[str]:
    if inner is None:
        return []
    if isinstance(inner, list):
        return [str(step) for step in inner]
    if not isinstance(inner, str):
        raise _wrong("the path of a reference is a text such as 'items[0].id'", path)
    text = inner.removeprefix("$").removeprefix(".")
    found = list(_STEP.finditer(text))
    if "".join(match[0] for match in found) != text:
        raise _wrong(f"the path {inner[:100]!r} can't be read; write it like 'items[0].id'", path)
    return [next(group for group in match.groups() if group is not None) for match in found]


def _wrong(what: str, path: str) -> ToolError:
    return ToolError(f"{what} - at `{path[:150]}`", type="invalid_arguments", code="bad_reference")
