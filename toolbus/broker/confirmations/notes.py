"""Notes about calls: the later deadline of one whose handler has waited for a confirmation, and how often one was cut off."""

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

NOTE_TTL = 60_000
"""Milliseconds for which a note outlives its call's deadline."""

# The place of the number of hand-backs, behind the times.
_HANDED_BACK = len(Note._fields)


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
        delivery.noted = True
        left = int(max(0.0, note.deadline + note.until - note.since - self._clock.monotonic()) * 1000)
        kept = [keys.started(request.id)]
        if request.shared:
            kept += [keys.call(request.id), keys.shared(share_digest(request))]
        text = write_note(note, self._clock) + (f" {delivery.handed_back}" if delivery.handed_back else "")
        args = (text, left + NOTE_TTL, left + self._retention_ms)
        await self._link.execute_script(scripts.EXTEND, (delivery.queue.pause_key(delivery.entry), *kept), args, repeatable=True)

    def apply(self, delivery: StreamDelivery, text: bytes) -> None:
        """Give a delivery what a note states; one that can't be read changes nothing."""
        try:
            note = read_note(text, self._clock)
        except EnvelopeError as error:
            skip(delivery.queue.pause_key(delivery.entry), error)
            return
        delivery.noted = True
        delivery.handed_back = handed_back(text)
        delivery.deadline = max(delivery.deadline, note.effective(self._clock.monotonic()))

    def drop(self, delivery: StreamDelivery) -> None:
        """Delete the note of a delivery that has ended. Returns at once."""
        self._link.send(("DEL", delivery.queue.pause_key(delivery.entry)), repeatable=True)


def write_note(note: Note, clock: ServerClock) -> str:
    """Return a note as it stands on the server: milliseconds of the server's clock, 0 for a time that is not set."""
    return " ".join(str(int((when + clock.offset) * 1000) if when else 0) for when in note)


def read_note(text: bytes, clock: ServerClock) -> Note:
    """Return the times of a note, as local ones.

    Raises:
        EnvelopeError: it can't be read.
    """
    words, most = text.split(maxsplit=_HANDED_BACK + 1), _HANDED_BACK + 1
    if len(words) not in {_HANDED_BACK, most}:
        raise EnvelopeError(f"a note is {_HANDED_BACK} or {most} numbers, not {len(words)}")
    times = [integer(word) / 1000 for word in words[:_HANDED_BACK]]
    return Note(*(when and when - clock.offset for when in times))


def handed_back(text: bytes) -> int:
    """Return how often leaving workers have cut a call off, as its note states; 0 when that can't be read."""
    words = text.split(maxsplit=_HANDED_BACK + 1)
    try:
        return integer(words[_HANDED_BACK]) if len(words) > _HANDED_BACK else 0
    except EnvelopeError:
        return 0
