"""Give held deliveries to other workers."""

from __future__ import annotations

from collections.abc import Sequence

from toolbus.broker import scripts
from toolbus.broker.confirmations.notes import NOTE_TTL
from toolbus.broker.take.requests import StreamDelivery, common_fence
from toolbus.broker.transport.transport import Transport

_MOST_AT_ONCE = 256


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
