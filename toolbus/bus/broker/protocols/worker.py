"""The worker's side of a broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, NamedTuple, NewType, Protocol, Self, TypeVar

import msgspec

from toolbus.bus.broker.protocols.agent import Tallies
from toolbus.bus.broker.protocols.documents import Routes
from toolbus.bus.broker.statistics.answers import InstanceAnswer
from toolbus.bus.values.confirmations import ConfirmationAnswer, ConfirmationRequest
from toolbus.bus.values.descriptors import Publication
from toolbus.bus.values.envelope import Request
from toolbus.bus.values.results import ErrorInfo, ToolbusError

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


D = TypeVar("D", bound=Delivery)


class WorkerBrokerOf(Protocol[D]):
    """The worker's side of a broker whose deliveries are of class ``D``; it is given none but its own."""

    @property
    def tallies(self) -> Tallies:
        """The counts that all processes share."""

    @property
    def routes(self) -> Routes:
        """The places where recorded tools run."""

    @property
    def instance(self) -> WorkerId:
        """This process start's id."""

    async def open(self, listener: WorkerListener) -> None:
        """Connect.

        Raises:
            BrokerError: the server can't be reached or can't serve.
        """

    async def register(self, publication: Publication, origin: str = "") -> None:
        """Publish a service and its tools, and keep them alive until ``unregister`` or ``aclose``; again for a new revision.

        Args:
            publication: what to publish.
            origin: the file of the code, when nothing else tells programs of this owner apart; others of another origin are logged.

        Raises:
            RegistrationRefused: names belong to another owner; nothing was published.
        """

    async def withdraw(self, service: str) -> None:
        """Take one service out of the registry and take no more of its requests; it keeps the leases of those that run until ``retire``.

        Raises:
            BrokerError: the server could not be told; the service is served as before.
        """

    def held(self, service: str) -> int:
        """Return how many requests of a service were taken and are not answered."""

    async def retire(self, service: str) -> None:
        """Forget a service that was withdrawn, once its calls are answered or handed back.

        Raises:
            BrokerError: the server could not be told; say it again.
        """

    async def outlive(self, seconds: float) -> None:
        """Let callers turn to other revisions of the services before this worker leaves, and wait until their older calls were taken.

        Returns at once unless it is the last worker of its revision beside workers of another one; waits ``seconds`` at most.
        """

    async def unregister(self) -> None:
        """Take every service of this instance out of the registry; stop taking."""

    async def take(self, slots: int) -> list[D]:
        """Wait up to about two seconds for at most ``slots`` deliveries."""

    def interrupt(self) -> None:
        """Make a waiting ``take`` return now."""

    async def recover(self) -> None:
        """Look now for what dead workers left, rather than at the next turn; returns when it has been heard of."""

    async def ask(self, delivery: D, request: ConfirmationRequest, seconds: float, opened: Callable[[], None]) -> ConfirmationAnswer | None:
        """Ask for a confirmation on a handler's behalf, see ``Confirmations.ask``; ``opened`` is called when it can be answered."""

    async def extend(self, delivery: D, note: Note) -> None:
        """Note the later deadline of a delivery, so that its next run keeps to it.

        Raises:
            BrokerError: the server could not be told.
        """

    def begin(self, delivery: D) -> Awaitable[Beginning]:
        """Mark that a ``once`` handler begins."""

    async def retry(self, delivery: D) -> D | None:
        """Count a further attempt of a delivery whose run has failed; None when it is no longer ours."""

    def release_session(self, service: str, user: str, session: str, *, lost: bool = False) -> None:
        """Give up a session that has ended here: its next call may start it anew anywhere. Returns at once.

        ``lost`` when nobody asked for its end: then whoever has it next is told, and its snapshot stays.
        """

    async def holds_session(self, delivery: D) -> bool:
        """Return whether the session of a delivery is still this worker's; False, and it is none of this worker's calls any more.

        The server is asked only if this process was paused for so long that others may have taken its sessions.
        """

    async def save_session(self, delivery: D, snapshot: Snapshot) -> bool:
        """Keep the snapshot of a delivery's session, before what is sent next; another failure than False is logged.

        Returns:
            False when another worker has the session: what the call changed is lost. That of a call in the order of its session is not,
            whoever has the session meanwhile, as long as the call is this worker's.
        """

    def forget_session(self, delivery: D) -> None:
        """Forget the snapshot of a delivery's session, before what is sent next. Returns at once; a failure is logged."""

    async def load_session(self, delivery: D) -> Snapshot | None:
        """Return the snapshot of a delivery's session, or None.

        Raises:
            BrokerError: the server can't be asked.
        """

    async def is_elsewhere(self, delivery: D) -> bool:
        """Return whether another worker, which leaves, still runs a call in the order of a delivery's session.

        Raises:
            BrokerError: the server can't be asked.
        """

    def follows(self, delivery: D) -> bytes:
        """Return the entry before a delivery in its session, if one may not have ended; empty when there is none."""

    async def before(self, deliveries: Sequence[D]) -> list[list[bytes]]:
        """Return for each delivery the entries that came before it in its session and have not ended.

        Raises:
            BrokerError: the server can't be asked.
        """

    async def hand_back(self, deliveries: Sequence[D]) -> None:
        """Give deliveries that have not been answered to other workers, after the frames that were sent until now.

        One that has begun to run is run as the next attempt there, which does not count against ``max_deliveries``.
        """

    async def hand_over(self, delivery: D) -> bool:
        """Give a delivery that has not begun to a worker that serves the revision which it was made for.

        Returns:
            Whether it is this worker's no longer; False when there is no such worker.
        """

    def send(self, delivery: D, frame: bytes) -> None:
        """Send a frame that is not the last one."""

    def before_sending(self, pack: Callable[[], None]) -> None:
        """Call ``pack`` just before frames leave, so that what gathers until then can go as one; frames leave soon."""

    @property
    def connected(self) -> bool:
        """True when the server can be spoken to now."""

    @property
    def congested(self) -> bool:
        """True when producers should wait for ``room`` before they send more frames."""

    async def room(self) -> None:
        """Wait until frames leave again."""

    def finish(self, delivery: D, frame: bytes, *, frees: bool = False) -> None:
        """Send the last frame and remove the request, if it is still ours.

        ``frees`` when the call failed and this run did nothing that must not happen twice: then the answer is not kept for later callers
        with the same idempotency key, unless an earlier attempt began ``once`` work.
        """

    def bury(self, delivery: D, reason: str, error: str, frame: bytes) -> None:
        """Set the request aside as a dead letter and send the last frame.

        ``reason`` is ``max_deliveries``, ``retries_exhausted`` or ``failed``; ``error`` the last failure in words.
        """

    def note(self, delivery: D, ending: Ending) -> None:
        """Tell operators of an attempt that has ended, with what is sent next. Returns at once."""

    async def aclose(self) -> None:
        """Send what is still to be sent, and disconnect."""

    def statistics(self) -> dict[str, int]:
        """Return counts for operators and metrics."""


WorkerBroker = WorkerBrokerOf[Delivery]
"""The worker's side of a broker, whichever it is."""
