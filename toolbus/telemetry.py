"""Logs, spans and metrics: every name of them, and how they are made.

Nothing here costs anything worth measuring until an application asks for it:
``logs()``, ``active()`` and ``metering()`` say in about 0.1 µs whether anybody listens.
Names follow OpenTelemetry's conventions for tools (``gen_ai.*``) and messaging.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import structlog
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import Counter, Histogram, Meter, MeterProvider, NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider, Span, SpanKind, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from toolbus.results import CallCancelled, ErrorInfo, ToolError

LogFormat = Literal["auto", "text", "json"]

NAME = "toolbus"

# Every event that is logged. Arguments, results and secrets are never among the fields.
EVENTS: Mapping[str, str] = {
    "agent.close_incomplete": "the agent could not remove its reply stream; its TTL will",
    "agent.resync_failed": "the agent could not read its replies and the registry afresh; it is tried again",
    "bury.refused": "the server refused to set a request aside as a dead letter",
    "call.abandoned": "a queued call was not run, because its caller is gone",
    "call.alone": "a call that may have killed its workers runs while nothing else does",
    "call.crashed": "a handler raised; the traceback follows",
    "call.failed": "a call was answered with an error",
    "call.finished": "a call was answered",
    "call.lost": "another worker has this call now",
    "cancel.done": "a call was cancelled; `outcome` says how far it had come",
    "cancel.failed": "a call could not be cancelled",
    "cancelled.unread": "the set of cancelled calls could not be read; it is read again",
    "definition.name_refused": "two tools have one name for models; the first keeps it, the other is left out of definitions",
    "definition.set_aside": "a tool's schema can't be carried by a format; the tool is left out of its definitions",
    "descriptor.mended": "the parameters of a tool were no JSON Schema; what was meant is published, as the changes say",
    "descriptor.invalid": "a descriptor in the registry is invalid and is left out; the error names its field",
    "confirmation.asked": "a call waits for a person's permission",
    "confirmation.not_shared": "other processes could not be asked about a call; the confirmer here is",
    "confirmation.settled": "a person's answer came, or nobody answered in time; `outcome` is `allowed` or why not",
    "confirmation.unreadable": "a confirmation request on the server can't be read and is left out",
    "confirmation.failed": "asking a person about a call raised, so the call was not allowed; the traceback follows",
    "executions.dropped": "executions were not recorded, because too many waited or the store refused them",
    "executions.torn_line": "the end of a log of executions was cut off by a crash and is left out",
    "execution.bug": "a bug: making a call for a model raised; the traceback follows",
    "execution.crashed": "a call for a model ended because its handler raised",
    "execution.failed": "a call for a model ended with an error",
    "execution.finished": "a call for a model succeeded",
    "execution.started": "an executor began a call for a model",
    "finish.refused": "the server refused the answers of a batch of calls",
    "frame.malformed": "a response frame can't be read and is left out",
    "frames.refused": "the server refused frames for one agent",
    "isolation.nursery_lost": "the process that starts isolated tools' processes has ended, and they with it; the next call starts another",
    "lease.beat_failed": "leases could not be renewed; it is tried again at once",
    "link.callback_failed": "a bug: a reply's callback raised",
    "link.lost": "the connection to the server ended; it is being restored",
    "link.protocol_error": "the server sent something that is not RESP",
    "link.reconnect_failed": "an attempt to reconnect failed; another follows after `retry_in` seconds",
    "link.refused": "the server refused commands because it is a replica now, is loading, or lost the slot; another connection is made",
    "link.restored": "the connection is back, unanswered writes were sent again",
    "link.server_restarted": "the server is another one than before, or was restarted",
    "link.side_failed": "the cluster node that a slot moves to can't be reached; the commands are sent again",
    "link.subscribe_refused": "the server refused a subscription: cancellations and hand-backs are noticed late; permit the channel",
    "link.stalled": "the server has not answered for too long; the connection is given up",
    "middleware.failed": "a middleware around a call raised; the traceback follows",
    "nanoclaw.left_out": "ready-made tools of the nanoClaw facade are not installed and are left out",
    "nested.unavailable": "the server could not be reached for a handler's nested call; it is tried again",
    "observer.failed": "an observer of executions raised; the traceback follows",
    "registry.unreadable": "a service's entry in the registry can't be read and is left out",
    "replies.read_failed": "the reply stream could not be read; it is tried again",
    "request.buried": "a request was set aside as a dead letter",
    "replies.recreated": "this agent's reply stream was gone and was made anew",
    "request.malformed": "a request can't be read; it was answered or set aside",
    "requests.group_missing": "a request stream or its group is gone; the service registers again",
    "requests.recovered": "requests of a worker that died were taken over",
    "requests.taken_back": "requests that a draining worker handed back were taken",
    "requests.take_failed": "requests could not be taken; it is tried again",
    "server.evicts": "the server may evict keys when its memory is full; an evicted key is a lost call",
    "service.cleanup_failed": "a service's cleanup() raised; the traceback follows",
    "session.cleanup_failed": "a service's cleanup(session) raised or was not done in time",
    "session.ended": "a session ended at this worker; `reason` says why",
    "session.handed_over": "a call was given to the worker that has its session",
    "session.untold": "workers could not be told that sessions are over; they end there when they are idle",
    "sessions.unsettled": "the server did not say which workers have some calls' sessions; the calls are taken anew after a lease",
    "retry.failed": "a failed call could not be kept for another attempt; another worker takes it over",
    "run.bug": "a bug: running a handler raised outside of the handler",
    "service.paused": "the service takes no more requests until it is resumed",
    "service.refused": "the registry refused a service whose name belongs to another owner",
    "service.register_failed": "a service could not register; it is tried again",
    "service.registered": "a service and its tools are callable",
    "service.registered_again": "a service was missing from the registry and is back",
    "service.resumed": "the service takes requests again",
    "trustgraph.invoke_failed": "a tool service of the TrustGraph facade raised; the traceback follows",
    "trustgraph.unavailable": "the server can't be reached to launch a tool service; it is tried again",
    "toolkit.action_unknown": "an edge was left out, because the action that it was to connect is not in the toolkit graph",
    "toolkit.left_out": "a published preset can't be read and is left out of the toolkit graph; the error names the place",
    "toolkit.tool_unreachable": "a tool was taken out of the toolkit graph, because nothing leads to it",
    "toolkit.group_unreachable": "no action calls this group of tools, so it is never recommended",
    "tool.name_taken": "two services offer a tool of this name; the first keeps it",
    "tool.left_out": "a tool has a parameter for a service that nobody provides, and is not served; see `toolbus.provide`",
    "tools.refused": "some tools' names belong to another owner; the rest are registered",
    "tools.undeclared_effect": "tools that don't say what a second execution would do may be re-run after a crash",
    "supervisor.killing": "a worker process did not drain within its grace period and is killed",
    "supervisor.reloading": "a file changed; the worker processes are restarted",
    "supervisor.restarting": "a worker process ended and is started again",
    "upkeep.failed": "reaping or sweeping failed; it is tried again in the next turn",
    "usage.uncounted": "the server refused to count what calls cost",
    "worker.close_incomplete": "the worker could not sign off; its leases will run out",
    "worker.draining": "the worker takes nothing more and finishes what runs",
    "worker.grace_ended": "the grace period is over; what still runs is handed to other workers",
    "worker.hand_back_failed": "unanswered calls could not be handed back; they are taken over when their leases end",
    "worker.handed_back": "unanswered calls were given to other workers",
    "worker.killed": "a second signal ended the worker at once",
    "worker.loop_blocked": "a handler blocks the event loop; the stack shows where",
    "worker.stopped": "the worker has stopped",
    "worker.stuck": "half of the slots are held by handlers that can't be stopped; the worker drains so that it can be replaced",
    "worker.unregister_failed": "the worker could not take its services out of the registry; their leases will run out",
}

# Every metric: its kind, unit and description.
METRICS: Mapping[str, tuple[Literal["counter", "histogram"], str, str]] = {
    "gen_ai.execute_tool.duration": ("histogram", "s", "Duration of a tool call as its caller sees it"),
    "messaging.process.duration": ("histogram", "s", "Duration of one run of a handler"),
    "toolbus.queue.duration": ("histogram", "s", "Time a request waited for a worker"),
    "toolbus.calls": ("counter", "{call}", "Calls that ended, by outcome"),
    "toolbus.attempts": ("counter", "{attempt}", "Starts of handlers, repeated ones among them"),
    "toolbus.frames": ("counter", "{frame}", "Response frames written by workers"),
    "toolbus.resets": ("counter", "{reset}", "Streams whose new attempt diverged from what was delivered"),
    "toolbus.reclaimed": ("counter", "{request}", "Requests taken over from workers that died"),
    "toolbus.dead_letters": ("counter", "{request}", "Requests that were set aside"),
    "toolbus.reconnects": ("counter", "{connection}", "Connections restored after a loss"),
}

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)


# --- Logs -------------------------------------------------------------------------------------------------------------

_logger = logging.getLogger(NAME)
_logger.addHandler(logging.NullHandler())

logs = _logger.isEnabledFor
"""Whether a level (``logging.DEBUG``, …) is logged; cheap enough for the hot path."""

_PASSED_ON = ("exc_info", "stack_info", "stacklevel")
_FIELDS = "toolbus"  # the attribute of a LogRecord that carries an event's fields


def _add_trace(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = trace.format_trace_id(context.trace_id)
        event["span_id"] = trace.format_span_id(context.span_id)
    return event


def _to_logging(_logger: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """The last processor: a line for whatever handlers the application has, and the fields for those that know them."""
    passed = {key: event.pop(key) for key in _PASSED_ON if key in event}
    if method == "exception":
        passed.setdefault("exc_info", True)
    name = event.pop("event")
    line = " ".join([str(name), *(f"{key}={_word(value)}" for key, value in event.items())])
    return {"msg": line, "extra": {_FIELDS: {"event": name, **event}}, "stacklevel": 4, **passed}


def _word(value: object) -> str:
    """A value as one word of a log line: quoted when it is not one, so that it can't forge fields or lines."""
    text = value if isinstance(value, str) else str(value)
    plain = text != "" and text.isprintable() and not any(character in text for character in ' "=')
    return text if plain else json.dumps(text)


log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    _logger,
    processors=[structlog.stdlib.filter_by_level, _add_trace, _to_logging],
    wrapper_class=structlog.stdlib.BoundLogger,
    context_class=dict,
    cache_logger_on_first_use=True,
).bind()
"""``log.info("call.finished", tool=…, id=…, ms=…)``; where it goes is the application's choice."""


def configure_logging(level: str = "info", format: LogFormat = "auto", stream: TextIO | None = None) -> None:
    """Write toolbus's events to ``stream`` (standard error); for our own programs, not for libraries.

    ``auto`` is text on a terminal and JSON lines elsewhere. Text has colours on a terminal unless NO_COLOR is set.
    """
    stream = sys.stderr if stream is None else stream
    terminal = stream.isatty()
    handler = logging.StreamHandler(stream)
    if format == "json" or (format == "auto" and not terminal):
        handler.setFormatter(_JsonLines())
    else:
        handler.setFormatter(_TextLines(colours=terminal and not os.environ.get("NO_COLOR")))
    for old in _logger.handlers[:]:
        _logger.removeHandler(old)
    _logger.addHandler(handler)
    _logger.setLevel(level.upper())
    _logger.propagate = False


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """An event's name and fields, or the message of a record that is not ours."""
    return dict(getattr(record, _FIELDS, None) or {"event": record.getMessage(), "logger": record.name})


class _JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        ours = {"time": when, "level": record.levelname.lower()}
        fields = {**ours, **_fields(record), **ours}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = record.stack_info
        return json.dumps(fields, default=str)


_BOLD, _CYAN = "\x1b[1m", "\x1b[36m"
_COLOURS = {"DEBUG": "\x1b[2m", "INFO": "\x1b[32m", "WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[31m"}


class _TextLines(logging.Formatter):
    """Time, level, event and fields for people."""

    def __init__(self, *, colours: bool) -> None:
        super().__init__()
        self._colours_on = colours

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        when = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        event = str(fields.pop("event"))
        level = f"{record.levelname.lower():<8}"
        pairs = (f"{self._painted(key, _CYAN)}={_word(value)}" for key, value in fields.items())
        line = " ".join([when, self._painted(level, _COLOURS.get(record.levelname, "")), self._painted(event, _BOLD), *pairs])
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        if record.stack_info:
            line += "\n" + self.formatStack(record.stack_info)
        return line

    def _painted(self, text: str, colour: str) -> str:
        return f"{colour}{text}\x1b[0m" if self._colours_on and colour else text


# --- Who listens ------------------------------------------------------------------------------------------------------

_tracer_provider: TracerProvider | None = None
_meter_provider: MeterProvider | None = None
_instruments: tuple[MeterProvider, dict[str, Counter | Histogram]] | None = None

# `get_tracer_provider()` looks into the environment each time until an SDK is there, 0.9 µs, for one variable that makes
# it load an SDK by itself. When that variable is not set, the global it returns can be looked at directly.
_TRACER_GLOBAL = hasattr(trace, "_TRACER_PROVIDER") and "OTEL_PYTHON_TRACER_PROVIDER" not in os.environ
_meters: Any = getattr(metrics, "_internal", None)
# The API's own proxy has no public name; it and the no-op provider share a module, and real ones come from elsewhere.
_NO_METERS = NoOpMeterProvider.__module__
_METER_GLOBAL = hasattr(_meters, "_METER_PROVIDER") and "OTEL_PYTHON_METER_PROVIDER" not in os.environ


def active() -> bool:
    """Whether spans go anywhere: an SDK's tracer provider is configured."""
    provider = _tracer_provider
    if provider is None:
        provider = trace._TRACER_PROVIDER if _TRACER_GLOBAL else trace.get_tracer_provider()
    return provider is not None and not isinstance(provider, (trace.ProxyTracerProvider, NoOpTracerProvider))


def metering() -> bool:
    """Whether metrics go anywhere: an SDK's meter provider is configured."""
    provider = _meter_provider
    if provider is None:
        provider = _meters._METER_PROVIDER if _METER_GLOBAL else metrics.get_meter_provider()
    return provider is not None and type(provider).__module__ != _NO_METERS


@contextmanager
def providers(*, tracer: TracerProvider | None = None, meter: MeterProvider | None = None) -> Iterator[None]:
    """Use these providers instead of the global ones, which a process can set only once; for tests and embedding."""
    global _tracer_provider, _meter_provider
    before = _tracer_provider, _meter_provider
    _tracer_provider, _meter_provider = tracer, meter
    try:
        yield
    finally:
        _tracer_provider, _meter_provider = before


# --- Spans ------------------------------------------------------------------------------------------------------------

_propagator = TraceContextTextMapPropagator()


class CallSpan:
    """The agent's two spans of one call: ``execute_tool {tool}``, and in it ``send {service}``.

    Attributes:
        traceparent: W3C trace context for the request, or empty; the handler's span continues from it.
    """

    __slots__ = ("_send", "_tool", "traceparent")

    def __init__(self, tool: Span, send: Span) -> None:
        self._tool = tool
        self._send: Span | None = send
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, trace.set_span_in_context(send, Context()))
        self.traceparent = carrier.get("traceparent", "")

    def sent(self, error: ErrorInfo | None = None) -> None:
        """The server has answered the publication; ``end()`` does the same when nobody said so before."""
        send, self._send = self._send, None
        if send is not None:
            _end(send, error)

    def end(self, error: ErrorInfo | None = None) -> None:
        """The call has its one result."""
        self.sent()
        _end(self._tool, error)


class HandlerSpan:
    """The worker's span of one run: ``process {service}``; current while the handler runs."""

    __slots__ = ("_failed", "_span")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._failed = False

    def fail(self, error: ErrorInfo) -> None:
        """The run failed; the first reason stays."""
        if not self._failed:
            self._failed = True
            _fail(self._span, error)


def start_call_span(*, tool: str, service: str, id: str, agent: str, context: Context | None = None) -> CallSpan | None:
    """Start the spans of a call under ``context`` (the current one); None when nobody listens.

    The caller ends them with ``CallSpan.end()``. They are never made current, so any task may.
    """
    if not active():
        return None
    tracer = _tracer()
    about = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool or service,
        "gen_ai.tool.call.id": id,
        "gen_ai.tool.type": "function",
    }
    outer = tracer.start_span(f"execute_tool {tool or service}", context, SpanKind.INTERNAL, about)
    inner = tracer.start_span(
        f"send {service}", trace.set_span_in_context(outer, context), SpanKind.PRODUCER, _message("send", service, id, agent)
    )
    return CallSpan(outer, inner)


@contextmanager
def handler_span(traceparent: str, *, tool: str, service: str, id: str, attempt: int, worker: str) -> Iterator[HandlerSpan | None]:
    """The span of one run, continuing the caller's trace; yields None when nobody listens.

    An exception that passes through is recorded, with the error type that the caller will see.
    """
    if not active():
        yield None
        return
    context = _propagator.extract({"traceparent": traceparent} if traceparent else {}, Context())
    about = _message("process", service, id, worker) | {
        "gen_ai.tool.name": tool or service,
        "gen_ai.tool.call.id": id,
        "toolbus.attempt": attempt,
    }
    span = _tracer().start_span(f"process {service}", context, SpanKind.CONSUMER, about)
    handler = HandlerSpan(span)
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield handler
        except Exception as error:
            span.record_exception(error)
            handler.fail(_error_of(error))
            raise
        except BaseException:
            handler.fail(ErrorInfo("cancelled"))
            raise


def _error_of(error: Exception) -> ErrorInfo:
    if isinstance(error, ToolError):
        return error.error
    return ErrorInfo("cancelled" if isinstance(error, CallCancelled) else "tool_error", message=str(error))


def _tracer() -> trace.Tracer:
    return trace.get_tracer(NAME, tracer_provider=_tracer_provider)


def _message(operation: str, service: str, id: str, client: str) -> dict[str, str | int]:
    return {
        "messaging.system": "redis",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": service,
        "messaging.message.id": id,
        "messaging.client.id": client,
    }


def _end(span: Span, error: ErrorInfo | None) -> None:
    if error is not None:
        _fail(span, error)
    span.end()


def _fail(span: Span, error: ErrorInfo) -> None:
    span.set_attribute("error.type", error.type)
    span.set_status(StatusCode.ERROR, str(error))


# --- Metrics ----------------------------------------------------------------------------------------------------------


def count(name: str, amount: int = 1, **attributes: str) -> None:
    """Add to one of ``METRICS``' counters; attributes' ``__`` stands for a dot. Does nothing when nobody listens."""
    if metering():
        _counter(name).add(amount, {key.replace("__", "."): value for key, value in attributes.items()})


def record_call(tool: str, service: str, seconds: float, error: ErrorInfo | None) -> None:
    """A call has ended, at the caller's side."""
    if not metering():
        return
    outcome = _outcome(error)
    about = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool or service}
    _histogram("gen_ai.execute_tool.duration").record(seconds, about | outcome)
    _counter("toolbus.calls").add(1, {"messaging.destination.name": service} | outcome)


def record_run(service: str, seconds: float, queued: float, frames: int, error: ErrorInfo | None) -> None:
    """A handler has ended, at the worker's side; ``queued`` is how many seconds its request had waited."""
    if not metering():
        return
    outcome = _outcome(error)
    about = {"messaging.destination.name": service}
    process = {"messaging.system": "redis", "messaging.operation.name": "process"}
    _histogram("messaging.process.duration").record(seconds, process | about | outcome)
    _histogram("toolbus.queue.duration").record(queued, about)
    _counter("toolbus.attempts").add(1, about)
    _counter("toolbus.frames").add(frames, about)


def _outcome(error: ErrorInfo | None) -> dict[str, str]:
    return {} if error is None else {"error.type": error.type}


def _counter(name: str) -> Counter:
    instrument = _instrument(name)
    if not isinstance(instrument, Counter):
        raise TypeError(f"{name} is not a counter")
    return instrument


def _histogram(name: str) -> Histogram:
    instrument = _instrument(name)
    if not isinstance(instrument, Histogram):
        raise TypeError(f"{name} is not a histogram")
    return instrument


def _instrument(name: str) -> Counter | Histogram:
    global _instruments  # noqa: PLW0603 - a cache per provider
    provider = _meter_provider or metrics.get_meter_provider()
    if _instruments is None or _instruments[0] is not provider:
        meter = provider.get_meter(NAME)
        _instruments = provider, {each: _made(meter, each) for each in METRICS}
    return _instruments[1][name]


def _made(meter: Meter, name: str) -> Counter | Histogram:
    kind, unit, description = METRICS[name]
    if kind == "counter":
        return meter.create_counter(name, unit, description)
    return meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=_BUCKETS)
