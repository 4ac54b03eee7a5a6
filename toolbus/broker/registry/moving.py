"""Move documents of the registry to the tables of their kinds, from where an older toolbus has put them."""

from __future__ import annotations

from collections.abc import Iterable

from toolbus.broker.keys import Keys
from toolbus.broker.protocols.registry import ItemChange
from toolbus.broker.reading import skip, text
from toolbus.broker.registry.registry import RedisRegistry
from toolbus.broker.transport.replies import scan_hash
from toolbus.broker.transport.transport import Transport
from toolbus.naming import key_flaw
from toolbus.results import EnvelopeError


async def misplaced_documents(link: Transport, keys: Keys) -> dict[str, bytes]:
    """Return the documents that stand in the table that workers may write, and don't belong there, sorted by key.

    Nobody uses them. A person looks at them before they are moved, since a stolen worker's credential can write them.

    Raises:
        BrokerError: the server could not be asked.
    """
    found: dict[str, bytes] = {}
    async for name, document in scan_hash(link, keys.items):
        try:
            key = text(name)
        except EnvelopeError as error:
            skip(keys.items, error, field=name)
            continue
        if keys.table(key) != keys.items and not key_flaw(key):
            found[key] = document
    return dict(sorted(found.items()))


async def move_documents(link: Transport, keys: Keys, registry: RedisRegistry, sought: Iterable[str]) -> dict[str, bool]:
    """Move misplaced documents of these keys; return for each that was there whether it is used now.

    One for which there is a newer document in its own table is removed. A move that was interrupted is made again by the next one.

    Raises:
        BrokerError: the server could not be reached, or refuses it: operators may do this.
        ConfigurationError: one is too long.
    """
    there = await misplaced_documents(link, keys)
    moved: dict[str, bool] = {}
    for key in sought:
        if key not in there:
            continue
        # A repetition finds the same document, and counts as moved.
        moved[key] = not await registry.replace_items([ItemChange(key, None, there[key])])
        await link.execute("HDEL", keys.items, key, repeatable=True)
    return moved
