"""The report of a run: as JSON, and as tables for people."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

import msgspec

from benchmarks.autoscaling.model import Modelled, ModelPlan
from benchmarks.autoscaling.policy import Policy
from benchmarks.autoscaling.trial import First, Halved, Outcome, Plan

_MODEL = ("load", "varied", "calls", "waited p50 s", "p99 s", "backlog", "workers", "started", "changes", "cost s", "of fixed")


class Run(msgspec.Struct):
    """Everything that a run has measured.

    Attributes:
        plan: what was the same for all of it.
        policy: the figures that were not varied.
        machine: processors and system.
        load_before, load_after: the machine's load averages over a minute, at the beginning and the end.
        model, loads, first, half: the parts that were asked for.
    """

    plan: Plan
    policy: Policy
    machine: str
    load_before: float
    load_after: float = 0.0
    model: list[Modelled] = []
    loads: list[Outcome] = []
    first: list[First] = []
    half: Halved | None = None

    @property
    def lost(self) -> int:
        """The number of calls that failed, of all."""
        return sum(each.failed for each in self.loads) + (self.half.failed if self.half is not None else 0)


def machine() -> str:
    """Return what the machine is."""
    return f"{os.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}"


def tables(run: Run) -> str:
    """Return the report for people."""
    about = f"{run.machine}; load {run.load_before:.1f} at the beginning, {run.load_after:.1f} at the end"
    plan = run.plan
    workers = f"{plan.slots} slots a worker, calls of {plan.seconds:g} s, the greatest rate for {plan.workers} workers"
    parts = [f"{about}\n{workers}, controllers' clock {plan.pace:g} times the real one, seed {plan.seed}"]
    if run.model:
        parts.append(_model_about() + "\n" + _table(_MODEL, [_modelled(each, run.policy) for each in run.model]))
    if run.first:
        parts.append(
            "First answer from zero (real clock, seconds)\n" + _table(("KEDA looked", "worker served", "answered"), _first(run.first))
        )
    if run.loads:
        head = ("load", "varied", "calls", "lost", "p50 ms", "p99 ms", "backlog", "workers", "changes", "cost s", "of fixed", "start ms")
        parts.append("Loads\n" + _table(head, [_row(each, run.policy) for each in run.loads]))
    if run.half is not None:
        parts.append("A busy pool that is cut in half (real clock)\n" + _half(run.half))
    return "\n\n".join(parts)


def _model_about() -> str:
    plan = ModelPlan()
    workers = f"{plan.slots} slots a worker, calls of {plan.seconds:g} s, the greatest rate for {plan.workers} workers"
    return f"Model, on a clock of its own: {workers}, a start of {plan.start:g} s, and five minutes after each load"


def _modelled(each: Modelled, usual: Policy) -> tuple[object, ...]:
    times = (f"{each.waited_p50:.2f}", f"{each.waited_p99:.2f}", each.backlog, each.workers, each.started, each.changes)
    return (each.load, _difference(each.policy, usual), each.calls, *times, f"{each.cost:.0f}", f"{each.cost / each.fixed:.0%}")


def _difference(policy: Policy, usual: Policy) -> str:
    return ", ".join(f"{name}={value}" for name, value in policy._asdict().items() if value != getattr(usual, name)) or "-"


def _first(found: Sequence[First]) -> list[tuple[str, ...]]:
    return [(f"{each.looked:.2f}", f"{each.served:.2f}", f"{each.answered:.2f}") for each in found]


def _half(half: Halved) -> str:
    ratio = half.after_p99_ms / half.before_p99_ms if half.before_p99_ms else 0.0
    times = (f"{half.before_p99_ms:.0f}", f"{half.after_p99_ms:.0f}", f"{ratio:.2f}")
    head = ("workers", "calls", "lost", "killed", "p99 before ms", "p99 after ms", "ratio")
    return _table(head, [(half.workers, half.calls, half.failed, half.killed, *times)])


def _row(each: Outcome, usual: Policy) -> tuple[object, ...]:
    share = each.cost / each.fixed if each.fixed else 0.0
    times = (f"{each.p50_ms:.0f}", f"{each.p99_ms:.0f}", each.backlog, each.workers, each.changes)
    return (
        each.load,
        _difference(each.policy, usual),
        each.calls,
        each.failed,
        *times,
        f"{each.cost:.0f}",
        f"{share:.0%}",
        f"{each.start_ms:.0f}",
    )


def _table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    lines = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
