"""Steps on what features keep on the server: items, tasks, conversations, chats, routes, tokens, results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Literal, NamedTuple, NewType, Protocol, Self, get_args

import msgspec

from toolbus.bus.values.descriptors import Publication
from toolbus.bus.values.envelope import Frame
from toolbus.bus.values.tokens import TokenRecord

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


class Creations(Protocol):
    """The tasks of a namespace.

    Attributes:
        lease: seconds for which a process holds a task without a renewal.
        changes: counts what this process heard of changes of tasks.
    """

    lease: float
    changes: int

    async def submit(self, spec: str, *, by: str = "", key: str = "", about: str = "") -> Creation:
        """Queue a task and return it; with a ``key``, the same one however often it is submitted by the same user while it is kept.

        Raises:
            ConfigurationError: the spec is empty or too long, or the key was another task's.
            ToolError: ``overloaded``: too many tasks wait or run.
            BrokerError: the server refuses.
        """

    async def get(self, id: str) -> Creation | None:
        """Return a task with its log; None when there is none.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def overview(self, recent: int = 20) -> CreationOverview:
        """Return the tasks that wait or run, and so many that have ended.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def cancel(self, id: str) -> CreationStatus | None:
        """End a task: a queued one at once, a running one as soon as its process hears of it; return its status now, None without one.

        Raises:
            BrokerError: the server refuses.
        """

    async def claim(self, worker: str) -> ClaimedCreation | None:
        """Begin the oldest queued task, or go on with one whose process has died; None when there is none.

        Raises:
            BrokerError: the server refuses.
        """

    async def write(
        self,
        claimed: ClaimedCreation,
        *,
        first: int = 0,
        lines: tuple[str, ...] = (),
        progress: str | None = None,
        spent: Spent | None = None,
    ) -> Written:
        """Renew the lease, and keep what is given; writing the same again changes nothing.

        Args:
            claimed: what ``claim`` returned.
            first: number of the first of these lines.
            lines: more of the log.
            progress: what it does now.
            spent: its whole cost so far.

        Raises:
            BrokerError: the server refuses.
        """

    async def end(self, claimed: ClaimedCreation, status: CreationStatus, result: str = "", *, delay: float = 0.0) -> bool:
        """End a task, or, as ``queued``, let another process go on with it after ``delay`` seconds; False when it is another process's.

        Raises:
            BrokerError: the server refuses.
        """

    async def wait(self, seconds: float, since: int) -> None:
        """Wait until ``changes`` is another number than ``since``, and no longer than ``seconds``; not every change is told."""


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


class Routes(Protocol):
    """The routes of hosts: documents by tool, which go when their host's lease ends."""

    async def renew(
        self, host: HostId, lease: float, *, changed: Mapping[str, bytes], gone: Collection[str] = (), claims: Collection[str] = ()
    ) -> Renewed:
        """Keep a host's routes for another ``lease`` seconds, in one write.

        Args:
            host: its id.
            lease: seconds.
            changed: routes by tool that are new or have changed.
            gone: tools that it serves no longer.
            claims: tools that it serves alone, or wants to.

        Raises:
            BrokerError: the server could not be told.
        """

    async def release(self, host: HostId, claims: Collection[str]) -> None:
        """Let other hosts serve tools that this one served alone.

        Raises:
            BrokerError: the server could not be told.
        """

    async def leave(self, host: HostId, claims: Collection[str]) -> None:
        """Forget a host, and release its claims.

        Raises:
            BrokerError: the server could not be told.
        """

    async def all(self) -> dict[HostId, dict[str, bytes]]:
        """Return the routes of every live host: documents by tool, by host.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def write(self, tool: str, host: HostId, lines: Sequence[str]) -> None:
        """Append lines of a program's output; long ones are cut, and the oldest ones go.

        Raises:
            BrokerError: the server could not be told.
        """

    async def output(self, tool: str, most: int = 50) -> list[OutputLine]:
        """Return the latest lines of a tool's programs, the oldest first.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def output_after(self, tool: str, entry: str) -> list[OutputLine]:
        """Return lines after the one at ``entry``, the oldest first; from the first that is kept when that is empty.

        Raises:
            BrokerError: the server could not be asked.
        """


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


class HeldConversation(Protocol):
    """A conversation that this process alone continues, for ``async with``.

    Entering waits while the lease of a process that may be dead goes on, at most one lease, and raises ``ConversationBusy`` when that
    process turns out to live, or ``ConversationError`` when the conversation can't be read. Leaving lets go of it. When another process
    takes it over meanwhile, the body is cancelled and ``ConversationError`` raised.

    Attributes:
        born: a token that no other conversation has, also of the same name before it or after it.
        records: those that are kept, in order.
        now: seconds since 1970 by the server's clock, when it was entered.
    """

    born: str
    records: list[StoredRecord]
    now: float

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    async def append(self, document: bytes, *, keep: int) -> None:
        """Keep one more record, and drop those before the number ``keep``.

        Raises:
            ConversationError: another process holds the conversation, or it was deleted; nothing was written.
            BrokerError: the server refuses.
        """


class Conversations(Protocol):
    """The conversations of a namespace."""

    def hold(self, user: str, id: str) -> HeldConversation:
        """Return a user's conversation, to be held by ``async with``; it begins when there is none.

        Raises:
            ConfigurationError: the id is empty, too long, or has invisible or imitating characters.
        """

    async def newest(self, limit: int) -> list[ConversationInfo]:
        """Return the conversations, those that are used latest first.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def read(self, user: str, id: str) -> list[StoredRecord]:
        """Return the records of a conversation without holding it; none when there is no such conversation.

        Raises:
            ConversationError: it can't be read.
            BrokerError: the server could not be asked.
        """

    async def remove(self, user: str, id: str, *, force: bool = False) -> bool:
        """Delete a conversation; False when there was none.

        Raises:
            ConversationBusy: a process continues it, and ``force`` is not given.
            BrokerError: the server could not be asked.
        """


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


class Tasks(Protocol):
    """The records of tasks, and the frames of their calls."""

    async def put(self, user: str, id: str, record: TaskRecord) -> None:
        """Keep a record, or replace it while it is kept.

        Raises:
            BrokerError: the server can't be reached.
        """

    async def get(self, user: str, id: str) -> TaskRecord | None:
        """Return the record of a user's task; None when there is none, or it is another user's.

        Raises:
            BrokerError: the server can't be reached.
        """

    async def frames(self, call: str) -> TaskFrames | None:
        """Return the frames of a shared call so far; None when they are not kept any more.

        Raises:
            BrokerError: the server can't be reached.
        """

    def follow(self, call: str, reader: str) -> None:
        """Hand the frames of a shared call to the listener, from the first, as those of the call ``reader``; ``forget`` ends it."""


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


class Chats(Protocol):
    """The chats of a namespace."""

    async def windows(self, limit: int) -> list[ChatWindow]:
        """Return the chats, those that are used latest first, of the latest so many conversations.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def messenger(self) -> Messenger | None:
        """Return the messenger's connector that told of itself last; None when none lives.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def tell(self, messenger: Messenger, seconds: float) -> None:
        """Tell of a messenger's connector, which lives for so many seconds from now.

        Raises:
            BrokerError: the server refuses.
        """


class Tokens(Protocol):
    """The records of bearer tokens."""

    async def get(self, id: str) -> TokenRecord | None:
        """Return the record of a token, or None.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def all(self) -> list[TokenRecord]:
        """Return every record, by name.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def add(self, record: TokenRecord) -> None:
        """Store a record.

        Raises:
            BrokerError: the server refuses it.
        """

    async def revoke(self, id: str) -> bool:
        """Delete a record; False when there was none.

        Raises:
            BrokerError: the server refuses it.
        """


MOST_RESULTS = 64
"""Most results that are kept of one session."""

MOST_BYTES = 1_048_576
"""Most bytes that are kept of one session."""


class SessionResults(Protocol):
    """The results of sessions' calls, as documents; those of a session that was not used for the retention time are gone."""

    async def read(self, user: str, session: str) -> list[bytes]:
        """Return what is kept of a session, the oldest first.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def keep(self, user: str, session: str, documents: Sequence[bytes]) -> None:
        """Keep documents of a session; the oldest ones beyond the bounds go. It never raises: the log tells of a server that takes none."""


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


class ServiceRecord(msgspec.Struct, frozen=True):
    """A service in the registry: its current publication, and whether an instance is live.

    Attributes:
        refused: tools of it that can't be used; the others are in the publication.
    """

    publication: Publication
    live: bool
    refused: tuple[RefusedTool, ...] = ()
