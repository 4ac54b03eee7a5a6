"""Bound the last export when a program ends, and log what an exporter complains of."""

from __future__ import annotations

import atexit
import logging
import threading
import time

from toolbus.telemetry.logger import log

PATIENCE = 5.0
"""Seconds for which the end of a program waits for the last traces, metrics and logs together."""

FAILED = "telemetry.export_failed"
"""The event of an exporter's complaint, which is not exported itself."""


class _Complaints(logging.Handler):
    """Logs the records of the SDK's loggers as events, so that every line of the log has one format."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record."""
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - a message and arguments that do not fit
            self.handleError(record)
            return
        log.warning("telemetry.export_failed", error=text, component=record.name)


def log_complaints() -> None:
    """Log the warnings of OpenTelemetry as events of ours, and nowhere else; for programs, not for libraries."""
    theirs = logging.getLogger("opentelemetry")
    if not any(isinstance(handler, _Complaints) for handler in theirs.handlers):
        theirs.addHandler(_Complaints(logging.WARNING))
    theirs.propagate = False


def bound_last_flush() -> None:
    """Let the end of the program shut the global providers down at once, in place of one after the other for as long as each takes."""
    from opentelemetry import _logs, metrics, trace  # noqa: PLC0415 - loaded with the SDK

    providers = {"traces": trace.get_tracer_provider(), "metrics": metrics.get_meter_provider(), "logs": _logs.get_logger_provider()}
    shutdowns = {signal: provider.shutdown for signal, provider in providers.items() if hasattr(provider, "shutdown")}
    for shutdown in shutdowns.values():
        atexit.unregister(shutdown)

    def flush() -> None:
        # A thread that hangs must not keep the program alive.
        threads = {signal: threading.Thread(target=each, name=f"toolbus-last-{signal}", daemon=True) for signal, each in shutdowns.items()}
        over = time.monotonic() + PATIENCE
        for thread in threads.values():
            thread.start()
        for thread in threads.values():
            thread.join(max(0.0, over - time.monotonic()))
        lost = [signal for signal, thread in threads.items() if thread.is_alive()]
        # Threads that go on must not write into a log that ends.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
        if lost:
            log.warning("telemetry.lost", signals=",".join(lost), seconds=PATIENCE)

    atexit.register(flush)
