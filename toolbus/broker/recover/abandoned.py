"""Calls whose callers are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from toolbus import telemetry
from toolbus.broker.finish.outbox import Outbox
from toolbus.broker.keys import Keys
from toolbus.broker.protocols import WorkerListener
from toolbus.broker.take.requests import RequestStream, StreamDelivery
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
        self, link: Transport, keys: Keys, streams: Mapping[str, RequestStream], *, outbox: Outbox, listener: WorkerListener
    ) -> None:
        self._link = link
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
        held = {delivery.replies for stream in self._streams.values() for delivery in list(stream.held.values())}
        for replies in await self._gone(held):
            self._listener.on_replies_gone(replies, ErrorInfo("cancelled", message="the calling agent is gone"))

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

    async def _gone(self, replies: set[str]) -> set[str]:
        """Return the reply streams that do not exist; none when the server can't be asked."""
        replies.discard("")
        try:
            found = await asyncio.gather(*(self._link.execute("EXISTS", key, repeatable=True) for key in replies))
        except BrokerError:
            return set()
        return {key for key, exists in zip(replies, found, strict=True) if not exists}
