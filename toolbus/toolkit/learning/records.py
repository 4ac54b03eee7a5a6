"""``Execution``: the record of one call, versioned and checked whenever it is read or written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from toolbus.bus.values.envelope import new_id
from toolbus.bus.values.results import ConfigurationError, ToolResult

VERSION = 1
MAX_RECORD = 262_144
MAX_SHOWN = 1000

Outcome = Literal["success", "failure", "cancelled", "refused", "unavailable"]

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Propensity = Annotated[float, Meta(gt=0, le=1)]
Shown = Annotated[dict[Name, Propensity], Meta(max_length=MAX_SHOWN)]

# Errors that say something about the tool. Others only say that the pool was busy, down or lost track of the call.
_FAILURES = frozenset({"tool_error", "invalid_arguments", "deadline_exceeded"})
_OUTCOMES: Mapping[str, Outcome] = {"cancelled": "cancelled", "forbidden": "refused"}


class Execution(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call of a tool within an episode: one user's request, from the first action to the last.

    Attributes:
        episode: id of the episode; its executions are ordered by ``position``, from 0.
        action: action in which the tool was called.
        tool: the tool's own name.
        outcome: ``success`` and ``failure`` say something about the tool; ``cancelled``, ``refused`` (by a person) and ``unavailable``
            do not.
        ms: milliseconds that the call took for its caller.
        at: end of the call, in seconds since 1970.
        shown: the tools that might have been shown to the model in this action, each with its probability (propensity, above 0); empty
            when unknown.
        next_shown: the same for the actions that may follow this one.
        revision: revision of the scores that chose what was shown; empty for static scores.
        query: the user's sentence that began the episode.
        target: id of the graph's tool or group by which the action called the tool; empty when the recorder knew no graph.
        id: id of the record; a store keeps one record for an id.
    """

    episode: Name
    position: Annotated[int, Meta(ge=0, le=1_000_000)]
    action: Name
    tool: Name
    outcome: Outcome
    at: Annotated[float, Meta(ge=0, le=1e11)]
    ms: Annotated[float, Meta(ge=0)] = 0.0
    shown: Shown = {}
    next_shown: Shown = {}
    revision: Annotated[str, Meta(max_length=128)] = ""
    query: Annotated[str, Meta(max_length=4096)] = ""
    target: Annotated[str, Meta(max_length=256)] = ""
    id: Name = msgspec.field(default_factory=new_id)
    version: Annotated[int, Meta(ge=1)] = msgspec.field(default=VERSION, name="v")

    @property
    def conclusive(self) -> bool:
        """True if the outcome says something about the tool."""
        return self.outcome in {"success", "failure"}


class RecordError(ConfigurationError):
    """A record can't be read or written; ``place`` names its location (``log.jsonl:17``)."""

    def __init__(self, place: str, problem: str) -> None:
        self.place = place
        self.problem = problem
        super().__init__(f"{place}: {problem}")

    def __reduce__(self) -> tuple[Any, ...]:
        return self.__class__, (self.place, self.problem)


OnBad = Callable[[RecordError], object]
"""Called with each record that can't be read, which is then left out."""


class _Versioned(msgspec.Struct):
    """The field that a record of any version has."""

    v: int


_decoder = msgspec.json.Decoder(Execution)
_versions = msgspec.json.Decoder(_Versioned)


def encode(execution: Execution) -> bytes:
    """Return a record as one line of JSON, without a line break.

    Raises:
        RecordError: a field is out of bounds.
    """
    # Fields with their default value are left out, except for the version.
    fields = msgspec.to_builtins(execution)
    document = msgspec.json.encode({"v": execution.version, "id": execution.id, **fields})
    decode(document, f"execution {execution.id[:64]!r}")
    return document


def decode(document: bytes, place: str) -> Execution:
    """Return a record from its JSON; errors name ``place``.

    Raises:
        RecordError: it is not JSON, too large, of another version, or a field is missing or out of bounds.
    """
    if len(document) > MAX_RECORD:
        raise RecordError(place, f"the record has {len(document)} bytes; at most {MAX_RECORD} are allowed")
    try:
        version = _versions.decode(document).v
        if version != VERSION:
            raise RecordError(place, f"the record is of version {version}; this release reads version {VERSION}")
        return _decoder.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(place, f"no execution: {error}") from None


def outcome_of(result: ToolResult) -> Outcome:
    """Return what the result of a call says about its tool."""
    if result.error is None:
        return "success"
    if result.error.type in _FAILURES or (result.error.type == "not_found" and result.error.origin == "tool"):
        return "failure"
    return _OUTCOMES.get(result.error.type, "unavailable")
