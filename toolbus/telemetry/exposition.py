"""``Exposition``: metrics in the text format of Prometheus, and the table of those that processes answer by themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of the text."""

# Every metric of /metrics: its kind and description.
EXPOSED: Mapping[str, tuple[Literal["counter", "gauge", "histogram"], str]] = {
    # Of a gateway.
    "toolbus_calls_total": ("counter", "Calls that ended, by outcome"),
    "gen_ai_execute_tool_duration_seconds": ("histogram", "Duration of a tool call as its caller sees it"),
    "toolbus_gateway_in_flight": ("gauge", "Calls that came over HTTP and have not ended"),
    "toolbus_gateway_streams": ("gauge", "Those of them whose events are streamed"),
    "toolbus_gateway_tools": ("gauge", "Tools that can be called"),
    "toolbus_up": ("gauge", "Whether the server could be asked"),
    "toolbus_queue_length": ("gauge", "Requests that are queued or running, by state"),
    "toolbus_workers": ("gauge", "Live workers of a service"),
    "toolbus_dead_letters": ("gauge", "Requests that are set aside"),
    "toolbus_service_paused": ("gauge", "Whether a service takes no requests"),
    # Of a worker, summed over its processes.
    "toolbus_worker_info": ("gauge", "1; the labels tell the versions"),
    "toolbus_worker_processes": ("gauge", "Processes that should run"),
    "toolbus_worker_processes_ready": ("gauge", "Processes that take requests now"),
    "toolbus_worker_processes_least": ("gauge", "Fewest processes, where the load decides"),
    "toolbus_worker_processes_most": ("gauge", "Most processes, where the load decides"),
    "toolbus_worker_processes_used": ("gauge", "Processes in use, as the sum of their shares"),
    "toolbus_worker_processes_added_total": ("counter", "Processes that the load has added"),
    "toolbus_worker_processes_dismissed_total": ("counter", "Processes that the load has let go"),
    "toolbus_worker_restarts_total": ("counter", "Processes that were started again"),
    "toolbus_worker_slots": ("gauge", "Calls that may run at once"),
    "toolbus_worker_running": ("gauge", "Calls that run"),
    "toolbus_worker_waiting": ("gauge", "Calls that a worker holds and that wait for a retry or their turn"),
    "toolbus_worker_sessions": ("gauge", "Open sessions of a service"),
    "toolbus_worker_attempts_total": ("counter", "Attempts that began, by tool"),
    "toolbus_worker_failures_total": ("counter", "Attempts that ended with an error, by tool and type of error"),
    "toolbus_worker_cancelled_total": ("counter", "Attempts that were cancelled, by tool"),
    "toolbus_worker_refused_total": ("counter", "Requests that were answered without being run, by tool and type of error"),
    "toolbus_worker_duration_seconds": ("histogram", "Duration of attempts that ended, without the cancelled ones"),
    "toolbus_worker_recovered_total": ("counter", "Calls that were taken over from dead workers"),
    "toolbus_worker_lost_total": ("counter", "Calls that were given to others while they ran here"),
    "toolbus_worker_malformed_total": ("counter", "Requests that could not be read"),
    "toolbus_worker_frames_total": ("counter", "Response frames that were sent"),
    "toolbus_worker_commands_total": ("counter", "Commands that were sent to the server"),
    "toolbus_worker_connects_total": ("counter", "Connections made to the server"),
    "process_cpu_seconds_total": ("counter", "Processor time of the processes"),
    "process_resident_memory_bytes": ("gauge", "Resident memory of the processes"),
}


class Exposition:
    """Collects samples, and writes them as text, each metric once with its description."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def declare(self, name: str) -> None:
        """Describe a metric even if it has no sample.

        Raises:
            KeyError: it is not in the table.
        """
        if name not in self._lines:
            kind, about = EXPOSED[name]
            self._lines[name] = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]

    def add(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Add a sample of a counter or gauge; labels with empty values are left out."""
        self.declare(name)
        self._lines[name].append(_sample(name, labels or {}, value))

    def add_histogram(self, name: str, bounds: Iterable[object], counts: Sequence[int], total: float, labels: Mapping[str, str]) -> None:
        """Add a histogram.

        Args:
            name: its name.
            bounds: upper bounds of the buckets, without the infinite one.
            counts: what is in each bucket; not cumulative, and zeros at the end may lack.
            total: the sum of all values.
            labels: of every sample of it.
        """
        self.declare(name)
        lines, cumulative = self._lines[name], 0
        for at, bound in enumerate((*bounds, "+Inf")):
            cumulative += counts[at] if at < len(counts) else 0
            lines.append(_sample(f"{name}_bucket", {**labels, "le": str(bound)}, cumulative))
        lines.append(_sample(f"{name}_sum", labels, round(total, 6)))
        lines.append(_sample(f"{name}_count", labels, cumulative))

    def text(self) -> str:
        """Return what was added."""
        return "\n".join(line for lines in self._lines.values() for line in lines) + "\n"


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items() if text)
    return f"{name}{{{shown}}} {value}" if shown else f"{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
