"""``log``: the logger of all events, with structlog: https://www.structlog.org.

An application that has configured structlog gets the events there. Otherwise they are records of the standard library's logger ``toolbus``,
whose handlers are the application's choice, or the lines of our own programs.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Any, TextIO

import structlog

from toolbus.bus.support.latest import Latest
from toolbus.bus.support.safe_text import is_printable, traceback_of
from toolbus.bus.telemetry.events import EVENTS, NAME
from toolbus.bus.telemetry.output import (
    FIELDS,
    ExcInfo,
    JsonLine,
    LineHandler,
    LogFormat,
    TextLine,
    word,
)
from toolbus.bus.telemetry.providers import LEVELS, application_logs, current_span, logger, logs, ours

ABOUT: Mapping[str, tuple[str, ...]] = {
    "confirmation.unreadable": ("id", "error"),
    "descriptor.invalid": ("key", "error"),
    "descriptor.mended": ("service", "tools", "changes"),
    "registry.unreadable": ("service", "error"),
    "server.no_permission": ("server", "error"),
    "tool.name_taken": ("tool", "service", "holder"),
    "value.unreadable": ("key", "error"),
}
"""Events that are logged once for each combination of these fields, since each further reading would repeat them."""

_EACH = frozenset(
    {
        # A line for each call, request, session or answer, which somebody may look for.
        "call.abandoned", "call.alone", "call.cancelled", "call.crashed", "call.failed", "call.finished", "call.handed_back",
        "cancel.done", "confirmation.asked", "confirmation.settled", "execution.crashed", "execution.failed", "execution.finished",
        "execution.started", "request.buried",
        "session.ended", "session.handed_over", "session.lost", "session.restored", "session.unopened", "session.unrestored",
        # A line for each step in the life of a process, and for each part of its own program.
        "nanoclaw.left_out", "project.unreadable", "service.registered", "service.withdrawn", "supervisor.killing", "supervisor.reloading",
        "supervisor.restarting", "task.given_up", "tool.left_out", "tool.return_ignored", "tool.unresolved_annotation", "tools.refused",
        "tools.undeclared_effect", "worker.close_incomplete",
        "worker.draining", "worker.failed", "worker.grace_ended", "worker.hand_back_failed", "worker.handed_back", "worker.killed",
        "worker.serving", "worker.stopped", "worker.stuck", "worker.unregister_failed",
    }
)  # fmt: skip

BOUNDED = frozenset(EVENTS) - _EACH
"""Events of which at most ``MOST_LINES`` or ``FEWER`` are logged per minute; ``more`` in the next line is the number left out."""

MOST_LINES = 30
FEWER: Mapping[str, int] = {"telemetry.export_failed": 3, "lease.beat_failed": 3}
_PERIOD = 60.0
_MOST_REMEMBERED = 8_192


class Repeats:
    """Decides whether an event is logged.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: Latest[tuple[str, ...], None] = Latest(_MOST_REMEMBERED)
        # For each event: when its minute began, its lines since then, and how many were left out.
        self._minutes: dict[str, tuple[float, int, int]] = {}

    def left_out(self, name: str, fields: Mapping[str, object]) -> int | None:
        """Return how many lines were left out before this one, or None when this one must be left out, too."""
        if name not in BOUNDED:
            return 0
        about = (name, *(str(fields.get(field)) for field in ABOUT[name])) if name in ABOUT else None
        if about is not None and about in self._told:
            self._told.move_to_end(about)
            return None
        began, lines, missed = self._minutes.get(name, (self._clock(), 0, 0))
        if self._clock() - began > _PERIOD:
            began, lines = self._clock(), 0
        if lines >= FEWER.get(name, MOST_LINES):
            self._minutes[name] = (began, lines, missed + 1)
            return None
        self._minutes[name] = (began, lines + 1, 0)
        if about is not None:
            self._told[about] = None
        return missed

    def forget(self) -> None:
        """Forget what was logged, so that everything is logged again."""
        self._told.clear()
        self._minutes.clear()


repeats = Repeats()
"""The events that this process has logged."""


Fields = MutableMapping[str, Any]


def _leave_out_repeats(_: object, __: str, fields: Fields) -> Fields:
    """Drop an event that was logged often, and say in the next line of it how many were left out."""
    event = fields["event"]
    if event in BOUNDED:
        more = repeats.left_out(event, fields)
        if more is None:
            raise structlog.DropEvent
        if more:
            fields["more"] = more
    return fields


_reported: list[bool] = []


def _report_failure() -> None:
    """Say once on standard error that the application's logging raises, with the traceback of what is handled."""
    if not _reported:
        _reported.append(True)
        with contextlib.suppress(Exception):
            sys.stderr.write(f"toolbus: the application's logging raised, so lines are missing; said once\n{traceback.format_exc()}")


def _add_span(_: object, __: str, fields: Fields) -> Fields:
    """Add the ids of the current trace and span, if there is one."""
    try:
        span = current_span()
    except Exception:  # noqa: BLE001 - the application's span
        _report_failure()
        return fields
    if span is not None:
        fields["trace_id"], fields["span_id"] = span
    return fields


# Between the code that logged the event and the LogRecord lie two functions of the bound logger, two of structlog, and the processor.
_STACK_LEVEL = 5


def _hand_on(_: object, method: str, fields: Fields) -> tuple[tuple[LineHandler, str], dict[str, bool]]:
    """Give an event to whoever is in charge: our handler alone, the application's structlog, or all handlers of the logger."""
    level = LEVELS[method]
    handlers = logger.handlers
    if len(handlers) == 1 and not logger.propagate and not logger.filters:
        handler = handlers[0]
        if type(handler) is LineHandler and level >= handler.level and not handler.filters:
            # Creating a LogRecord would take three times as long as the line.
            event, raised = fields.pop("event"), _raised(fields)
            return (handler, handler.line(method, event, fields, raised)), {}
    try:
        if application_logs():
            getattr(structlog.get_logger(NAME), method)(**fields)
        else:
            event, raised = fields.pop("event"), _raised(fields)
            if raised is not None and not is_printable(raised[1]):
                # Handlers of others print it, and what its class raises then would come out here.
                fields["exception"], raised = traceback_of(raised[1]), None
            line = " ".join([event, *(f"{name}={word(value)}" for name, value in fields.items())])
            logger.log(level, line, exc_info=raised, extra={FIELDS: {"event": event, **fields}}, stacklevel=_STACK_LEVEL)
    except Exception:  # noqa: BLE001 - a filter, handler or processor of the application; no call ends because of a line
        _report_failure()
    raise structlog.DropEvent


def _raised(fields: Fields) -> ExcInfo | None:
    error = fields.pop("exc_info", None)
    if error is True:
        error = sys.exception()
    return (type(error), error, error.__traceback__) if isinstance(error, BaseException) else None


class _Lines:
    """Takes finished lines, for a logger of structlog."""

    def debug(self, handler: LineHandler, line: str) -> None:
        handler.writer.add(line, urgent=False)

    def warning(self, handler: LineHandler, line: str) -> None:
        handler.writer.add(line, urgent=True)

    info = debug
    error = critical = warning


class EventLogger(structlog.BoundLoggerBase):
    """Logs events: ``log.info("call.finished", tool=…, id=…, ms=…)``. Field values may be of any type."""

    def debug(self, event: str, /, **fields: Any) -> None:
        """Log an event for developers only."""
        if logs(DEBUG):
            self._proxy_to_logger("debug", event, **fields)

    def info(self, event: str, /, **fields: Any) -> None:
        """Log an event of normal operation."""
        if logs(INFO):
            self._proxy_to_logger("info", event, **fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        """Log an event that an operator may have to look into."""
        if logs(WARNING):
            self._proxy_to_logger("warning", event, **fields)

    def error(self, event: str, /, *, exc_info: BaseException | bool | None = None, **fields: Any) -> None:
        """Log a failure, with the traceback of ``exc_info``."""
        if logs(ERROR):
            self._proxy_to_logger("error", event, exc_info=exc_info, **fields)

    def exception(self, event: str, /, **fields: Any) -> None:
        """Log a failure, with the traceback of the exception that is being handled."""
        if logs(ERROR):
            self._proxy_to_logger("error", event, exc_info=sys.exception(), **fields)


_PROCESSORS: list[structlog.typing.Processor] = [_leave_out_repeats, _add_span, _hand_on]

log: EventLogger = structlog.wrap_logger(_Lines(), _PROCESSORS, EventLogger, dict).bind()


def configure_logging(level: str = "info", format: LogFormat = "auto", stream: TextIO | None = None, process: int = 0) -> None:
    """Write toolbus's events to ``stream`` (standard error by default); for programs, not for libraries.

    ``auto`` means text on a terminal and JSON lines elsewhere. Text has colours on a terminal unless NO_COLOR is set. Each line has the
    number of the ``process`` where that is not 0.
    """
    stream = sys.stderr if stream is None else stream
    terminal = stream.isatty()
    json_lines = format == "json" or (format == "auto" and not terminal)
    coloured = terminal and not os.environ.get("NO_COLOR")
    handler = LineHandler(stream, JsonLine(process) if json_lines else TextLine(colours=coloured, process=process))
    for old in logger.handlers[:]:
        logger.removeHandler(old)
        old.close()
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
    if not structlog.is_configured():
        # The events of tools that use structlog are lines like ours then.
        structlog.configure(_PROCESSORS, wrapper_class=EventLogger, logger_factory=lambda *_: _Lines())
        ours.append(True)
