"""Requests that nobody waits for, queued before the first call: so many that each leaves four bytes behind for each run, and no line."""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import redis.asyncio as aredis

from toolbus import tool
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.values.envelope import Request, encode_request, new_id

SERVICE = "heap"
MOST = 10_000_000
"""Most requests of one run: the oracle keeps eight bytes for each."""

# How long they may wait: a day, as long as any call may take.
_TIMEOUT = 86_400.0
_BATCH = 1000
_NUMBER = array("I").itemsize
# As redrive.lua publishes a dead letter again, many at once.
_PUBLISH = """
local time = redis.call('TIME')
local deadline = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[1])
for i = 2, #ARGV do
  redis.call('XADD', KEYS[1], '*', 'r', ARGV[i], 'd', deadline)
end
"""


def define(history: Path, name: str) -> object:
    """The tool whose runs are counted, for one process."""
    # Unbuffered, so that what a process that is killed has counted is whole.
    file = os.open(history / f"{name}.ticks", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    @tool(service=SERVICE, effect="idempotent")
    async def tick(number: int) -> None:
        """Count a run."""
        os.write(file, number.to_bytes(_NUMBER, "little"))

    return tick


async def publish(client: aredis.Redis, namespace: str, count: int) -> float:
    """Queue the requests 0 to ``count`` - 1 as ``toolbus operate dead redrive`` does, without a reply address; returns the seconds it took.

    It makes the queue, as if workers had been there and gone.
    """
    began = time.monotonic()
    script = client.register_script(_PUBLISH)
    queue = Keys(namespace).queue(SERVICE)
    for first in range(0, count, _BATCH):
        documents = [_document(number) for number in range(first, min(first + _BATCH, count))]
        await script(keys=[queue], args=[int(_TIMEOUT * 1000), *documents])
    return time.monotonic() - began


def _document(number: int) -> bytes:
    call = new_id()
    request = Request(call, "", SERVICE, "tick", arguments={"number": number}, timeout=_TIMEOUT, effect="idempotent", idempotency_key=call)
    return encode_request(request, limit=10_000)


def count(history: Path, most: int) -> array[int]:
    """Return how often each of the requests 0 to ``most`` - 1 was run, and last the runs of numbers that were never queued."""
    runs = array("I", bytes(_NUMBER * (most + 1)))
    for number in _numbers(history):
        runs[min(number, most)] += 1
    return runs


def _numbers(history: Path) -> Iterator[int]:
    for path in sorted(history.glob("*.ticks")):
        with path.open("rb") as file:
            while data := file.read(_NUMBER << 16):
                # A process that is killed may be within a write.
                numbers = array("I", data[: len(data) // _NUMBER * _NUMBER])
                yield from numbers
