"""The agent's side of the Redis broker: publishes requests, reads all replies of one process, follows the registry."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar

import msgspec

from toolbus import telemetry
from toolbus.broker import scripts
from toolbus.broker.confirmations.confirmations import Confirmations
from toolbus.broker.keys import Keys
from toolbus.broker.lease.clock import ServerClock
from toolbus.broker.limits.tallies import Tallies, days_back
from toolbus.broker.protocols import AgentListener, Fate, Sender
from toolbus.broker.publish.publisher import Publish, Publisher
from toolbus.broker.publish.sharing import SharedCalls
from toolbus.broker.reading import identifier, skip, uses_up
from toolbus.broker.recover.mending import Mender
from toolbus.broker.registry.registry import Registry, RegistryFollower
from toolbus.broker.transport.command import Reply, ReplyError
from toolbus.broker.transport.connection import BLOCK, Connector
from toolbus.broker.transport.links import Pair
from toolbus.broker.transport.replication import Replication
from toolbus.broker.transport.server import is_replica, tell_time
from toolbus.envelope import Frame, Request, decode_frames, encode_request, new_id
from toolbus.results import BrokerError, BrokerUnavailable, EnvelopeError
from toolbus.settings import Settings

T = TypeVar("T")

_READ_COUNT = 512
_RECONCILE = 60.0
_AFTER_ERROR = 0.2
_CERTAINTY = 10.0


class RedisAgentBroker:
    """``AgentBroker`` over Redis: a writing link, and a link that blocks on this agent's replies and the registry's log."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._keys = Keys(settings.namespace)
        self._connector = Connector.of(settings)
        self._agent = new_id()
        self._replies = self._keys.replies(self._agent)
        self._clock = ServerClock(settings.lease)
        self._position = b"0"
        self._resync = False
        self._interrupted = False
        # Workers send a bounded entry; its frames are bounded each, so a larger one is not theirs.
        self._entry_limit = 2 * max(262_144, settings.max_frame) + 65_536
        self.frames = 0
        self.malformed = 0

    @property
    def agent(self) -> str:
        """This process's agent id, fresh at each start."""
        return self._agent

    @property
    def tallies(self) -> Tallies:
        """What all processes count together."""
        return self._tallies

    @property
    def confirmations(self) -> Confirmations:
        """Requests that wait for a person."""
        return self._confirmations

    def statistics(self) -> dict[str, int]:
        """Counts for people and metrics."""
        link = self._link.statistics()
        return {
            "published": self._publisher.published,
            "connected": int(self._pair.connected),
            "frames": self.frames,
            "malformed": self.malformed,
            "commands": link.commands,
            "writes": link.writes,
            "connects": link.connects,
        }

    # -- opening and closing ----------------------------------------------------------------------

    async def open(self, listener: AgentListener) -> None:
        """Connect, load the registry's snapshot, and start to listen."""
        self._listener = listener
        self._pair = Pair(
            self._connector,
            on_failed=listener.on_failed,
            on_push=self._pushed,
            on_up=self._up,
            on_blocking_up=self._up,
            replicated=self._settings.wait_replicas > 0,
        )
        mastership = self._pair.mastership
        self._link, self._blocking = self._pair.writing, self._pair.blocking
        mender = Mender(self._link, self._types, self._mended)
        self._link.on_wrong_type = self._blocking.on_wrong_type = mender.nudge
        self._publisher = Publisher(self._link, self._keys, self._agent, mastership)
        self._shared = SharedCalls(self._link, self._keys, self._agent, self._settings.retention, self._wake, mastership)
        mastership.when_admitted(self._publisher.flush)
        mastership.when_admitted(self._shared.release)
        self._tallies = Tallies(self._link, self._keys)
        self._confirmations = Confirmations(self._link, self._keys, self._settings.lease, f"agent {self._agent}")
        replication = Replication(self._pair.replicated, self._settings.wait_replicas, self._settings.wait_timeout)
        self._registry = Registry(self._link, self._keys, self._settings, replication)
        self._follower = RegistryFollower(self._link, self._keys, listener)
        async with self._pair.opening():
            # Until here nothing has been missed; from here on a connection may be lost, and come back.
            self._resync = False
            self._pair.keep("mender", mender.run)
            await self._make_replies()
            # A worker that finds no reply stream takes the agent for dead, so there must be one before a call is published again.
            self._link.greet(scripts.LISTEN, (self._replies,), (self._ttl_ms(),), self._greeted)
            await self._load()
        self._pair.keep("upkeep", self._upkeep)
        self._pair.keep("reader", self._read)

    async def aclose(self) -> None:
        """Stop listening and remove this agent's keys."""
        if not self._pair.open:
            return
        self._confirmations.close()
        try:
            async with asyncio.timeout(2):
                await self._link.execute("DEL", self._replies, self._keys.flushes(self._agent))
        except (TimeoutError, BrokerError) as error:
            # Both keys have a TTL, so nothing stays behind for long.
            telemetry.log.warning("agent.close_incomplete", error=str(error) or "the server did not answer")
        await self._pair.leave()

    # -- calls ------------------------------------------------------------------------------------

    def publish(self, request: Request, queue: str, limit: int, deadline: float, sender: Sender) -> None:
        """Publish at the end of this tick; raises EnvelopeError when the request can't be encoded or is too large."""
        document = encode_request(request, limit=self._settings.max_request)
        if request.shared:
            self._shared.publish(request, queue, limit, deadline, document, sender)
            return
        self._publisher.publish(Publish(request.id, queue, limit, deadline, document, sender, request.effect == "once"))

    def cancel(
        self, request: Request, queue: str, entry: str, on_fate: Callable[[Fate], None] | None = None, *, waited: float = 0.0
    ) -> None:
        """Remove a queued call, or tell the worker that runs it."""
        if request.shared:
            self._shared.cancel(request, queue, entry, on_fate, waited)
            return
        self._publisher.cancel(request.id, queue, entry, int((request.timeout + waited) * 1000), on_fate)

    def forget(self, request: Request) -> None:
        """Stop reading for a call that has ended."""
        if request.shared:
            self._shared.forget(request.id)

    async def close_session(self, user: str, session: str, queues: Collection[str]) -> None:
        """Tell the workers of these queues that a session is over."""
        # Calls that are on their way get their verdict before this answer, and are cancelled before what follows it.
        await self._link.settled()
        await self._tell(queues, f"end {msgspec.json.encode((user, session)).decode()}")

    async def leave_sessions(self, queues: Collection[str]) -> None:
        """Tell the workers of these queues that this agent uses no session any more."""
        await self._tell(queues, f"left {self._agent}")

    async def _tell(self, queues: Collection[str], message: str) -> None:
        await asyncio.gather(*(self._link.execute("PUBLISH", self._keys.wake(queue), message, repeatable=True) for queue in queues))

    async def put_item(self, key: str, document: bytes, owner: str = "") -> None:
        """Store a document."""
        await self._surely(lambda: self._registry.put_item(key, document, owner))

    async def delete_item(self, key: str, owner: str = "") -> bool:
        """Delete a document; False when there was none."""
        return await self._surely(lambda: self._registry.delete_item(key, owner))

    async def _surely(self, change: Callable[[], Awaitable[T]]) -> T:
        """Make a change at a server that is surely the master, before and after; again, where it is not: another one loses it.

        Raises:
            BrokerUnavailable: no server is, for ten seconds.
        """
        mastership = self._pair.mastership
        done: list[T] = []
        try:
            async with asyncio.timeout(_CERTAINTY):
                while True:
                    await mastership.wait()
                    connects = self._pair.replicated.statistics().connects
                    done.append(await change())
                    if mastership.sure and connects == self._pair.replicated.statistics().connects:
                        # What repeats it finds it done.
                        return done[0]
        except TimeoutError:
            message = f"{self._connector.display}: too few of its Sentinels have said for {_CERTAINTY:g} s who is the master"
            raise BrokerUnavailable(message) from None

    # -- reading ----------------------------------------------------------------------------------

    async def _read(self) -> None:
        log = self._keys.log.encode()
        replies = self._replies.encode()
        while not self._pair.closing:
            if self._resync:
                await self._resynchronise()
            shared = self._shared.positions()
            streams = (replies, log, *(stream for stream, _ in shared))
            positions = (self._position, self._follower.position, *(position for _, position in shared))
            try:
                reply = await self._blocking.execute(
                    "XREAD", "COUNT", _READ_COUNT, "BLOCK", int(BLOCK * 1000), "STREAMS", *streams, *positions
                )
            except BrokerUnavailable:
                await asyncio.sleep(0.05)
                continue
            except ReplyError as error:
                telemetry.log.error("replies.read_failed", error=str(error))
                # It may be one of its keys that is gone or mended.
                self._resync = True
                await asyncio.sleep(_AFTER_ERROR)
                continue
            for key, entries in (reply or {}).items():
                if key == replies:
                    await self._take(entries)
                elif key != log:
                    self._take_shared(key, entries)
                elif not self._follower.apply(entries):
                    self._resync = True
            # Who waited for these answers calls again before the next ones are asked for.
            await asyncio.sleep(0)

    def _take_shared(self, stream: bytes, entries: list[Any]) -> None:
        for entry, flat in entries:
            self._shared.passed(stream, entry)
            self._hand_over(self._shared.addressed(stream, self._frames(flat)))

    def _frames(self, flat: list[bytes]) -> list[Frame]:
        if len(flat) < 2 or flat[0] != b"f":
            # Entries without frames create the stream, wake its reader, or tell that a confirmation request was answered.
            if flat[:1] == [b"c"]:
                self._heard(flat[1])
            return []
        frames, problems = decode_frames(flat[1], limit=self._entry_limit)
        if problems:
            self.malformed += len(problems)
            telemetry.log.error("frame.malformed", agent=self._agent, frames=len(problems), error=problems[0])
        self.frames += len(frames)
        return frames

    def _heard(self, id: bytes) -> None:
        try:
            self._confirmations.heard(identifier(id))
        except EnvelopeError as error:
            skip(self._replies, error, field="c")

    def _hand_over(self, frames: list[Frame]) -> None:
        try:
            self._listener.on_frames(frames)
        except Exception:  # noqa: BLE001 - it would be read, and raise, again and again, and nothing behind it ever
            telemetry.log.exception("listener.failed", what="frames")

    def _wake(self) -> None:
        self._link.send(("XADD", self._replies, "NOMKSTREAM", "*", "o", "1"), repeatable=True)

    async def _take(self, entries: list[Any]) -> None:
        for _, flat in entries:
            self._hand_over(self._frames(flat))
        self._position = entries[-1][0]
        # Read entries go at once, ahead of the next read and in the same write.
        milliseconds, _, sequence = self._position.partition(b"-")
        if uses_up(self._position):
            skip(self._replies, "the id of an entry leaves no room for others; the stream is made anew", field=self._position)
            # In one write: workers that find no stream take the agent for dead.
            await asyncio.gather(self._link.execute("DEL", self._replies, repeatable=True), self._make_replies())
            self._listener.on_replies_lost()
            self._resync = True
            return
        self._blocking.send(("XTRIM", self._replies, "MINID", b"%b-%d" % (milliseconds, int(sequence) + 1)))

    async def _resynchronise(self) -> None:
        """After a reconnect or a gap: the replies from their start, and a fresh snapshot."""
        self._resync = False
        try:
            if await self._make_replies():
                self._listener.on_replies_lost()
            self._position = b"0"
            await self._load()
        except BrokerError as error:
            telemetry.log.warning("agent.resync_failed", error=str(error))
            self._resync = True
            await asyncio.sleep(_AFTER_ERROR)

    async def _load(self) -> None:
        try:
            await self._follower.load()
        except ReplyError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            # The mender has heard of it: once more when it is done.
            telemetry.log.warning("agent.resync_failed", error=str(error))
            self._resync = True
            await asyncio.sleep(_AFTER_ERROR)

    async def _make_replies(self) -> bool:
        return bool(await self._link.execute_script(scripts.LISTEN, (self._replies,), (self._ttl_ms(),), repeatable=True))

    def _greeted(self, reply: Reply) -> None:
        if reply == 1:
            self._listener.on_replies_lost()

    # -- upkeep -----------------------------------------------------------------------------------

    async def _look_at_server(self) -> None:
        """Drop the connections of a server that is a master no more, or of two."""
        self._pair.mastership.compare()
        if await is_replica(self._link):
            self._pair.mastership.demoted("it is a replica now")

    def _ttl_ms(self) -> int:
        # An agent that does not renew for this long counts as dead: workers stop its calls. A connection over which nothing comes any
        # more is given up after 10.5 s at most (link.py), and the next one must be in time.
        return int(max(15.0, 2 * self._settings.lease) * 1000)

    def _types(self) -> dict[str, str]:
        shared = {stream.decode(): "stream" for stream, _ in self._shared.positions()}
        usage = {self._keys.usage(day): "hash" for day in days_back(1)}
        return self._keys.shared_by_all() | self._keys.of_agent(self._agent) | shared | usage

    def _mended(self) -> None:
        self._resync = True

    def _up(self, _restarted: bool) -> None:
        self._clock.hush()
        self._resync = True
        self._publisher.flush()
        self._confirmations.nudge()

    def _pushed(self, message: list[Any]) -> None:
        self._confirmations.pushed(message)

    async def _upkeep(self) -> None:
        """Renew the reply stream three times a lease, sweep once a lease, reconcile about once a minute."""
        turn = 0
        next_reconcile = time.monotonic() + _RECONCILE * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
        while True:
            await asyncio.sleep(self._settings.lease / 3 * random.uniform(0.8, 1.0))  # noqa: S311 - jitter
            turn += 1
            try:
                await asyncio.gather(tell_time(self._link, self._clock), self._look_at_server())
                if not await self._link.execute("PEXPIRE", self._replies, self._ttl_ms(), repeatable=True):
                    self._resync = True
                if turn % 3 == 0 and self._clock.trusted:
                    await self._registry.sweep(self._clock)
                if time.monotonic() > next_reconcile:
                    next_reconcile = time.monotonic() + _RECONCILE * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
                    # The reader loads it, between two reads, so that no change is applied twice or out of order.
                    self._resync = True
            except BrokerError as error:
                telemetry.log.warning("upkeep.failed", error=str(error))
