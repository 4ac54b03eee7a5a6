"""The log lines and counts of runs that have ended, and of requests that were set aside, beside their metrics."""

from __future__ import annotations

from bisect import bisect_left
from typing import Protocol

from toolbus import telemetry
from toolbus.broker.protocols import Delivery, Ending
from toolbus.display import shortened
from toolbus.results import EnvelopeError, ErrorInfo
from toolbus.safe_text import is_a
from toolbus.worker.statistics.counts import SECONDS, ToolCounts
from toolbus.worker.statistics.sampling import Sampling

# Characters of an error's message in a log line.
_MOST_MESSAGE = 400


class StoppedRun(Protocol):
    """A run that was stopped, as its counts need it."""

    delivery: Delivery

    @property
    def began(self) -> float:
        """The monotonic time at which it began to run; 0 before."""

    @property
    def first_text(self) -> float:
        """The monotonic time at which its first text was sent; 0 when there was none."""


def count_stopped(run: StoppedRun, counts: ToolCounts, sampling: Sampling, now: float, error: ErrorInfo | None) -> None:
    """Count the end of an attempt that the handler did not end; the error is None when the delivery is lost."""
    began = run.began or now
    if error is None:
        counts.cancelled += 1
    elif error.type == "cancelled":
        counts.cancelled += 1
        sampling.tell(run.delivery, Ending("cancelled", run.began, run.first_text, now, error))
    else:
        counts.buckets[bisect_left(SECONDS, now - began)] += 1
        counts.seconds += now - began
        counts.fail(error, run.delivery.request.id)
        sampling.tell(run.delivery, Ending("failed", run.began, run.first_text, now, error))


def report_buried(delivery: Delivery, reason: str) -> None:
    """Log that a request was set aside as a dead letter."""
    request = delivery.request
    telemetry.log.error("request.buried", service=request.service, tool=request.tool, id=request.id, reason=reason)


def report_end(delivery: Delivery, elapsed: float, frames: int, error: ErrorInfo | None, exception: BaseException | None) -> None:
    """Log a run's end, and count it.

    Args:
        delivery: what was run.
        elapsed: seconds that it ran.
        frames: how many frames it sent.
        error: why it failed, if it did.
        exception: what its handler raised, when that was not meant as an answer; its traceback is logged.
    """
    request = delivery.request
    if telemetry.metering():
        telemetry.record_run(request.service, elapsed, delivery.queued_ms / 1000, frames, error)
    fields = {
        "tool": request.tool or request.service,
        "user": request.user,
        "id": request.id,
        "attempt": delivery.attempt,
        "ms": round(elapsed * 1000, 1),
    }
    if error is None:
        telemetry.log.info("call.finished", **fields)
    elif exception is None or is_a(exception, EnvelopeError):
        # The traceback of a result that can't be sent has no line of the handler.
        # A refusal of arguments quotes them, and logs hold no arguments.
        message = "" if error.type == "invalid_arguments" else shortened(error.message, _MOST_MESSAGE)
        telemetry.log.warning("call.failed", error=error.type, code=error.code, **({"message": message} if message else {}), **fields)
    else:
        telemetry.log.error("call.crashed", error=error.code, exc_info=exception, **fields)
