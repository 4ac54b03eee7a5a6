"""Calls that carry an idempotency key, from the agent's side.

Such a call is published once, and answered in a stream of its own that outlives its agent. Whoever
calls with the same key meanwhile, or within the retention, reads that stream from its start.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from toolbus.broker import scripts
from toolbus.broker.command import Reply
from toolbus.broker.keys import Keys
from toolbus.broker.link import Link
from toolbus.broker.protocols import Fate, Sender, Verdict
from toolbus.broker.publisher import ABSENT, failure, fate_of
from toolbus.envelope import Frame, Request, arguments_digest, share_digest
from toolbus.results import BrokerError


class _Followed:
    """A shared call's stream, and this process's callers of it; newcomers wait for a read that begins at its start."""

    __slots__ = ("call", "callers", "newcomers", "position")

    def __init__(self, call: str) -> None:
        self.call = call
        self.position: bytes = b"0"
        self.callers: list[str] = []
        self.newcomers: list[str] = []


class SharedCalls:
    """Publishes, joins and leaves shared calls, and knows which streams are to be read for them.

    Args:
        retention: seconds that an answer is kept beyond the call's timeout.
        wake: makes a waiting read of the replies return, so that the next one reads the new stream too.
    """

    def __init__(self, link: Link, keys: Keys, agent: str, retention: float, wake: Callable[[], None]) -> None:
        self._link = link
        self._keys = keys
        self._agent = agent
        self._retention = retention
        self._wake = wake
        self._followed: dict[bytes, _Followed] = {}
        self._stream_of: dict[str, bytes] = {}

    def publish(self, request: Request, queue: str, limit: int, deadline: float, document: bytes, sender: Sender) -> None:
        """Publish a call, or join the one that its key stands for."""
        once = request.effect == "once"
        server = self._link.server

        def done(reply: Reply) -> None:
            if isinstance(reply, BrokerError):
                sender.settle(failure(reply))
            elif reply[0] in {b"queued", b"joined"}:
                entry = reply[1].decode()
                self._follow(request.id, reply[2].decode() if reply[0] == b"joined" else request.id)
                sender.settle(Verdict("queued", entry=entry))
                if sender.done:
                    self.forget(request.id)
            elif reply[0] == b"conflict":
                sender.settle(Verdict("conflict"))
            else:
                sender.settle(ABSENT if reply[0] == b"absent" else Verdict("full", depth=int(reply[1])))

        self._link.run(
            scripts.SHARE,
            (self._keys.shared(share_digest(request)), self._keys.queue(queue), self._keys.call(request.id)),
            (
                request.id,
                arguments_digest(request),
                self._agent,
                limit,
                max(1, int((deadline - time.monotonic()) * 1000)),
                document,
                int(self._retention * 1000),
                server.run_id if once and server is not None else "",
                self._keys.prefix,
            ),
            done,
            repeatable=True,
            same_server=once,
        )

    def cancel(self, request: Request, queue: str, entry: str, on_fate: Callable[[Fate], None] | None, waited: float) -> None:
        """Stop waiting for a shared call; it is cancelled when nobody else waits for it."""

        def done(reply: Reply) -> None:
            fate = fate_of(request.id, reply)
            if on_fate is not None:
                on_fate(fate)

        stream = self._stream_of.get(request.id)
        runs = self._followed[stream].call if stream is not None else request.id
        keys = (self._keys.shared(share_digest(request)), self._keys.queue(queue), self._keys.cancelled(queue))
        left = max(1, int((request.timeout + waited) * 1000))
        args = (request.id, runs, entry or "0-1", left, self._keys.wake(queue), self._keys.prefix, int(request.effect == "once"))
        self._link.run(scripts.LEAVE, keys, args, done, repeatable=True)

    def forget(self, call: str) -> None:
        """Stop reading for a caller whose call has ended."""
        stream = self._stream_of.pop(call, None)
        if stream is not None:
            followed = self._followed[stream]
            (followed.callers if call in followed.callers else followed.newcomers).remove(call)
            if not (followed.callers or followed.newcomers):
                del self._followed[stream]

    def positions(self) -> list[tuple[bytes, bytes]]:
        """The streams of the read that begins now, each with the entry to read after.

        Who came since the last one needs it all, and the others drop what they have by its seq. What a read brings that had begun
        before is not for newcomers: it is a middle.
        """
        for followed in self._followed.values():
            if followed.newcomers:
                followed.callers += followed.newcomers
                followed.newcomers = []
                followed.position = b"0"
        return [(stream, followed.position) for stream, followed in self._followed.items()]

    def passed(self, stream: bytes, position: bytes) -> None:
        """Take note of how far a stream has been read."""
        followed = self._followed.get(stream)
        if followed is not None:
            followed.position = position

    def addressed(self, stream: bytes, frames: list[Frame]) -> list[Frame]:
        """The frames of a shared stream, once for each of this process's callers."""
        followed = self._followed.get(stream)
        if followed is None:
            return []
        mine = [frame for frame in frames if frame.id == followed.call]
        return [_readdressed(frame, caller) for caller in followed.callers for frame in mine]

    def _follow(self, call: str, runs: str) -> None:
        stream = self._keys.call(runs).encode()
        followed = self._followed.get(stream)
        if followed is None:
            followed = self._followed[stream] = _Followed(runs)
        followed.newcomers.append(call)
        self._stream_of[call] = stream
        self._wake()


def _readdressed(frame: Frame, call: str) -> Frame:
    return frame if frame.id == call else msgspec.structs.replace(frame, id=call)
