"""Streams and log entries that keep agents from hearing anything: agents notice within about a lease, and not at the next reconcile."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults import hostile
from tests.faults.canary import NAMES, Canary
from tests.servers import eventually
from toolbus.broker.keys import Keys

pytestmark = pytest.mark.anyio

_PLACES = hostile.places(Keys("x"), hostile.Names("s", "a", "i", "c", "d", "2026-01-01"))
STREAMS = [name for name in NAMES if _PLACES[name].kind == "stream"]
# A lease, a read that waits for two seconds, and a loaded machine; agents reconcile after 48 s at the earliest.
WITHIN = 15.0


@pytest.mark.parametrize("name", STREAMS)
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
