"""Snapshots of what the server holds at one moment."""

from __future__ import annotations

import time
from typing import Any

import redis.asyncio as aredis

from tests.chaos.history import Key, Queue, State

_LETTER = 4000


async def take(client: aredis.Redis, namespace: str, name: str, *, workers: tuple[int, ...] = ()) -> State:
    """Everything in a namespace: queues, keys, leases and dead letters."""
    prefix = f"tb:{{{namespace}}}:"
    names = sorted([_text(key) async for key in client.scan_iter(match=f"{prefix}*", count=1000)])
    pipeline = client.pipeline(transaction=False)
    for key in names:
        pipeline.pttl(key)
    ttls = await pipeline.execute()
    seconds, micros = await client.time()
    now = seconds * 1000 + micros / 1000
    leases = await client.zrange(f"{prefix}live", 0, -1, withscores=True)
    letters: list[tuple[str, str, str]] = []
    for key in names:
        if key.startswith(f"{prefix}dlq:"):
            letters += [_letter(fields) for _, fields in await client.xrange(key)]
    return State(
        time.monotonic(),
        name,
        queues=tuple([await _queue(client, key) for key in names if key.startswith(f"{prefix}q:")]),
        # -2: it went away meanwhile.
        keys=tuple(Key(key.removeprefix(prefix), ttl) for key, ttl in zip(names, ttls, strict=True) if ttl != -2),
        live=tuple(_instance(member) for member, end in leases if end >= now),
        dead=tuple(_instance(member) for member, end in leases if end < now),
        letters=tuple(letters),
        workers=workers,
    )


async def _queue(client: aredis.Redis, key: str) -> Queue:
    length = await client.xlen(key)
    try:
        pending = (await client.xpending(key, "g"))["pending"]
        consumers = await client.xinfo_consumers(key, "g")
    except aredis.ResponseError:
        # No group: nobody has registered since it was destroyed.
        return Queue(key, length, 0, ())
    return Queue(key, length, pending, tuple(_text(consumer["name"]) for consumer in consumers))


def at_rest(state: State) -> bool:
    """Return whether nothing waits or runs, and nobody who is dead is still listed."""
    empty = all(queue.length == 0 and queue.pending == 0 for queue in state.queues)
    return empty and not state.dead and not strangers(state)


def strangers(state: State) -> list[str]:
    """Consumers without a lease. A name that begins with ``~`` is toolbus's own, not a process's."""
    live = set(state.live)
    return [name for queue in state.queues for name in queue.consumers if name not in live and not name.startswith("~")]


def _letter(fields: dict[Any, Any]) -> tuple[str, str, str]:
    found = {_text(name): _text(value) for name, value in fields.items()}
    return found.get("reason", ""), found.get("entry", ""), found.get("r", "")[:_LETTER]


def _instance(member: Any) -> str:
    return _text(member).partition("/")[2]


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
