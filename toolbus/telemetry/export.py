"""Set up an OpenTelemetry SDK from the standard ``OTEL_*`` variables; for programs, not for libraries.

The variables: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from toolbus.results import ConfigurationError
from toolbus.telemetry.components import check_components
from toolbus.telemetry.events import NAME
from toolbus.telemetry.last_flush import FAILED, bound_last_flush, log_complaints
from toolbus.telemetry.listening import active, metering
from toolbus.telemetry.logger import log, logger
from toolbus.telemetry.output import FIELDS

if TYPE_CHECKING:
    from opentelemetry._logs import Logger

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
