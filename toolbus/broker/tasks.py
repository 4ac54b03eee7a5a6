"""Keep what is needed to find a shared call again by the id of its task."""

from __future__ import annotations

import msgspec

from toolbus import telemetry
from toolbus.broker.keys import Keys, session_digest
from toolbus.broker.protocols.documents import TaskFrames, TaskRecord
from toolbus.broker.publish import SharedCalls
from toolbus.broker.reading import document, skip
from toolbus.broker.transport.transport import Transport
from toolbus.envelope import Frame, decode_frames, encode, entry_limit, is_ident
from toolbus.results import EnvelopeError
from toolbus.settings import Settings

# Entries of one read; a call's stream is read to its end in several.
_COUNT = 256

_records = msgspec.json.Decoder(TaskRecord)


class RedisTasks:
    """``Tasks`` on a server; each record lives as long as the call's answer is kept."""

    def __init__(self, link: Transport, keys: Keys, settings: Settings, shared: SharedCalls) -> None:
        self._link = link
        self._keys = keys
        self._limit = entry_limit(settings.max_frame)
        self._shared = shared

    async def put(self, user: str, id: str, record: TaskRecord) -> None:
        """Keep a record, or replace it while it is kept."""
        key = self._keys.task(session_digest(user, id))
        ttl = ("XX", "KEEPTTL") if record.cancelled else ("PX", max(1, int(record.kept * 1000)))
        await self._link.execute("SET", key, encode(record), *ttl, repeatable=True)

    async def get(self, user: str, id: str) -> TaskRecord | None:
        """Return the record of a user's task, or None."""
        key = self._keys.task(session_digest(user, id))
        said = await self._link.execute("GET", key, repeatable=True)
        if said is None:
            return None
        try:
            record = document(said, _records)
        except EnvelopeError as error:
            skip(key, str(error))
            return None
        # Keys are made of it.
        return record if is_ident(record.call) else None

    async def frames(self, call: str) -> TaskFrames | None:
        """Return the frames of a shared call so far, or None."""
        key, start, last = self._keys.call(call), "-", b""
        frames: list[Frame] = []
        while True:
            entries = await self._link.execute("XRANGE", key, start, "+", "COUNT", _COUNT, repeatable=True)
            for entry, flat in entries:
                last = entry
                if len(flat) >= 2 and flat[0] == b"f":
                    found, problems = decode_frames(flat[1], limit=self._limit)
                    frames += [frame for frame in found if frame.id == call]
                    if problems:
                        telemetry.log.error("frame.malformed", frames=len(problems), error=problems[0])
            if len(entries) < _COUNT:
                break
            start = f"({last.decode()}"
        if not last:
            return None
        return TaskFrames(frames, int(last.partition(b"-")[0]) / 1000)

    def follow(self, call: str, reader: str) -> None:
        """Hand the frames of a shared call to the listener, as those of the call ``reader``."""
        self._shared.follow(reader, call)
