"""Signing off when a worker leaves, and handing back requests that it does not run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from toolbus import telemetry
from toolbus.broker.protocols import Delivery, WorkerBroker
from toolbus.results import BrokerError
from toolbus.safe_text import reason_of
from toolbus.worker.slots.waiting import Waiting

# Seconds that a leaving worker waits for each of the server's answers.
_ANSWERS_WITHIN = 3.0
# Seconds between two looks at what a service that is withdrawn still holds.
_LOOK_AGAIN = 0.02


async def sign_off(broker: WorkerBroker) -> None:
    """Leave the registry, so that a worker that takes nothing more is not listed as live. A failure is logged."""
    try:
        async with asyncio.timeout(_ANSWERS_WITHIN):
            await broker.unregister()
    except Exception as error:  # noqa: BLE001 - the worker leaves whatever the server says
        reason = "the server did not answer" if isinstance(error, TimeoutError) else reason_of(error)
        telemetry.log.warning("worker.unregister_failed", error=reason)


async def hand_back(broker: WorkerBroker, deliveries: Sequence[Delivery]) -> None:
    """Give deliveries to other workers. A failure is logged: their leases expire, and other workers claim them all the same."""
    if not deliveries:
        return
    telemetry.log.info("worker.handed_back", calls=len(deliveries))
    try:
        async with asyncio.timeout(_ANSWERS_WITHIN):
            await broker.hand_back(deliveries)
    except (BrokerError, TimeoutError) as error:
        telemetry.log.warning("worker.hand_back_failed", error=str(error) or "the server did not answer")


async def hand_over(broker: WorkerBroker, delivery: Delivery) -> bool:
    """Give a delivery to a worker of the revision that its caller knows; return False when that can't be done, and log why."""
    try:
        async with asyncio.timeout(_ANSWERS_WITHIN):
            return await broker.hand_over(delivery)
    except (BrokerError, TimeoutError) as error:
        telemetry.log.warning("worker.hand_back_failed", error=str(error) or "the server did not answer")
        return False


async def give_up(broker: WorkerBroker, waiting: Waiting, service: str, ended: Callable[[], bool], within: float) -> None:
    """Give what waits for one service to other workers until its calls have ended, or ``within`` seconds have passed."""
    until = time.monotonic() + within
    while True:
        # A call that fails meanwhile waits for its next attempt.
        await hand_back(broker, waiting.clear_service(service))
        if ended() or time.monotonic() >= until:
            return
        await asyncio.sleep(_LOOK_AGAIN)
