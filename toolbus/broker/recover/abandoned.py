"""Calls whose callers are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from toolbus import telemetry
from toolbus.broker.finish.outbox import Outbox
from toolbus.broker.keys import Keys
from toolbus.broker.lease.clock import ServerClock
from toolbus.broker.protocols import WorkerListener
from toolbus.broker.take.requests import RequestStream, StreamDelivery
from toolbus.broker.transport.server import tell_time
from toolbus.broker.transport.transport import Transport
from toolbus.results import BrokerError, ErrorInfo

_MOST_CHECKED = 256
MAY_BE_ABANDONED_MS = 5_000.0
"""A reply stream outlives its agent for longer, so a request that waited less need not be checked."""


class AbandonedCalls:
    """Finds and ends calls of one worker whose callers are gone, by their missing reply streams.

    Args:
        streams: the request streams by service, read afresh each time.
    """

    def __init__(
        self,
        link: Transport,
        keys: Keys,
        clock: ServerClock,
        streams: Mapping[str, RequestStream],
        *,
        outbox: Outbox,
        listener: WorkerListener,
    ) -> None:
        self._link = link
        self._clock = clock
        self._keys = keys
        self._streams = streams
        self._outbox = outbox
        self._listener = listener
        self._checked = 0

    async def without(self, taken: list[StreamDelivery]) -> list[StreamDelivery]:
        """Return what was taken without abandoned calls; those end here and never run."""
        waited = {delivery.replies for delivery in taken if delivery.queued_ms > MAY_BE_ABANDONED_MS}
        gone = await self._gone(waited)
        for delivery in [each for each in taken if each.replies in gone]:
            telemetry.log.info("call.abandoned", id=delivery.request.id, tool=delivery.request.tool, queued_ms=round(delivery.queued_ms))
            taken.remove(delivery)
            delivery.replies = ""
            self._outbox.finish(delivery, b"")
        return taken

    async def stop_calls(self) -> None:
        """End abandoned calls that run: a handler that sends nothing would not notice."""
        for replies in await self._gone({delivery.replies for delivery in self._held()}):
            self._stop(replies, ErrorInfo("cancelled", message="the calling agent is gone"))

    async def stop_calls_of(self, replies: str, error: ErrorInfo) -> None:
        """End the calls whose reply stream was missing, unless the server's clock was set forward: then their agent takes it over."""
        try:
            await tell_time(self._link, self._clock)
        except BrokerError:
            return
        if not self._clock.ran_ahead:
            self._stop(replies, error)

    async def end_sessions(self) -> None:
        """End the sessions of callers that are gone; each turn checks a bounded number of callers."""
        agents = sorted(self._listener.sessions.agents())
        if len(agents) > _MOST_CHECKED:
            self._checked = (self._checked + _MOST_CHECKED) % len(agents)
            agents = (agents + agents)[self._checked : self._checked + _MOST_CHECKED]
        replies = {self._keys.replies(agent): agent for agent in agents}
        gone = await self._gone(set(replies))
        if gone:
            self._listener.sessions.gone({replies[key] for key in gone})

    def _stop(self, replies: str, error: ErrorInfo) -> None:
        self._listener.on_replies_gone(replies, error)
        for delivery in self._held():
            if delivery.replies == replies:
                # Its answer would make the stream anew.
                delivery.replies = ""

    def _held(self) -> list[StreamDelivery]:
        return [delivery for stream in self._streams.values() for delivery in stream.held.values()]

    async def _gone(self, replies: set[str]) -> set[str]:
        """Return the reply streams that do not exist; none when the server can't be asked, or its clock was just set forward."""
        replies.discard("")
        try:
            found = await asyncio.gather(*(self._link.execute("EXISTS", key, repeatable=True) for key in replies))
            gone = {key for key, exists in zip(replies, found, strict=True) if not exists}
            if gone:
                await tell_time(self._link, self._clock)
        except BrokerError:
            return set()
        # Their agents make them anew within a lease.
        return gone if self._clock.trusted else set()
