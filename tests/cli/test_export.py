"""Telemetry as people get it: a worker's command line, the standard variables, and a collector."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.cli.shell import Shell
from tests.servers import eventually_sync

TOOLS = '''"""Tools of a test."""

from toolbus import tool


@tool(effect="read")
async def exported_echo(text: str):
    """Give a text back."""
    return text
'''


class Collector(ThreadingHTTPServer):
    """Takes in what is exported by OTLP over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: dict[str, list[bytes]] = {}

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"

    def spans(self) -> set[tuple[str, str]]:
        """Return the services and names of the spans."""
        found = set()
        for body in self.bodies.get("/v1/traces", []):
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                service = next(each.value.string_value for each in resource.resource.attributes if each.key == "service.name")
                found |= {(service, span.name) for scope in resource.scope_spans for span in scope.spans}
        return found

    def metrics(self) -> set[str]:
        """Return the names of the metrics."""
        requests = map(ExportMetricsServiceRequest.FromString, self.bodies.get("/v1/metrics", []))
        return {m.name for request in requests for r in request.resource_metrics for s in r.scope_metrics for m in s.metrics}

    def services(self) -> set[str]:
        """Return the names of the services that sent log events."""
        requests = map(ExportLogsServiceRequest.FromString, self.bodies.get("/v1/logs", []))
        resources = [each.resource for request in requests for each in request.resource_logs]
        return {each.value.string_value for resource in resources for each in resource.attributes if each.key == "service.name"}

    def events(self) -> set[str]:
        """Return the names of the log events."""
        requests = map(ExportLogsServiceRequest.FromString, self.bodies.get("/v1/logs", []))
        return {line.event_name for request in requests for r in request.resource_logs for s in r.scope_logs for line in s.log_records}


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.setdefault(self.path, []).append(body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Return a running collector."""
    with Collector() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_worker_exports_what_the_environment_asks_for(shell: Shell, collector: Collector) -> None:
    """An endpoint is enough: spans, metrics and events arrive, the last ones when the worker has drained."""
    (shell.folder / "exported.py").write_text(TOOLS)
    shell.environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_EXPORTER_OTLP_COMPRESSION": "none"}
    worker = shell.start("worker", "exported.py")
    assert shell.run("call", "exported_echo", "text=hey", "--wait", "20").returncode == 0
    worker.terminate()
    assert worker.wait() == 0
    assert ("toolbus-worker", "process exported") in collector.spans()
    assert {"messaging.process.duration", "toolbus.attempts"} <= collector.metrics()
    assert {"service.registered", "worker.stopped"} <= collector.events()


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    "words",
    [
        ("platform", "host"),
        ("platform", "im", "--server", "ws://127.0.0.1:9", "--contact", "c", "--state", "windows"),
    ],
    ids=lambda words: words[1],
)
def test_a_host_and_a_messenger_export_too(shell: Shell, collector: Collector, words: tuple[str, ...]) -> None:
    """Each under its own name, unless the environment gives another one."""
    shell.environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_EXPORTER_OTLP_COMPRESSION": "none"}
    shell.environment |= {"OTEL_BLRP_SCHEDULE_DELAY": "100"}
    process = shell.start_anew(*words)
    eventually_sync(lambda: f"toolbus-{words[1]}" in collector.services(), timeout=60)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_one_signal_alone_is_exported(shell: Shell, collector: Collector) -> None:
    """A signal may be left out, and a name given."""
    (shell.folder / "exported.py").write_text(TOOLS)
    shell.environment |= {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/v1/traces",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        "OTEL_SERVICE_NAME": "jokes",
    }
    worker = shell.start("worker", "exported.py")
    assert shell.run("call", "exported_echo", "text=hey", "--wait", "20").returncode == 0
    worker.terminate()
    assert worker.wait() == 0
    assert ("jokes", "process exported") in collector.spans()
    assert set(collector.bodies) == {"/v1/traces"}


def test_an_exporter_that_there_is_not_is_named(shell: Shell) -> None:
    """A worker that could not export what was asked for says so and does not start."""
    (shell.folder / "exported.py").write_text(TOOLS)
    shell.environment["OTEL_TRACES_EXPORTER"] = "telegraph"
    done = shell.run("worker", "exported.py")
    assert done.returncode == 1
    assert "telegraph" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "advice"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "install opentelemetry-exporter-otlp-proto-grpc, or set http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc", "or set http/protobuf"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "set http/protobuf"),
        ("OTEL_TRACES_SAMPLER", "sometimes", "there are always_off"),
        ("OTEL_PROPAGATORS", "b3", "install opentelemetry-propagator-b3"),
        ("OTEL_METRICS_EXPORTER", "prometheus", "install opentelemetry-exporter-prometheus"),
    ],
)
def test_a_component_that_is_not_installed_is_told(shell: Shell, variable: str, value: str, advice: str) -> None:
    """One line has the variable, and what to install or set."""
    (shell.folder / "exported.py").write_text(TOOLS)
    shell.environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", variable: value}
    done = shell.run("worker", "exported.py")
    assert done.returncode == 1
    assert f"{variable}={value}" in done.stderr
    assert advice in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("slow")
def test_a_collector_that_is_away_does_not_delay_the_end(shell: Shell) -> None:
    """The end comes although an export may take 600 s, lost signals are told once, and all lines are JSON."""
    (shell.folder / "exported.py").write_text(TOOLS)
    shell.environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_TIMEOUT": "600"}
    shell.environment |= {"OTEL_BLRP_SCHEDULE_DELAY": "100"}
    worker = shell.start_anew("worker", "exported.py")
    assert shell.run("call", "exported_echo", "text=hey", "--wait", "20").returncode == 0
    worker.terminate()
    _, written = worker.communicate(timeout=60)
    assert worker.returncode == 0
    events = [json.loads(line) for line in written.splitlines()]
    lost = [event for event in events if event["event"] == "telemetry.lost"]
    assert len(lost) == 1
    assert "logs" in lost[0]["signals"]
    assert 1 <= sum(event["event"] == "telemetry.export_failed" for event in events) <= 3
