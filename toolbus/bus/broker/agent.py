"""The agent's side of the Redis broker: the steps of the protocol that an open agent takes part in, and the agent over them."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, TypeVar, cast

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.held.confirmations import Confirmations
from toolbus.bus.broker.held.conversations import Chats, Conversations
from toolbus.bus.broker.held.creations import Creations
from toolbus.bus.broker.held.limits import Tallies, days_back
from toolbus.bus.broker.held.mcp import McpSessions
from toolbus.bus.broker.held.routes import Routes
from toolbus.bus.broker.held.tasks import SessionResults, Tasks
from toolbus.bus.broker.held.tokens import Tokens
from toolbus.bus.broker.lease.clock import ServerClock
from toolbus.bus.broker.lease.recover import KeyRepair
from toolbus.bus.broker.protocols import AgentListener, ItemChange
from toolbus.bus.broker.publish import Publisher, Requests, SharedCalls
from toolbus.bus.broker.registry.follower import RegistryFollower
from toolbus.bus.broker.registry.registry import Registry
from toolbus.bus.broker.registry.versions import FIRST, NamespaceVersion, read_version
from toolbus.bus.broker.replies.reader import ReplyReader
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.access import is_forbidden
from toolbus.bus.broker.server.keys import Keys, session_digest
from toolbus.bus.broker.transport.connection import Connector
from toolbus.bus.broker.transport.links import Links, is_replica, tell_time, upkeep_step
from toolbus.bus.broker.transport.mastership import Replication
from toolbus.bus.broker.transport.opening import NotOpen, open_patiently
from toolbus.bus.values.envelope import VERSION, Request, encode_request, new_id
from toolbus.bus.values.results import BrokerError, BrokerUnavailable
from toolbus.bus.values.settings import Settings

T = TypeVar("T")

# Seconds for which a change waits for a server that is surely the master.
_CERTAINTY = 10.0
# Seconds for removing the keys of an agent that closes.
_CLOSING = 2.0
_RECONCILE = 60.0
# The registry is swept in every third turn, once a lease.
_TURNS_A_LEASE = 3


class AgentSteps:
    """The steps of one open agent, each made with the steps that it uses.

    Raises:
        RuntimeError: no event loop runs.
    """

    def __init__(
        self, settings: Settings, connector: Connector, keys: Keys, agent: str, clock: ServerClock, listener: AgentListener
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._agent = agent
        self._clock = clock
        self._sweeps = True
        self._sweep_due = False
        # Connections.
        self.links = Links(connector, on_failed=listener.on_failed, replicated=settings.wait_replicas > 0)
        self.link = link = self.links.writing
        mastership = self.links.mastership
        replication = Replication(self.links.replicated, settings.wait_replicas, settings.wait_timeout)
        # Shared state.
        self.tallies = Tallies(link, keys)
        self.confirmations = Confirmations(link, keys, settings.lease, f"agent {agent}")
        self.conversations = Conversations(link, keys, settings)
        self.creations = Creations(link, keys, settings)
        self.results = SessionResults(link, keys, settings)
        self.tokens = Tokens(link, keys)
        self.mcp = McpSessions(link, keys, settings)
        self.routes = Routes(link, keys)
        self.registry = Registry(link, keys, settings, replication)
        # Publish.
        self.publisher = Publisher(link, keys, agent, mastership)
        self.shared = SharedCalls(link, keys, agent, settings.retention, self._wake_reader, mastership)
        self.requests = Requests(self.publisher, self.shared, settings.max_request)
        self.chats = Chats(link, keys, self.conversations)
        self.tasks = Tasks(link, keys, settings, self.shared)
        mastership.when_admitted(self.publisher.flush)
        mastership.when_admitted(self.shared.release)
        # Read replies.
        follower, handed_over = RegistryFollower(link, keys, listener), self.publisher.flush_soon
        own = (link, self.links.blocking, keys, settings, agent, listener)
        self.reader = ReplyReader(*own, self.shared, self.confirmations, follower, handed_over)
        self._key_repair = KeyRepair(link, self._types, self._load_again, self.reader.renew)
        # The links come first and call the steps that were built on them.
        self.links.attach(
            on_push=self._pushed, on_up=self._connected, on_blocking_up=self._connected, on_wrong_type=self._key_repair.request
        )

    async def start(self, within: float) -> None:
        """Connect, load the registry's snapshot, then begin to read and to keep up; ``within`` so many seconds.

        Raises:
            BrokerError: the server can't be reached or can't serve.
        """
        reader = self.reader
        async with self.links.opening(within):
            # Until here nothing has been missed; from here on a connection may be lost, and come back.
            reader.resync = False
            version = await read_version(self.link, self._keys)
            version.check()
            self._write_in(version)
            self.links.keep("mender", self._key_repair.run, every=0)
            await reader.listen()
            # A worker that finds no reply stream takes the agent for dead, so there must be one before a call is published again.
            self.link.begin_with(scripts.LISTEN, (reader.key,), (reader.ttl_ms,), reader.listened)
            await reader.load()
        self.links.keep("upkeep", self._keep_up, every=self._every)
        self.links.keep("reader", reader.run, every=0)
        self.links.keep("replies", reader.keep, every=reader.renew_every)

    async def turn(self, *, once_a_lease: bool) -> None:
        """Ask the server about itself, and whether the registry is followed; ``once_a_lease`` also sweep the registry.

        While the server's clock is not trusted that is put off.

        Raises:
            BrokerError: the server could not be asked.
        """
        await asyncio.gather(tell_time(self.link, self._clock), self._check_server(), self.reader.compare())
        self._sweep_due = self._sweep_due or once_a_lease
        if self._sweep_due and self._clock.trusted and self._sweeps:
            self._sweep_due = False
            await self._sweep()

    async def _sweep(self) -> None:
        try:
            await self.registry.sweep(self._clock)
        except BrokerError as error:
            if not is_forbidden(error):
                raise
            # A user with an agent's role reads the registry only.
            self._sweeps = False
            telemetry.log.info("registry.sweep_left")

    @property
    def _every(self) -> float:
        return self._settings.lease / _TURNS_A_LEASE

    async def _keep_up(self) -> None:
        turn, next_reconcile = 0, self._next_reconcile()
        while True:
            await asyncio.sleep(self._every * random.uniform(0.8, 1.0))  # noqa: S311 - jitter
            turn += 1
            try:
                await self.turn(once_a_lease=turn % _TURNS_A_LEASE == 0)
            except BrokerError as error:
                telemetry.log.warning("upkeep.failed", error=str(error))
                continue
            if self._clock.monotonic() > next_reconcile:
                next_reconcile = self._next_reconcile()
                self.links.start(self._look_at_version())
                # The reader loads the snapshot between two reads, so that no change is applied twice or out of order.
                self._load_again()

    async def _look_at_version(self) -> None:
        """Look whether an operator has raised the namespace's version; workers read the one before as long as this process writes it."""
        with upkeep_step():
            self._write_in(await read_version(self.link, self._keys))

    def _write_in(self, version: NamespaceVersion) -> None:
        written = min(version.written, VERSION)
        self.requests.encode = encode_request if written == FIRST else functools.partial(_encode_as, written)

    def _next_reconcile(self) -> float:
        return self._clock.monotonic() + _RECONCILE * random.uniform(0.8, 1.2)  # noqa: S311 - jitter

    async def _check_server(self) -> None:
        """Drop the connections if their server is no master any more, or if they are to two servers."""
        self.links.mastership.compare()
        if await is_replica(self.link):
            self.links.mastership.demoted("it is a replica now")

    def _wake_reader(self) -> None:
        self.reader.wake()

    def _pushed(self, message: list[Any]) -> None:
        self.confirmations.news.pushed(message)
        self.creations.news.pushed(message)

    def _connected(self, _restarted: bool) -> None:
        self._clock.distrust()
        self._load_again()
        self.shared.release()
        self.publisher.flush()
        self.confirmations.nudge()
        self.creations.news.nudge()

    def _load_again(self) -> None:
        self.reader.resync = True

    def _types(self) -> list[dict[str, str]]:
        shared = {stream.decode(): "stream" for stream, _ in self.shared.positions()}
        usage = {self._keys.usage(day): "hash" for day in days_back(1)}
        # A user with an agent's role may write its own keys and no others.
        return [self._keys.of_agent(self._agent) | shared, self._keys.shared_by_all() | usage]


def _encode_as(version: int, request: Request, *, limit: int) -> bytes:
    return encode_request(msgspec.structs.replace(request, v=version), limit=limit)


class AgentBroker:
    """The caller's side of a broker.

    Attributes:
        agent: the agent id of this process, fresh at each start.
        steps: the steps of the open agent; every use before ``open`` is an error.
        requests: publishes requests, cancels them and forgets them; the steps' own.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._keys = Keys(settings.namespace)
        self._connector = Connector.of(settings)
        self.agent = new_id()
        self._clock = ServerClock(settings.lease)
        self.steps = cast("AgentSteps", NotOpen())
        self.requests = cast("Requests", NotOpen())

    # -- connecting -------------------------------------------------------------------------------

    async def open(self, listener: AgentListener) -> None:
        """Connect, load the registry's snapshot, and start to listen.

        A connection that is lost meanwhile is made anew for ``connect_timeout`` seconds, or else for a call's time.

        Raises:
            BrokerError: the server can't be reached or can't serve.
        """

        async def start(within: float) -> None:
            self.steps = AgentSteps(self._settings, self._connector, self._keys, self.agent, self._clock, listener)
            self.requests = self.steps.requests
            await self.steps.start(within)

        await open_patiently(start, self._connector, self._settings.connect_timeout, otherwise=self._settings.timeout)

    async def aclose(self) -> None:
        """Stop listening and remove this agent's keys."""
        steps = self.steps
        if not steps.links.open:
            return
        steps.confirmations.news.end()
        try:
            async with asyncio.timeout(_CLOSING):
                # Calls that are on their way get their verdict before this answer, and are cancelled before what follows it.
                await steps.link.settled()
                await steps.link.execute("DEL", steps.reader.key, self._keys.flushes(self.agent))
        except (TimeoutError, BrokerError) as error:
            # Both keys have a TTL, so nothing stays behind for long.
            telemetry.log.warning("agent.close_incomplete", error=str(error) or "the server did not answer")
        finally:
            await steps.links.leave()

    # -- sessions ---------------------------------------------------------------------------------

    async def close_session(self, user: str, session: str, queues: Collection[str]) -> None:
        """Tell the workers of these queues that a session is over, after everything that was published or cancelled before.

        Raises:
            BrokerError: the server can't be reached.
        """
        # Calls that are on their way get their verdict before this answer, and are cancelled before what follows it.
        link = self.steps.link
        await link.settled()
        # A worker that died can't forget what it kept.
        digest = session_digest(user, session)
        await link.execute("DEL", *(self._keys.snapshot(queue, digest) for queue in sorted(queues)), repeatable=True)
        await self._tell(queues, f"end {msgspec.json.encode((user, session)).decode()}")

    async def leave_sessions(self, queues: Collection[str]) -> None:
        """Tell the workers of these queues that this agent uses no session any more.

        Raises:
            BrokerError: the server can't be reached.
        """
        await self._tell(queues, f"left {self.agent}")

    async def _tell(self, queues: Collection[str], message: str) -> None:
        link = self.steps.link
        await asyncio.gather(*(link.execute("PUBLISH", self._keys.wake(queue), message, repeatable=True) for queue in sorted(queues)))

    # -- static descriptors -----------------------------------------------------------------------

    async def put_item(self, key: str, document: bytes, owner: str = "") -> None:
        """Store a document under ``tool/<name>``, ``tool-service/<id>`` or ``toolkit/<name>``; with an ``owner``, who alone may change it.

        Raises:
            RegistrationRefused: the name is published by a service, or belongs to another owner.
        """
        await self._change_at_master(lambda: self.steps.registry.put_item(key, document, owner))

    async def delete_item(self, key: str, owner: str = "") -> bool:
        """Delete a document; False when there was none. Without an ``owner`` an operator deletes it, whoever owns it.

        Raises:
            RegistrationRefused: it belongs to another owner.
        """
        return await self._change_at_master(lambda: self.steps.registry.delete_item(key, owner))

    async def replace_items(self, changes: Sequence[ItemChange]) -> str:
        """Change documents at once, if all are what was expected; return the key of one that is another, and then nothing has changed.

        None of the keys may be a name that services can hold.
        """
        return await self._change_at_master(lambda: self.steps.registry.replace_items(changes))

    async def _change_at_master(self, change: Callable[[], Awaitable[T]]) -> T:
        """Make a change at a server that is surely the master, before and after; again, where it is not: another one loses it.

        Raises:
            BrokerUnavailable: no server is, for ten seconds.
        """
        links = self.steps.links
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

    def held_up(self, *, once: bool) -> str:
        """Return why calls wait to be published now; empty when they do not."""
        steps = self.steps
        if not steps.links.connected:
            return f"this process can't speak to the server: {steps.links.trouble}"
        refusal = steps.link.refusal or steps.requests.refusal
        if refusal:
            return f"the server refuses it: {refusal}; `toolbus doctor` says what to do"
        return "" if steps.links.mastership.admits(once=once) else "too few of the server's Sentinels say who is the master"

    def statistics(self) -> dict[str, int]:
        """Return counts for operators and metrics."""
        steps = self.steps
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
