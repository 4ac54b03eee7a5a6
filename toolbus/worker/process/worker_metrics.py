"""Write a worker's report as metrics for Prometheus."""

from __future__ import annotations

from toolbus.broker.statistics.answers import BOUNDS, ToolStatistics
from toolbus.telemetry.exposition import Exposition
from toolbus.worker.process.report import Report

_SECONDS = tuple(bound / 1000 for bound in BOUNDS)
# Counts of the broker by the metrics that show them.
_COUNTS = {
    "toolbus_worker_recovered_total": "calls_recovered",
    "toolbus_worker_lost_total": "calls_lost",
    "toolbus_worker_malformed_total": "malformed",
    "toolbus_worker_frames_total": "frames_sent",
    "toolbus_worker_commands_total": "commands",
    "toolbus_worker_connects_total": "connects",
}


def worker_metrics(report: Report) -> str:
    """Return the metrics of a worker, from the report of its processes together."""
    made, processes = Exposition(), report.processes
    made.add("toolbus_worker_info", 1, {"version": report.version, "python": report.python})
    made.add("toolbus_worker_processes", processes.wanted)
    made.add("toolbus_worker_processes_ready", report.ready)
    made.add("toolbus_worker_restarts_total", processes.restarts)
    made.add("toolbus_worker_processes_least", processes.least)
    made.add("toolbus_worker_processes_most", processes.most)
    made.add("toolbus_worker_processes_added_total", processes.added)
    made.add("toolbus_worker_processes_dismissed_total", processes.dismissed)
    made.add("toolbus_worker_processes_used", round(processes.use, 3))
    made.add("toolbus_worker_slots", report.slots)
    made.add("toolbus_worker_running", report.running)
    made.add("toolbus_worker_waiting", report.waiting)
    for service, sessions in sorted(report.sessions.items()):
        made.add("toolbus_worker_sessions", sessions, _of(service))
    for tool in sorted(report.tools, key=lambda each: (each.service, each.tool)):
        _add_tool(made, tool)
    for name, count in _COUNTS.items():
        made.add(name, report.counts.get(count, 0))
    made.add("process_cpu_seconds_total", round(report.cpu, 3))
    made.add("process_resident_memory_bytes", report.memory)
    return made.text()


def _add_tool(made: Exposition, tool: ToolStatistics) -> None:
    labels = _of(tool.service, tool.tool)
    made.add("toolbus_worker_attempts_total", tool.started, labels)
    made.add("toolbus_worker_cancelled_total", tool.cancelled, labels)
    for name, errors in (("toolbus_worker_failures_total", tool.failed), ("toolbus_worker_refused_total", tool.refused)):
        for kind, count in sorted(errors.items()):
            made.add(name, count, {**labels, "error_type": kind})
    made.add_histogram("toolbus_worker_duration_seconds", _SECONDS, tool.buckets, tool.total_ms / 1000, labels)


def _of(service: str, tool: str = "") -> dict[str, str]:
    return {"messaging_destination_name": service, "gen_ai_tool_name": tool}
