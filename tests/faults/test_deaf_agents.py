"""Streams and log entries that keep agents from hearing anything: agents notice within about a lease, and not at the next reconcile."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults import hostile
from tests.faults.canary import SERVICE, Canary
from tests.servers import eventually
from tests.tiers import some
from toolbus import Worker, tool
from toolbus.bus.broker.server.keys import Keys

pytestmark = pytest.mark.anyio

_PLACES = hostile.places(Keys("x"), hostile.Names("s", "a", "i", "c", "d", "2026-01-01"))
STREAMS = [name for name in hostile.KEY_NAMES if _PLACES[name].kind == "stream"]
# The read of an agent's own stream waits for two seconds at the server.
QUICK = [each for each in STREAMS if each != "replies"]
# A lease, a read that waits for two seconds, and a loaded machine; agents reconcile after 48 s at the earliest.
WITHIN = 15.0


@tool(service="guests", effect="read")
async def late_guest() -> str:
    """Come late."""
    return "late"


@pytest.mark.parametrize("name", some(QUICK, STREAMS))
async def test_a_stream_whose_last_id_is_the_highest_deafens_nobody(canary: Canary, name: str) -> None:
    """No entry that a reader could see tells of it."""
    place = canary.place(name)
    if not canary.client.exists(place.key):
        canary.client.xadd(place.key, {"o": "1"}, id="1-1")
    canary.client.execute_command("XSETID", place.key, hostile.HIGHEST)
    async with asyncio.timeout(WITHIN):
        await canary.sings()
    canary.is_quiet()
    canary.forget(place)


@pytest.mark.usefixtures("slow")
async def test_a_reply_stream_that_ends_before_what_was_read_is_read_from_its_start(canary: Canary) -> None:
    """Its entries have lower ids than the one after which the agent reads."""
    replies = canary.place("replies").key
    canary.client.xadd(replies, {"o": "1"}, id="99999999999999-1")
    await eventually(lambda: canary.client.xlen(replies) == 0)
    with canary.client.pipeline() as pipe:
        pipe.delete(replies).xadd(replies, {"o": "1"}).execute()
    async with asyncio.timeout(WITHIN):
        await canary.sings()
    canary.is_quiet()


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("op", ["gone", "up", "down"])
async def test_a_forged_change_of_the_registry_is_undone(canary: Canary, op: str) -> None:
    """The tables know nothing of it, however well it fits behind the last entry."""
    token = canary.client.hget(canary.keys.meta, "token")
    canary.client.xadd(canary.keys.log, {"op": op, "key": SERVICE, "doc": "", "token": "forged", "prev": token})
    await eventually(lambda: "canary_echo" not in canary.bus.tools)
    await eventually(lambda: "canary_echo" in canary.bus.tools, timeout=WITHIN)
    await canary.sings()
    canary.is_quiet()
    assert canary.said()["registry.out_of_step"] == 1


@pytest.mark.usefixtures("slow")
async def test_a_log_that_ends_before_what_was_read_is_followed_again(canary: Canary) -> None:
    """Its new entries have lower ids than the one after which the agent reads."""
    log, token = canary.keys.log, canary.client.hget(canary.keys.meta, "token")
    # It brings the token of the tables, so that nothing is missed before the next change.
    canary.client.xadd(log, {"op": "gone", "key": SERVICE, "doc": "", "token": token, "prev": token}, id="99999999999999-1")
    await eventually(lambda: "canary_echo" not in canary.bus.tools)
    canary.client.delete(log)
    async with Worker(late_guest, settings=canary.settings):
        await canary.bus.wait_for_tool("late_guest", WITHIN)
    await canary.sings()
    canary.is_quiet()
