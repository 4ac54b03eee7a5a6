"""Write the report: Markdown, one plot per workload, raw measurements as JSON, and a table for the terminal."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers import WAYS, PeerSpec, Way
from benchmarks.plot import bars
from benchmarks.runner import Measurement, Plan
from benchmarks.summary import Row, ratio, rows
from benchmarks.workloads import Workload

HEADERS = (
    "callers",
    "peer",
    "{unit}/s",
    "spread",
    "× best peer",
    "% of floor",
    "p50 ms",
    "p90 ms",
    "p99 ms",
    "client µs",
    "worker µs",
    "server µs",
    "commands",
)
NOT_ON_TERMINAL = {"p90 ms"}
TITLES: dict[Way, str] = {"shipped": "as shipped", "quiet": "both sides quiet"}

METHOD = """\
One client process, one worker process (unless a heading says otherwise) and one server share the machine. Callers call in
closed loops: each awaits its result before it calls again. Rates and latencies are medians over the rounds, the spread is
from the slowest round to the fastest. CPU (µs, from /proc) and server commands (from INFO commandstats, including those inside
scripts) are per unit of work. Every asyncio peer runs on uvloop, on both sides; dramatiq and Celery have blocking clients,
so their callers are threads. "As shipped" means that workers are
started by the peer's own command with its logging as it is, into a file; "both sides quiet" that nothing is logged. "Best peer" is the
fastest one over Redis; nats-py, which stores nothing, is shown beside them.
In streams that trickle, a chunk's way from the tool to the caller is timed by the clock that processes share."""


@dataclass
class Outcome:
    """The findings of a run.

    Attributes:
        absent: peers that did not take part, with the reason.
        extras: figures of measurements for toolbus only, by heading.
    """

    plan: Plan
    measurements: list[Measurement] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    extras: dict[str, dict[str, Any]] = field(default_factory=dict)
    servers: list[str] = field(default_factory=list)
    began: str = ""

    @property
    def specs(self) -> dict[str, PeerSpec]:
        """The peers by name."""
        return {spec.name: spec for spec in self.plan.peers}

    def failures(self) -> dict[str, str]:
        """Return the reason why a peer or a measurement has no clean result, one each."""
        found = dict(self.absent)
        for one in self.measurements:
            if one.failure:
                found.setdefault(one.peer, f"{one.workload} at {one.concurrency}: {one.failure}")
        for heading, figures in self.extras.items():
            if "failure" in figures:
                found[heading] = str(figures["failure"])
        return found


def write(outcome: Outcome, folder: Path) -> Path:
    """Write the report into a folder, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = _head(outcome)
    for workload, way, found in _tables(outcome):
        title = f"{workload.title}, {TITLES[way]}"
        picture = f"{workload.name}-{way}.svg"
        (folder / picture).write_text(bars(title, workload.unit, found))
        lines += [f"## {title}", "", f"![{title}]({picture})", "", *_table(workload, found), ""]
    lines += _cost_of_shipping(outcome)
    for heading, figures in outcome.extras.items():
        lines += [f"## {heading}", "", *(f"- {name}: {_figure(value)}" for name, value in figures.items()), ""]
    lines += _tail(outcome)
    path = folder / "report.md"
    path.write_text("\n".join(lines))
    raw = {"measurements": [one.as_dict() for one in outcome.measurements], "extras": outcome.extras, "absent": outcome.absent}
    (folder / "measurements.json").write_text(json.dumps(raw, indent=1))
    return path


def print_tables(outcome: Outcome) -> None:
    """Print the table of every workload, the extra figures and the failures."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160)
    for workload, way, found in _tables(outcome):
        table = Table(title=f"{workload.title}, {TITLES[way]}: medians of {outcome.plan.rounds} rounds; p50 and p99 of {workload.timed}")
        shown = [number for number, header in enumerate(HEADERS) if header not in NOT_ON_TERMINAL]
        for number in shown:
            table.add_column(HEADERS[number].format(unit=workload.unit), justify="left" if number == 1 else "right", no_wrap=True)
        for row in found:
            cells = _cells(row)
            table.add_row(
                *(cells[number] for number in shown), end_section=row is found[-1] or _next(found, row).concurrency != row.concurrency
            )
        console.print(table)
    for heading, figures in outcome.extras.items():
        console.print(f"{heading}: " + ", ".join(f"{name} {_figure(value)}" for name, value in figures.items()), highlight=False)
    for name, reason in outcome.failures().items():
        console.print(f"no clean result: {name}: {reason}", highlight=False, markup=False)


def _tables(outcome: Outcome) -> Iterator[tuple[Workload, Way, list[Row]]]:
    for workload in outcome.plan.workloads:
        for way in outcome.plan.ways:
            found = rows(outcome.measurements, workload.name, outcome.specs, way)
            if found:
                yield workload, way, found


def _cost_of_shipping(outcome: Outcome) -> list[str]:
    """Return what is left of the quiet rates when users start the workers, where both were measured."""
    if set(outcome.plan.ways) != set(WAYS):
        return []
    lines = []
    for workload in outcome.plan.workloads:
        shipped, quiet = (
            {(row.peer, row.concurrency): row.rate for row in rows(outcome.measurements, workload.name, outcome.specs, way)} for way in WAYS
        )
        lines += [
            f"- {workload.name} at {level}, {peer}: {_percent(ratio(rate, quiet.get((peer, level))))}"
            for (peer, level), rate in shipped.items()
        ]
    return ["## As shipped, of the quiet rate", "", *lines, ""]


def _next(found: list[Row], row: Row) -> Row:
    return found[found.index(row) + 1]


def _head(outcome: Outcome) -> list[str]:
    plan = outcome.plan
    setting = (
        f"{outcome.began}, {plan.mode}: {plan.rounds} rounds of {plan.seconds:g} s after {plan.warmup:g} s of warm-up, "
        f"order shuffled with seed {plan.seed}. Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores, {' and '.join(outcome.servers)} without persistence."
    )
    return ["# toolbus beside its peers", "", setting, "", METHOD, ""]


def _table(workload: Workload, found: list[Row]) -> list[str]:
    lines = [
        "| " + " | ".join(header.format(unit=workload.unit) for header in HEADERS) + " |",
        "|" + "|".join("---" if number == 1 else "---:" for number in range(len(HEADERS))) + "|",
        *("| " + " | ".join(_cells(row)) + " |" for row in found),
    ]
    lines += ["", f"p50, p90 and p99: {workload.timed}."]
    firsts = [row for row in found if row.first_p50 is not None]
    if firsts:
        lines += [
            "",
            "Time to first chunk, p50: " + ", ".join(f"{row.peer} at {row.concurrency} {row.first_p50:.2f} ms" for row in firsts) + ".",
        ]
    if workload.operation == "trickle":
        lines += ["", *_crowding(found)]
    lines += ["", *_ratios(found)]
    return lines


def _crowding(found: list[Row]) -> list[str]:
    """Return what many streams add to the time of a chunk, for peers that were also measured with one."""
    alone = {row.peer: row for row in found if row.concurrency == 1}
    return [
        f"- {row.peer}: {row.concurrency} streams instead of one change the time of a chunk by "
        f"{_change(row.p50, alone[row.peer].p50)} (p50) and {_change(row.p99, alone[row.peer].p99)} (p99)"
        for row in found
        if row.concurrency > 1 and row.peer in alone
    ]


def _ratios(found: list[Row]) -> list[str]:
    own = [row for row in found if row.peer == "toolbus"]
    return [
        f"- toolbus at {row.concurrency}: {_times(row.to_peer)} the best Redis peer's rate, {_percent(row.to_floor)} of the floor's; "
        f"p50 {_times(row.p50_to_peer)} the best Redis peer's, {_times(row.p50_to_floor)} the floor's"
        for row in own
    ]


def _cells(row: Row) -> list[str]:
    return [
        str(row.concurrency),
        row.peer,
        f"{row.rate:,.0f}",
        f"{row.low:,.0f}-{row.high:,.0f}",
        _number(row.to_peer),
        "" if row.to_floor is None else f"{row.to_floor * 100:.0f}",
        *(_number(value) for value in (row.p50, row.p90, row.p99)),
        *("" if value is None else f"{value:,.0f}" for value in (row.client_cpu, row.worker_cpu, row.server_cpu)),
        _number(row.commands),
    ]


def _tail(outcome: Outcome) -> list[str]:
    lines = ["## Peers", "", "| peer | version | how it is set up |", "|---|---|---|"]
    lines += [f"| {spec.name} | {spec.version} | {spec.tuning} |" for spec in outcome.plan.peers]
    failures = outcome.failures()
    if failures:
        lines += ["", "## Without a clean result", "", *(f"- {name}: {reason}" for name, reason in failures.items())]
    return [*lines, ""]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _times(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f} ×"


def _change(value: float | None, base: float | None) -> str:
    return "?" if value is None or base is None else f"{value - base:+.2f} ms"


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{value * 100:.0f} %"


def _figure(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
