"""The agent's side of the Redis broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar, cast

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.agent_steps import AgentSteps
from toolbus.bus.broker.held.confirmations import Confirmations
from toolbus.bus.broker.held.conversations import Chats, Conversations
from toolbus.bus.broker.held.creations import Creations
from toolbus.bus.broker.held.limits import Tallies
from toolbus.bus.broker.held.routes import Routes
from toolbus.bus.broker.held.tasks import SessionResults, Tasks
from toolbus.bus.broker.held.tokens import Tokens
from toolbus.bus.broker.lease.clock import ServerClock
from toolbus.bus.broker.protocols import AgentListener, ItemChange
from toolbus.bus.broker.publish import Requests
from toolbus.bus.broker.server.keys import Keys, session_digest
from toolbus.bus.broker.transport.connection import Connector
from toolbus.bus.broker.transport.opening import NotOpen, open_patiently
from toolbus.bus.values.envelope import new_id
from toolbus.bus.values.results import BrokerError, BrokerUnavailable
from toolbus.bus.values.settings import Settings

T = TypeVar("T")

# Seconds for which a change waits for a server that is surely the master.
_CERTAINTY = 10.0
# Seconds for removing the keys of an agent that closes.
_CLOSING = 2.0


class AgentBroker:
    """The caller's side of a broker.

    Attributes:
        agent: the agent id of this process, fresh at each start.
        requests: publishes requests, cancels them and forgets them; there is none before ``open``.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._keys = Keys(settings.namespace)
        self._connector = Connector.of(settings)
        self.agent = new_id()
        self._clock = ServerClock(settings.lease)
        self._steps = cast("AgentSteps", NotOpen())
        self.requests = cast("Requests", NotOpen())

    @property
    def tallies(self) -> Tallies:
        """The counts that all processes share."""
        return self._steps.tallies

    @property
    def confirmations(self) -> Confirmations:
        """The requests that wait for a confirmation."""
        return self._steps.confirmations

    @property
    def conversations(self) -> Conversations:
        """The conversations that are kept."""
        return self._steps.conversations

    @property
    def creations(self) -> Creations:
        """The tasks of coding agents."""
        return self._steps.creations

    @property
    def results(self) -> SessionResults:
        """The results of sessions' earlier calls."""
        return self._steps.results

    @property
    def routes(self) -> Routes:
        """The places where recorded tools run."""
        return self._steps.routes

    @property
    def tokens(self) -> Tokens:
        """The records of bearer tokens."""
        return self._steps.tokens

    @property
    def chats(self) -> Chats:
        """The chats with the service agent."""
        return self._steps.chats

    @property
    def tasks(self) -> Tasks:
        """The shared calls that are found by the ids of tasks."""
        return self._steps.tasks

    # -- connecting -------------------------------------------------------------------------------

    async def open(self, listener: AgentListener) -> None:
        """Connect, load the registry's snapshot, and start to listen.

        A connection that is lost meanwhile is made anew for ``connect_timeout`` seconds, or else for a call's time.

        Raises:
            BrokerError: the server can't be reached or can't serve.
        """

        async def start() -> None:
            self._steps = AgentSteps(self._settings, self._connector, self._keys, self.agent, self._clock, listener)
            self.requests = self._steps.requests
            await self._steps.start()

        await open_patiently(start, self._connector, self._settings.connect_timeout, otherwise=self._settings.timeout)

    async def aclose(self) -> None:
        """Stop listening and remove this agent's keys."""
        steps = self._steps
        if not steps.links.open:
            return
        steps.confirmations.close()
        try:
            async with asyncio.timeout(_CLOSING):
                await steps.link.execute("DEL", steps.reader.key, self._keys.flushes(self.agent))
        except (TimeoutError, BrokerError) as error:
            # Both keys have a TTL, so nothing stays behind for long.
            telemetry.log.warning("agent.close_incomplete", error=str(error) or "the server did not answer")
        await steps.links.leave()

    # -- sessions ---------------------------------------------------------------------------------

    async def close_session(self, user: str, session: str, queues: Collection[str]) -> None:
        """Tell the workers of these queues that a session is over, after everything that was published or cancelled before.

        Raises:
            BrokerError: the server can't be reached.
        """
        # Calls that are on their way get their verdict before this answer, and are cancelled before what follows it.
        link = self._steps.link
        await link.settled()
        # A worker that died can't forget what it kept.
        digest = session_digest(user, session)
        await link.execute("DEL", *(self._keys.snapshot(queue, digest) for queue in queues), repeatable=True)
        await self._tell(queues, f"end {msgspec.json.encode((user, session)).decode()}")

    async def leave_sessions(self, queues: Collection[str]) -> None:
        """Tell the workers of these queues that this agent uses no session any more.

        Raises:
            BrokerError: the server can't be reached.
        """
        await self._tell(queues, f"left {self.agent}")

    async def _tell(self, queues: Collection[str], message: str) -> None:
        link = self._steps.link
        await asyncio.gather(*(link.execute("PUBLISH", self._keys.wake(queue), message, repeatable=True) for queue in queues))

    # -- static descriptors -----------------------------------------------------------------------

    async def put_item(self, key: str, document: bytes, owner: str = "") -> None:
        """Store a document under ``tool/<name>``, ``tool-service/<id>`` or ``toolkit/<name>``; with an ``owner``, who alone may change it.

        Raises:
            RegistrationRefused: the name is published by a service, or belongs to another owner.
        """
        await self._change_at_master(lambda: self._steps.registry.put_item(key, document, owner))

    async def delete_item(self, key: str, owner: str = "") -> bool:
        """Delete a document; False when there was none. Without an ``owner`` an operator deletes it, whoever owns it.

        Raises:
            RegistrationRefused: it belongs to another owner.
        """
        return await self._change_at_master(lambda: self._steps.registry.delete_item(key, owner))

    async def replace_items(self, changes: Sequence[ItemChange]) -> str:
        """Change documents at once, if all are what was expected; return the key of one that is another, and then nothing has changed.

        None of the keys may be a name that services can hold.
        """
        return await self._change_at_master(lambda: self._steps.registry.replace_items(changes))

    async def _change_at_master(self, change: Callable[[], Awaitable[T]]) -> T:
        """Make a change at a server that is surely the master, before and after; again, where it is not: another one loses it.

        Raises:
            BrokerUnavailable: no server is, for ten seconds.
        """
        links = self._steps.links
        mastership = links.mastership
        done: list[T] = []
        try:
            async with asyncio.timeout(_CERTAINTY):
                while True:
                    await mastership.wait()
                    connects = links.replicated.statistics().connects
                    done.append(await change())
                    if mastership.sure and connects == links.replicated.statistics().connects:
                        # A repetition finds the change made, so the first answer counts.
                        return done[0]
        except TimeoutError:
            message = f"{self._connector.display}: too few of its Sentinels have said for {_CERTAINTY:g} s who is the master"
            raise BrokerUnavailable(message) from None

    def statistics(self) -> dict[str, int]:
        """Return counts for operators and metrics."""
        steps = self._steps
        link = steps.link.statistics()
        return {
            "published": steps.publisher.published,
            "connected": int(steps.links.connected),
            "frames": steps.reader.frames,
            "malformed": steps.reader.malformed,
            "commands": link.commands,
            "writes": link.writes,
            "connects": link.connects,
        }
