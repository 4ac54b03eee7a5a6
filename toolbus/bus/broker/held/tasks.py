"""Keep the places of tasks' calls, and the results of sessions' calls."""

from __future__ import annotations

from collections.abc import Sequence

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import MOST_BYTES, MOST_RESULTS, TaskFrames, TaskRecord
from toolbus.bus.broker.publish import SharedCalls
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys, session_digest
from toolbus.bus.broker.server.reading import skip, stored
from toolbus.bus.broker.transport.command import ReplyError
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.links import pages
from toolbus.bus.values.envelope import Frame, decode_frames, encode, entry_limit, is_ident
from toolbus.bus.values.results import BrokerError
from toolbus.bus.values.settings import Settings

# Entries of one read; a call's stream is read to its end in several.
_COUNT = 256


class Tasks:
    """The records of tasks, and the frames of their calls."""

    def __init__(self, link: Link, keys: Keys, settings: Settings, shared: SharedCalls) -> None:
        self._link = link
        self._keys = keys
        self._limit = entry_limit(settings.max_frame)
        self._shared = shared

    async def put(self, user: str, id: str, record: TaskRecord) -> None:
        """Keep a record, or replace it while it is kept.

        Raises:
            BrokerError: the server can't be reached.
        """
        key = self._keys.task(session_digest(user, id))
        ttl = ("XX", "KEEPTTL") if record.cancelled else ("PX", max(1, int(record.kept * 1000)))
        await self._link.execute("SET", key, encode(record), *ttl, repeatable=True)

    async def get(self, user: str, id: str) -> TaskRecord | None:
        """Return the record of a user's task; None when there is none, or it is another user's.

        Raises:
            BrokerError: the server can't be reached.
        """
        key = self._keys.task(session_digest(user, id))
        record = stored(key, await self._link.execute("GET", key, repeatable=True), TaskRecord)
        # Keys are made of its call.
        return record if record is not None and is_ident(record.call) else None

    async def frames(self, call: str) -> TaskFrames | None:
        """Return the frames of a shared call so far; None when they are not kept any more.

        Raises:
            BrokerError: the server can't be reached.
        """
        last, frames = b"", list[Frame]()
        async for entries in pages(self._link, self._keys.call(call), _COUNT):
            for entry, flat in entries:
                last = entry
                if len(flat) >= 2 and flat[0] == b"f":
                    found, problems = decode_frames(flat[1], limit=self._limit)
                    frames += [frame for frame in found if frame.id == call]
                    if problems:
                        telemetry.log.error("frame.malformed", frames=len(problems), error=problems[0])
        if not last:
            return None
        return TaskFrames(frames, int(last.partition(b"-")[0]) / 1000)

    def follow(self, call: str, reader: str) -> None:
        """Hand the frames of a shared call to the listener, from the first, as those of the call ``reader``; ``forget`` ends it."""
        self._shared.follow(reader, call)


class SessionResults:
    """The results of sessions' calls, as documents; those of a session that was not used for the retention time are gone."""

    def __init__(self, link: Link, keys: Keys, settings: Settings) -> None:
        self._link = link
        self._keys = keys
        self._ttl = int(settings.retention * 1000)

    async def read(self, user: str, session: str) -> list[bytes]:
        """Return what is kept of a session, the oldest first.

        Raises:
            BrokerError: the server could not be asked.
        """
        key = self._keys.results(session_digest(user, session))
        try:
            found: list[bytes] = await self._link.execute("LRANGE", key, -MOST_RESULTS, -1, repeatable=True)
        except ReplyError as error:
            skip(key, str(error))
            return []
        return found

    async def keep(self, user: str, session: str, documents: Sequence[bytes]) -> None:
        """Keep documents of a session; the oldest ones beyond the bounds go. It never raises: the log tells of a server that takes none."""
        if not documents:
            return
        key = self._keys.results(session_digest(user, session))
        args = (MOST_RESULTS, self._ttl, 0, MOST_BYTES, *documents)
        try:
            # Twice the same result is one for readers, who take the latest of each call.
            await self._link.execute_script(scripts.APPEND, (key,), args, repeatable=True)
        except BrokerError as error:
            telemetry.log.warning("results.unkept", user=user, session=session, error=str(error))
