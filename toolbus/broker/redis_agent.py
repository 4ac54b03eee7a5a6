"""The agent's side of the Redis broker: publishes requests, reads all replies of one process, follows the registry."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from toolbus import telemetry
from toolbus.broker import scripts
from toolbus.broker.clock import ServerClock
from toolbus.broker.command import ReplyError
from toolbus.broker.confirmations import Confirmations
from toolbus.broker.connection import BLOCK, Connector
from toolbus.broker.keys import Keys
from toolbus.broker.pair import Pair
from toolbus.broker.protocols import AgentListener, Fate, Sender
from toolbus.broker.publisher import Publish, Publisher
from toolbus.broker.registry import Registry, RegistryFollower
from toolbus.broker.server import tell_time
from toolbus.broker.sharing import SharedCalls
from toolbus.broker.tallies import Tallies
from toolbus.envelope import Frame, Request, decode_frames, encode_request, new_id
from toolbus.results import BrokerError, BrokerUnavailable
from toolbus.settings import Settings

_READ_COUNT = 512
_RECONCILE = 60.0


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
        self._pair = Pair(self._connector, on_push=self._pushed, on_up=self._up, on_blocking_up=self._up)
        self._link, self._blocking = self._pair.writing, self._pair.blocking
        self._publisher = Publisher(self._link, self._keys, self._agent)
        self._shared = SharedCalls(self._link, self._keys, self._agent, self._settings.retention, self._wake)
        self._tallies = Tallies(self._link, self._keys)
        self._confirmations = Confirmations(self._link, self._keys, self._settings.lease, f"agent {self._agent}")
        self._registry = Registry(self._link, self._keys, self._settings)
        self._follower = RegistryFollower(self._link, self._keys, listener)
        async with self._pair.opening():
            # Until here nothing has been missed; from here on a connection may be lost, and come back.
            self._resync = False
            await self._make_replies()
            await self._follower.load()
        self._pair.start(self._upkeep())
        self._pair.start(self._read())

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
        await self._link.execute("PING", repeatable=True)
        await self._tell(queues, f"end {msgspec.json.encode((user, session)).decode()}")

    async def leave_sessions(self, queues: Collection[str]) -> None:
        """Tell the workers of these queues that this agent uses no session any more."""
        await self._tell(queues, f"left {self._agent}")

    async def _tell(self, queues: Collection[str], message: str) -> None:
        await asyncio.gather(*(self._link.execute("PUBLISH", self._keys.wake(queue), message, repeatable=True) for queue in queues))

    async def put_item(self, key: str, document: bytes, owner: str = "") -> None:
        """Store a document."""
        await self._registry.put_item(key, document, owner)

    async def delete_item(self, key: str, owner: str = "") -> bool:
        """Delete a document; False when there was none."""
        return await self._registry.delete_item(key, owner)

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
                await asyncio.sleep(0.2)
                continue
            for key, entries in (reply or {}).items():
                if key == replies:
                    self._take(entries)
                elif key != log:
                    self._take_shared(key, entries)
                elif not self._follower.apply(entries):
                    self._resync = True
            # Who waited for these answers calls again before the next ones are asked for.
            await asyncio.sleep(0)

    def _take_shared(self, stream: bytes, entries: list[Any]) -> None:
        for entry, flat in entries:
            self._shared.passed(stream, entry)
            self._listener.on_frames(self._shared.addressed(stream, self._frames(flat)))

    def _frames(self, flat: list[bytes]) -> list[Frame]:
        if len(flat) < 2 or flat[0] != b"f":
            # Entries without frames create the stream, wake its reader, or tell that a confirmation request was answered.
            if flat[:1] == [b"c"]:
                self._confirmations.heard(flat[1].decode())
            return []
        frames, problems = decode_frames(flat[1], limit=self._entry_limit)
        for problem in problems:
            self.malformed += 1
            telemetry.log.error("frame.malformed", agent=self._agent, error=problem)
        self.frames += len(frames)
        return frames

    def _wake(self) -> None:
        self._link.send(("XADD", self._replies, "NOMKSTREAM", "*", "o", "1"), repeatable=True)

    def _take(self, entries: list[Any]) -> None:
        for _, flat in entries:
            self._listener.on_frames(self._frames(flat))
        self._position = entries[-1][0]
        # Read entries go at once, ahead of the next read and in the same write.
        milliseconds, _, sequence = self._position.partition(b"-")
        self._blocking.send(("XTRIM", self._replies, "MINID", b"%b-%d" % (milliseconds, int(sequence) + 1)))

    async def _resynchronise(self) -> None:
        """After a reconnect or a gap: the replies from their start, and a fresh snapshot."""
        self._resync = False
        try:
            if not await self._link.execute("EXISTS", self._replies, repeatable=True):
                await self._make_replies()
                self._listener.on_replies_lost()
            self._position = b"0"
            await self._follower.load()
        except BrokerError as error:
            telemetry.log.warning("agent.resync_failed", error=str(error))
            self._resync = True
            await asyncio.sleep(0.1)

    async def _make_replies(self) -> None:
        await self._link.execute_script(scripts.LISTEN, (self._replies,), (self._ttl_ms(),))

    # -- upkeep -----------------------------------------------------------------------------------

    def _ttl_ms(self) -> int:
        # An agent that does not renew for this long counts as dead: workers stop its calls. A connection over which nothing comes any
        # more is given up after 10.5 s at most (link.py), and the next one must be in time.
        return int(max(15.0, 2 * self._settings.lease) * 1000)

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
                await tell_time(self._link, self._clock)
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
