"""Publishing and cancelling, from the agent's side: everything of one tick is one script call."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from toolbus import telemetry
from toolbus.broker import scripts
from toolbus.broker.keys import Keys
from toolbus.broker.protocols import Fate, Sender, Verdict
from toolbus.broker.reading import integer, skip, text
from toolbus.broker.transport.command import Reply, ReplyError, WrongAnswerError
from toolbus.broker.transport.mastership import Mastership
from toolbus.broker.transport.transport import Transport
from toolbus.results import BrokerError, BrokerUnavailable, EnvelopeError

MEMO_TTL = 600
# As for finishing: bounds how long one script holds the server.
_MOST_REQUESTS = 256
_MOST_BYTES = 1_048_576

# Bounds of the calls that wait for a connection.
_MOST_WAITING = 10_000
_MOST_WAITING_BYTES = 64 * 1024 * 1024

_MOST_ENTRY = 41

OnFate = Callable[[Fate], None]

_FATES: dict[bytes, Fate] = {b"removed": "removed", b"signalled": "signalled", b"gone": "gone", b"shared": "shared"}
ABSENT = Verdict("absent", message="the service has no request stream")


class Publish(msgspec.Struct, frozen=True, gc=False):
    """One request that waits for the end of the tick; ``deadline`` is local monotonic seconds.

    ``session`` stands for its session, if it keeps its place there.
    """

    call: str
    queue: str
    limit: int
    deadline: float
    document: bytes
    sender: Sender
    once: bool
    session: str = ""


class _Flush(NamedTuple):
    """The requests that one script publishes; ``args`` are its arguments without the number of the flush before it."""

    number: int
    batch: list[Publish]
    keys: tuple[str, ...]
    args: tuple[bytes | str | int, ...]
    once: bool


class Publisher:
    """Publishes over one link.

    Each flush carries a number; the server remembers the verdicts of the last 64, so that a flush
    written again after a lost connection adds nothing and gets the same verdicts. While there is no
    connection nothing is written: what its caller gives up meanwhile was certainly never published. Nor is anything written to a
    master that is being replaced, which would lose it, nor ``once`` work to a server that is not surely the master.

    Several flushes may be in flight. Each names the one before it, and is refused, and sent again, when that one was not carried out:
    the server publishes in the order of the calls also when it refuses some for a while.
    """

    def __init__(
        self, link: Transport, keys: Keys, agent: str, mastership: Mastership, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._monotonic = monotonic
        self._link = link
        self._mastership = mastership
        self._keys = keys
        self._memo = keys.flushes(agent)
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Publish] = []
        self._waiting_bytes = 0
        self._flushing = False
        self._flush_number = 0
        # In ascending order.
        self._unanswered: dict[int, None] = {}
        self.published = 0

    def publish(self, publish: Publish) -> None:
        """Publish at the end of this tick, or when there is a connection again."""
        waiting = self._waiting
        self._waiting_bytes += len(publish.document)
        if (len(waiting) >= _MOST_WAITING or self._waiting_bytes > _MOST_WAITING_BYTES) and not self._writes(publish):
            self._waiting_bytes -= len(publish.document)
            message = f"{len(waiting)} calls already wait for the connection to the server to come back, or for its Sentinels"
            self._loop.call_soon(publish.sender.settle, Verdict("failed", message=message))
            return
        waiting.append(publish)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def _writes(self, publish: Publish) -> bool:
        return self._link.connected and self._mastership.admits(once=publish.once)

    def cancel(self, call: str, queue: str, entry: str, left_ms: int, on_fate: OnFate | None, why: str = "cancelled") -> None:
        """Remove a queued call, or tell the workers."""
        if not entry:
            before = len(self._waiting)
            self._waiting = [publish for publish in self._waiting if publish.call != call]
            if on_fate is not None:
                on_fate("removed" if len(self._waiting) < before else "unknown")
            return

        def done(reply: Reply) -> None:
            fate = fate_of(call, reply)
            if on_fate is not None:
                on_fate(fate)

        keys = (self._keys.queue(queue), self._keys.cancelled(queue))
        self._link.run(scripts.CANCEL, keys, (entry, call, max(1, left_ms), self._keys.wake(queue), why), done, repeatable=True)

    def flush(self) -> None:
        """Write what waits and may be written now."""
        self._flushing = False
        if not self._link.connected or not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        self._waiting_bytes = 0
        if any(publish.session for publish in waiting):
            self._send_in_order([publish for publish in waiting if publish.session])
            waiting = [publish for publish in waiting if not publish.session]
        if any(publish.once for publish in waiting):
            self._send_or_keep([publish for publish in waiting if publish.once], once=True)
            waiting = [publish for publish in waiting if not publish.once]
        self._send_or_keep(waiting, once=False)
        self._link.flush()

    def _send_in_order(self, waiting: list[Publish]) -> None:
        """Write calls that keep their places, up to the first that may not be written now; the others wait with it."""
        for once, group in itertools.groupby(waiting, key=lambda publish: publish.once):
            batch = list(group)
            if self._waiting or not self._mastership.admits(once=once):
                self._keep(batch)
            else:
                self._send_parts(batch, once=once)

    def _send_or_keep(self, waiting: list[Publish], *, once: bool) -> None:
        if self._mastership.admits(once=once):
            self._send_parts(waiting, once=once)
            return
        self._keep(waiting)

    def _keep(self, waiting: list[Publish]) -> None:
        kept = [publish for publish in waiting if not publish.sender.done]
        self._waiting += kept
        self._waiting_bytes += sum(len(publish.document) for publish in kept)

    def _send_parts(self, waiting: list[Publish], *, once: bool) -> None:
        start = size = 0
        for index, publish in enumerate(waiting):
            if index > start and (index - start == _MOST_REQUESTS or size + len(publish.document) > _MOST_BYTES):
                self._send(waiting[start:index], once=once)
                start, size = index, 0
            size += len(publish.document)
        self._send(waiting[start:] if start else waiting, once=once)

    def _send(self, batch: list[Publish], *, once: bool) -> None:
        server = self._link.server
        streams: dict[str, int] = {}
        args: list[bytes | str | int] = [self._flush_number, MEMO_TTL * 1000, server.run_id if once and server is not None else ""]
        now = self._monotonic()
        batch = [publish for publish in batch if not publish.sender.done]
        if not batch:
            return
        for publish in batch:
            index = streams.setdefault(publish.queue, len(streams) + 2)
            bound: int | str = publish.limit
            if publish.session:
                # No queue has a name with a space.
                bound = f"{bound} {streams.setdefault(f' {publish.queue}', len(streams) + 2)} {publish.session}"
            args += (index, bound, max(1, int((publish.deadline - now) * 1000)), publish.document)
        keys = (self._memo, *(self._keys.order(name[1:]) if name[0] == " " else self._keys.queue(name) for name in streams))
        flush = _Flush(self._flush_number, batch, keys, tuple(args), once)
        self._flush_number += 1
        self.published += len(batch)
        earlier = next(reversed(self._unanswered), None)
        self._unanswered[flush.number] = None
        self._write(flush, earlier)

    def _write(self, flush: _Flush, earlier: int | None) -> None:
        args = flush.args if earlier is None else (*flush.args, earlier)
        # Another server process may have forgotten that the work was published, and done: then it is not known what became of it.
        self._link.run(
            scripts.PUBLISH, flush.keys, args, lambda reply: self._published(flush, reply), repeatable=True, same_server=flush.once
        )

    def _published(self, flush: _Flush, reply: Reply) -> None:
        if isinstance(reply, ReplyError) and str(reply).startswith("NOTYET"):
            self._write(flush, max((number for number in self._unanswered if number < flush.number), default=None))
            return
        del self._unanswered[flush.number]
        if isinstance(reply, BrokerError):
            verdict = failure(reply)
            for publish in flush.batch:
                publish.sender.settle(verdict)
            return
        for publish, verdict in zip(flush.batch, self._verdicts(reply, len(flush.batch)), strict=True):
            publish.sender.settle(verdict)

    def _verdicts(self, reply: Reply, count: int) -> list[Verdict]:
        try:
            return read_verdicts(reply, count)
        except EnvelopeError as error:
            # Another client may have overwritten the earlier answer that the server repeats.
            skip(self._memo, error)
            return [Verdict("unknown", message=f"the server's answer can't be read: {error}")] * count


def fate_of(call: str, reply: Reply) -> Fate:
    """Return what became of a cancelled call, by the server's answer."""
    if isinstance(reply, BrokerError):
        telemetry.log.warning("cancel.failed", id=call, error=str(reply))
        return "unknown"
    fate = _FATES.get(reply, "unknown")
    if telemetry.logs(logging.DEBUG):
        telemetry.log.debug("cancel.done", id=call, outcome=fate)
    return fate


def read_verdicts(reply: Reply, count: int) -> list[Verdict]:
    """Return what became of the requests of one flush.

    Raises:
        EnvelopeError: the server's answer can't be read.
    """
    words = reply.split(b" ")
    if len(words) != count:
        raise EnvelopeError(f"{len(words)} verdicts for {count} requests")
    return [_verdict(word) for word in words]


def _verdict(word: bytes) -> Verdict:
    if word == b"-":
        return ABSENT
    if word[:1] == b"!":
        return Verdict("full", depth=integer(word[1:]))
    return Verdict("queued", text(word, most=_MOST_ENTRY))


def failure(error: BrokerError) -> Verdict:
    """Return the verdict of a publication that the server answered with an error, or not at all."""
    if isinstance(error, (BrokerUnavailable, WrongAnswerError)):
        return Verdict("unknown", message=str(error))
    # An error reply means that the script stopped before it wrote: out of memory, read only, no permission.
    return Verdict("failed", message=str(error))
