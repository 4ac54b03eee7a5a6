"""What an agent and a worker need of a broker. Redis and the in-process broker both provide it.

The client and the worker speak only to these protocols, so the same tools run over
``redis://`` and ``memory://``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from toolbus.confirmations import ConfirmationAnswer, ConfirmationRequest
from toolbus.descriptors import Publication
from toolbus.envelope import Frame, Request
from toolbus.results import ErrorInfo, ToolbusError


class Verdict(msgspec.Struct, frozen=True):
    """What became of one published request.

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


class RefusedTool(NamedTuple):
    """A tool whose descriptor can't be used, and why; ``name`` is its place where it has none."""

    name: str
    service: str
    reason: str


class ServiceRecord(msgspec.Struct, frozen=True):
    """A service in the registry: its current publication, and whether an instance is live.

    Attributes:
        refused: tools of it that can't be used; the others are in the publication.
    """

    publication: Publication
    live: bool
    refused: tuple[RefusedTool, ...] = ()


class Sender(Protocol):
    """A call that is being published."""

    @property
    def done(self) -> bool:
        """Whether nobody waits for it any more; then it is not published."""

    def settle(self, verdict: Verdict) -> None:
        """Take in what became of the publication."""


Fate = Literal["removed", "signalled", "shared", "gone", "unknown"]
"""What a cancellation found: ``removed`` (the call never ran and never will), ``signalled`` (a worker has it), ``shared`` (other callers
wait for it), ``gone`` (it has been answered, or the server forgot it), ``unknown`` (the server did not say)."""


class Usage(msgspec.Struct, frozen=True):
    """What one user's calls of one tool cost; a tool that was called as a service has the service's id."""

    user: str
    tool: str
    calls: int = 0
    errors: int = 0
    ms: int = 0
    bytes: int = 0


class Tallies(Protocol):
    """What all processes of a namespace count together."""

    async def spend(self, name: str, limit: int, period: float) -> float:
        """Count one use against a rate of ``limit`` per ``period`` seconds; returns 0, or the seconds until there is room.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def use(self, name: str, limit: int, period: float) -> float:
        """The same for a quota, which starts anew in each period of the server's clock."""

    def count(self, user: str, tool: str, *, ms: float, size: int, failed: bool) -> None:
        """Add a call to today's usage. Returns at once."""

    async def usage(self, days: int = 1) -> list[Usage]:
        """The usage of the last days (UTC, today is the first), by user and tool.

        Raises:
            BrokerError: the server could not be asked.
        """


class Confirmations(Protocol):
    """Requests that wait for a person, whom any process of a namespace may be."""

    async def ask(self, request: ConfirmationRequest, seconds: float) -> ConfirmationAnswer | None:
        """Open a request and wait for its answer; None when nobody answers within ``seconds``. Cancelling it withdraws the request.

        A permission that names another digest than the request's is a refusal.

        Raises:
            ToolError: ``overloaded``, because too many requests wait.
            BrokerError: the server refuses.
        """

    async def pending(self) -> list[ConfirmationRequest]:
        """The open requests, the oldest first, without the ``whole`` of their arguments.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def get(self, id: str) -> ConfirmationRequest:
        """One open request.

        Raises:
            ConfirmationClosed: it is not open.
        """

    async def answer(self, id: str, answer: ConfirmationAnswer) -> None:
        """Answer a request; of several answers exactly one wins.

        Raises:
            ConfirmationClosed: it is not open, or another answer won.
        """

    def watch(self) -> AsyncIterator[ConfirmationRequest]:
        """Each request once: those that are open, and then new ones as they come."""


class AgentListener(Protocol):
    """Hears what arrives for an agent. Methods are called in the event loop and must not block."""

    def on_frames(self, frames: Sequence[Frame]) -> None:
        """Frames of this agent's calls, in the order they were written."""

    def on_registry(self, services: dict[str, ServiceRecord], items: dict[str, bytes]) -> None:
        """A fresh snapshot: everything known before is replaced."""

    def on_service(self, service: str, record: ServiceRecord | None) -> None:
        """A service changed, or is gone (None)."""

    def on_item(self, key: str, document: bytes | None) -> None:
        """A static descriptor changed, or was deleted (None)."""

    def on_replies_lost(self) -> None:
        """The reply stream had to be made anew: frames of running calls may be missing."""

    def on_failed(self, error: ToolbusError) -> None:
        """The broker can't go on: nothing arrives any more."""


class AgentBroker(Protocol):
    """The caller's side of a broker."""

    @property
    def tallies(self) -> Tallies:
        """What all processes count together."""

    @property
    def confirmations(self) -> Confirmations:
        """Requests that wait for a person."""

    @property
    def agent(self) -> str:
        """This process's agent id, fresh at each start."""

    async def open(self, listener: AgentListener) -> None:
        """Connect, load the registry's snapshot, and start to listen.

        Raises:
            BrokerError: the server can't be reached or can't serve.
        """

    async def aclose(self) -> None:
        """Stop listening and remove this agent's keys."""

    def publish(self, request: Request, queue: str, limit: int, deadline: float, sender: Sender) -> None:
        """Publish at the end of this tick, together with everything else published in it.

        While the server can't be reached it waits here, until ``deadline`` (local monotonic seconds).

        Raises:
            EnvelopeError: the request can't be encoded, or is too large.
        """

    def cancel(
        self, request: Request, queue: str, entry: str, on_fate: Callable[[Fate], None] | None = None, *, waited: float = 0.0
    ) -> None:
        """Remove a queued call, or tell the worker that runs it. Returns at once; ``on_fate`` hears what was found.

        ``waited`` are the seconds by which its deadline is later than its timeout says.
        """

    def forget(self, request: Request) -> None:
        """Nobody listens for this call any more."""

    async def close_session(self, user: str, session: str, queues: Collection[str]) -> None:
        """Tell the workers of these queues that a session is over, after everything that was published or cancelled before.

        Raises:
            BrokerError: the server can't be reached.
        """

    async def leave_sessions(self, queues: Collection[str]) -> None:
        """Tell the workers of these queues that this agent uses no session any more.

        Raises:
            BrokerError: the server can't be reached.
        """

    async def put_item(self, key: str, document: bytes, owner: str = "") -> None:
        """Store a document under ``tool/<name>``, ``tool-service/<id>`` or ``toolkit/<name>``; with an ``owner``, who alone may change it.

        Raises:
            RegistrationRefused: the name is published by a service, or is somebody else's.
        """

    async def delete_item(self, key: str, owner: str = "") -> bool:
        """Delete a document; False when there was none. Without an ``owner`` it is an operator who deletes it, whosever it is.

        Raises:
            RegistrationRefused: it is somebody else's.
        """

    def statistics(self) -> dict[str, int]:
        """Counts for people and metrics."""


Beginning = Literal["started", "began", "unsure", "unconfirmed", "lost"]
"""Whether a ``once`` handler may begin: ``started``; ``began`` (an earlier attempt did); ``unsure`` (the server may have forgotten that
one did); ``unconfirmed`` (too few replicas know that it begins, and no attempt will run); ``lost`` (another worker has it)."""


class Delivery(msgspec.Struct, eq=False):
    """One request handed to this worker, under a run token of its own.

    ``deadline`` is local monotonic seconds, ``queued_ms`` how long the request waited, and ``attempt`` its
    delivery number, which starts anew in each ``epoch`` of the consumer group. ``replies`` is where its frames
    go, or empty when nobody waits for them. ``queue``, ``entry``, ``fence`` and ``server`` are the broker's.
    ``extended`` when a handler of the call has waited for a person, so that the deadline is later than the request says.
    """

    request: Request
    replies: str
    queue: Any
    entry: bytes
    fence: Any
    epoch: int
    attempt: int
    deadline: float
    queued_ms: float
    run: str
    server: bytes = b""
    extended: bool = False

    def again(self, attempt: int, run: str) -> Delivery:
        """The same request, for a further run on this worker."""
        return msgspec.structs.replace(self, attempt=attempt, run=run)


class Note(NamedTuple):
    """When a call's time is up, for whoever runs it next; local monotonic seconds.

    ``since`` and ``until`` are 0 when its handler does not wait for a person now; else its time stands still
    between them.
    """

    deadline: float
    since: float = 0.0
    until: float = 0.0

    def effective(self, now: float) -> float:
        """The deadline, if the wait is over now."""
        return self.deadline + max(0.0, min(now, self.until) - self.since)


def session_of(request: Request) -> tuple[str, str] | None:
    """The user and session that a call belongs to. One without a session belongs to the user's own, and without either to none."""
    return (request.user, request.session) if request.session or request.user else None


class SessionListener(Protocol):
    """Hears what concerns the sessions that a worker has open. Methods are called in the event loop and must not block."""

    def closed(self, service: str, user: str, session: str) -> None:
        """A caller closed a session."""

    def left(self, service: str, agent: str) -> None:
        """A caller is going: sessions that only it used end."""

    def moved(self, service: str, user: str, session: str) -> None:
        """Another worker has, or had, the session: what is here of it ends."""

    def agents(self) -> set[str]:
        """The callers that use open sessions."""

    def gone(self, agents: set[str]) -> None:
        """Callers have died: sessions that only they used end."""


class WorkerListener(Protocol):
    """Hears what concerns a worker's running calls. Methods are called in the event loop and must not block."""

    @property
    def sessions(self) -> SessionListener:
        """Hears what concerns sessions."""

    def on_recovered(self, deliveries: Sequence[Delivery]) -> None:
        """Deliveries taken over from dead workers; they need slots like any other."""

    def flexible(self) -> bool:
        """Whether it could make room for a delivery that must run alone."""

    def on_left_over(self) -> None:
        """It is to make room: deliveries that must run alone wait for a worker that holds nothing."""

    def on_cancelled(self, call: str) -> None:
        """A caller cancelled a call."""

    def on_lost(self, delivery: Delivery) -> None:
        """The delivery now belongs to another worker; whatever this one still says is refused."""

    def on_replies_gone(self, replies: str, error: ErrorInfo) -> None:
        """Nobody reads these replies any more: their calls end."""

    def on_failed(self, error: ToolbusError) -> None:
        """The broker can't go on: nothing more is to be taken."""

    def free_slots(self) -> int:
        """How many more deliveries can run now."""

    def busy(self) -> bool:
        """Whether anything runs or waits here."""


class WorkerBroker(Protocol):
    """The worker's side of a broker."""

    @property
    def tallies(self) -> Tallies:
        """What all processes count together."""

    @property
    def instance(self) -> str:
        """This process start's instance id, which is also its consumer name."""

    async def open(self, listener: WorkerListener) -> None:
        """Connect.

        Raises:
            BrokerError: the server can't be reached or can't serve.
        """

    async def register(self, publication: Publication) -> None:
        """Publish a service and its tools, and keep them alive until ``unregister`` or ``aclose``.

        Raises:
            RegistrationRefused: names belong to another owner; nothing was published.
        """

    async def unregister(self) -> None:
        """Take every service of this instance out of the registry; stop taking."""

    async def take(self, slots: int) -> list[Delivery]:
        """Wait up to about two seconds for at most ``slots`` deliveries."""

    def interrupt(self) -> None:
        """Make a waiting ``take`` return now."""

    async def recover(self) -> None:
        """Look now for what dead workers left, rather than at the next turn; returns when it has been heard of."""

    async def ask(
        self, delivery: Delivery, request: ConfirmationRequest, seconds: float, opened: Callable[[], None]
    ) -> ConfirmationAnswer | None:
        """Ask a person on a handler's behalf, see ``Confirmations.ask``; ``opened`` is called when the request can be answered."""

    async def extend(self, delivery: Delivery, note: Note) -> None:
        """Note the later deadline of a delivery, so that its next run keeps to it.

        Raises:
            BrokerError: the server could not be told.
        """

    async def begin(self, delivery: Delivery) -> Beginning:
        """Mark that a ``once`` handler begins."""

    async def retry(self, delivery: Delivery) -> Delivery | None:
        """Count a further attempt of a delivery whose run has failed; None when it is no longer ours."""

    def release_session(self, service: str, user: str, session: str) -> None:
        """Give up a session that has ended here: its next call may start it anew anywhere. Returns at once."""

    async def hand_back(self, deliveries: Sequence[Delivery]) -> None:
        """Give deliveries that have not been answered to other workers, without counting an attempt."""

    def send(self, delivery: Delivery, frame: bytes) -> None:
        """Send a frame that is not the last one."""

    def before_sending(self, pack: Callable[[], None]) -> None:
        """Call ``pack`` just before frames leave, so that what gathers until then can go as one; frames leave soon."""

    @property
    def connected(self) -> bool:
        """Whether the server can be spoken to now."""

    @property
    def congested(self) -> bool:
        """Whether producers should wait for ``room`` before they send more frames."""

    async def room(self) -> None:
        """Wait until frames leave again."""

    def finish(self, delivery: Delivery, frame: bytes, *, frees: bool = False) -> None:
        """Send the last frame and remove the request, if it is still ours.

        ``frees`` when the call failed and this run did nothing that must not happen twice: then the answer is not kept for later callers
        with the same idempotency key, unless an earlier attempt began ``once`` work.
        """

    def bury(self, delivery: Delivery, reason: str, error: str, frame: bytes) -> None:
        """Set the request aside as a dead letter and send the last frame.

        ``reason`` is ``max_deliveries``, ``retries_exhausted`` or ``failed``; ``error`` the last failure in words.
        """

    async def aclose(self) -> None:
        """Send what is still to be sent, and disconnect."""

    def statistics(self) -> dict[str, int]:
        """Counts for people and metrics."""
