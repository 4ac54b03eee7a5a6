"""The worker's side of a broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, NewType, Protocol

from toolbus.bus.broker.statistics.answers import InstanceAnswer
from toolbus.bus.values.envelope import Request
from toolbus.bus.values.results import ErrorInfo, ToolbusError

if TYPE_CHECKING:
    from toolbus.bus.broker.take.requests import Delivery

Beginning = Literal["started", "began", "unsure", "unconfirmed", "lost"]
"""The answer to whether a ``once`` handler may begin: ``started``; ``began`` (an earlier attempt did); ``unsure`` (the server may have
forgotten that one did); ``unconfirmed`` (too few replicas know that it begins, and no attempt will run); ``lost`` (another worker has
it)."""


Outcome = Literal["succeeded", "failed", "cancelled", "retried", "lost", "dead"]
"""The end of an attempt.

``succeeded``; ``failed`` (the caller got an error); ``cancelled``; ``retried`` (it failed, and its worker tries again); ``lost`` (its
worker died or let go of it, and another one has taken it over); ``dead`` (it became a dead letter).
"""


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


WorkerId = NewType("WorkerId", str)
"""The id of a worker, fresh at each start, which is also its consumer name."""


class SessionListener(Protocol):
    """Hears what concerns the sessions that a worker has open. Methods are called in the event loop and must not block."""

    def closed(self, service: str, user: str, session: str) -> None:
        """Take in that a caller closed a session."""

    def left(self, service: str, agent: str) -> None:
        """Let the sessions that only a leaving caller used end soon."""

    def moved(self, service: str, user: str, session: str) -> None:
        """End what is here of a session that another worker has, or had."""

    def inherited(self, service: str, user: str, session: str, upto: tuple[int, ...]) -> None:
        """Take in that a session is this worker's whose state was lost, which calls up to an entry can't know."""

    def agents(self) -> set[str]:
        """Return the callers that use open sessions."""

    def gone(self, agents: set[str]) -> None:
        """Let the sessions that only dead callers used end soon."""


class WorkerListener(Protocol):
    """Hears what concerns a worker's running calls. Methods are called in the event loop and must not block."""

    @property
    def sessions(self) -> SessionListener:
        """Hears what concerns sessions."""

    def on_recovered(self, deliveries: Sequence[Delivery]) -> None:
        """Run deliveries that were taken over from dead workers; they need slots like any other."""

    def flexible(self) -> bool:
        """Return whether this worker could make room for a delivery that must run alone."""

    def on_left_over(self) -> None:
        """Make room: deliveries that must run alone wait for a worker that holds nothing."""

    def on_cancelled(self, call: str, why: str = "cancelled") -> None:
        """Take in that a caller gave up a call; ``why`` is the type of the error that it has instead."""

    def on_extended(self, call: str, deadline: float) -> None:
        """Take in that a caller with more time joined a call, which may run until ``deadline`` (monotonic seconds) now."""

    def on_lost(self, delivery: Delivery) -> None:
        """Take in that a delivery belongs to another worker now; anything that this one still sends for it is refused."""

    def on_replies_gone(self, replies: str, error: ErrorInfo) -> None:
        """End the calls of a reply stream that no caller reads any more."""

    def on_failed(self, error: ToolbusError) -> None:
        """Take in that the broker can't go on: nothing more is to be taken."""

    def free_slots(self) -> int:
        """Return how many more deliveries can run now."""

    def busy(self) -> bool:
        """Return whether anything runs or waits here."""

    def answer(self) -> InstanceAnswer:
        """Return the statistics of this worker, as far as the broker does not know them better."""


"""The worker's side of a broker, whichever it is."""
