"""``Report``: what one worker process tells of itself, and the sum of several."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from toolbus.bus.broker.statistics.answers import BOUNDS, ToolStatistics, added
from toolbus.bus.telemetry.metrics import Exposition

if TYPE_CHECKING:
    from toolbus.bus.worker.worker import Worker


_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class ProcessCounts(msgspec.Struct, frozen=True):
    """The worker processes of a command.

    Attributes:
        wanted: how many should run.
        least, most: between which the load decides how many.
        restarts: how often one was started again.
        added, dismissed: how many the load has added, and let go.
        use: processes in use, as the sum of their shares; 0 when the number is fixed.
    """

    wanted: int = 1
    least: int = 1
    most: int = 1
    restarts: int = 0
    added: int = 0
    dismissed: int = 0
    use: float = 0.0


class Report(msgspec.Struct):
    """The counts of one worker process, or of several together.

    Attributes:
        healthy: whether any process takes requests.
        ready: how many do.
        instances: their ids.
        version, python: of toolbus and Python.
        slots, running, waiting: as in ``InstanceAnswer``.
        sessions: open ones by service.
        tools: counts by service and tool, without the last errors.
        counts: those of the broker, by name.
        cpu: seconds of processor time.
        memory: resident bytes.
        processes: of the command that started them.
    """

    healthy: bool = False
    ready: int = 0
    instances: list[str] = []
    version: str = ""
    python: str = ""
    slots: int = 0
    running: int = 0
    waiting: int = 0
    sessions: dict[str, int] = {}
    tools: list[ToolStatistics] = []
    counts: dict[str, int] = {}
    cpu: float = 0.0
    memory: int = 0
    processes: ProcessCounts = ProcessCounts()


def report_of(worker: Worker) -> Report:
    """Return the report of a worker that was opened in this process."""
    answer = worker.answer()
    return Report(
        healthy=worker.healthy,
        ready=int(worker.healthy),
        instances=[worker.instance],
        version=answer.version,
        python=answer.python,
        slots=answer.slots,
        running=answer.running,
        waiting=answer.waiting,
        sessions={each.id: each.sessions for each in answer.services},
        tools=[msgspec.structs.replace(each, last_error=None) for each in answer.tools],
        counts=worker.statistics(),
        cpu=time.process_time(),
        memory=_resident(),
    )


def summed(reports: Iterable[Report]) -> Report:
    """Return the sum of reports; the versions are those of the last one that tells them."""
    total, sessions, counts = Report(), Counter[str](), Counter[str]()
    tools: dict[tuple[str, str], ToolStatistics] = {}
    for each in reports:
        total.healthy |= each.healthy
        total.ready += each.ready
        total.instances = [*total.instances, *each.instances]
        total.version, total.python = each.version or total.version, each.python or total.python
        total.slots += each.slots
        total.running += each.running
        total.waiting += each.waiting
        total.cpu += each.cpu
        total.memory += each.memory
        sessions.update(each.sessions)
        counts.update(each.counts)
        for tool in each.tools:
            key = tool.service, tool.tool
            tools[key] = _sum(tools[key], tool) if key in tools else tool
    total.sessions, total.counts, total.tools = dict(sessions), dict(counts), list(tools.values())
    return total


def ended(report: Report) -> Report:
    """Return what remains of the report of a process that has ended: its counters, since a counter that falls looks like a new one."""
    tools = [msgspec.structs.replace(each, running=0) for each in report.tools]
    return Report(tools=tools, counts=report.counts, cpu=report.cpu)


def _sum(one: ToolStatistics, other: ToolStatistics) -> ToolStatistics:
    return ToolStatistics(
        one.service,
        one.tool,
        started=one.started + other.started,
        succeeded=one.succeeded + other.succeeded,
        failed=dict(Counter(one.failed) + Counter(other.failed)),
        cancelled=one.cancelled + other.cancelled,
        retaken=one.retaken + other.retaken,
        refused=dict(Counter(one.refused) + Counter(other.refused)),
        running=one.running + other.running,
        total_ms=one.total_ms + other.total_ms,
        buckets=tuple(added([one.buckets, other.buckets])),
    )


def _resident() -> int:
    """Return the bytes of memory that this process has; 0 where the system does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    return 0


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
