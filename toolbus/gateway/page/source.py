"""Take snapshots of the namespace for the page."""

from __future__ import annotations

import time

from toolbus.broker.admin import Admin
from toolbus.client.bus import ToolBus
from toolbus.watch.views import DeadLetterView, ServiceView, Snapshot

_MOST_LETTERS = 50


class Source:
    """Takes snapshots, over a connection of its own."""

    def __init__(self, bus: ToolBus) -> None:
        self._bus = bus

    async def take(self) -> Snapshot:
        """Return the state of the namespace now.

        Raises:
            BrokerError: the server can't be reached.
        """
        async with Admin(self._bus.settings) as admin:
            overviews = await admin.services()
            dead = []
            for queue in await admin.dead_letters.queues():
                for letter in await admin.dead_letters.newest(queue, _MOST_LETTERS):
                    request = letter.request
                    about = (request.id, request.tool, request.service, request.user) if request else ("", "", "", "")
                    dead.append(
                        DeadLetterView(
                            id=letter.id,
                            queue=queue,
                            at=letter.at,
                            call=about[0],
                            tool=about[1],
                            service=about[2],
                            user=about[3],
                            reason=letter.reason,
                            attempts=letter.attempts,
                            error=letter.error,
                        )
                    )
        services = tuple(
            ServiceView(
                id=each.publication.service.id,
                owner=each.publication.owner,
                digest=each.publication.digest,
                live=each.live,
                paused=each.paused,
                workers=each.workers,
                queued=each.queued,
                running=each.running,
                dead=each.dead,
                tools=len(each.publication.tools),
            )
            for each in overviews
        )
        return Snapshot(at=time.time(), services=services, dead=tuple(dead), confirmations=tuple(await self._bus.confirmations.pending()))
