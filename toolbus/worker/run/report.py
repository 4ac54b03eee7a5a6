"""Report the ends of attempts: counts, the record of recent calls, metrics and log lines."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Mapping
from typing import Literal, NamedTuple

from toolbus import telemetry
from toolbus.broker.protocols import Delivery, Ending
from toolbus.broker.recent.records import Outcome
from toolbus.display import shortened
from toolbus.results import EnvelopeError, ErrorInfo
from toolbus.safe_text import is_a
from toolbus.worker.statistics.counts import SECONDS, ToolCounts
from toolbus.worker.statistics.sampling import Sampling

# Characters of an error's message in a log line.
_MOST_MESSAGE = 400

End = Literal["finished", "failed", "retried", "dead", "cancelled", "handed_back", "lost", "refused", "withdrawn", "buried"]
"""How an attempt ends at a worker; its error says why.

``finished``; ``failed`` (the handler did, the time was up, or the worker was stopped); ``retried`` (it failed, and is tried again here);
``dead`` (it failed, and became a dead letter); ``cancelled`` (by its caller, or the caller is gone); ``handed_back`` (to other workers);
``lost`` (another worker has it); and of requests that did not run here: ``refused``, ``withdrawn`` (by their caller), and ``buried``.
"""


class EndKind(NamedTuple):
    """What is reported of an end.

    Attributes:
        outcome: among the recent calls; empty when another worker tells of it.
        counted: ``ended`` with its latency, ``cancelled``, or ``refused``.
        event: of its log line. A crash has one of its own.
    """

    outcome: Outcome | Literal[""]
    counted: Literal["ended", "cancelled", "refused"]
    event: Literal["call.finished", "call.failed", "call.cancelled", "call.handed_back", "call.lost"]


ENDS: Mapping[End, EndKind] = {
    "finished": EndKind("succeeded", "ended", "call.finished"),
    "failed": EndKind("failed", "ended", "call.failed"),
    "retried": EndKind("retried", "ended", "call.failed"),
    "dead": EndKind("dead", "ended", "call.failed"),
    "cancelled": EndKind("cancelled", "cancelled", "call.cancelled"),
    "handed_back": EndKind("lost", "cancelled", "call.handed_back"),
    "lost": EndKind("", "cancelled", "call.lost"),
    "refused": EndKind("failed", "refused", "call.failed"),
    "withdrawn": EndKind("cancelled", "refused", "call.cancelled"),
    "buried": EndKind("dead", "refused", "call.failed"),
}
"""All ends."""


def report_end(
    end: End,
    delivery: Delivery,
    counts: ToolCounts | None,
    sampling: Sampling,
    now: float,
    began: float = 0.0,
    first: float = 0.0,
    frames: int = 0,
    error: ErrorInfo | None = None,
    exception: BaseException | None = None,
) -> None:
    """Report the end of an attempt, whichever it is.

    Args:
        end: which one.
        delivery: what was run, or not.
        counts: of its tool; None when this worker does not know the tool.
        sampling: takes in what is told of among the recent calls.
        now: monotonic seconds.
        began: when it began to run; 0 when it did not.
        first: when its first text was sent; 0 when there was none.
        frames: how many frames it sent.
        error: why it did not succeed; None when another worker goes on with it.
        exception: what its handler raised, when that was not meant as an answer; its traceback is logged.
    """
    kind = ENDS[end]
    elapsed = now - began if began else 0.0
    if counts is not None:
        _count(kind, counts, delivery, elapsed, error)
    if kind.outcome == "succeeded":
        if now >= sampling.due:
            sampling.tell_success(delivery, began, first, now)
    elif kind.outcome:
        sampling.tell(delivery, Ending(kind.outcome, began, first, now, error))
    if began and telemetry.metering():
        reason = end if error is None and end != "finished" else "" if error is None else error.type
        telemetry.record_run(delivery.request.service, elapsed, delivery.queued_ms / 1000, frames, reason)
    if end != "finished" or telemetry.logs(logging.INFO):
        _log(kind, delivery, elapsed, error, exception)


def _count(kind: EndKind, counts: ToolCounts, delivery: Delivery, elapsed: float, error: ErrorInfo | None) -> None:
    if kind.counted == "ended":
        counts.buckets[bisect_left(SECONDS, elapsed)] += 1
        counts.seconds += elapsed
        if error is not None:
            counts.fail(error, delivery.request.id)
    elif kind.counted == "cancelled":
        counts.cancelled += 1
    elif error is not None:
        counts.refuse(error, delivery.request.id)


def _log(kind: EndKind, delivery: Delivery, elapsed: float, error: ErrorInfo | None, exception: BaseException | None) -> None:
    request = delivery.request
    fields = {
        "tool": request.tool or request.service,
        "user": request.user,
        "id": request.id,
        "attempt": delivery.attempt,
        "ms": round(elapsed * 1000, 1),
    }
    if error is not None:
        # A refusal of arguments quotes them, and logs hold no arguments.
        message = "" if error.type == "invalid_arguments" else shortened(error.message, _MOST_MESSAGE)
        told = {"error": error.type, "code": error.code, **({"message": message} if message else {}), **fields}
    if error is None:
        if kind.event == "call.finished":
            telemetry.log.info("call.finished", **fields)
        elif kind.event == "call.lost":
            telemetry.log.warning("call.lost", **fields)
        else:
            telemetry.log.info("call.handed_back", **fields)
    elif kind.event == "call.cancelled":
        telemetry.log.info("call.cancelled", **told)
    elif exception is None or is_a(exception, EnvelopeError):
        # The traceback of a result that can't be sent has no line of the handler.
        telemetry.log.warning("call.failed", **told)
    else:
        telemetry.log.error("call.crashed", error=error.code, exc_info=exception, **fields)


def report_buried(delivery: Delivery, reason: str) -> None:
    """Log that a request was set aside as a dead letter."""
    request = delivery.request
    telemetry.log.error("request.buried", service=request.service, tool=request.tool, id=request.id, reason=reason)
