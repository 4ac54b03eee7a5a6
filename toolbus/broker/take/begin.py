"""Mark that ``once`` work begins."""

from __future__ import annotations

import asyncio

from toolbus.broker import scripts
from toolbus.broker.keys import Keys
from toolbus.broker.lease.clock import ServerClock
from toolbus.broker.protocols import Beginning
from toolbus.broker.take.requests import Fence, RequestStream, StreamDelivery, tell_delivered_again
from toolbus.broker.transport.command import Reply, WrongAnswerError
from toolbus.broker.transport.mastership import Mastership
from toolbus.broker.transport.replication import Replication
from toolbus.broker.transport.server import accepted_here, may_have_forgotten
from toolbus.broker.transport.transport import Transport
from toolbus.results import BrokerError

# Marks of one script, which blocks the server for as long.
_MOST_MARKS = 256

_Answer = asyncio.Future[tuple[Reply, bool]]
_Waiting = list[tuple[StreamDelivery, _Answer]]


class Beginnings:
    """Marks what begins within one turn of the event loop with one script.

    Args:
        retention: seconds for which a mark outlives its call's deadline.
    """

    def __init__(
        self, link: Transport, mastership: Mastership, replication: Replication, keys: Keys, clock: ServerClock, retention: float
    ) -> None:
        self._link = link
        self._mastership = mastership
        self._replication = replication
        self._keys = keys
        self._clock = clock
        self._retention = retention
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[tuple[RequestStream, Fence], _Waiting] = {}

    async def begin(self, delivery: StreamDelivery) -> Beginning:
        """Mark that a ``once`` handler begins, on a server that is surely the master before and after.

        Returns:
            ``started`` when the handler may run; otherwise why it may not.

        Raises:
            BrokerError: the server could not be asked.
        """
        while True:
            await self._mastership.wait()
            if not accepted_here(self._link, delivery.server) and await may_have_forgotten(self._link):
                return "unsure"
            reply, confirmed = await self._mark(delivery)
            if reply == b"began" and delivery.attempt == 1 and not delivery.recovered:
                # Nobody has died of it: the group was set back, and whoever began it runs it.
                tell_delivered_again(delivery.queue, 1)
                delivery.queue.leave(delivery)
                return "lost"
            if reply != b"started":
                return "began" if reply == b"began" else "lost"
            if not confirmed:
                return "unconfirmed"
            # The same run may mark its beginning again, which tells what another server knows of it.
            if self._mastership.sure:
                return "started"

    def _mark(self, delivery: StreamDelivery) -> _Answer:
        if not self._waiting:
            self._loop.call_soon(self._write)
        answer: _Answer = self._loop.create_future()
        self._waiting.setdefault((delivery.queue, delivery.fence), []).append((delivery, answer))
        return answer

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for (stream, fence), batch in waiting.items():
            for start in range(0, len(batch), _MOST_MARKS):
                self._write_part(stream, fence, batch[start : start + _MOST_MARKS])

    def _write_part(self, stream: RequestStream, fence: Fence, part: _Waiting) -> None:
        now = self._clock.monotonic()
        marks: list[str] = []
        args: list[str | bytes | int] = [stream.consumer, *fence]
        for delivery, _ in part:
            marks.append(self._keys.started(delivery.request.id))
            left = max(0.0, delivery.deadline - now) + self._retention
            args += (delivery.entry, delivery.attempt, delivery.run, int(left * 1000))

        def done(reply: Reply, confirmed: bool) -> None:
            if not isinstance(reply, BrokerError) and len(reply) != len(part):
                reply = WrongAnswerError(f"the server said {len(reply)} words about {len(part)} runs")
            for index, (_, answer) in enumerate(part):
                if answer.done():
                    continue
                if isinstance(reply, BrokerError):
                    answer.set_exception(reply)
                else:
                    answer.set_result((reply[index], confirmed))

        self._replication.write(scripts.START, (stream.key, stream.fence, *marks), tuple(args), done)
