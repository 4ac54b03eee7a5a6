"""Steps on what features keep on the server: items, tasks, conversations, chats, routes, tokens, results."""

from __future__ import annotations

from typing import Literal, NamedTuple, NewType, get_args

import msgspec

from toolbus.bus.values.descriptors import Publication
from toolbus.bus.values.envelope import Frame

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


class ServiceRecord(msgspec.Struct, frozen=True):
    """A service in the registry: its current publication, and whether an instance is live.

    Attributes:
        refused: tools of it that can't be used; the others are in the publication.
    """

    publication: Publication
    live: bool
    refused: tuple[RefusedTool, ...] = ()
