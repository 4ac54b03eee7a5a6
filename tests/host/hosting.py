"""Hosts in the test's own process, with programs that are played, and records of tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tests.contract import Place
from tests.host.fakes import FakeRunner
from tests.servers import eventually
from toolbus import ToolBus
from toolbus.bus.broker.admin import Admin
from toolbus.platform.host.host import Host
from toolbus.platform.records import RECORD_KEY, RecordedTool, Running, ToolMeta, ToolRoute, ToolSource
from toolbus.platform.states import tool_routes
from toolbus.platform.store import Records


def recorded(tool: str, *, hosts: tuple[str, ...] = (), folder: str = "a", description: str = "Do it.", **running: Any) -> RecordedTool:
    """A tool with one local source."""
    return RecordedTool(
        meta=ToolMeta(tool_id=tool, description=description),
        sources=(ToolSource(type="local", host_dir=folder, hosts=hosts),),
        running=Running(**running),
    )


def revised(record: RecordedTool, **changes: Any) -> RecordedTool:
    """Its next revision."""
    return msgspec.structs.replace(record, revision=record.revision + 1, **changes)


class Stage:
    """A namespace with records, hosts and a bus."""

    def __init__(self, place: Place, bus: ToolBus, records: Records, admin: Admin) -> None:
        self.place = place
        self.bus = bus
        self.records = records
        self.admin = admin

    @asynccontextmanager
    async def host(self, runner: FakeRunner, *labels: str, name: str = "", **changes: Any) -> AsyncIterator[Host]:
        """Run a host whose programs ``runner`` plays; it leaves in order at the end."""

        async def make(kind: str) -> Any:
            return runner

        host = Host(self.place.settings_of("platform", changes), labels=labels, name=name, make=make)
        opened = asyncio.Event()
        running = asyncio.create_task(host.run(opened.set))
        waiting = asyncio.create_task(opened.wait())
        await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
        try:
            yield host
        finally:
            waiting.cancel()
            running.cancel()
            await asyncio.wait([running])
            if not running.cancelled():
                running.result()
            assert not runner.alive, "a program was left"

    async def routes(self) -> dict[tuple[str, str], ToolRoute]:
        """Return where tools run, by tool and host."""
        return {(route.tool_id, route.host): route for route in await tool_routes(self.bus.routes)}

    async def route(self, tool: str, state: str) -> ToolRoute:
        """Wait until a tool is in a state somewhere, and return its route."""

        async def found() -> ToolRoute | None:
            routes = await tool_routes(self.bus.routes)
            return next((route for route in routes if route.tool_id == tool and route.state == state), None)

        result = await eventually(found, timeout=20.0)
        assert result is not None
        return result

    async def gone(self, tool: str) -> None:
        """Wait until a tool can't be called, and no host tells where it runs."""

        async def is_gone() -> bool:
            return tool not in self.bus.tools and all(key[0] != tool for key in await self.routes())

        await eventually(is_gone, timeout=20.0)

    async def remove(self, tool: str) -> None:
        """Delete a record."""
        assert await self.records.remove(f"{RECORD_KEY}{tool}")


@asynccontextmanager
async def staged(place: Place) -> AsyncIterator[Stage]:
    """A namespace to host tools in."""
    async with Admin(place.settings) as admin, place.bus(role="platform") as bus:
        yield Stage(place, bus, Records(admin), admin)
