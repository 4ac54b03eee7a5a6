"""Shared calls that are found again, in any process, by the id of a task."""

from __future__ import annotations

from typing import Protocol

import msgspec

from toolbus.envelope import Frame


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
