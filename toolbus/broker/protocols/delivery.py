"""A request that was delivered to a worker."""

from __future__ import annotations

from typing import Literal, NamedTuple, Self

import msgspec

from toolbus.envelope import Request
from toolbus.results import ErrorInfo

Beginning = Literal["started", "began", "unsure", "unconfirmed", "lost"]
"""The answer to whether a ``once`` handler may begin: ``started``; ``began`` (an earlier attempt did); ``unsure`` (the server may have
forgotten that one did); ``unconfirmed`` (too few replicas know that it begins, and no attempt will run); ``lost`` (another worker has
it)."""


Outcome = Literal["succeeded", "failed", "cancelled", "retried", "lost", "dead"]
"""The end of an attempt.

``succeeded``; ``failed`` (the caller got an error); ``cancelled``; ``retried`` (it failed, and its worker tries again); ``lost`` (its
worker died or let go of it, and another one has taken it over); ``dead`` (it became a dead letter).
"""


class Delivery(msgspec.Struct, eq=False):
    """One request handed to this worker, under a run token of its own.

    Each broker adds the fields that it needs in a class derived from this one.

    Attributes:
        request: the request itself.
        replies: where its frames go; empty when no caller waits for them.
        entry: the id of the request in its queue.
        epoch: how many times the consumer group has been made anew.
        attempt: the number of this delivery, which starts anew in each epoch.
        deadline: local monotonic seconds.
        queued_ms: milliseconds for which the request waited.
        run: the token of this run.
        begun: whether a run of it has been started here.
        handed_back: how many of the attempts before this one were cut off by workers that left.
    """

    request: Request
    replies: str
    entry: bytes
    epoch: int
    attempt: int
    deadline: float
    queued_ms: float
    run: str
    begun: bool = False
    handed_back: int = 0

    @property
    def tries(self) -> int:
        """The number of this attempt among those that count against ``max_deliveries``: a worker that leaves did not die of its calls."""
        return self.attempt - self.handed_back

    def again(self, attempt: int, run: str) -> Self:
        """Return the same request for a further run on this worker."""
        return msgspec.structs.replace(self, attempt=attempt, run=run, begun=False)


class Ending(NamedTuple):
    """The end of one attempt, for the record of recent calls; times are local monotonic seconds, 0 when there were none.

    Attributes:
        outcome: see ``Outcome``.
        started: when it began to run.
        first: when its first text was sent.
        ended: when it was answered.
        error: why it failed.
    """

    outcome: Outcome
    started: float
    first: float
    ended: float
    error: ErrorInfo | None


class Note(NamedTuple):
    """The time at which a call's time is up, for its next run; local monotonic seconds.

    ``since`` and ``until`` are 0 when its handler does not wait for a person now; else its time stands still
    between them.
    """

    deadline: float
    since: float = 0.0
    until: float = 0.0

    def effective(self, now: float) -> float:
        """Return the deadline, if the wait is over now."""
        return self.deadline + max(0.0, min(now, self.until) - self.since)


MOST_SNAPSHOT = 262_144
"""Most bytes of a snapshot."""


class Snapshot(NamedTuple):
    """The state of a session after one of its calls, as its service wrote it down.

    Attributes:
        state: the token of the state.
        call: the id of the call; empty when there was none yet.
        document: JSON of at most ``MOST_SNAPSHOT`` bytes.
    """

    state: str
    call: str
    document: bytes


NO_SNAPSHOT = Snapshot("", "", b"")
"""Stands for a snapshot that was forgotten since it was out of date, or can't be read."""


def session_of(request: Request) -> tuple[str, str] | None:
    """Return the user and session that a call belongs to. One without a session belongs to the user's own, and without either to none."""
    return (request.user, request.session) if request.session or request.user else None
