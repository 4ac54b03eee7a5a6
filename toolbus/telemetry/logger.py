"""``log``: pass events to the application's logging, or straight to the line handler of our own programs."""

from __future__ import annotations

import logging
import sys
from typing import Any

from toolbus.safe_text import is_printable, traceback_of
from toolbus.telemetry.events import NAME
from toolbus.telemetry.lines import word
from toolbus.telemetry.listening import current_span
from toolbus.telemetry.output import FIELDS, ExcInfo, LineHandler
from toolbus.telemetry.repeats import BOUNDED, repeats

logger = logging.getLogger(NAME)
"""The logger of all events; its handlers are the application's choice."""

logger.addHandler(logging.NullHandler())

logs = logger.isEnabledFor
"""Return whether a level (``logging.DEBUG``, …) is logged; cheap enough for the hot path."""

# Three frames lie between the code that logged the event and the LogRecord: this function, the method of EventLog, Logger.log.
_STACK_LEVEL = 3


class EventLog:
    """Logs events: ``log.info("call.finished", tool=…, id=…, ms=…)``. Field values may be of any type."""

    __slots__ = ()

    def debug(self, event: str, /, **fields: Any) -> None:
        """Log an event for developers only."""
        if logs(logging.DEBUG):
            _emit(logging.DEBUG, event, fields, None)

    def info(self, event: str, /, **fields: Any) -> None:
        """Log an event of normal operation."""
        if logs(logging.INFO):
            _emit(logging.INFO, event, fields, None)

    def warning(self, event: str, /, **fields: Any) -> None:
        """Log an event that an operator may have to look into."""
        if logs(logging.WARNING):
            _emit(logging.WARNING, event, fields, None)

    def error(self, event: str, /, *, exc_info: BaseException | None = None, **fields: Any) -> None:
        """Log a failure, with the traceback of ``exc_info``."""
        if logs(logging.ERROR):
            _emit(logging.ERROR, event, fields, None if exc_info is None else (type(exc_info), exc_info, exc_info.__traceback__))

    def exception(self, event: str, /, **fields: Any) -> None:
        """Log a failure, with the traceback of the exception that is being handled."""
        if logs(logging.ERROR):
            error = sys.exception()
            _emit(logging.ERROR, event, fields, None if error is None else (type(error), error, error.__traceback__))


log = EventLog()


def _emit(level: int, event: str, fields: dict[str, Any], raised: ExcInfo | None) -> None:
    more = repeats.left_out(event, fields) if event in BOUNDED else 0
    if more is None:
        return
    if more:
        fields["more"] = more
    span = current_span()
    if span is not None:
        fields["trace_id"], fields["span_id"] = span
    handlers = logger.handlers
    if len(handlers) == 1 and not logger.propagate and not logger.filters:
        handler = handlers[0]
        if type(handler) is LineHandler and level >= handler.level and not handler.filters:
            handler.write_event(level, event, fields, raised)
            return
    if raised is not None and not is_printable(raised[1]):
        # Handlers of others print it, and what its class raises then would come out here.
        fields["exception"], raised = traceback_of(raised[1]), None
    line = " ".join([event, *(f"{name}={word(value)}" for name, value in fields.items())])
    logger.log(level, line, exc_info=raised, extra={FIELDS: {"event": event, **fields}}, stacklevel=_STACK_LEVEL)
