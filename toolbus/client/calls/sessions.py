"""The sessions that a bus made calls in, so that their services can be told of the end."""

from __future__ import annotations

import asyncio

from toolbus import telemetry
from toolbus.broker.protocols import AgentBroker
from toolbus.envelope import NEW_STATE
from toolbus.results import BrokerError

# Beyond, the one that was not used for the longest is forgotten: its services notice that it is idle, or that the agent is gone.
_MOST_SESSIONS = 10_000
_TELLING = 2.0


class UsedSessions:
    """Records the queues to which each session's calls went, and which state of a session its answers came from."""

    def __init__(self) -> None:
        # Tokens by user, session and queue.
        self._states: dict[tuple[str, str, str], str] = {}
        self._sessions: dict[tuple[str, str], set[str]] = {}
        self._queues: set[str] = set()

    def add(self, user: str, session: str, queue: str) -> None:
        """Take note of a call."""
        queues = self._sessions.pop((user, session), None)
        if queues is None:
            queues = set()
            if len(self._sessions) >= _MOST_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
        # The order in which they were used.
        self._sessions[user, session] = queues
        queues.add(queue)
        self._queues.add(queue)

    def learn(self, user: str, session: str, queue: str, state: str) -> None:
        """Take note of the state that answered a call: later calls are meant for it."""
        if self._states.pop((user, session, queue), None) is None and len(self._states) >= _MOST_SESSIONS:
            del self._states[next(iter(self._states))]
        self._states[user, session, queue] = state

    def state(self, user: str, session: str, queue: str) -> str:
        """Return the token of the state that answered last, or an empty text; ``NEW_STATE`` for the first call after the session's end."""
        known = self._states.get((user, session, queue), "")
        if known == NEW_STATE:
            # Those behind it are meant for the state that it begins.
            del self._states[user, session, queue]
        return known

    async def close(self, broker: AgentBroker, user: str, session: str) -> None:
        """Tell every service that was called in a session that it is over; returns after two seconds at most."""
        queues = self._sessions.pop((user, session), None)
        for queue in queues or ():
            self.learn(user, session, queue, NEW_STATE)
        if queues:
            try:
                async with asyncio.timeout(_TELLING):
                    await broker.close_session(user, session, queues)
            except (BrokerError, TimeoutError) as error:
                _untold(error)

    async def leave(self, broker: AgentBroker) -> None:
        """Tell every service that was called in any session that this agent leaves them all; returns after two seconds at most."""
        self._sessions.clear()
        self._states.clear()
        queues, self._queues = self._queues, set()
        if queues:
            try:
                async with asyncio.timeout(_TELLING):
                    await broker.leave_sessions(queues)
            except (BrokerError, TimeoutError) as error:
                _untold(error)


def _untold(error: Exception) -> None:
    telemetry.log.warning("session.untold", error=str(error) or "the server did not answer")
