"""Measure ``GET /tools`` and the status of the platform with many recorded tools, of which some run.

python -m benchmarks.recorded
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from toolbus import Settings, ToolBus
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.client.tools.tool import ToolGroup
from toolbus.edges.gateway.options import Principal
from toolbus.edges.gateway.supply import Supply
from toolbus.platform.records import RecordedTool, ToolMeta, ToolRoute, ToolSource
from toolbus.platform.states import get_system_status, states_of
from toolbus.platform.store import Records

TOOLS, RUNNING, GROUPS = 200, 20, 20
REPETITIONS = 50
MOST_MS = 50.0
_SCHEMA = {"type": "object", "properties": {name: {"type": "string", "description": "A value."} for name in ("a", "b", "c")}}


def _tools() -> list[RecordedTool]:
    source = ToolSource(type="local", host_dir="/srv/tools/x")
    metas = [
        ToolMeta(
            tool_id=f"tool_{n}", name=f"Tool {n}", description="Does something useful. " * 5, category=f"c{n % 7}", input_schema=_SCHEMA
        )
        for n in range(TOOLS)
    ]
    return [RecordedTool(meta=meta, sources=(source,)) for meta in metas]


async def _times(once: Callable[[], Awaitable[object]]) -> list[float]:
    found: list[float] = []
    for _ in range(REPETITIONS):
        began = time.perf_counter()
        await once()
        found.append((time.perf_counter() - began) * 1000)
    return found


async def measured(settings: Settings) -> dict[str, list[float]]:
    """Return the milliseconds of each repetition, by what was asked."""
    async with Admin(settings) as admin, ToolBus(settings=settings) as bus:
        tools = _tools()
        groups = [ToolGroup(f"g{n}", tool_ids=tuple(tool.tool_id for tool in tools[n * 10 : n * 10 + 10])) for n in range(GROUPS)]
        await Records(admin).put_all([*tools, *groups])
        routes = {
            tool.tool_id: msgspec.json.encode(
                ToolRoute(tool_id=tool.tool_id, sources=tool.sources, state="running" if n < RUNNING else "stopped")
            )
            for n, tool in enumerate(tools)
        }
        await bus.routes.renew("host", 600, changed=routes)
        await bus.tools.catalogue.wait(lambda: len(bus.tools.catalogue.documents.by_key) == TOOLS + GROUPS)
        supply = Supply(bus)

        async def listed() -> object:
            return msgspec.json.encode(await supply.of(Principal("everyone")))

        async def status() -> object:
            records = await Records(admin).all()
            return await states_of(admin, records.tools), await get_system_status(admin, records)

        return {"GET /tools": await _times(listed), "platform status": await _times(status)}


def main() -> int:
    """Measure on a server of its own; return 1 when it takes too long."""
    server = EmbeddedServer()
    server.start()
    try:
        found: dict[str, Any] = asyncio.run(measured(Settings(url=server.url, namespace="bench")))
    finally:
        server.stop()
    for name, times in found.items():
        print(f"{name}: median {statistics.median(times):.1f} ms, at most {max(times):.1f} ms, {TOOLS} tools, {RUNNING} running")
    return int(any(statistics.median(times) > MOST_MS for times in found.values()))


if __name__ == "__main__":
    sys.exit(main())
