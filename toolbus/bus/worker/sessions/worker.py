"""The open sessions of a worker, over all of its services."""

from __future__ import annotations

import asyncio

from toolbus.bus import telemetry
from toolbus.bus.broker.statistics.answers import OpenSession
from toolbus.bus.values.results import ToolbusError
from toolbus.bus.worker.serving.handlers import Served
from toolbus.bus.worker.sessions.service import OpenSessions, SessionContext
from toolbus.bus.worker.sessions.session import Session


class WorkerSessions:
    """The open sessions of a worker, by service: the broker's ``SessionListener``."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._services: dict[str, OpenSessions] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def open(self, served: Served) -> None:
        """Keep the sessions of a service that wants it."""
        if served.has_sessions:
            served.sessions = self._services[served.id] = OpenSessions(served, self._context)

    async def close(self, served: Served) -> None:
        """End every session of one service, and keep no more of it."""
        if served.sessions is not None:
            await self._services.pop(served.id).aclose()

    async def aclose(self) -> None:
        """End every session of every service, side by side."""
        await asyncio.gather(*(each.aclose() for each in self._services.values()))
        for task in self._closing:
            task.cancel()

    def __len__(self) -> int:
        return sum(map(len, self._services.values()))

    def opened(self) -> dict[str, list[OpenSession]]:
        """Return the open sessions by service, those used last first."""
        return {service: each.opened() for service, each in self._services.items()}

    # -- SessionListener --------------------------------------------------------------------------

    def closed(self, service: str, user: str, session: str) -> None:
        """End a session that its caller closed."""
        self._context.empty_line(service, user, session, moved=False)
        if service in self._services:
            self._services[service].end(Session(user, session), "closed", stop=True)
        # What handlers called in it ends too.
        task = asyncio.get_running_loop().create_task(self._close_nested(user, session))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close_nested(self, user: str, session: str) -> None:
        try:
            await self._context.close_nested(user, session)
        except ToolbusError as error:
            telemetry.log.warning("session.untold", error=str(error))

    def left(self, service: str, agent: str) -> None:
        """Let the sessions that only a leaving caller used end soon."""
        if service in self._services:
            self._services[service].left({agent})

    def moved(self, service: str, user: str, session: str) -> None:
        """End a session that another worker has, or had."""
        self._context.empty_line(service, user, session, moved=True)
        if service in self._services:
            self._services[service].end(Session(user, session), "moved")

    def inherited(self, service: str, user: str, session: str, upto: tuple[int, ...]) -> None:
        """Take in that a session is this worker's whose state was lost, which calls up to an entry can't know."""
        if service in self._services:
            self._services[service].inherit(Session(user, session), upto)

    def agents(self) -> set[str]:
        """Return the callers that use open sessions."""
        return set().union(*(each.agents() for each in self._services.values()))

    def gone(self, agents: set[str]) -> None:
        """Let the sessions that only dead callers used end soon."""
        for each in self._services.values():
            each.left(agents)
