"""The state of each recorded tool over all hosts, from the routes that live hosts keep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import Creation, CreationOverview
from toolbus.bus.support.display import shortened
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.platform.records import RecordedTool, State, ToolRoute
from toolbus.platform.store import Snapshot

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.broker.held.routes import Routes
    from toolbus.bus.client.bus import ToolBus

# With several hosts, the state that says most about whether the next call is answered.
_RANK: Mapping[State, int] = {"running": 0, "starting": 1, "stopped": 2, "failed": 3}


class ToolState(msgspec.Struct, frozen=True):
    """The places where a recorded tool runs.

    Attributes:
        state: the best of its states at the hosts; ``stopped`` without a host.
        hosts: ids of the live hosts that serve it.
        host, pid, port: where it is in that state.
        active_source: index of the source that is used there.
        source: the type of that source.
        instances: how many run, at all hosts.
        since, restarts, last_error: see ``ToolRoute``.
    """

    tool_id: str
    state: State = "stopped"
    hosts: tuple[str, ...] = ()
    host: str = ""
    pid: int = 0
    port: int = 0
    active_source: int = 0
    source: str = ""
    instances: int = 0
    since: float = 0.0
    restarts: int = 0
    last_error: str = ""


_routes = msgspec.json.Decoder(ToolRoute)


async def tool_routes(routes: Routes) -> list[ToolRoute]:
    """Return where each recorded tool runs, at every live host, by tool and host; ``bus.routes`` and ``admin.routes`` have them.

    What can't be read is left out, and told.

    Raises:
        BrokerError: the server could not be asked.
    """
    found: list[ToolRoute] = []
    for host, documents in (await routes.all()).items():
        for tool, document in documents.items():
            try:
                found.append(msgspec.structs.replace(_routes.decode(document), tool_id=tool, host=host))
            except DECODE_ERRORS as error:
                telemetry.log.warning("value.unreadable", key=f"routes:{host} {tool}", error=str(error), advice="delete it")
    return sorted(found, key=lambda route: (route.tool_id, route.host))


async def states_of(of: Admin | ToolBus, tools: Mapping[str, RecordedTool]) -> dict[str, ToolState]:
    """Return the state of each of these tools, by id.

    Raises:
        BrokerError: the server could not be asked.
    """
    by_tool: dict[str, list[ToolRoute]] = {}
    for route in await tool_routes(of.routes):
        by_tool.setdefault(route.tool_id, []).append(route)
    return {name: _state(tool, by_tool.get(name, [])) for name, tool in tools.items()}


def _state(tool: RecordedTool, routes: list[ToolRoute]) -> ToolState:
    if not routes:
        return ToolState(tool.tool_id)
    best = min(routes, key=lambda route: (_RANK[route.state], route.host))
    sources = best.sources or tool.sources
    return msgspec.structs.replace(
        msgspec.convert(best, ToolState, from_attributes=True),
        hosts=tuple(route.host for route in routes),
        source=sources[best.active_source].type if 0 <= best.active_source < len(sources) else "",
        instances=sum(route.instances for route in routes),
    )


_MOST_TASKS = 20
_MOST_WINDOWS = 200
_MOST_SPEC = 1_000


async def get_system_status(of: Admin | ToolBus, records: Snapshot) -> dict[str, Any]:
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
            "recent_tasks": [
                {"task_id": each.id, "status": each.status, "task_spec": shortened(each.spec, _MOST_SPEC)} for each in latest[:_MOST_TASKS]
            ],
        },
        "service_agent": {
            "total_windows": len(windows),
            "im_connected": messenger is not None and messenger.connected,
            "windows": [{"chat_id": each.chat_id, "session_id": each.session_id, "has_im_window": each.has_im_window} for each in windows],
        },
    }


_DAY = 86_400
_MILLIONTHS = 1e6


class Cost(msgspec.Struct, frozen=True):
    """The tokens and the price of one task.

    Attributes:
        tool: that it made or repairs; empty when there is none.
        user: who asked for it; ``repair`` for a repair.
        price: by the models' prices of the deployment.
    """

    tool: str
    task: str
    user: str
    status: str
    prompt_tokens: int
    completion_tokens: int
    price: float


def costs_of(tasks: CreationOverview, days: int) -> list[Cost]:
    """Return the costs of the tasks of the last days (UTC, today is the first), by tool and age."""
    first = (time.time() // _DAY - days + 1) * _DAY
    chosen = [each for each in (*tasks.running, *tasks.queued, *tasks.recent) if max(each.ended, each.started, each.created) >= first]
    return [_cost(each) for each in sorted(chosen, key=lambda each: (tool_of(each), each.created, each.id))]


def tool_of(task: Creation) -> str:
    """Return the tool that a task made or repairs; empty when there is none."""
    if task.about or task.status != "done":
        return task.about
    try:
        found = msgspec.json.decode(task.result, type=dict[str, object])
    except DECODE_ERRORS:
        return ""
    tool = found.get("tool_id", "")
    return tool if isinstance(tool, str) else ""


def _cost(task: Creation) -> Cost:
    spent = task.spent
    price = spent.price / _MILLIONTHS
    return Cost(tool_of(task), task.id, task.by, task.status, spent.prompt_tokens, spent.completion_tokens, price)
