"""Tools that one host serves at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.contract import Place
from tests.host.fakes import FakeRunner
from tests.host.hosting import recorded, staged
from tests.servers import eventually
from toolbus import Settings
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.held.routes import Routes
from toolbus.bus.broker.protocols import Renewed
from toolbus.bus.values.results import BrokerUnavailable, ToolbusError
from toolbus.platform.host.host import HostLease
from toolbus.platform.records import ToolRoute

pytestmark = pytest.mark.anyio


async def test_two_hosts_start_a_single_tool_once(place: Place) -> None:
    """A hundred calls at once find one program at one host; when that leaves, the other one takes over."""
    one, two = FakeRunner(delay=0.2), FakeRunner(delay=0.2)
    async with staged(place) as stage:
        await stage.records.put(recorded("alone", single=True, concurrency=100))
        async with stage.host(two, name="two") as later:
            async with stage.host(one, name="one"):
                await stage.bus.wait_for_tool("alone")
                calls = [stage.bus.call("alone", timeout=60.0) for _ in range(100)]
                assert all(result.success for result in await asyncio.gather(*calls))
                assert one.begun + two.begun == 1
                holder = await stage.route("alone", "running")
                assert len(await stage.routes()) == 1
                first = holder.host
            if first == later.id:
                return
            await eventually(lambda: _is_at(stage, later.id), timeout=20.0)
            assert (await stage.bus.call("alone", timeout=60.0, wait=20.0)).success
            assert (one.begun, two.begun) == (1, 1)


async def _is_at(stage: object, host: str) -> bool:
    return ("alone", host) in await stage.routes()


async def test_a_tool_becomes_single_while_it_runs_at_two_hosts(place: Place) -> None:
    """One of them goes on with it, and the other one ends its program."""
    one, two = FakeRunner(delay=0.0), FakeRunner(delay=0.0)
    async with staged(place) as stage:
        await stage.records.put(recorded("becoming", keep_warm=1))
        async with stage.host(one), stage.host(two):
            await eventually(lambda: one.alive and two.alive, timeout=20.0)
            await stage.records.put(recorded("becoming", keep_warm=1, single=True))

            async def is_alone() -> bool:
                return len(one.alive) + len(two.alive) == 1 and len(await stage.routes()) == 1

            await eventually(is_alone, timeout=20.0)


class Server:
    """Routes that can't be reached for a while."""

    def __init__(self, routes: Routes) -> None:
        self.routes = routes
        self.away = False
        self.renewals: list[set[str]] = []

    async def renew(self, host: str, lease: float, **said: Any) -> Renewed:
        if self.away:
            raise BrokerUnavailable("away")
        self.renewals.append(set(said["changed"]))
        return await self.routes.renew(host, lease, **said)


@pytest.fixture
async def board(server: str, namespace: str) -> AsyncIterator[Server]:
    """The routes of a namespace of the test's own."""
    async with Admin(Settings.load({}, url=server, namespace=namespace)) as admin:
        yield Server(admin.routes)


async def test_a_host_believes_in_no_claim_after_its_lease(board: Server) -> None:
    """Cut off for a lease, it serves the tool no more: another host may; back again, it asks anew."""
    heard: list[int] = []
    lease = HostLease(board, "h1", 0.2, lambda: heard.append(1), lambda: False)
    lease.want(["alone"])
    await lease.renew()
    assert (set(lease.claims), len(heard)) == ({"alone"}, 1)
    board.away = True
    until = time.monotonic() + 0.2
    await eventually(lambda: time.monotonic() > until)
    await lease.renew()
    assert (set(lease.claims), len(heard)) == (set(), 2)
    board.away = False

    async def is_another_ones() -> bool:
        return bool((await board.renew("h2", 60.0, changed={}, claims=["alone"])).claims)

    # The server counts in whole milliseconds, and lets go of it in the one after.
    await eventually(is_another_ones, timeout=5.0)
    await lease.renew()
    assert lease.claims == frozenset()


async def test_one_write_tells_everything_that_changed(board: Server) -> None:
    """Changes of many tools go together, those that did not change are not told again, and lost ones are told anew."""
    lease = HostLease(board, "h1", 60.0, lambda: None, lambda: True)
    tools = {f"t{number}" for number in range(200)}
    for each in tools:
        lease.put(ToolRoute(tool_id=each))
    await lease.renew()
    lease.put(ToolRoute(tool_id="t7", state="running"))
    lease.remove("t8")
    await lease.renew()
    await lease.renew()
    assert board.renewals == [tools, {"t7"}, set()]
    await board.routes.leave("h1", [])
    await lease.renew()
    await lease.renew()
    assert board.renewals[-1] == tools - {"t8"}
    assert len((await board.routes.all())["h1"]) == 199


async def test_changes_are_not_lost_while_the_server_is_away(board: Server) -> None:
    """They are told with the first renewal that succeeds."""
    lease = HostLease(board, "h1", 60.0, lambda: None, lambda: True)
    for each in ("a", "b"):
        lease.put(ToolRoute(tool_id=each))
    await lease.renew()
    board.away = True
    lease.put(ToolRoute(tool_id="c"))
    lease.remove("a")
    await lease.renew()
    board.away = False
    await lease.renew()
    assert set((await board.routes.all())["h1"]) == {"b", "c"}


async def test_a_host_that_nobody_can_see_gives_up(board: Server) -> None:
    """When routes are refused for long although the server is there, renewing ends with an error that says so."""
    lease = HostLease(board, "h1", 0.01, lambda: None, lambda: True)
    await lease.renew()
    board.away = True
    until = time.monotonic() + 0.1
    await eventually(lambda: time.monotonic() > until)
    with pytest.raises(ToolbusError, match="could not be renewed"):
        await lease.renew()
