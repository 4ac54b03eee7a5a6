"""Set aside a request that can't be run."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from toolbus import telemetry
from toolbus.broker import scripts
from toolbus.broker.take.requests import Fence, RequestStream
from toolbus.broker.transport.command import Reply
from toolbus.broker.transport.transport import Transport
from toolbus.results import BrokerError

DEAD_LETTER_LIMIT = 10_000
DEAD_LETTER_TTL = 7 * 86_400
_MOST_ERROR = 2_000


class FreedKey(NamedTuple):
    """An idempotency key to be freed: its ``record``, if it stands for ``call``, unless ``mark`` is of another run than ``run``."""

    record: str
    call: str
    mark: str
    run: str


class Burial(msgspec.Struct, frozen=True):
    """A request to set aside.

    Attributes:
        entry: its id in the stream.
        fence: the state under which it is known to be this worker's.
        reason: ``max_deliveries``, ``retries_exhausted``, ``failed`` or ``malformed``.
        attempts: how often it was delivered.
        error: the last failure, in words.
        document: the request as it was published.
        replies: the reply stream of its caller; empty when it is unknown.
        frames: the frames that end the call, joined.
        frees: its idempotency key, if later callers may use it again.
    """

    entry: bytes
    fence: Fence
    reason: str
    attempts: int
    error: str
    document: bytes
    replies: str
    frames: bytes
    frees: FreedKey | None = None


def bury(link: Transport, stream: RequestStream, burial: Burial) -> None:
    """Move an entry to the dead letters and answer its caller, in one step. Returns at once."""
    frees = burial.frees
    keys = (stream.key, stream.fence, stream.dead_letters, *((frees.record, frees.mark) if frees else ()))
    said: tuple[Any, ...] = (burial.reason, burial.attempts, burial.error[:_MOST_ERROR], burial.document)
    limits = (DEAD_LETTER_LIMIT, DEAD_LETTER_TTL * 1000, burial.replies, burial.frames, *((frees.call, frees.run) if frees else ()))

    def done(reply: Reply) -> None:
        stream.held.pop(burial.entry, None)
        if isinstance(reply, BrokerError):
            telemetry.log.error("bury.refused", service=stream.service, entry=burial.entry.decode(), error=str(reply))
        else:
            telemetry.count("toolbus.dead_letters", messaging__destination__name=stream.service)

    link.run(scripts.BURY, keys, (stream.consumer, *burial.fence, burial.entry, *said, *limits), done, repeatable=True)
