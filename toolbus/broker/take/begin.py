"""Mark that ``once`` work begins."""

from __future__ import annotations

from toolbus.broker import scripts
from toolbus.broker.lease.clock import ServerClock
from toolbus.broker.protocols import Beginning
from toolbus.broker.take.requests import StreamDelivery, tell_delivered_again
from toolbus.broker.transport.mastership import Mastership
from toolbus.broker.transport.replication import Replication
from toolbus.broker.transport.server import may_have_forgotten
from toolbus.broker.transport.transport import Transport


async def begin_once(
    link: Transport,
    mastership: Mastership,
    replication: Replication,
    delivery: StreamDelivery,
    mark: str,
    *,
    clock: ServerClock,
    retention: float,
) -> Beginning:
    """Mark that a ``once`` handler begins, on a server that is surely the master before and after.

    The mark's key is ``mark``; it outlives the deadline by ``retention`` seconds.

    Returns:
        ``started`` when the handler may run; otherwise why it may not.

    Raises:
        BrokerError: the server could not be asked.
    """
    while True:
        await mastership.wait()
        if await may_have_forgotten(link, delivery.server):
            return "unsure"
        stream = delivery.queue
        left = max(0.0, delivery.deadline - clock.monotonic()) + retention
        args = (stream.consumer, *delivery.fence, delivery.entry, delivery.attempt, delivery.run, int(left * 1000))
        reply, confirmed = await replication.run(scripts.START, (stream.key, stream.fence, mark), args)
        if reply == b"began" and delivery.attempt == 1 and not delivery.recovered:
            # Nobody has died of it: the group was set back, and whoever began it runs it.
            tell_delivered_again(stream, 1)
            stream.leave(delivery)
            return "lost"
        if reply != b"started":
            return "began" if reply == b"began" else "lost"
        if not confirmed:
            return "unconfirmed"
        # The same run may mark its beginning again, which tells what another server knows of it.
        if mastership.sure:
            return "started"
