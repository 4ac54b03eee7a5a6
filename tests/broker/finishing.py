"""An outbox and the endings of one worker on a fake connection."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec

from tests.broker.fakes import FENCE, SETTINGS, Bench
from tests.broker.observing import waits
from toolbus.bus.broker.held.confirmations import DeadlineNotes
from toolbus.bus.broker.replies.finish import Endings, Outbox
from toolbus.bus.broker.transport.opening import Failing
from toolbus.bus.values.results import ErrorInfo, ToolbusError


class Finishing:
    """An outbox, and sessions that are ours as the test says."""

    def __init__(self) -> None:
        self.bench = bench = Bench()
        self.gone: list[tuple[str, ErrorInfo]] = []
        self.lost = bench.listener.lost
        self.given_up: list[ToolbusError] = []
        bench.link.answers |= {"send": [], "finish": self._finished, "finish_each": self._finished, "bury": 1}
        self.lost_indexes: list[int] = []
        self.gone_keys: list[bytes] = []
        self.doubted = False
        self.ours = True
        self.forgotten: list[Any] = []
        bench.settings = msgspec.structs.replace(SETTINGS, reply_limit=100, reply_bytes=1_000_000)
        failing = Failing(10.0, "no calls could be finished", self.given_up.append, bench.times)
        self.outbox = Outbox(*bench.own, lambda *gone: self.gone.append(gone), failing)
        notes, sessions = DeadlineNotes(*bench.own), cast("Any", self)
        self.endings = Endings(*bench.own, self.outbox, sessions, sessions, notes, bench.start)

    def _finished(self, keys: Any, args: Any) -> list[Any]:
        return [*FENCE, self.lost_indexes, self.gone_keys, 3]

    def doubts(self, delivery: Any) -> bool:
        """Return whether a session may be another's."""
        assert delivery.queue is self.bench.stream
        return self.doubted

    async def holds_at_end(self, delivery: Any) -> bool:
        """Ask whose its session is."""
        return self.ours

    async def forget(self, delivery: Any) -> None:
        """Forget the snapshot of its session."""
        self.forgotten.append(delivery)

    def drained(self) -> bool:
        """Return whether everything is answered."""
        return not waits(self.outbox.drained())

    def has_room(self) -> bool:
        """Return whether producers may go on."""
        return not waits(self.outbox.room())

    def sent(self) -> list[list[tuple[str, list[int]]]]:
        """Return what each script sent: the callers' streams, each with the sizes of its frames."""
        return [
            [(replies, [len(frame) for frame in joined[1:-1].split(b",")]) for replies, joined in zip(args[::2], args[1::2], strict=True)]
            for args in self.bench.link.args("send")
        ]

    async def turn(self) -> None:
        """Let this tick end."""
        await asyncio.sleep(0)
