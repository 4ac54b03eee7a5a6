"""The log line of a run that has ended, beside its metrics."""

from __future__ import annotations

from toolbus import telemetry
from toolbus.broker.protocols import Delivery
from toolbus.results import ErrorInfo


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
    elif exception is None:
        telemetry.log.warning("call.failed", error=error.type, code=error.code, **fields)
    else:
        telemetry.log.error("call.crashed", error=error.code, exc_info=exception, **fields)
