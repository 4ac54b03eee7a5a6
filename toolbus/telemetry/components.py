"""Check that the components which ``OTEL_*`` variables name are installed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from toolbus.results import ConfigurationError

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
