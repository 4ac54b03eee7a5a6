"""Answer metrics in the text format of Prometheus: ``GET /metrics``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolbus.broker.admin import ServiceOverview
from toolbus.gateway.gateway import Gateway, gateway_of
from toolbus.gateway.measures import BUCKETS, Measures
from toolbus.telemetry import METRICS

_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_NAMES = {"gen_ai.execute_tool.duration": "gen_ai_execute_tool_duration_seconds", "toolbus.calls": "toolbus_calls_total"}


async def metrics(request: Request) -> Response:
    """Answer the metrics of this gateway, and the queues of the namespace."""
    gateway = gateway_of(request)
    await gateway.admitted(request, "observe")
    found = await gateway.backlog.read()
    lines = [*_of_calls(gateway.measures), *_of_gateway(gateway, up=found is not None), *_of_services(found or ())]
    return Response("\n".join(lines) + "\n", media_type=_MEDIA_TYPE)


def _of_calls(measures: Measures) -> Iterator[str]:
    calls = sorted(measures.calls.items())
    yield from _head("toolbus.calls", "counter")
    for (tool, error), found in calls:
        yield f"{_NAMES['toolbus.calls']}{{{_labels(tool, error)}}} {found.count}"
    name = _NAMES["gen_ai.execute_tool.duration"]
    yield from _head("gen_ai.execute_tool.duration", "histogram")
    for (tool, error), found in calls:
        labels, total = _labels(tool, error), 0
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), found.buckets, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
        yield f"{name}_sum{{{labels}}} {found.seconds:.6f}"
        yield f"{name}_count{{{labels}}} {total}"


def _of_gateway(gateway: Gateway, *, up: bool) -> Iterator[str]:
    measures = gateway.measures
    yield from _gauge("toolbus_gateway_in_flight", "Calls that came over HTTP and have not ended", measures.in_flight)
    yield from _gauge("toolbus_gateway_streams", "Those of them whose events are streamed", measures.streams)
    yield from _gauge("toolbus_gateway_tools", "Tools that can be called", sum(tool.available for tool in gateway.bus.tools.values()))
    yield from _gauge("toolbus_up", "Whether the server could be asked", int(up))


def _of_services(services: Sequence[ServiceOverview]) -> Iterator[str]:
    gauges = {
        "toolbus_queue_length": ("Requests that are queued or running, by state", [("queued", "queued"), ("running", "running")]),
        "toolbus_workers": ("Live workers of a service", [("", "workers")]),
        "toolbus_dead_letters": ("Requests that are set aside", [("", "dead")]),
        "toolbus_service_paused": ("Whether a service takes no requests", [("", "paused")]),
    }
    for name, (about, parts) in gauges.items():
        yield f"# HELP {name} {about}"
        yield f"# TYPE {name} gauge"
        for service in services:
            for state, field in parts:
                labels = f'messaging_destination_name="{_escaped(service.publication.service.id)}"' + (f',state="{state}"' if state else "")
                yield f"{name}{{{labels}}} {int(getattr(service, field))}"


def _head(metric: str, kind: str) -> Iterator[str]:
    yield f"# HELP {_NAMES[metric]} {METRICS[metric][2]}"
    yield f"# TYPE {_NAMES[metric]} {kind}"


def _gauge(name: str, help: str, value: int) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} gauge"
    yield f"{name} {value}"


def _labels(tool: str, error: str) -> str:
    return f'gen_ai_tool_name="{_escaped(tool)}"' + (f',error_type="{error}"' if error else "")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


ROUTES = [Route("/metrics", metrics)]
