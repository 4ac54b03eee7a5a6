"""Write the recent calls of a worker, together with what its runs send anyway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from toolbus import telemetry
from toolbus.broker import scripts
from toolbus.broker.keys import Keys
from toolbus.broker.lease.clock import ServerClock
from toolbus.broker.protocols import Delivery, Ending
from toolbus.broker.recent.records import RecentCall
from toolbus.broker.transport.command import Reply
from toolbus.broker.transport.transport import Transport
from toolbus.display import shortened
from toolbus.encoding import exact_text, whole_text
from toolbus.envelope import Request, encode_data
from toolbus.results import BrokerError, EnvelopeError, ErrorInfo

MOST_RECORDS = 1_000
"""About as many recent calls are kept in a namespace."""

_KEPT_MS = 3_600_000
# A worker that is cut off from its server keeps the latest ones.
_MOST_WAITING = 200
_MOST_NAME = 256
_MOST_MESSAGE = 400
_MOST_ARGUMENTS = 2_000


class RecentWriter:
    """Gathers records and appends them in the outbox's next flush.

    Args:
        mode: ``off``, ``on``, or ``arguments`` to keep those of each call, too.
        before_sending: calls a function when the next flush begins, which is soon.
    """

    def __init__(
        self,
        link: Transport,
        keys: Keys,
        clock: ServerClock,
        instance: str,
        mode: Literal["off", "on", "arguments"],
        before_sending: Callable[[Callable[[], None]], None],
    ) -> None:
        self._link = link
        self._key = keys.recent
        self._clock = clock
        self._instance = instance
        self._mode = mode
        self._before_sending = before_sending
        self._waiting: list[bytes] = []
        self._refused = False

    def note(self, delivery: Delivery, ending: Ending) -> None:
        """Tell of an attempt of this worker's that has ended."""
        if self._mode == "off":
            return
        clock = self._clock
        record = self._record(delivery, ending.error)
        record.instance = self._instance
        record.attempt = delivery.attempt
        record.outcome = ending.outcome
        # The server's clock is known to about a millisecond, and nothing is taken before it was queued.
        early = max(0.0, record.queued - clock.server_time(ending.started or ending.ended))
        record.taken = clock.server_time(ending.started) + early if ending.started else 0.0
        record.first = clock.server_time(ending.first) + early if ending.first else 0.0
        record.ended = clock.server_time(ending.ended) + early
        self._add(record)

    def lost(self, delivery: Delivery, owner: bytes) -> None:
        """Tell of an attempt of another worker's that this one goes on with."""
        if self._mode == "off":
            return
        record = self._record(delivery, None)
        record.instance = shortened(owner.decode("utf-8", "replace"), _MOST_NAME)
        record.attempt = max(1, delivery.attempt - 1)
        record.outcome = "lost"
        record.ended = self._clock.server_ms() / 1000
        record.by = self._instance
        self._add(record)

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
            if error.type != "invalid_arguments" or self._mode == "arguments":
                record.message = shortened(exact_text(error.message), _MOST_MESSAGE)
        if self._mode == "arguments":
            record.arguments = _arguments(request)
        return record

    def _add(self, record: RecentCall) -> None:
        try:
            document = msgspec.json.encode(record)
        except (UnicodeEncodeError, ValueError):
            # Half a surrogate pair, somewhere in a text of the tool's or the caller's.
            texts = {name: whole_text(value) for name in record.__struct_fields__ if isinstance(value := getattr(record, name), str)}
            document = msgspec.json.encode(msgspec.structs.replace(record, **texts))
        if not self._waiting:
            self._before_sending(self._write)
        elif len(self._waiting) >= _MOST_WAITING:
            del self._waiting[0]
        self._waiting.append(document)

    def _write(self) -> None:
        documents, self._waiting = self._waiting, []
        if documents and self._link.connected:
            self._link.run(scripts.NOTE, (self._key,), (MOST_RECORDS, _KEPT_MS, *documents), self._written)

    def _written(self, reply: Reply) -> None:
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
