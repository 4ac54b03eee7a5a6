"""Failed requests that are run again after a while."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from toolbus import telemetry
from toolbus.broker.protocols import Delivery, WorkerBroker
from toolbus.deadlines import Deadlines
from toolbus.results import BrokerError, ErrorInfo
from toolbus.worker.definition.retry import Retry
from toolbus.worker.slots.waiting import Waiting

# Seconds until an attempt is counted again that the server did not take.
_AGAIN_AFTER = 1.0


class Retries:
    """Holds failed requests until their next attempt, which it has the server count.

    Args:
        waiting: where they wait.
        broker: counts attempts.
        deadlines: says when their time has come.
        most: attempts of any request, whatever its policy says.
        clock: returns monotonic seconds.
        start: takes in a delivery whose next attempt was counted.
        lost: takes in one that is not run again here.
    """

    def __init__(
        self,
        waiting: Waiting,
        broker: WorkerBroker,
        deadlines: Deadlines,
        most: int,
        clock: Callable[[], float],
        start: Callable[[Delivery], Awaitable[None]],
        lost: Callable[[Delivery], None],
    ) -> None:
        self._waiting = waiting
        self._broker = broker
        self._deadlines = deadlines
        self._most = most
        self._clock = clock
        self._start = start
        self._lost = lost
        self._counting: set[asyncio.Task[None]] = set()

    def keep(self, delivery: Delivery, policy: Retry | None, error: ErrorInfo) -> bool:
        """Hold a failed request for another attempt; return False when there is to be none."""
        if policy is None or not policy.allows(delivery.tries, self._most):
            return False
        at = self._clock() + policy.after(delivery.tries, error.retry_after)
        if at >= delivery.deadline:
            return False
        self._hold(delivery, at)
        return True

    def _hold(self, delivery: Delivery, at: float) -> None:
        self._waiting.add_retry(delivery)
        self._deadlines.add(at, ("retry", delivery.run), lambda: self._due(delivery.run))

    def _due(self, run: str) -> None:
        delivery = self._waiting.pop_retry(run)
        if delivery is not None:
            task = asyncio.get_running_loop().create_task(self._count(delivery))
            self._counting.add(task)
            task.add_done_callback(self._counting.discard)

    async def _count(self, delivery: Delivery) -> None:
        try:
            again = await self._broker.retry(delivery)
        except BrokerError as error:
            telemetry.log.warning("retry.failed", id=delivery.request.id, error=str(error))
            at = self._clock() + _AGAIN_AFTER
            if at < delivery.deadline:
                self._hold(delivery, at)
                return
            again = None
        if again is not None:
            await self._start(again)
        else:
            self._lost(delivery)
