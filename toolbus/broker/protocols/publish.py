"""The outcomes of publishing a request and of cancelling it."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec


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
