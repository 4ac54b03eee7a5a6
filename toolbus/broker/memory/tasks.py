"""The records of tasks of one event loop, for ``memory://``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from toolbus.broker.protocols.tasks import TaskFrames, TaskRecord
from toolbus.envelope import Frame, decode_frames, entry_limit
from toolbus.settings import Settings

if TYPE_CHECKING:
    from toolbus.broker.memory.hub import Hub


class MemoryTasks:
    """``Tasks`` within one event loop.

    Args:
        follow: joins a shared call as one of its readers.
    """

    def __init__(self, hub: Hub, settings: Settings, follow: Callable[[str, str], None]) -> None:
        self._hub = hub
        self._limit = entry_limit(settings.max_frame)
        self.follow = follow

    async def put(self, user: str, id: str, record: TaskRecord) -> None:
        """Keep a record, or replace it while it is kept."""
        now = time.time()
        self._hub.tasks = {key: each for key, each in self._hub.tasks.items() if each.created + each.kept > now}
        if not record.cancelled or (user, id) in self._hub.tasks:
            self._hub.tasks[user, id] = record

    async def get(self, user: str, id: str) -> TaskRecord | None:
        """Return the record of a user's task, or None."""
        record = self._hub.tasks.get((user, id))
        return record if record is not None and record.created + record.kept > time.time() else None

    async def frames(self, call: str) -> TaskFrames | None:
        """Return the frames of a shared call so far, or None."""
        self._hub.forget_old()
        shared = self._hub.shared_calls.get(call)
        if shared is None:
            return None
        frames: list[Frame] = []
        for entry in shared.frames:
            frames += decode_frames(entry, limit=self._limit)[0]
        return TaskFrames(frames, time.time())
