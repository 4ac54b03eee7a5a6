"""The routes of hosts: kept under a lease, claimed by one host, and the output of programs."""

from __future__ import annotations

import msgspec
import pytest

from tests.contract import Place
from tests.servers import eventually
from toolbus.bus.broker.held.routes import MOST_LINE, MOST_LINES, Routes
from toolbus.platform.records import ToolRoute
from toolbus.platform.states import tool_routes

pytestmark = pytest.mark.anyio


def document(tool: str, **fields: object) -> bytes:
    """A route, as a host keeps it."""
    return msgspec.json.encode(ToolRoute(tool_id=tool, **fields))


async def test_routes_go_when_their_hosts_lease_ends(place: Place) -> None:
    """A host that renews stays listed, one that does not is gone with all of its routes; nobody has to remove them."""
    async with place.bus(role="platform") as bus:
        routes: Routes = bus.routes
        assert await tool_routes(routes) == []
        await routes.renew("h1", 60.0, changed={"a": document("a", state="running", pid=7), "b": document("b")})
        await routes.renew("h2", 0.3, changed={"a": document("a")})
        await eventually(lambda: _found(routes, [("a", "h1"), ("b", "h1")]))
        [first, _] = await tool_routes(routes)
        assert (first.state, first.pid) == ("running", 7)
        renewed = await routes.renew("h1", 60.0, changed={}, gone=["a"])
        assert (renewed.known, set(renewed.claims)) == (1, set())
        assert await _found(routes, [("b", "h1")])
        await routes.leave("h1", [])
        assert await routes.all() == {}


async def _found(routes: Routes, wanted: list[tuple[str, str]]) -> bool:
    return [(each.tool_id, each.host) for each in await tool_routes(routes)] == wanted


async def test_a_host_learns_that_its_routes_were_lost(place: Place) -> None:
    """The renewal tells how many are kept, so that a host tells all of them again after the server forgot them."""
    async with place.bus(role="platform") as bus:
        await bus.routes.renew("h1", 60.0, changed={"a": document("a")})
        await bus.routes.leave("h1", [])
        assert (await bus.routes.renew("h1", 60.0, changed={})).known == 0


async def test_one_host_claims_a_tool_until_its_lease_ends(place: Place) -> None:
    """The second host gets it when the first one gives it up, or does not renew."""
    async with place.bus(role="platform") as bus:
        routes: Routes = bus.routes
        assert (await routes.renew("h1", 60.0, changed={}, claims=["a", "b"])).claims == {"a", "b"}
        assert (await routes.renew("h2", 60.0, changed={}, claims=["a", "b"])).claims == set()
        await routes.release("h2", ["a"])
        assert (await routes.renew("h2", 60.0, changed={}, claims=["a"])).claims == set()
        await routes.release("h1", ["a"])
        assert (await routes.renew("h2", 60.0, changed={}, claims=["a", "b"])).claims == {"a"}
        # It renews for a short time only, and then no more.
        await routes.renew("h1", 0.2, changed={}, claims=["b"])
        await eventually(lambda: _claimed(routes, "h2", "b"))


async def _claimed(routes: Routes, host: str, tool: str) -> bool:
    return tool in (await routes.renew(host, 60.0, changed={}, claims=[tool])).claims


async def test_more_routes_than_go_in_one_write_are_all_kept(place: Place) -> None:
    """A host with very many tools tells all of them, and its claims count once."""
    async with place.bus(role="platform") as bus:
        many = {f"t{number}": document(f"t{number}") for number in range(1_201)}
        renewed = await bus.routes.renew("h1", 60.0, changed=many, claims=["a"])
        assert (renewed.known, set(renewed.claims)) == (1_201, {"a"})
        assert len(await tool_routes(bus.routes)) == 1_201


async def test_output_is_bounded_and_read_from_any_place(place: Place) -> None:
    """The latest lines come first to who asks for the end, later ones to who follows; old ones and the rest of long ones go."""
    async with place.bus(role="platform") as bus:
        routes: Routes = bus.routes
        assert await routes.output("a") == []
        await routes.write("a", "h1", ["one", "two"])
        await routes.write("b", "h1", ["other"])
        lines = await routes.output("a", 1)
        assert [(line.host, line.text) for line in lines] == [("h1", "two")]
        await routes.write("a", "h2", ["x" * 5_000, "\ud800 half"])
        long, half = await routes.output_after("a", lines[0].entry)
        assert (long.text, half.host) == ("x" * MOST_LINE, "h2")
        assert await routes.output_after("a", half.entry) == []
        for _ in range(3):
            await routes.write("a", "h1", [f"line {number}" for number in range(2 * MOST_LINES)])
        kept = await routes.output("a", 10_000)
        assert kept[-1].text == f"line {2 * MOST_LINES - 1}"
        assert len(kept) < 2 * MOST_LINES


async def test_what_a_stranger_wrote_is_left_out(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """A route that is no document, and a key of a wrong type, keep nobody from the others."""
    import redis

    from toolbus.bus.broker.server.keys import Keys

    keys = Keys(place.settings.namespace)
    async with place.bus(role="platform") as bus:
        with redis.Redis.from_url(place.settings.url) as client:
            client.set(keys.hosts, "nonsense", px=60_000)
            client.set(keys.single("a"), "h1", px=60_000)
            client.lpush(keys.output("a"), "nonsense")
            client.pexpire(keys.output("a"), 60_000)
        await bus.routes.renew("h1", 60.0, changed={"a": b"nonsense", "b": document("b")}, claims=["a"])
        await bus.routes.write("a", "h1", ["one"])
        assert [route.tool_id for route in await tool_routes(bus.routes)] == ["b"]
        assert [line.text for line in await bus.routes.output("a")] == ["one"]
    assert "value.unreadable" in caplog.text
