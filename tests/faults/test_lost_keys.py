"""Keys and fields that an operator deletes, or the server evicts, under running workers and agents: they come back within a lease."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.faults import hostile
from tests.faults.canary import SERVICE, Canary
from tests.servers import eventually
from tests.tiers import some
from toolbus import ToolBus
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.server.keys import Keys

pytestmark = pytest.mark.anyio

_KEYS = Keys("x")
_PLACES = hostile.places(_KEYS, hostile.Names("s", "a", "i", "c", "d", "2026-01-01"))
# The others belong to one call, confirmation or day.
_ALL = {**_KEYS.shared_by_all(), **_KEYS.of_service("s", "s"), **_KEYS.of_agent("a")}
LASTING = [name for name in hostile.KEY_NAMES if _PLACES[name].key in _ALL]
# Beats come three times a lease, and the tables are looked at once a lease.
WITHIN = 4.0


def tables(canary: Canary) -> dict[str, set[bytes]]:
    """Return the fields of the tables that make up the registration, and whether the worker has a lease."""
    keys, client = canary.keys, canary.client
    found: dict[str, Any] = {
        key: set(client.hkeys(key)) for key in (keys.services, keys.names, keys.instances(SERVICE), keys.fence(SERVICE))
    }
    # The token is written with the next change.
    found[keys.meta] = set(client.hkeys(keys.meta)) & {b"start"}
    found[keys.live] = set(client.zrange(keys.live, 0, -1))
    # The counter of a consumer is written when it first loses an entry.
    found[keys.fence(SERVICE)] &= {b"generation"}
    return found


def missing(canary: Canary, before: dict[str, set[bytes]]) -> dict[str, set[bytes]]:
    """Return what was there before, and is not."""
    now = tables(canary)
    return {key: fields - now[key] for key, fields in before.items() if fields - now[key]}


async def whole(canary: Canary, before: dict[str, set[bytes]]) -> None:
    """Wait until nothing is missing."""
    try:
        await eventually(lambda: not missing(canary, before), timeout=WITHIN)
    except pytest.fail.Exception:
        assert missing(canary, before) == {}


async def healed(canary: Canary, before: dict[str, set[bytes]]) -> None:
    """Wait until the registration is whole, and a new agent finds and calls its tools."""
    await whole(canary, before)
    async with ToolBus(settings=canary.settings) as another:
        assert {"canary_echo", "canary_pay"} <= set(another.tools)
        await canary.sings(another)
    await canary.sings()
    async with Admin(canary.settings) as admin:
        assert SERVICE in {each.publication.service.id for each in await admin.services()}
    canary.is_quiet()


@pytest.mark.parametrize("name", some(["fence", "live", "names", "queue", "replies", "services"], LASTING))
async def test_a_deleted_key_comes_back(canary: Canary, name: str) -> None:
    """Nobody needs to restart anything."""
    before = tables(canary)
    await asyncio.to_thread(canary.client.delete, canary.place(name).key)
    await healed(canary, before)


async def test_a_deleted_registry_comes_back(canary: Canary) -> None:
    """All of its keys at once."""
    before = tables(canary)
    keys = canary.keys
    canary.client.delete(keys.services, keys.names, keys.meta, keys.instances(SERVICE), keys.live, keys.pulse, keys.log, keys.items)
    await healed(canary, before)


async def test_a_worker_registers_again_in_a_full_memory(canary: Canary) -> None:
    """Workers are what empties it, so one that has lost its lease has another."""
    before = tables(canary)
    canary.client.config_set("maxmemory", 1)
    try:
        canary.client.delete(canary.keys.live)
        await whole(canary, before)
    finally:
        canary.client.config_set("maxmemory", 0)
    await healed(canary, before)


@pytest.mark.parametrize("name", some(["services"], ["services", "instances", "meta", "fence"]))
async def test_deleted_fields_come_back(canary: Canary, name: str) -> None:
    """One after the other; but a single name that is missing was freed for another owner."""
    before, key = tables(canary), canary.place(name).key
    fields = canary.client.hkeys(key)
    assert fields
    for field in fields:
        canary.client.hdel(key, field)
        await whole(canary, before)
    await healed(canary, before)
