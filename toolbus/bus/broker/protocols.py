"""Values that a broker exchanges with those who use it, and what it calls of theirs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, NewType, Protocol, get_args

import msgspec

from toolbus.bus.broker.statistics.answers import InstanceAnswer
from toolbus.bus.values.descriptors import Publication
from toolbus.bus.values.envelope import Frame, Request
from toolbus.bus.values.results import ErrorInfo, ToolbusError

if TYPE_CHECKING:
    from toolbus.bus.broker.take.requests import Delivery

CreationStatus = Literal["queued", "running", "done", "failed", "cancelled"]
STATUSES: tuple[str, ...] = get_args(CreationStatus)

MOST_SPEC = 64 * 1024
"""Most bytes of a specification, and of a result."""

MOST_LINES = 500
MOST_LINE = 2_048
"""Most lines of a task's log that are kept, and most characters of one."""

MOST_OPEN = 1_000
MOST_ENDED = 1_000
"""Most tasks that wait or run, and most ended ones that are listed."""

KEPT = 7 * 86_400.0
"""Seconds for which a task is kept after its end."""


class Spent(msgspec.Struct, frozen=True):
    """The cost of a task so far; the price in millionths of the currency in which the models' prices are given."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    price: int = 0

    @property
    def tokens(self) -> int:
        """All tokens."""
        return self.prompt_tokens + self.completion_tokens


class Creation(msgspec.Struct, frozen=True, kw_only=True):
    """One task; times in seconds since 1970 by the server's clock, 0 for what has not been.

    Attributes:
        spec: what is to be made.
        by: who asked for it.
        about: the tool that it repairs; empty for a new tool.
        result: what came of it, or why it failed.
        attempts: how often it was begun.
        worker: who runs it, or ran it last.
        progress: what it does now, in one line.
        cancelled: whether somebody asked for its end; one that runs ends soon.
        lines: the number of lines that were ever logged; ``log`` has the last of them, where it was asked for.
    """

    id: str
    status: CreationStatus
    spec: str
    by: str = ""
    about: str = ""
    result: str = ""
    created: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    attempts: int = 0
    worker: str = ""
    progress: str = ""
    cancelled: bool = False
    spent: Spent = Spent()
    lines: int = 0
    log: tuple[str, ...] = ()

    @property
    def open(self) -> bool:
        """True while it waits or runs."""
        return self.status in {"queued", "running"}


class ClaimedCreation(msgspec.Struct, frozen=True):
    """A task that this process alone runs, until its lease ends; ``token`` is the fence of everything that it writes."""

    creation: Creation
    token: str

    @property
    def id(self) -> str:
        """The task's id."""
        return self.creation.id


class CreationOverview(msgspec.Struct, frozen=True):
    """The tasks of a namespace: running and queued ones, the oldest first, and ended ones, the latest first; without their logs."""

    running: list[Creation]
    queued: list[Creation]
    recent: list[Creation]


Written = Literal["kept", "cancel", "lost"]
"""``kept``; ``cancel``: it was kept, and the task is to end; ``lost``: another process runs it, or it has ended; nothing was kept."""


HostId = NewType("HostId", str)
"""The id of a host, fresh at each start; its worker has another one."""


class Renewed(NamedTuple):
    """The answer to a renewal.

    Attributes:
        known: how many routes of the host are kept; fewer than it has when some were lost.
        claims: the tools that the host may serve alone, of those that it asked for.
    """

    known: int
    claims: frozenset[str]


class OutputLine(NamedTuple):
    """A line of a program's output.

    Attributes:
        entry: its place, after which to go on; it begins with the milliseconds since 1970 at which it was written.
        host: the host of the program.
        text: the line, without its end.
    """

    entry: str
    host: str
    text: str


class StoredRecord(msgspec.Struct, frozen=True):
    """One record of a conversation.

    Attributes:
        number: its place, from 0; the oldest ones are dropped in time.
        at: when it was kept, in seconds since 1970 by the server's clock.
        document: its JSON.
    """

    number: int
    at: float
    document: bytes


class ConversationInfo(msgspec.Struct, frozen=True):
    """A conversation as an operator sees it; times in seconds since 1970 by the server's clock."""

    user: str
    id: str
    records: int
    used_at: float
    expires_at: float
    held: bool


class TaskRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The place of a task's call.

    Attributes:
        tool, service, queue: what was called.
        call, entry: the ids of the call and of its request.
        created: when, in seconds since 1970.
        timeout: seconds that the call has.
        kept: seconds that record and answer are kept, from ``created``.
        effect: the tool's effect.
        cancelled: when a caller asked for its end, in seconds since 1970; 0 when none did.
        removed: whether it was removed before it ran, so that nobody answers.
    """

    tool: str
    service: str
    queue: str
    call: str
    entry: str
    created: float
    timeout: float
    kept: float
    effect: str = ""
    cancelled: float = 0.0
    removed: bool = False


class TaskFrames(msgspec.Struct, frozen=True):
    """Every frame of a call so far; ``updated`` is when the last one was written, in seconds since 1970, or 0."""

    frames: list[Frame]
    updated: float = 0.0


CHAT = "chat/"
"""Begins the id of a chat's conversation; the rest is the chat's own id."""


class Messenger(msgspec.Struct, frozen=True):
    """The connector of a messenger, as it tells of itself.

    Attributes:
        id: fresh at each start.
        connected: whether its socket is open.
        windows: the chats that it has shown lately.
    """

    id: str
    connected: bool = False
    windows: tuple[str, ...] = ()


class ChatWindow(msgspec.Struct, frozen=True):
    """One chat with the service agent.

    Attributes:
        session_id: id of its conversation, see ``toolbus operate conversations``.
        used_at: seconds since 1970 by the server's clock.
    """

    chat_id: str
    user: str
    session_id: str
    used_at: float
    has_im_window: bool


MOST_RESULTS = 64
"""Most results that are kept of one session."""

MOST_BYTES = 1_048_576
"""Most bytes that are kept of one session."""


ALL_TOOLS = "all tools"
"""Stands for the tools of a service that can't be read."""


class RefusedTool(NamedTuple):
    """A tool whose descriptor can't be used, and why; ``name`` is its place where it has none, or ``ALL_TOOLS``."""

    name: str
    service: str
    reason: str


class ItemChange(NamedTuple):
    """A change of a stored document.

    Attributes:
        expected: what it is now; None for none.
        document: what it becomes; None deletes it.
    """

    key: str
    expected: bytes | None
    document: bytes | None


class Gone(NamedTuple):
    """The end of a service: when its last worker went, in seconds since 1970 by the server's clock, and whether it left by itself."""

    at: float
    left: bool


class ServiceRecord(msgspec.Struct, frozen=True):
    """A service in the registry: its current publication, and whether an instance is live.

    Attributes:
        refused: tools of it that can't be used; the others are in the publication.
        gone: of a service that is not in the registry any more, and of whose publication only ids and owner are known.
    """

    publication: Publication
    live: bool
    refused: tuple[RefusedTool, ...] = ()
    gone: Gone | None = None


class Verdict(msgspec.Struct, frozen=True):
    """The outcome of publishing one request.

    Attributes:
        status: ``queued`` (or joined, when another call with the same key runs already); ``full``; ``absent`` (no such queue);
            ``conflict`` (the idempotency key stands for a call with other arguments); ``late`` (its time was up); ``unknown`` (the
            answer was lost, it may have been queued); ``failed`` (certainly not queued).
        entry: where it is queued, for cancelling it.
        depth: how many requests the full queue holds, queued and running.
        message: why it failed.
    """

    status: Literal["queued", "full", "absent", "conflict", "late", "unknown", "failed"]
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

is_of_toolbus = re.compile(r".+-\d+-[0-9a-f]{6}").fullmatch
"""Tell whether a worker's id looks like those of this implementation: host, pid and random digits."""


class AgentListener(msgspec.Struct, frozen=True):
    """The functions that a broker calls for what arrives for its agent: in the event loop, and they must not block.

    Attributes:
        on_frames: takes in frames of this agent's calls, in the order they were written.
        on_registry: takes in a fresh snapshot, services by id and documents by key, which replaces everything known before; with the
            reason in place of what can't be read.
        on_service: takes in that a service changed, can't be read (with the reason), or is gone (None).
        on_item: takes in that a document changed, or was deleted (None).
        on_replies_lost: takes in that the reply stream had to be made again: frames of running calls may be missing.
        on_failed: takes in that the broker can't go on: nothing arrives any more.
    """

    on_frames: Callable[[Sequence[Frame]], None]
    on_registry: Callable[[Mapping[str, ServiceRecord | RefusedTool], Mapping[str, bytes | RefusedTool]], None]
    on_service: Callable[[str, ServiceRecord | RefusedTool | None], None]
    on_item: Callable[[str, bytes | None], None]
    on_replies_lost: Callable[[], None]
    on_failed: Callable[[ToolbusError], None]


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

    def is_open(self, service: str, user: str, session: str) -> bool:
        """Return whether a session is open here."""

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

    def on_room_wanted(self) -> None:
        """Make room: deliveries that must run alone wait for a worker that holds nothing."""

    def on_cancelled(self, call: str, why: str = "cancelled") -> None:
        """Take in that a caller gave up a call; ``why`` is the type of the error that it has instead."""

    def on_extended(self, call: str, deadline: float) -> None:
        """Take in that a caller with more time joined a call, which may run until ``deadline`` (monotonic seconds) now."""

    def on_lost(self, delivery: Delivery) -> None:
        """Take in that a delivery belongs to another worker now; anything that this one still sends for it is refused."""

    def on_let_go(self, delivery: Delivery, ended: bool) -> None:
        """Take in that a delivery is held no longer, and whether the server has accepted its end.

        It is said of those in the order of their sessions, and of those that may come again and of which something was heard.
        """

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
