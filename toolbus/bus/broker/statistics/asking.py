"""Ask the workers of a namespace for their statistics."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from toolbus.bus import telemetry
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.server.reading import document, shown, text
from toolbus.bus.broker.statistics.answers import InstanceAnswer
from toolbus.bus.broker.transport.command import fields_of
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.links import pages, server_ms
from toolbus.bus.values.envelope import new_id
from toolbus.bus.values.results import EnvelopeError

PATIENCE = 1.0
"""Seconds to wait for answers; workers that do not block their event loops answer within milliseconds."""

_MOST_INSTANCES = 10_000
_PAGE = 100
# Seconds between two looks for answers: short at first, for those who watch.
_FIRST_LOOK = 0.002
_LONGEST_LOOK = 0.05


class Statistics(NamedTuple):
    """The statistics of workers.

    Attributes:
        answers: by instance.
        silent: the instances whose leases last and which did not answer in time, each with its services.
        refusal: why the server takes no answers, with its code first; empty when it does, or when there are some and none is missing.
    """

    answers: dict[str, InstanceAnswer]
    silent: dict[str, tuple[str, ...]]
    refusal: str = ""


async def ask(link: Link, keys: Keys, *, service: str = "", patience: float = PATIENCE) -> Statistics:
    """Ask all workers, or those of one service, and wait until each has answered, for at most ``patience`` seconds.

    Anything may stand where the answers are expected: what no live worker could have written is left out.

    Raises:
        BrokerError: the server could not be asked.
    """
    expected = await _instances(link, keys, service)
    if not expected:
        return Statistics({}, {})
    question = new_id()
    key = keys.answers(question)
    until = time.monotonic() + patience
    # Also for one service: on a service's own channel, whoever may ask could cancel its calls.
    await link.execute("PUBLISH", keys.wake_all, f"stats {question}")
    found: dict[str, InstanceAnswer] = {}
    after, wait = b"-", _FIRST_LOOK
    try:
        while len(found) < len(expected):
            after = await _read(link, key, after, expected, found)
            left = until - time.monotonic()
            if len(found) >= len(expected) or left <= 0:
                break
            await asyncio.sleep(min(wait, left))
            wait = min(2 * wait, _LONGEST_LOOK)
    finally:
        # Otherwise there is no key, and a server that refuses writes would hold up what is asked next.
        if found:
            link.send(("DEL", key), repeatable=False)
    return Statistics(dict(sorted(found.items())), {name: expected[name] for name in sorted(expected.keys() - found.keys())})


async def _instances(link: Link, keys: Keys, service: str) -> dict[str, tuple[str, ...]]:
    """Return the instances whose leases last, each with its services."""
    now = int(await server_ms(link))
    members = await link.execute("ZRANGE", keys.live, now, "+inf", "BYSCORE", "LIMIT", 0, _MOST_INSTANCES)
    found: dict[str, list[str]] = {}
    for member in members:
        try:
            served, _, instance = text(member).rpartition("/")
        except EnvelopeError:
            continue
        if served and instance and (not service or served == service):
            found.setdefault(instance, []).append(served)
    return {instance: tuple(sorted(services)) for instance, services in found.items()}


async def _read(link: Link, key: str, after: bytes, expected: Iterable[str], found: dict[str, InstanceAnswer]) -> bytes:
    """Take in the answers after an entry; return the last entry that was read."""
    async for entries in pages(link, key, _PAGE, after):
        for entry, flat in entries:
            after = b"(" + entry
            try:
                answer = document(fields_of(flat).get(b"a", b""), InstanceAnswer)
            except EnvelopeError as error:
                telemetry.log.warning("statistics.unreadable", entry=shown(entry), error=str(error))
                continue
            if answer.instance in expected:
                found.setdefault(answer.instance, answer)
    return after


def merged(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums of counts by name."""
    found = Counter[str]()
    for each in counts:
        found.update(each)
    return dict(found)
