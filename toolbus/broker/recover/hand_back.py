"""Give deliveries to other workers, and leave the calls of an old revision behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from toolbus.broker import scripts
from toolbus.broker.confirmations.notes import NOTE_TTL
from toolbus.broker.keys import Keys
from toolbus.broker.registry.registration import WorkerRegistration
from toolbus.broker.take.requests import RequestStream, StreamDelivery, common_fence
from toolbus.broker.transport.transport import Transport

_MOST_AT_ONCE = 256
# Seconds in which agents have heard of a change of the registry and no longer publish by what they knew before.
_HEARD_WITHIN = 0.3
# Seconds between two looks at what is left of the calls of an old revision.
_LOOK_AGAIN = 0.1


async def hand_back(link: Transport, deliveries: Sequence[StreamDelivery]) -> None:
    """Give deliveries to other workers; those that are no longer held are left out.

    One that has begun to run is run as the next attempt there.

    Raises:
        BrokerError: the server could not be told; the leases of the deliveries end, and other workers take them over.
    """
    # Streams in the order in which they appear.
    for stream in dict.fromkeys(delivery.queue for delivery in deliveries):
        own = [delivery for delivery in deliveries if delivery.queue is stream]
        for start in range(0, len(own), _MOST_AT_ONCE):
            part = [
                delivery
                for delivery in own[start : start + _MOST_AT_ONCE]
                if stream.held.get(delivery.entry) is delivery and delivery.fence.generation == stream.fence_known.generation
            ]
            for delivery in part:
                del stream.held[delivery.entry]
            if part:
                notes = [stream.pause_key(delivery.entry) for delivery in part if delivery.begun]
                args: list[bytes | str | int] = [stream.consumer, *common_fence(part), stream.wake, stream.service]
                for delivery in part:
                    args += (delivery.entry, delivery.attempt, stream.left_ms(delivery) + NOTE_TTL if delivery.begun else "")
                await link.execute_script(scripts.HAND_BACK, (stream.key, stream.fence, *notes), tuple(args), repeatable=True)


async def hand_over(link: Transport, keys: Keys, delivery: StreamDelivery) -> bool:
    """Give a delivery that has not begun to a live worker that serves the revision it was made for; return False when there is none.

    Raises:
        BrokerError: the server could not be asked.
    """
    stream = delivery.queue
    about = (delivery.fence.generation, stream.wake, delivery.entry, delivery.attempt, delivery.request.digest)
    places = (stream.key, stream.fence, keys.live, keys.instances(stream.service))
    if not await link.execute_script(scripts.HAND_OVER, places, (stream.consumer, stream.service, *about), repeatable=True):
        return False
    if stream.held.get(delivery.entry) is delivery:
        del stream.held[delivery.entry]
    return True


async def pass_on(link: Transport, streams: Sequence[RequestStream]) -> None:
    """Let any worker take what waits for this one in some streams.

    Raises:
        BrokerError: the server could not be asked.
    """
    for stream in streams:
        passed = _MOST_AT_ONCE
        while passed == _MOST_AT_ONCE:
            args = (stream.consumer, stream.wake, stream.service, _MOST_AT_ONCE)
            passed = await link.execute_script(scripts.PASS_ON, (stream.key,), args, repeatable=True)


async def outlive(link: Transport, keys: Keys, stream: RequestStream, registration: WorkerRegistration) -> None:
    """Wait until the calls for this worker's revision were taken, if nobody else serves it and others serve another one.

    Agents turn to the other one meanwhile. Without that, the last worker of a revision leaves calls behind that nobody can take.

    Raises:
        BrokerError: the server could not be asked.
    """
    places = (stream.key, stream.fence, keys.live, keys.instances(stream.service))
    about, until, passed = (stream.consumer, stream.service, registration.digest(stream.service)), b"", 0
    while True:
        last, newest, now_passed = await link.execute_script(scripts.OUTLIVE, places, (*about, until), repeatable=True)
        # Looked at twice, since another worker may be about to hand over what it has just taken.
        if not last or (passed and now_passed):
            return
        passed = now_passed
        if not until:
            await registration.step_back(stream.service)
            await asyncio.sleep(_HEARD_WITHIN)
            _, until, _ = await link.execute_script(scripts.OUTLIVE, places, (*about, newest), repeatable=True)
        await asyncio.sleep(_LOOK_AGAIN)
