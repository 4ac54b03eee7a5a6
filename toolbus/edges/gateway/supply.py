"""``Supply``: which tools there are, for the listing of the whole platform."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from toolbus.bus.client.bus import ToolBus
from toolbus.bus.client.tools.definitions import description_of, output_schema
from toolbus.bus.client.tools.tool import Tool, groups_of, memberships, runtime_of
from toolbus.bus.support.display import harmless
from toolbus.bus.values.results import BrokerError
from toolbus.edges.gateway.options import Principal
from toolbus.platform.records import RecordedTool, ToolMeta
from toolbus.platform.search import groups_of as groups_of_record
from toolbus.platform.search import runtime_of as runtime_of_record
from toolbus.platform.states import ToolState, states_of
from toolbus.platform.store import LiveRecords, Snapshot


class Supply:
    """Answers what tools there are: those that are served now, and recorded ones that no host serves at the moment."""

    def __init__(self, bus: ToolBus) -> None:
        self._bus = bus
        self._live: LiveRecords | None = None

    async def of(self, principal: Principal) -> dict[str, Any]:
        """Return all runtimes, groups and tools that a principal may see."""
        if self._live is None:
            self._live = LiveRecords(self._bus)
        records = self._live.snapshot()
        states = await self._states(records)
        served = dict(principal.sees(self._bus))
        groups = groups_of(self._bus.tools.catalogue.groups, served)
        of = memberships(groups)
        tools = {name: _served(tool, of.get(name, []), records.tools.get(name), states.get(name)) for name, tool in served.items()}
        catalogue = self._bus.tools.catalogue
        for name, record in records.tools.items():
            # A tool that is served and not seen is not for this principal.
            idle = name not in catalogue.tools and name not in catalogue.services and not catalogue.withholding.refuses(name)
            if idle and name not in tools and _may_see(principal, record, records):
                tools[name] = _idle(record, groups_of_record(record, records.groups), states.get(name))
        listed = [tools[name] for name in sorted(tools)]
        counts = Counter(each["backend_runtime"] for each in listed)
        # Recorded ones without any tool, too.
        seen = sorted({*counts, *(records.runtimes if principal.sees_all else ())})
        names = {name: runtime.name or name for name, runtime in records.runtimes.items()}
        runtimes = [{"backend_runtime": each, "name": names.get(each, each), "tool_count": counts[each]} for each in seen]
        return {"backend_runtimes": runtimes, "groups": list(groups.values()), "tools": listed}

    async def _states(self, records: Snapshot) -> Mapping[str, ToolState]:
        """Return the states of recorded tools; none while the server is away, since the tools are known all the same."""
        if not records.tools:
            return {}
        try:
            return await states_of(self._bus, records.tools)
        except BrokerError:
            return {}


def _may_see(principal: Principal, record: RecordedTool, records: Snapshot) -> bool:
    if principal.tools is not None and record.tool_id not in principal.tools:
        return False
    return principal.groups is None or not principal.groups.isdisjoint(groups_of_record(record, records.groups))


def _served(tool: Tool, groups: list[str], record: RecordedTool | None, state: ToolState | None) -> dict[str, Any]:
    # A worker may serve a tool of this name, too.
    own = record if record is not None and tool.service == record.tool_id else None
    found = _idle(own or RecordedTool(meta=ToolMeta(tool_id=tool.name, stream_support=True)), groups, state)
    if own is None or state is None:
        found["state"] = "running" if tool.available else "stopped"
    return found | {
        "description": description_of(tool),
        "category": tool.category,
        "backend_runtime": runtime_of(tool),
        "input_schema": tool.parameters,
        "output_schema": output_schema(tool.descriptor) or {},
    }


def _idle(record: RecordedTool, groups: list[str], state: ToolState | None) -> dict[str, Any]:
    meta = record.meta
    return {
        "tool_id": meta.tool_id,
        "name": meta.name or meta.tool_id,
        "description": harmless(meta.description),
        "category": meta.category,
        "backend_runtime": runtime_of_record(record),
        "group_ids": groups,
        "tool_slug_ids": list(meta.tool_slug_ids),
        "input_schema": meta.input_schema or {"type": "object"},
        "output_schema": meta.output_schema,
        "stream_support": meta.stream_support,
        "status": meta.status,
        "state": "stopped" if state is None else state.state,
    }
