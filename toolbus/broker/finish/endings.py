"""The ends of calls that are more than a last frame: doubtful sessions, freed keys, dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from toolbus import telemetry
from toolbus.broker.confirmations.notes import DeadlineNotes
from toolbus.broker.dead_letters.bury import Burial, FreedKey, bury
from toolbus.broker.finish.outbox import Outbox
from toolbus.broker.keys import Keys
from toolbus.broker.sessions.ownership import Ownership
from toolbus.broker.take.requests import BadEntry, RequestStream, StreamDelivery
from toolbus.broker.transport.transport import Transport
from toolbus.envelope import Frame, encode, join_frames, new_run, share_digest
from toolbus.results import ErrorInfo


class Endings:
    """Ends deliveries for which a last frame is not enough.

    Args:
        start: runs a coroutine beside the others.

    Attributes:
        malformed: how many requests could not be read.
    """

    def __init__(
        self,
        link: Transport,
        keys: Keys,
        instance: str,
        *,
        outbox: Outbox,
        ownership: Ownership,
        notes: DeadlineNotes,
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._link = link
        self._keys = keys
        self._instance = instance
        self._outbox = outbox
        self._ownership = ownership
        self._notes = notes
        self._start = start
        # Runs that have ended, and whose sessions are asked about.
        self._doubtful = 0
        self._settled = asyncio.Event()
        self._settled.set()
        self.malformed = 0

    async def settled(self) -> None:
        """Wait until it is known whose the sessions of all ended runs are."""
        await self._settled.wait()

    def finish(self, delivery: StreamDelivery, frame: bytes, *, frees: bool) -> None:
        """Send the last frame and remove the request, if it is still ours, and its session is.

        ``frees`` when the answer is not kept for later callers with the same idempotency key.
        """
        if delivery.queue.sticky and self._ownership.doubts(delivery):
            self._start(self._finish_doubtful(delivery, frame, frees))
        else:
            self._finish(delivery, frame, frees)

    def bury(self, delivery: StreamDelivery, reason: str, error: str, frame: bytes) -> None:
        """Set the request aside as a dead letter and send the last frame, after what the run has sent."""

        def now() -> None:
            frames, document = join_frames([frame]), encode(delivery.request)
            entry, fence, replies = delivery.entry, delivery.fence, delivery.replies
            frees = self._freed(delivery)
            bury(self._link, delivery.queue, Burial(entry, fence, reason, delivery.attempt, error, document, replies, frames, frees))

        self._outbox.then(now)
        self._drop_note(delivery)

    def set_aside(self, stream: RequestStream, bad: BadEntry) -> None:
        """Make a dead letter of an entry whose request can't be read, and answer its caller if that is known."""
        self.malformed += 1
        telemetry.log.error("request.malformed", service=stream.service, entry=bad.entry.decode(), error=bad.reason)
        replies, frames = "", b""
        if bad.address is not None:
            call, agent = bad.address
            error = ErrorInfo("invalid_arguments", "malformed_request", bad.reason)
            frame = Frame(call, new_run(), bad.attempt, kind="end", end_of_stream=True, error=error, worker=self._instance)
            replies, frames = self._keys.replies(agent), join_frames([encode(frame)])
        bury(self._link, stream, Burial(bad.entry, bad.fence, "malformed", bad.attempt, bad.reason, bad.document, replies, frames))

    def _finish(self, delivery: StreamDelivery, frame: bytes, frees: bool) -> None:
        self._outbox.finish(delivery, frame, self._freed(delivery) if frees else None)
        self._drop_note(delivery)

    async def _finish_doubtful(self, delivery: StreamDelivery, frame: bytes, frees: bool) -> None:
        self._doubtful += 1
        self._settled.clear()
        try:
            # Once another worker has answered in the session, a result computed from its state here must not be sent.
            if await self._ownership.settle([delivery]):
                self._finish(delivery, frame, frees)
        finally:
            self._doubtful -= 1
            if not self._doubtful:
                self._settled.set()

    def _freed(self, delivery: StreamDelivery) -> FreedKey | None:
        """Return the idempotency key that is free again when a delivery fails, if it has one."""
        request, server = delivery.request, self._link.server
        if not request.shared:
            return None
        if delivery.server and (server is None or server.run_id.encode() != delivery.server):
            # This server may lack the mark that would say that an earlier attempt began.
            return None
        return FreedKey(self._keys.shared(share_digest(request)), request.id, self._keys.started(request.id), delivery.run)

    def _drop_note(self, delivery: StreamDelivery) -> None:
        if delivery.noted:
            self._outbox.then(lambda: self._notes.drop(delivery))
