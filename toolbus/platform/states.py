"""The state of each recorded tool over all hosts, from the routes that live hosts keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from toolbus.broker.protocols.routes import Routes
from toolbus.platform.records import RecordedTool, State, ToolRoute

# With several hosts, the state that says most about whether the next call is answered.
_RANK: Mapping[State, int] = {"running": 0, "starting": 1, "stopped": 2, "failed": 3}
_decoder = msgspec.json.Decoder(ToolRoute)


class HasRoutes(Protocol):
    """An operator's connection or a bus."""

    @property
    def routes(self) -> Routes:
        """The routes of hosts."""


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


async def states_of(of: HasRoutes, tools: Mapping[str, RecordedTool]) -> dict[str, ToolState]:
    """Return the state of each of these tools, by id.

    Raises:
        BrokerError: the server could not be asked.
    """
    by_tool: dict[str, list[ToolRoute]] = {}
    for host, documents in (await of.routes.all()).items():
        for tool, document in documents.items():
            if tool in tools and (route := _read(host, tool, document)) is not None:
                by_tool.setdefault(tool, []).append(route)
    return {name: _state(tool, by_tool.get(name, ())) for name, tool in tools.items()}


def _read(host: str, tool: str, document: bytes) -> ToolRoute | None:
    """Return a route; None for one that no host of this release wrote."""
    try:
        return msgspec.structs.replace(_decoder.decode(document), tool_id=tool, host=host)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _state(tool: RecordedTool, routes: list[ToolRoute] | tuple[()]) -> ToolState:
    if not routes:
        return ToolState(tool.tool_id)
    best = min(routes, key=lambda route: (_RANK[route.state], route.host))
    sources = best.sources or tool.sources
    return ToolState(
        tool.tool_id,
        best.state,
        tuple(sorted(route.host for route in routes)),
        best.host,
        best.pid,
        best.port,
        best.active_source,
        sources[best.active_source].type if 0 <= best.active_source < len(sources) else "",
        sum(route.instances for route in routes),
        best.since,
        best.restarts,
        best.last_error,
    )
