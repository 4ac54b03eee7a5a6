"""Give held deliveries to other workers."""

from __future__ import annotations

from collections.abc import Sequence

from toolbus.broker import scripts
from toolbus.broker.take.requests import StreamDelivery, common_fence
from toolbus.broker.transport.transport import Transport

_MOST_AT_ONCE = 256


async def hand_back(link: Transport, deliveries: Sequence[StreamDelivery]) -> None:
    """Give deliveries to other workers; those that are no longer held are left out.

    What was never begun keeps its number. What was begun gets the next one, up to the last that is not suspected of killing its workers:
    those who hand a request back did not die of it.

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
                entries = [word for each in part for word in (each.entry, each.attempt, _next(each))]
                args = (stream.consumer, *common_fence(part), stream.wake, stream.service, *entries)
                await link.execute_script(scripts.HAND_BACK, (stream.key, stream.fence), args, repeatable=True)


def _next(delivery: StreamDelivery) -> int:
    return delivery.attempt + 1 if delivery.begun and delivery.attempt + 1 < delivery.queue.alone_from else delivery.attempt
