"""Take over the entries of one stream that no living worker runs."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from toolbus.broker import scripts
from toolbus.broker.confirmations.notes import handed_back
from toolbus.broker.keys import Keys
from toolbus.broker.take.requests import Fence, RequestStream
from toolbus.broker.transport.command import Reply
from toolbus.broker.transport.transport import Transport


class ReapedEntry(NamedTuple):
    """An entry that was moved to this consumer.

    Attributes:
        id: the entry's id.
        delivered: how often it was delivered until now.
        counted: 1 when its run here is a further attempt, 0 when not.
        fields: its fields, flat; None when the entry is gone.
        owner: the consumer that had it until now.
        note: what is known about the call beyond its fields, see ``read_note`` and ``handed_back``; empty for most.
    """

    id: bytes
    delivered: int
    counted: int
    fields: list[bytes] | None
    owner: bytes
    note: bytes

    @property
    def attempt(self) -> int:
        """The number of the attempt that its run here is."""
        return self.delivered + self.counted

    @property
    def tries(self) -> int:
        """The number of that attempt among those that no leaving worker cut off."""
        return self.attempt - handed_back(self.note)


class Reaped(NamedTuple):
    """The result of one reap.

    Attributes:
        entries: what was taken over.
        fence: the state under which they are this worker's.
        left: whether this worker is to make room for a suspect that must run alone.
    """

    entries: list[ReapedEntry]
    fence: Fence
    left: bool


async def reap(
    link: Transport, keys: Keys, stream: RequestStream, slots: int, *, busy: bool, flexible: bool, handed_back_only: bool
) -> Reaped:
    """Take over what was handed back, entries of dead workers, and deliveries whose reply was lost; at most ``slots`` entries.

    ``busy`` when this worker holds anything, ``flexible`` when it could make room for a suspect, which must run alone. With
    ``handed_back_only`` the entries of dead workers stay.

    Raises:
        BrokerError: the server could not be asked.
    """
    args = (
        stream.consumer,
        stream.service,
        slots,
        stream.lease_ms,
        int(handed_back_only),
        int(busy),
        stream.alone_from,
        int(flexible),
        stream.pause_key(b""),
    )
    reply: Reply = await link.execute_script(scripts.REAP, (stream.key, stream.fence, keys.live, keys.pulse), args)
    generation, counter, taken, left, delivered = reply
    stream.fence_is(generation, counter)
    stream.position.advance(delivered)
    return Reaped([entry for entry in itertools.starmap(ReapedEntry, taken) if _is_news(stream, entry)], stream.fence_known, bool(left))


def _is_news(stream: RequestStream, entry: ReapedEntry) -> bool:
    """Return whether an entry was not held here all the time; a delivery of it that was held is lost."""
    held = stream.held.get(entry.id)
    if held is None:
        return True
    if entry.owner == stream.consumer.encode():
        # It only looked as if it was not renewed.
        return False
    stream.lose(held)
    return True
