"""Read what arrives for an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.held.confirmations import Confirmations
from toolbus.bus.broker.lease.dead_letters import DEAD_LETTER_LIMIT, DEAD_LETTER_TTL
from toolbus.bus.broker.lease.recover import MAY_BE_ABANDONED_MS
from toolbus.bus.broker.protocols import AgentListener
from toolbus.bus.broker.publish import MEMO_TTL, SharedCalls
from toolbus.bus.broker.registry.follower import RegistryFollower
from toolbus.bus.broker.registry.publications import MOST_BYTES as MOST_PUBLICATION
from toolbus.bus.broker.registry.registry import TTL
from toolbus.bus.broker.replies.finish import MOST_BYTES, MOST_IDS
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.server.reading import MOST_ENTRY_DIGITS, MOST_INTEGER, MOST_TEXT, identifier, skip, skipping
from toolbus.bus.broker.take.sessions import OWNER_TTL, SNAPSHOT_TTL
from toolbus.bus.broker.transport.command import Reply, ReplyError
from toolbus.bus.broker.transport.connection import BLOCK
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.links import upkeep_step
from toolbus.bus.values.envelope import OLDEST, VERSION, Frame, decode_frames, entry_limit
from toolbus.bus.values.results import BrokerError, BrokerUnavailable
from toolbus.bus.values.settings import LONGEST_LEASE, Settings

_READ_COUNT = 512
# How many entries, and of how many bytes, may stay in the reply stream after they were read, while more come. Removing each by itself would
# cost every call a command, whose answer the server writes before it wakes the worker.
_MOST_READ = 64
_MOST_READ_BYTES = 65_536
_AFTER_ERROR = 0.2
_AFTER_LOSS = 0.05
LEAST_TTL = 15.0
# How often a reply stream is renewed in its life.
_RENEWALS = 5
# The first entry of a stream that a worker made anew.
_LOST = [b"o", b"lost"]
_FROM_START = b"0-0"
# What listen.lua says of the stream that it found.
_MISSING, _USED_UP, _OTHER = 1, 2, 3


class ReplyReader(msgspec.Struct, eq=False):
    """Reads what arrives for one agent: replies, shared calls, and changes of the registry.

    Args:
        blocking: the connection that waits in reads.
        handed_over: called after the frames of one read were handed to their callers, which go on in the next turn of the loop.

    Attributes:
        key: the reply stream.
        frames: how many frames were read.
        malformed: how many frames could not be read.
        resync: whether to load a fresh snapshot, and the replies from their start, before the next read.
    """

    link: Link
    blocking: Link
    keys: Keys
    settings: Settings
    agent: str
    listener: AgentListener
    shared: SharedCalls
    confirmations: Confirmations
    follower: RegistryFollower
    handed_over: Callable[[], None]
    _log: bytes = b""
    _position: bytes = _FROM_START
    # Up to where entries have been read that are still there, how many, and of how many bytes.
    _read_until: bytes | None = None
    _read: int = 0
    _read_bytes: int = 0
    # The entry that has told that replies are lost.
    _told: bytes = b""
    # True when the reply stream takes no more entries.
    _used_up: bool = False
    _entry_limit: int = 0
    ttl_ms: int = 0
    renew_every: float = 0.0
    key: str = ""
    _key_read: bytes = b""
    resync: bool = False
    frames: int = 0
    malformed: int = 0

    def __post_init__(self) -> None:
        lease = self.settings.lease
        self._log = self.keys.log.encode()
        # Workers send a bounded entry; its frames are bounded each, so a larger one is not theirs.
        self._entry_limit = entry_limit(self.settings.max_frame)
        # Workers stop the calls of an agent that does not renew its stream for this long, and look three times a lease: it is over after
        # one lease. A connection over which nothing comes any more is given up after 10.5 s at most (link.py), and the next one must be
        # in time.
        ttl = max(LEAST_TTL, lease * 2 / 3)
        self.ttl_ms = int(ttl * 1000)
        # After a step of its clock nobody judges by it for a lease.
        self.renew_every = min(ttl / _RENEWALS, lease / 3)
        self.key = self.keys.replies(self.agent)
        self._key_read = self.key.encode()

    def __repr__(self) -> str:
        return f"<ReplyReader of {self.agent}>"

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            if self.resync:
                await self._resynchronise()
            await self.read()

    async def read(self) -> None:
        """Read once, waiting up to ``BLOCK`` seconds, and hand over what came."""
        replies = self._key_read
        positions = {replies: self._position, self._log: self.follower.position}
        if self.shared.followed:
            positions |= dict(self.shared.positions())
        command = ("XREAD", "COUNT", _READ_COUNT, "BLOCK", int(BLOCK * 1000), "STREAMS", *positions, *positions.values())
        arrived: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.blocking.send(command, partial(self._arrived, arrived))
        try:
            reply = await arrived
        except BrokerUnavailable:
            await asyncio.sleep(_AFTER_LOSS)
            return
        except ReplyError as error:
            telemetry.log.error("replies.read_failed", error=str(error))
            # One of its keys may be gone or repaired.
            self.resync = True
            await asyncio.sleep(_AFTER_ERROR)
            return
        if self._used_up:
            await self._recreate()
        if reply and self._log in reply:
            await self._follow(reply[self._log])
        if not reply or self._read >= _MOST_READ or self._read_bytes >= _MOST_READ_BYTES:
            self._trim()

    def _arrived(self, read: asyncio.Future[Reply], reply: Reply) -> None:
        """Hand over the frames that a read brought: their callers go on, and call again, before the next read is asked for."""
        if read.done():
            return
        if isinstance(reply, BrokerError):
            read.set_exception(reply)
            return
        try:
            for key, entries in (reply or {}).items():
                if key == self._key_read:
                    self._used_up = not self._take(entries)
                elif key != self._log:
                    self._take_shared(key, entries)
        except Exception as error:  # noqa: BLE001 - the reader raises it
            read.set_exception(error)
            return
        self.handed_over()
        read.set_result(reply)

    def _trim(self) -> None:
        """Remove what has been read. At another server the same position would be another entry's."""
        if self._read_until is not None and self.blocking.connected and not self.resync:
            self.blocking.send(("XTRIM", self.key, "MINID", self._read_until))
        self._forget_read()

    def _forget_read(self) -> None:
        self._read_until, self._read, self._read_bytes = None, 0, 0

    async def _follow(self, entries: list[Any]) -> None:
        try:
            self.resync = not await self.follower.follow(entries) or self.resync
        except BrokerError as error:
            telemetry.log.warning("agent.resync_failed", error=str(error))
            self.resync = True

    def wake(self) -> None:
        """Make a waiting read return, so that the next one reads the shared calls that were added meanwhile."""
        self.link.send(("XADD", self.key, "NOMKSTREAM", "*", "o", "1"), repeatable=True)

    async def keep(self) -> None:
        """Renew the reply stream until cancelled; one that is gone, or takes no more entries, is made anew."""
        while True:
            await asyncio.sleep(self.renew_every)
            with upkeep_step():
                await self.renew()

    async def renew(self) -> None:
        """Renew the reply stream now.

        Raises:
            BrokerError: the server could not be asked.
        """
        if await self.listen():
            self._lost()

    async def listen(self) -> bool:
        """Make the reply stream, or renew it; return whether replies may be lost, since there was none or another one.

        Raises:
            BrokerError: the server could not be asked.
        """
        found = await self.link.execute_script(scripts.LISTEN, (self.key,), (self.ttl_ms, self._position), repeatable=True)
        if found == _USED_UP:
            skip(self.key, "its ids leave no room for entries; the stream is made anew")
        elif found == _OTHER:
            skip(self.key, "it ends before the entry that was read last; it is read from its start", field=self._position)
        if found:
            self._position = _FROM_START
            self._forget_read()
        return bool(found)

    def listened(self, reply: Reply) -> None:
        """Take in the answer of a script that made the reply stream at the begin of a connection."""
        if reply in (_MISSING, _USED_UP):
            self.listener.on_replies_lost()

    async def compare(self) -> None:
        """Have the registry loaded before the next read if its log does not tell of what its tables hold.

        Raises:
            BrokerError: the server could not be asked.
        """
        if not self.resync and await self.follower.lags():
            telemetry.log.warning("registry.out_of_step", key=self._log.decode())
            self.resync = True

    async def load(self) -> None:
        """Load the registry's snapshot.

        Raises:
            BrokerError: the server could not be asked.
        """
        try:
            await self.follower.load()
        except ReplyError as error:
            if error.code != "WRONGTYPE":
                raise
            # The key is under repair: load once more when that is done.
            telemetry.log.warning("agent.resync_failed", error=str(error))
            self.resync = True
            await asyncio.sleep(_AFTER_ERROR)

    async def _resynchronise(self) -> None:
        """Read the replies from their start and load a fresh snapshot, after a reconnect or a gap."""
        self.resync = False
        self._position = _FROM_START
        self._forget_read()
        try:
            if await self.listen():
                self.listener.on_replies_lost()
            await self.load()
        except BrokerError as error:
            telemetry.log.warning("agent.resync_failed", error=str(error))
            self.resync = True
            await asyncio.sleep(_AFTER_ERROR)

    def _take(self, entries: list[Any]) -> bool:
        """Hand over the frames of some entries; return whether the stream can take more."""
        for entry, flat in entries:
            if flat == _LOST and entry != self._told:
                # It stays where it is, and all is read from its start now.
                self._told = entry
                self._lost()
            self._read_bytes += sum(map(len, flat))
            self._hand_over(self._frames_of(flat))
        self._read += len(entries)
        self._position = entries[-1][0]
        milliseconds, _, sequence = self._position.partition(b"-")
        if len(milliseconds) > MOST_ENTRY_DIGITS:
            return False
        self._read_until = b"%b-%d" % (milliseconds, int(sequence) + 1)
        return True

    async def _recreate(self) -> None:
        skip(self.key, "the id of an entry leaves no room for others; the stream is made anew", field=self._position)
        self._position, self._used_up = _FROM_START, False
        self._forget_read()
        # In one write: workers that find no stream take the agent for dead.
        await asyncio.gather(self.link.execute("DEL", self.key, repeatable=True), self.listen())
        self._lost()

    def _take_shared(self, stream: bytes, entries: list[Any]) -> None:
        for entry, flat in entries:
            self.shared.passed(stream, entry)
            self._hand_over(self.shared.addressed(stream, self._frames_of(flat)))

    def _frames_of(self, flat: list[bytes]) -> list[Frame]:
        if len(flat) < 2 or flat[0] != b"f":
            # Entries without frames create the stream, wake its reader, or tell that a confirmation request was answered.
            if flat[:1] == [b"c"]:
                with skipping(self.key, field="c"):
                    self.confirmations.answered(identifier(flat[1]))
            return []
        frames, problems = decode_frames(flat[1], limit=self._entry_limit)
        if problems:
            self.malformed += len(problems)
            telemetry.log.error("frame.malformed", agent=self.agent, frames=len(problems), error=problems[0])
        self.frames += len(frames)
        return frames

    def _lost(self) -> None:
        self.listener.on_replies_lost()
        self.resync = True

    def _hand_over(self, frames: list[Frame]) -> None:
        try:
            self.listener.on_frames(frames)
        except Exception:  # noqa: BLE001 - it would be read, and raise, again and again, and nothing behind it ever
            telemetry.log.exception("listener.failed", what="frames")


class Constant(NamedTuple):
    """A number of the protocol, with its unit and the place where it counts."""

    name: str
    value: float
    unit: str
    meaning: str


def constants(settings: Settings) -> list[Constant]:
    """Return the numbers of the protocol; those that are settings have this process's values."""
    return [
        Constant("version", VERSION, "", "the newest version of the protocol that this release speaks: `v` of a request"),
        Constant("oldest_version", OLDEST, "", "the oldest one that it reads"),
        Constant("lease", settings.lease, "s", "argument of `beat.lua` and `register.lua`; renewed three times in it (setting)"),
        Constant("longest_lease", LONGEST_LEASE, "s", "that any process of a namespace may have; argument of `unregister.lua`"),
        Constant("max_deliveries", settings.max_deliveries, "", "attempts of a request; beyond them it is a dead letter (setting)"),
        Constant("alone_from", settings.alone_from, "", "attempt from which a request runs alone, the last but one; for `reap.lua`"),
        Constant("cooldown", settings.cooldown, "s", "for which a name stays its owner's after its last worker left (setting)"),
        Constant("registry_ttl", TTL, "s", "of the registry's tables and of a service's keys; argument of the registry's scripts"),
        Constant("queue_limit", settings.queue_limit, "", "requests queued and running; argument of `publish.lua` (setting)"),
        Constant("max_request", settings.max_request, "bytes", "of a request's document (setting)"),
        Constant("max_frame", settings.max_frame, "bytes", "of a piece of text in UTF-8 (setting)"),
        Constant("max_output", settings.max_output, "bytes", "of all text of a call (setting)"),
        Constant("max_script_bytes", MOST_BYTES, "bytes", "of the frames that one script writes"),
        Constant("max_script_ids", MOST_IDS, "", "entries that one script finishes"),
        Constant("max_publication", MOST_PUBLICATION, "bytes", "of a publication"),
        Constant("max_name", MOST_TEXT, "characters", "of a name in a key; a longer one is skipped"),
        Constant("max_integer", MOST_INTEGER, "", "the largest number in a key; a larger one is skipped"),
        Constant("memo_ttl", MEMO_TTL, "s", "of the verdicts of an agent's flushes; argument of `publish.lua`"),
        Constant("reply_ttl", max(LEAST_TTL, settings.lease * 2 / 3), "s", "of an agent's reply stream; argument of `listen.lua`"),
        Constant("reply_limit", settings.reply_limit, "entries", "of a reply stream; beyond them a call ends as `slow_consumer` (setting)"),
        Constant("reply_bytes", settings.reply_bytes, "bytes", "of a reply stream; the same (setting)"),
        Constant("old_request", MAY_BE_ABANDONED_MS / 1000, "s", "of waiting after which a worker looks whether the caller is there"),
        Constant("retention", settings.retention, "s", "for which the answer of a shared call is kept (setting)"),
        Constant("session_ttl", OWNER_TTL, "s", "of a session's owner, unless it is renewed"),
        Constant("snapshot_ttl", SNAPSHOT_TTL, "s", "of a session's snapshot"),
        Constant("dead_letters", DEAD_LETTER_LIMIT, "", "that a service keeps; argument of `bury.lua`"),
        Constant("dead_letter_ttl", DEAD_LETTER_TTL, "s", "after the last one; argument of `bury.lua`"),
    ]
