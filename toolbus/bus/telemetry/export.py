"""Set up an OpenTelemetry SDK from the standard ``OTEL_*`` variables; for programs, not for libraries.

The variables: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from toolbus.bus.telemetry.events import NAME
from toolbus.bus.telemetry.logger import log
from toolbus.bus.telemetry.output import FIELDS
from toolbus.bus.telemetry.providers import active, logger, metering
from toolbus.bus.values.results import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry._logs import Logger

_COMPONENTS: Mapping[str, str] = {
    "OTEL_TRACES_EXPORTER": "opentelemetry_traces_exporter",
    "OTEL_METRICS_EXPORTER": "opentelemetry_metrics_exporter",
    "OTEL_LOGS_EXPORTER": "opentelemetry_logs_exporter",
    "OTEL_TRACES_SAMPLER": "opentelemetry_traces_sampler",
    "OTEL_PROPAGATORS": "opentelemetry_propagator",
    "OTEL_PYTHON_ID_GENERATOR": "opentelemetry_id_generator",
}
"""The variables that name components, and the groups of entry points that have these."""

_PROTOCOLS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
_ADVICE = {
    "otlp_proto_grpc": "install opentelemetry-exporter-otlp-proto-grpc, or set http/protobuf",
    "otlp_proto_http": "install opentelemetry-exporter-otlp-proto-http",
    "prometheus": "install opentelemetry-exporter-prometheus",
    "b3": "install opentelemetry-propagator-b3",
    "b3multi": "install opentelemetry-propagator-b3",
    "jaeger": "install opentelemetry-propagator-jaeger",
}


def check_components() -> None:
    """Find every component that a variable names.

    Raises:
        ConfigurationError: one is not installed; the message names the variable and says what to install or set.
    """
    named = [variable for variable in _COMPONENTS if os.environ.get(variable)]
    if not named:
        return
    from importlib.metadata import entry_points  # noqa: PLC0415 - it takes 14 ms

    for variable in named:
        group = _COMPONENTS[variable]
        for name in filter(None, map(str.strip, os.environ.get(variable, "").split(","))):
            if name.lower() == "none":
                continue
            for said_by, said, needed in _needed(variable, name):
                if not entry_points(group=group, name=needed):
                    there = ", ".join(sorted({each.name for each in entry_points(group=group)}))
                    raise ConfigurationError(
                        f"{said_by}={said} needs a component that is not installed: {_ADVICE.get(needed, f'there are {there}')}"
                    )


def _needed(variable: str, name: str) -> Iterator[tuple[str, str, str]]:
    """Yield the variable and value to blame, and the name of the component."""
    if name != "otlp":
        yield variable, name, name
        return
    signal = variable.split("_")[1]
    for said_by in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        said = os.environ.get(said_by, "").strip()
        if not said:
            continue
        if said not in _PROTOCOLS:
            raise ConfigurationError(f"{said_by}={said} is no protocol that can be used: set http/protobuf, or grpc")
        yield said_by, said, _PROTOCOLS[said]
        return


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


_SIGNALS = ("TRACES", "METRICS", "LOGS")
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_CONFIG_FILE = "OTEL_CONFIG_FILE"


def configure_export(name: str) -> None:
    """Export spans, metrics and log events if the environment says where to; do nothing otherwise.

    An endpoint of OTLP (``OTEL_EXPORTER_OTLP_ENDPOINT``, or that of one signal) or an exporter (``OTEL_TRACES_EXPORTER``, …) is what makes
    them exported. Providers that are set already are left alone.

    Args:
        name: the service's name where ``OTEL_SERVICE_NAME`` gives none.

    Raises:
        ConfigurationError: a variable names something that there is not.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or not _wanted() or active() or metering():
        return
    try:
        from opentelemetry.sdk._configuration import _OTelSDKConfigurator  # noqa: PLC0415 - a tenth of a second, and an extra
    except ModuleNotFoundError as error:
        log.warning("telemetry.no_exporter", needs=error.name, advice="pip install 'toolbus[otel]'")
        return
    for variable, value in _defaults(name).items():
        os.environ.setdefault(variable, value)
    if _CONFIG_FILE not in os.environ:
        check_components()
    log_complaints()

    class _Configurator(_OTelSDKConfigurator):
        """Distributions configure the SDK by a class of their own."""

    try:
        configurator: Any = _Configurator
        configurator().configure()
    except (RuntimeError, ValueError) as error:
        raise ConfigurationError(f"OpenTelemetry can't be set up from the environment: {error}") from None
    bound_last_flush()
    if os.environ.get("OTEL_LOGS_EXPORTER", "none") != "none":
        logger.addHandler(_ExportHandler())


def _wanted() -> bool:
    return _CONFIG_FILE in os.environ or any(_exporter(signal) != "none" for signal in _SIGNALS)


def _exporter(signal: str) -> str:
    """Return the exporter of a signal that was named, or that an endpoint stands for."""
    named = os.environ.get(f"OTEL_{signal}_EXPORTER", "").strip()
    if named:
        return named
    return "otlp" if os.environ.get(_ENDPOINT) or os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT") else "none"


def _defaults(name: str) -> dict[str, str]:
    """Return variables that have a value of ours when nobody gave one."""
    found = {f"OTEL_{signal}_EXPORTER": _exporter(signal) for signal in _SIGNALS}
    # The exporter that the extra brings.
    found["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/protobuf"
    if "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        found["OTEL_SERVICE_NAME"] = name
    return found


class _ExportHandler(logging.Handler):
    """Exports events as log records: the event's name, and its fields as attributes."""

    def __init__(self) -> None:
        super().__init__()
        from opentelemetry._logs import SeverityNumber, get_logger  # noqa: PLC0415 - loaded with the SDK

        self._logger: Logger = get_logger(NAME)
        self._severities: dict[int, Any] = {
            logging.DEBUG: SeverityNumber.DEBUG,
            logging.INFO: SeverityNumber.INFO,
            logging.WARNING: SeverityNumber.WARN,
            logging.ERROR: SeverityNumber.ERROR,
        }

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a record to the SDK, which exports it in batches from a thread of its own."""
        fields: dict[str, Any] = dict(getattr(record, FIELDS, None) or {})
        event = str(fields.pop("event", record.getMessage()))
        if event == FAILED:
            # Each failed export would have another one to make.
            return
        try:
            self._logger.emit(
                timestamp=int(record.created * 1e9),
                severity_number=self._severities.get(record.levelno),
                severity_text=record.levelname,
                body=event,
                event_name=event,
                attributes={field: value if type(value) in {str, int, float, bool} else str(value) for field, value in fields.items()},
                exception=record.exc_info[1] if record.exc_info else None,
            )
        except Exception:  # noqa: BLE001 - telemetry must not end a call
            self.handleError(record)
