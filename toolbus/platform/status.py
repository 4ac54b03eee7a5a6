"""``get_system_status``: tools, tasks of the coding agent and chats of the service agent, in one document."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from toolbus.broker.protocols.chats import Chats
from toolbus.broker.protocols.creations import Creation, Creations
from toolbus.display import shortened
from toolbus.platform.store import Snapshot

_MOST_TASKS = 20
_MOST_WINDOWS = 200
_MOST_SPEC = 1_000


class System(Protocol):
    """An operator's connection or a bus."""

    @property
    def creations(self) -> Creations:
        """The tasks of coding agents."""

    @property
    def chats(self) -> Chats:
        """The chats with the service agent."""


async def get_system_status(of: System, records: Snapshot) -> dict[str, Any]:
    """Return the state of the platform.

    Args:
        of: an ``Admin`` or a ``ToolBus``, open.
        records: ``await Records(of).all()``.

    Returns:
        ``tools`` (``total``: recorded ones, ``active``: those whose status is ``active``), ``coding_agent`` and ``service_agent``.

    Raises:
        BrokerError: the server could not be asked.
    """
    tasks, windows, messenger = await asyncio.gather(
        of.creations.overview(_MOST_TASKS), of.chats.windows(_MOST_WINDOWS), of.chats.messenger()
    )
    latest = [*tasks.running, *reversed(tasks.queued), *tasks.recent]
    return {
        "tools": {"total": len(records.tools), "active": sum(tool.meta.status == "active" for tool in records.tools.values())},
        "coding_agent": {
            "running_count": len(tasks.running),
            "running_task_ids": [each.id for each in tasks.running],
            "queued_count": len(tasks.queued),
            "recent_tasks": [_task(each) for each in latest[:_MOST_TASKS]],
        },
        "service_agent": {
            "total_windows": len(windows),
            "im_connected": messenger is not None and messenger.connected,
            "windows": [{"chat_id": each.chat_id, "session_id": each.session_id, "has_im_window": each.has_im_window} for each in windows],
        },
    }


def _task(task: Creation) -> dict[str, str]:
    return {"task_id": task.id, "status": task.status, "task_spec": shortened(task.spec, _MOST_SPEC)}
