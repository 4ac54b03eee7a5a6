"""Calls that carry an idempotency key, from the agent's side.

Such a call is published once, and answered in a stream of its own that outlives its agent. Every
caller with the same key meanwhile, or within the retention, reads that stream from its start.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from toolbus.broker import scripts
from toolbus.broker.keys import Keys
from toolbus.broker.protocols import Fate, Sender, Verdict
from toolbus.broker.protocols.sharing import ended_for_another, readdressed
from toolbus.broker.publish.publisher import ABSENT, failure, fate_of
from toolbus.broker.reading import identifier, integer, skip, text
from toolbus.broker.transport.command import Reply
from toolbus.broker.transport.mastership import Mastership
from toolbus.broker.transport.transport import Transport
from toolbus.envelope import Frame, Request, share_digest, work_digest
from toolbus.results import BrokerError, EnvelopeError

_MOST_KEPT = 10_000


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
        mastership: what it does not admit is kept, and ``release`` publishes it.
    """

    def __init__(self, link: Transport, keys: Keys, agent: str, retention: float, wake: Callable[[], None], mastership: Mastership) -> None:
        self._link = link
        self._mastership = mastership
        self._kept: dict[str, Callable[[], None]] = {}
        self._keys = keys
        self._agent = agent
        self._retention = retention
        self._wake = wake
        self._followed: dict[bytes, _Followed] = {}
        self._joined: dict[str, Callable[[str], None]] = {}
        self._stream_of: dict[str, bytes] = {}
        # Attempts of the calls that a caller had joined before the one that it reads now.
        self._attempts: dict[str, int] = {}

    def publish(
        self, request: Request, queue: str, limit: int, deadline: float, document: bytes, sender: Sender, session: str = "", left: str = ""
    ) -> None:
        """Publish a call, or join the one that its key stands for.

        Args:
            session: stands for its session, if it keeps its place there.
            left: a call that it had joined and that is over.
        """
        once = request.effect == "once"
        if not self._mastership.admits(once=once):
            if len(self._kept) >= _MOST_KEPT:
                sender.settle(Verdict("failed", message=f"{_MOST_KEPT} calls already wait for a server that is surely the master"))
                return
            self._kept[request.id] = lambda: self.publish(request, queue, limit, deadline, document, sender, session, left)
            return
        server = self._link.server

        def again(left: str) -> None:
            self.publish(request, queue, limit, deadline, document, sender, session, left)

        def done(reply: Reply) -> None:
            try:
                verdict = failure(reply) if isinstance(reply, BrokerError) else self._verdict(request.id, reply, left, again)
            except (EnvelopeError, IndexError) as error:
                skip(record, str(error))
                verdict = Verdict("unknown", message=f"the record of the idempotency key can't be read: {error}")
            sender.settle(verdict)
            if sender.done:
                self.forget(request.id)

        record = self._keys.shared(share_digest(request))
        self._link.run(
            scripts.SHARE,
            (record, self._keys.queue(queue), self._keys.call(request.id), *([self._keys.order(queue)] if session else ())),
            (
                request.id,
                work_digest(request),
                self._agent,
                limit,
                max(1, int((deadline - time.monotonic()) * 1000)),
                document,
                int(self._retention * 1000),
                server.run_id if once and server is not None else "",
                self._keys.prefix,
                self._keys.wake(queue),
                *([session] if session else ()),
            ),
            done,
            repeatable=True,
            same_server=once,
        )

    def _verdict(self, call: str, reply: Reply, left: str, again: Callable[[str], None]) -> Verdict:
        """Return what became of a publication, and follow the call that it stands for; raises EnvelopeError."""
        if reply[0] in {b"queued", b"joined"}:
            entry = text(reply[1])
            runs = identifier(reply[2]) if reply[0] == b"joined" else call
            if runs not in {call, left}:
                self._joined[call] = again
            self.follow(call, runs)
            return Verdict("queued", entry=entry)
        if reply[0] == b"conflict":
            return Verdict("conflict")
        return ABSENT if reply[0] == b"absent" else Verdict("full", depth=integer(reply[1]))

    def release(self) -> None:
        """Publish what was kept, or keep it again."""
        kept, self._kept = self._kept, {}
        for publish in kept.values():
            publish()

    def cancel(
        self, request: Request, queue: str, entry: str, on_fate: Callable[[Fate], None] | None, waited: float, why: str = "cancelled"
    ) -> None:
        """Stop waiting for a shared call; it is cancelled when no other caller waits for it."""
        if self._kept.pop(request.id, None) is not None:
            if on_fate is not None:
                on_fate("removed")
            return

        def done(reply: Reply) -> None:
            fate = fate_of(request.id, reply)
            if on_fate is not None:
                on_fate(fate)

        stream = self._stream_of.get(request.id)
        runs = self._followed[stream].call if stream is not None else request.id
        keys = (self._keys.shared(share_digest(request)), self._keys.queue(queue), self._keys.cancelled(queue))
        left = max(1, int((request.timeout + waited) * 1000))
        args = (request.id, runs, entry or "0-1", left, self._keys.wake(queue), self._keys.prefix, int(request.effect == "once"), why)
        self._link.run(scripts.LEAVE, keys, args, done, repeatable=True)

    def forget(self, call: str) -> None:
        """Stop reading for a caller whose call has ended."""
        self._joined.pop(call, None)
        self._attempts.pop(call, None)
        self._kept.pop(call, None)
        stream = self._stream_of.pop(call, None)
        if stream is not None:
            followed = self._followed[stream]
            (followed.callers if call in followed.callers else followed.newcomers).remove(call)
            if not (followed.callers or followed.newcomers):
                del self._followed[stream]

    def positions(self) -> list[tuple[bytes, bytes]]:
        """Return the streams of the read that begins now, each with the entry to read after.

        Callers that came since the last read need the whole stream, and the others drop what they have by its seq. A read that had begun
        before is not for newcomers, since it begins in the middle.
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
        """Return the frames of a shared stream, once for each of this process's callers."""
        followed = self._followed.get(stream)
        if followed is None:
            return []
        mine = [frame for frame in frames if frame.id == followed.call]
        if mine and ended_for_another(mine[-1]):
            self._begin_anew(followed, mine[-1].attempt)
        return [readdressed(frame, caller, self._attempts.get(caller, 0)) for caller in followed.callers for frame in mine]

    def _begin_anew(self, followed: _Followed, attempts: int) -> None:
        """Publish again for who joined a call that ended for its first caller alone, and whose key is free."""
        for caller in [*followed.callers, *followed.newcomers]:
            again = self._joined.get(caller)
            if again is not None:
                before = self._attempts.get(caller, 0)
                self.forget(caller)
                # The attempts of one caller count up, or its newer run would seem to be an older one.
                self._attempts[caller] = before + attempts
                again(followed.call)

    def follow(self, call: str, runs: str) -> None:
        """Read the replies to the call ``runs`` from their start, as those of ``call``, until ``forget``."""
        stream = self._keys.call(runs).encode()
        followed = self._followed.get(stream)
        if followed is None:
            followed = self._followed[stream] = _Followed(runs)
        followed.newcomers.append(call)
        self._stream_of[call] = stream
        self._wake()
