"""The caller's side of a broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from toolbus.bus.broker.protocols.documents import RefusedTool, ServiceRecord
from toolbus.bus.values.envelope import BEGAN_LATE, NOT_BEGUN, NOT_FINISHED, NOT_TAKEN, Frame
from toolbus.bus.values.results import ToolbusError


class Verdict(msgspec.Struct, frozen=True):
    """The outcome of publishing one request.

    Attributes:
        status: ``queued`` (or joined, when another call with the same key runs already); ``full``; ``absent`` (no such queue);
            ``conflict`` (the idempotency key stands for a call with other arguments); ``unknown`` (the answer was lost, it may have
            been queued); ``failed`` (certainly not queued).
        entry: where it is queued, for cancelling it.
        depth: how many requests the full queue holds, queued and running.
        message: why it failed.
    """

    status: Literal["queued", "full", "absent", "conflict", "unknown", "failed"]
    entry: str = ""
    depth: int = 0
    message: str = ""


class Sender(Protocol):
    """A call that is being published."""

    @property
    def done(self) -> bool:
        """True when no caller waits for it any more; then it is not published."""

    def settle(self, verdict: Verdict) -> None:
        """Take in what became of the publication."""


Fate = Literal["removed", "signalled", "shared", "gone", "unknown"]
"""The outcome of a cancellation: ``removed`` (the call never ran and never will), ``signalled`` (a worker has it), ``shared`` (other
callers wait for it), ``gone`` (it has been answered, or the server forgot it), ``unknown`` (the server did not say)."""


class Usage(msgspec.Struct, frozen=True):
    """The cost of one user's calls of one tool; a tool that was called as a service has the service's id."""

    user: str
    tool: str
    calls: int = 0
    errors: int = 0
    ms: int = 0
    bytes: int = 0


class AgentListener(Protocol):
    """Hears what arrives for an agent. Methods are called in the event loop and must not block."""

    def on_frames(self, frames: Sequence[Frame]) -> None:
        """Take in frames of this agent's calls, in the order they were written."""

    def on_registry(self, services: Mapping[str, ServiceRecord | RefusedTool], items: Mapping[str, bytes | RefusedTool]) -> None:
        """Take in a fresh snapshot, which replaces everything known before; with the reason in place of what can't be read."""

    def on_service(self, service: str, record: ServiceRecord | RefusedTool | None) -> None:
        """Take in that a service changed, can't be read (with the reason), or is gone (None)."""

    def on_item(self, key: str, document: bytes | None) -> None:
        """Take in that a static descriptor changed, or was deleted (None)."""

    def on_replies_lost(self) -> None:
        """Take in that the reply stream had to be made anew: frames of running calls may be missing."""

    def on_failed(self, error: ToolbusError) -> None:
        """Take in that the broker can't go on: nothing arrives any more."""


_ENDS_OF_ANOTHER = frozenset({("cancelled", NOT_BEGUN), *(("deadline_exceeded", code) for code in (NOT_TAKEN, BEGAN_LATE, NOT_FINISHED))})


def ended_for_another(frame: Frame) -> bool:
    """Return whether a shared call ended before it began, since no caller waited for it, or because its first caller's time was up."""
    error = frame.error
    return error is not None and frame.end_of_stream and (error.type, error.code) in _ENDS_OF_ANOTHER


def readdressed(frame: Frame, call: str, attempts: int) -> Frame:
    """Return a shared call's frame for one of its callers, which had ``attempts`` attempts before."""
    if frame.id == call and not attempts:
        return frame
    return msgspec.structs.replace(frame, id=call, attempt=frame.attempt + attempts)
