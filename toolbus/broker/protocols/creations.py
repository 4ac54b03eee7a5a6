"""The tasks of coding agents, which outlive every process."""

from __future__ import annotations

from typing import Literal, Protocol, get_args

import msgspec

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
