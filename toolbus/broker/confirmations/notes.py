"""Notes of the later deadlines of calls whose handlers have waited for a confirmation."""

from __future__ import annotations

from toolbus.broker import scripts
from toolbus.broker.keys import Keys
from toolbus.broker.lease.clock import ServerClock
from toolbus.broker.protocols import Note
from toolbus.broker.reading import integer, skip
from toolbus.broker.take.requests import StreamDelivery
from toolbus.broker.transport.transport import Transport
from toolbus.envelope import share_digest
from toolbus.results import EnvelopeError

# Milliseconds for which a note outlives its deadline.
_NOTE_TTL = 60_000


class DeadlineNotes:
    """The notes of one worker's deliveries, from which a later run learns their deadlines.

    Args:
        retention: seconds for which an answer is kept beyond its call's deadline.
    """

    def __init__(self, link: Transport, keys: Keys, clock: ServerClock, retention: float) -> None:
        self._link = link
        self._keys = keys
        self._clock = clock
        self._retention_ms = int(retention * 1000)

    async def write(self, delivery: StreamDelivery, note: Note) -> None:
        """Note the later deadline of a delivery, and keep what must outlive it.

        Raises:
            BrokerError: the server could not be told.
        """
        request, keys = delivery.request, self._keys
        delivery.extended = True
        left = int(max(0.0, note.deadline + note.until - note.since - self._clock.monotonic()) * 1000)
        kept = [keys.started(request.id)]
        if request.shared:
            kept += [keys.call(request.id), keys.shared(share_digest(request))]
        args = (write_note(note, self._clock), left + _NOTE_TTL, left + self._retention_ms)
        await self._link.execute_script(scripts.EXTEND, (delivery.queue.pause_key(delivery.entry), *kept), args, repeatable=True)

    def apply(self, delivery: StreamDelivery, text: bytes) -> None:
        """Give a delivery the deadline that a note states; one that can't be read changes nothing."""
        try:
            note = read_note(text, self._clock)
        except EnvelopeError as error:
            skip(delivery.queue.pause_key(delivery.entry), error)
            return
        delivery.extended = True
        delivery.deadline = max(delivery.deadline, note.effective(self._clock.monotonic()))

    def drop(self, delivery: StreamDelivery) -> None:
        """Delete the note of a delivery that has ended. Returns at once."""
        self._link.send(("DEL", delivery.queue.pause_key(delivery.entry)), repeatable=True)


def write_note(note: Note, clock: ServerClock) -> str:
    """Return a note as it stands on the server: milliseconds of the server's clock, 0 for a time that is not set."""
    return " ".join(str(int((when + clock.offset) * 1000) if when else 0) for when in note)


def read_note(text: bytes, clock: ServerClock) -> Note:
    """Return the note in local times.

    Raises:
        EnvelopeError: it can't be read.
    """
    words = text.split(maxsplit=3)
    if len(words) != len(Note._fields):
        raise EnvelopeError(f"a note is {len(Note._fields)} numbers, not {len(words)}")
    times = [integer(word) / 1000 for word in words]
    return Note(*(when and when - clock.offset for when in times))
