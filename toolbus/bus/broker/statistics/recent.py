"""The calls of a namespace that have ended, in bounded streams that workers write: a sample for operators, and all for a history."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import Ending, Outcome
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.reading import LAST_SECOND, document, skipping
from toolbus.bus.broker.step import WorkerStep
from toolbus.bus.broker.take.requests import Delivery
from toolbus.bus.broker.transport.command import REFUSES_ALL, Reply, ReplyError, fields_of
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.support.display import shortened
from toolbus.bus.values.encoding import exact_text, whole_text
from toolbus.bus.values.envelope import Request, encode_data, is_ident
from toolbus.bus.values.results import BrokerError, EnvelopeError, ErrorInfo


class RecentCall(msgspec.Struct):
    """One attempt of a call that has ended. Times are seconds since 1970 by the server's clock; 0 when they are unknown.

    Attributes:
        id: of the call; all attempts of a call have the same.
        tool, service, user, session: what was called, and for whom.
        instance: the worker whose attempt this was.
        attempt: its number, from 1.
        outcome: how it ended, see ``Outcome``.
        queued: when the request was published.
        taken: when the worker began to run it; 0 for one that was refused, and for a ``lost`` one that another worker tells of.
        first: when its first text was sent; 0 for calls that sent none before their result.
        ended: when it was answered; for a ``lost`` one, when it was taken over.
        error, code: the type and code of the error; empty when there was none.
        message: the error's message, shortened; empty for refused arguments, which it would quote.
        by: the worker that took a ``lost`` one over; empty when its worker gave it away.
        agent: the process that called.
        arguments: the arguments as JSON, shortened; only with ``TOOLBUS_RECENT=arguments``.
        trace: the id of its trace, if the caller had one.
        number: which of all attempts it is that have ended at its worker (``by``, or ``instance``), from 1; 0 outside the history.
        since: when that worker told the history of the first one.
        entry: of the record in the stream: newer ones are greater.
    """

    id: str
    tool: str = ""
    service: str = ""
    user: str = ""
    session: str = ""
    instance: str = ""
    attempt: int = 1
    outcome: Outcome = "succeeded"
    queued: float = 0.0
    taken: float = 0.0
    first: float = 0.0
    ended: float = 0.0
    error: str = ""
    code: str = ""
    message: str = ""
    by: str = ""
    agent: str = ""
    arguments: str = ""
    trace: str = ""
    number: int = 0
    since: float = 0.0
    entry: str = ""

    @property
    def ms(self) -> float:
        """Milliseconds that it ran; 0 when they are unknown."""
        return max(0.0, (self.ended - self.taken) * 1000) if self.taken else 0.0

    @property
    def queued_ms(self) -> float:
        """Milliseconds that it waited until it ran; 0 when they are unknown."""
        return max(0.0, (self.taken - self.queued) * 1000) if self.taken and self.queued else 0.0

    def document(self) -> dict[str, Any]:
        """Return the fields, and the two durations, for JSON."""
        return {**msgspec.structs.asdict(self), "ms": round(self.ms, 1), "queued_ms": round(self.queued_ms, 1)}


_MOST_DOCUMENT = 65_536
_PAGE = 256


async def newest(link: Link, key: str, limit: int) -> list[RecentCall]:
    """Return the newest records of a stream, the newest first; those that can't be read are left out.

    Raises:
        BrokerError: the server could not be asked.
    """
    return _read(key, await link.execute("XREVRANGE", key, "+", "-", "COUNT", limit))


async def after(link: Link, key: str, entry: str, limit: int = _PAGE) -> tuple[list[RecentCall], str]:
    """Return the records of a stream after an entry, the oldest first, and the entry to go on after.

    Raises:
        BrokerError: the server could not be asked.
    """
    found = await link.execute("XRANGE", key, f"({entry}" if entry else "-", "+", "COUNT", limit)
    return _read(key, found), found[-1][0].decode("ascii", "replace") if found else entry


def _read(key: str, entries: list[tuple[bytes, list[bytes]]]) -> list[RecentCall]:
    found: list[RecentCall] = []
    for entry, flat in entries:
        with skipping(key):
            record = document(fields_of(flat).get(b"c", b""), RecentCall, most=_MOST_DOCUMENT)
            _check(record)
            record.entry = entry.decode("ascii", "replace")
            found.append(record)
    return found


def _check(record: RecentCall) -> None:
    """Refuse a record that no worker could have written.

    Raises:
        EnvelopeError: it is one.
    """
    if not is_ident(record.id):
        raise EnvelopeError("its call has no id")
    if not 0 < record.attempt < 10**9:
        raise EnvelopeError("its attempt has no number")
    if not 0 <= record.number < 2**53:
        raise EnvelopeError("its number is none")
    if not all(0 <= at <= LAST_SECOND for at in (record.queued, record.taken, record.first, record.ended, record.since)):
        raise EnvelopeError("one of its times is no date")


MOST_RECORDS = 1_000
"""About as many recent calls are kept in a namespace."""

_KEPT_MS = 3_600_000
# A worker that is cut off from its server keeps the latest ones.
_MOST_WAITING, _MOST_WAITING_OF_HISTORY = 200, 2_000
# Seconds; until what was refused is sent again.
_GATHERED, _AGAIN = 0.1, 1.0
_MOST_NAME = 256
_MOST_MESSAGE = 400
_MOST_ARGUMENTS = 2_000


class RecentWriter(WorkerStep, eq=False):
    """Gathers records and appends them in the outbox's next flush.

    Args:
        before_sending: calls a function when the next flush begins, which is soon.
    """

    before_sending: Callable[[Callable[[], None]], None]
    _sample: deque[bytes] = msgspec.field(default_factory=lambda: deque(maxlen=_MOST_WAITING))
    _history: deque[bytes] = msgspec.field(default_factory=deque)
    _is_due: bool = False
    _gathering: asyncio.TimerHandle | None = None
    _number: int = 0
    _since: float = 0.0
    _refused: bool = False

    def __post_init__(self) -> None:
        self._history = deque(maxlen=min(self.settings.history, _MOST_WAITING_OF_HISTORY))

    def note(self, delivery: Delivery, ending: Ending, *, sampled: bool, kept: bool, left_out: int) -> None:
        """Tell of an attempt of this worker's that has ended, see ``WorkerBroker.note``."""
        clock = self.clock
        record = self._record(delivery, ending.error)
        record.instance = self.instance
        record.attempt = delivery.attempt
        record.outcome = ending.outcome
        # The server's clock is known to about a millisecond, and nothing is taken before it was queued.
        early = max(0.0, record.queued - clock.server_time(ending.started or ending.ended))
        record.taken = clock.server_time(ending.started) + early if ending.started else 0.0
        record.first = clock.server_time(ending.first) + early if ending.first else 0.0
        record.ended = clock.server_time(ending.ended) + early
        self._add(record, sampled=sampled, kept=kept, left_out=left_out)

    def lost(self, delivery: Delivery, owner: bytes) -> None:
        """Tell of an attempt of another worker's that this one goes on with."""
        sampled, kept = self.settings.recent != "off", self.settings.history > 0
        if not (sampled or kept):
            return
        record = self._record(delivery, None)
        record.instance = shortened(owner.decode("utf-8", "replace"), _MOST_NAME)
        record.attempt = max(1, delivery.attempt - 1)
        record.outcome = "lost"
        record.ended = self.clock.server_ms() / 1000
        record.by = self.instance
        self._add(record, sampled=sampled, kept=kept, left_out=0)

    def _record(self, delivery: Delivery, error: ErrorInfo | None) -> RecentCall:
        request = delivery.request
        record = RecentCall(
            request.id,
            _name(request.tool),
            _name(request.service),
            _name(request.user),
            _name(request.session),
            queued=int(delivery.entry.partition(b"-")[0]) / 1000,
            agent=request.agent,
            trace=request.traceparent.split("-")[1][:32] if request.traceparent.count("-") == 3 else "",
        )
        if error is not None:
            record.error, record.code = error.type, _name(error.code)
            # A refusal of arguments quotes them.
            if error.type != "invalid_arguments" or self.settings.recent == "arguments":
                record.message = shortened(exact_text(error.message), _MOST_MESSAGE)
        if self.settings.recent == "arguments":
            record.arguments = _arguments(request)
        return record

    def _add(self, record: RecentCall, *, sampled: bool, kept: bool, left_out: int) -> None:
        if kept:
            self._since = self._since or record.ended
            self._number += 1 + left_out
            record.number, record.since = self._number, self._since
        try:
            document = msgspec.json.encode(record)
        except (UnicodeEncodeError, ValueError):
            # Half a surrogate pair, somewhere in a text of the tool's or the caller's.
            texts = {name: whole_text(value) for name in record.__struct_fields__ if isinstance(value := getattr(record, name), str)}
            document = msgspec.json.encode(msgspec.structs.replace(record, **texts))
        if sampled:
            self._sample.append(document)
            self.flush()
        if kept:
            self._history.append(document)
            if self._gathering is None:
                # A command of its own for each would cost more than the records.
                self._gathering = asyncio.get_running_loop().call_later(_GATHERED, self.flush)

    def flush(self) -> None:
        """Append what waits in the next flush."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        if not self._is_due:
            self._is_due = True
            self.before_sending(self._write)

    def _write(self) -> None:
        self._is_due = False
        if not self.link.connected:
            return
        for waiting, key, most in ((self._sample, self.keys.recent, MOST_RECORDS), (self._history, self.keys.ended, self.settings.history)):
            if documents := list(waiting):
                waiting.clear()
                words = [word for each in documents for word in (b"c", each)]
                self.link.run(scripts.APPEND, (key,), (most, _KEPT_MS, 2, *words), partial(self._written, waiting, documents))

    def _written(self, waiting: deque[bytes], documents: list[bytes], reply: Reply) -> None:
        if isinstance(reply, ReplyError) and reply.code in REFUSES_ALL:
            # Nothing was appended. The oldest make room, which shows in the numbers.
            kept = [*documents, *waiting]
            waiting.clear()
            waiting.extend(kept)
            if self._gathering is None:
                self._gathering = asyncio.get_running_loop().call_later(_AGAIN, self.flush)
        if not isinstance(reply, BrokerError):
            self._refused = False
        elif not self._refused:
            # Said once: the server refuses them all, perhaps for long.
            self._refused = True
            telemetry.log.warning("recent.refused", error=str(reply))


def _name(text: str) -> str:
    return text if len(text) <= _MOST_NAME else shortened(text, _MOST_NAME)


def _arguments(request: Request) -> str:
    try:
        return shortened(encode_data(request.arguments).decode("utf-8", "replace"), _MOST_ARGUMENTS)
    except (EnvelopeError, ValueError, RecursionError):
        return ""
