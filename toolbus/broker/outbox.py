"""What a worker sends: frames packed per agent, terminal frames and acknowledgements per batch.

One flush is in flight at a time: what is produced meanwhile goes out together when its answers
arrive. With one call in flight nothing waits, and under load the batches grow by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from toolbus import telemetry
from toolbus.broker import scripts
from toolbus.broker.keys import Keys
from toolbus.broker.link import Link, Reply
from toolbus.broker.protocols import Delivery
from toolbus.envelope import join_frames
from toolbus.results import BrokerError, ErrorInfo

if TYPE_CHECKING:
    from toolbus.broker.requests import RequestStream

# A script of 256 x 64 KB would block the server for 150 ms.
_MOST_IDS = 256
_MOST_BYTES = 262_144
_CHECK_LENGTH_EVERY = 64
_CONGESTED = 4 * 1024 * 1024


class Outbox:
    """Sends frames and finishes deliveries over one link.

    Args:
        reply_limit: entries an agent's reply stream may hold before its calls end as ``slow_consumer``.
        on_agent_gone: called when an agent's reply stream is gone or over the limit.
        on_lost: called for a delivery that could not be finished because it belongs to another worker.
    """

    def __init__(
        self,
        link: Link,
        keys: Keys,
        *,
        reply_limit: int,
        on_agent_gone: Callable[[str, ErrorInfo], None],
        on_lost: Callable[[Delivery], None],
    ) -> None:
        self._link = link
        self._keys = keys
        self._reply_limit = reply_limit
        self._on_agent_gone = on_agent_gone
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._frames: dict[str, list[bytes]] = {}
        self._finished: dict[RequestStream, list[tuple[Delivery, bytes]]] = {}
        self._entries_of: dict[str, int] = {}
        self._queued_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._in_flight = 0
        self._scheduled = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.frames_sent = 0
        self.calls_finished = 0
        self.lost = 0

    def send(self, agent: str, frame: bytes) -> None:
        """Queue a frame that is not the last of its run."""
        frames = self._frames.get(agent)
        if frames is None:
            frames = self._frames[agent] = []
        frames.append(frame)
        self._queued_bytes += len(frame)
        if self._queued_bytes > _CONGESTED:
            self._room.clear()
        self._schedule()

    @property
    def congested(self) -> bool:
        """Whether producers should wait for ``room`` before they send more."""
        return self._queued_bytes > _CONGESTED

    async def room(self) -> None:
        """Wait until what is queued has been handed to the server."""
        await self._room.wait()

    def finish(self, stream: RequestStream, delivery: Delivery, frame: bytes) -> None:
        """Queue a terminal frame, with the acknowledgement and removal of its request."""
        batch = self._finished.get(stream)
        if batch is None:
            batch = self._finished[stream] = []
        batch.append((delivery, frame))
        self._schedule()

    async def drained(self) -> None:
        """Wait until everything queued is answered by the server."""
        await self._idle.wait()

    def _schedule(self) -> None:
        if not self._scheduled and not self._in_flight:
            self._scheduled = True
            self._idle.clear()
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        frames, self._frames = self._frames, {}
        finished, self._finished = self._finished, {}
        self._queued_bytes = 0
        self._room.set()
        for agent, ready in frames.items():
            self.frames_sent += len(ready)
            for packed in _packed(ready):
                self._append(agent, packed)
        for stream, batch in finished.items():
            self.calls_finished += len(batch)
            for part in _bounded(batch):
                self._finish(stream, part)
        if not self._in_flight:
            self._idle.set()

    def _answered(self) -> None:
        self._in_flight -= 1
        if self._in_flight:
            return
        if self._frames or self._finished:
            # The link's own flush at the end of this tick makes one write of it.
            self._flush()
        else:
            self._idle.set()

    def _append(self, agent: str, frames: list[bytes]) -> None:
        key = self._keys.replies(agent)
        entries = self._entries_of.get(agent, 0) + 1
        if len(self._entries_of) > 10_000:
            self._entries_of.clear()
        self._entries_of[agent] = entries
        self._in_flight += 1

        def appended(reply: Reply) -> None:
            self._answered()
            if reply is None:
                self._gone(agent)
            elif isinstance(reply, BrokerError):
                telemetry.log.error("frames.refused", agent=agent, error=str(reply))

        # Written again after a reconnect: the caller drops what it already has by its seq.
        self._link.send(("XADD", key, "NOMKSTREAM", "*", "f", join_frames(frames)), appended, repeatable=True)
        if entries % _CHECK_LENGTH_EVERY == 0:
            self._link.send(("XLEN", key), lambda length: self._measured(agent, length), repeatable=True)

    def _measured(self, agent: str, length: Reply) -> None:
        if isinstance(length, int) and length > self._reply_limit:
            message = f"the agent leaves {length} reply entries unread, more than {self._reply_limit}"
            self._on_agent_gone(agent, ErrorInfo("slow_consumer", message=message))

    def _gone(self, agent: str) -> None:
        self._entries_of.pop(agent, None)
        self._on_agent_gone(agent, ErrorInfo("cancelled", message="the calling agent is gone"))

    def _finish(self, stream: RequestStream, batch: list[tuple[Delivery, bytes]]) -> None:
        # A delivery from before the group was made anew may look pending under the same id: it is another one.
        for delivery, _ in [item for item in batch if item[0].generation != stream.generation]:
            self.lost += 1
            self._on_lost(delivery)
        batch = [item for item in batch if item[0].generation == stream.generation]
        if not batch:
            return
        by_agent: dict[str, list[bytes | int]] = {}
        for index, (delivery, frame) in enumerate(batch, 1):
            by_agent.setdefault(delivery.request.agent, []).extend((index, frame))
        args: list[bytes | str | int] = [stream.consumer, stream.generation, stream.counter, len(batch)]
        args.extend(delivery.entry for delivery, _ in batch)
        agents = {self._keys.replies(agent): agent for agent in by_agent}
        for agent, indexed in by_agent.items():
            args.append(self._keys.replies(agent))
            args.append(len(indexed) // 2)
            args.extend(indexed)
        self._in_flight += 1

        def done(reply: Reply) -> None:
            self._answered()
            for delivery, _ in batch:
                stream.held.pop(delivery.entry, None)
            if isinstance(reply, BrokerError):
                # The requests stay pending under our name and are recovered when their leases end.
                telemetry.log.error("finish.refused", service=stream.service, calls=len(batch), error=str(reply))
                return
            generation, counter, lost, gone = reply
            stream.fence_is(generation, counter)
            for index in lost:
                self.lost += 1
                self._on_lost(batch[index - 1][0])
            for key in gone:
                self._gone(agents[key.decode()])

        # Safe to write again after a reconnect: what was finished is no longer pending.
        self._link.run(scripts.FINISH, (stream.key, stream.fence), tuple(args), done, repeatable=True)


def _packed(frames: list[bytes]) -> list[list[bytes]]:
    if len(frames) < 4:
        return [frames]
    entries: list[list[bytes]] = [[]]
    size = 0
    for frame in frames:
        if size + len(frame) > _MOST_BYTES and entries[-1]:
            entries.append([])
            size = 0
        entries[-1].append(frame)
        size += len(frame)
    return entries


def _bounded(batch: list[tuple[Delivery, bytes]]) -> list[list[tuple[Delivery, bytes]]]:
    if len(batch) == 1:
        return [batch]
    parts: list[list[tuple[Delivery, bytes]]] = [[]]
    size = 0
    for item in batch:
        if parts[-1] and (len(parts[-1]) == _MOST_IDS or size + len(item[1]) > _MOST_BYTES):
            parts.append([])
            size = 0
        parts[-1].append(item)
        size += len(item[1])
    return parts
