"""Publishing and cancelling, from the agent's side: everything of one tick is one script call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from toolbus import telemetry
from toolbus.broker import scripts
from toolbus.broker.keys import Keys
from toolbus.broker.link import Link, Reply
from toolbus.broker.protocols import Verdict
from toolbus.results import BrokerError, BrokerUnavailable

_MEMO_TTL = 600
# As for finishing: bounds how long one script holds the server.
_MOST_REQUESTS = 256
_MOST_BYTES = 1_048_576

OnVerdict = Callable[[Verdict], None]

_ABSENT = Verdict("absent", message="the service has no request stream")


class Publish(NamedTuple):
    """One request that waits for the end of the tick. ``timeout_ms`` becomes a deadline at the server."""

    queue: str
    limit: int
    timeout_ms: int
    document: bytes
    on_verdict: OnVerdict


class Publisher:
    """Publishes over one link.

    Each flush carries a number; the server remembers the verdicts of the last 64, so that a flush
    written again after a lost connection adds nothing and gets the same verdicts.
    """

    def __init__(self, link: Link, keys: Keys, agent: str) -> None:
        self._link = link
        self._keys = keys
        self._memo = keys.flushes(agent)
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Publish] = []
        self._flush_number = 0
        self.published = 0

    def publish(self, publish: Publish) -> None:
        """Publish at the end of this tick."""
        waiting = self._waiting
        waiting.append(publish)
        if len(waiting) == 1:
            self._loop.call_soon(self._flush)

    def cancel(self, call: str, queue: str, entry: str, left_ms: int) -> None:
        """Remove a queued call, or tell the workers; the answer is only logged."""

        def done(reply: Reply) -> None:
            if isinstance(reply, BrokerError):
                telemetry.log.warning("cancel.failed", id=call, error=str(reply))
            elif telemetry.logs(logging.DEBUG):
                telemetry.log.debug("cancel.done", id=call, outcome=reply.decode())

        keys = (self._keys.queue(queue), self._keys.cancelled(queue))
        self._link.run(scripts.CANCEL, keys, (entry, call, max(1, left_ms), self._keys.wake(queue)), done, repeatable=True)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        start = size = 0
        for index, publish in enumerate(waiting):
            if index > start and (index - start == _MOST_REQUESTS or size + len(publish.document) > _MOST_BYTES):
                self._send(waiting[start:index])
                start, size = index, 0
            size += len(publish.document)
        self._send(waiting[start:] if start else waiting)

    def _send(self, batch: list[Publish]) -> None:
        streams: dict[str, int] = {}
        args: list[bytes | str | int] = [self._flush_number, _MEMO_TTL * 1000]
        for publish in batch:
            index = streams.setdefault(publish.queue, len(streams) + 2)
            args += (index, publish.limit, publish.timeout_ms, publish.document)
        self._flush_number += 1
        self.published += len(batch)

        def done(reply: Reply) -> None:
            if isinstance(reply, BrokerError):
                verdict = _failure(reply)
                for publish in batch:
                    publish.on_verdict(verdict)
                return
            for publish, word in zip(batch, reply.split(b" "), strict=True):
                publish.on_verdict(_verdict(word))

        keys = (self._memo, *map(self._keys.queue, streams))
        self._link.run(scripts.PUBLISH, keys, tuple(args), done, repeatable=True)


def _verdict(word: bytes) -> Verdict:
    if word == b"-":
        return _ABSENT
    if word.startswith(b"!"):
        return Verdict("full", depth=int(word[1:]))
    return Verdict("queued", entry=word.decode())


def _failure(error: BrokerError) -> Verdict:
    if isinstance(error, BrokerUnavailable):
        return Verdict("unknown", message=str(error))
    # An error reply means that the script stopped before it wrote: out of memory, read only, no permission.
    return Verdict("failed", message=str(error))
