"""Sums of what workers answered, and the rates between two of them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

import msgspec

from toolbus.broker.statistics.answers import InstanceAnswer, LastError, ToolStatistics
from toolbus.broker.statistics.latency import added, quantile

Source = tuple[str, str, str]
"""An instance, a service and a tool."""


class Ended(msgspec.Struct):
    """Attempts that ended: how many failed, how many were cancelled, and the latencies of all others."""

    failures: int = 0
    cancelled: int = 0
    buckets: Sequence[int] = ()

    @property
    def count(self) -> int:
        """The number of them."""
        return sum(self.buckets) + self.cancelled


class Rates(msgspec.Struct, frozen=True):
    """The speed and the latencies of calls."""

    calls_per_s: float = 0.0
    failures_per_s: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None


def ended_of(answers: Iterable[InstanceAnswer]) -> dict[Source, Ended]:
    """Return what each tool at each worker has ended."""
    return {(each.instance, tool.service, tool.tool): ended(tool) for each in answers for tool in each.tools}


def ended(tool: ToolStatistics) -> Ended:
    """Return what a tool at a worker has ended."""
    return Ended(sum(tool.failed.values()), tool.cancelled, tool.buckets)


def since(now: Mapping[Source, Ended], before: Sequence[Mapping[Source, Ended]], unheard: Container[str]) -> dict[Source, Ended]:
    """Return what ended since the first of the earlier counts that has a source. A tool that is in none had ended nothing.

    Args:
        now: the present counts.
        before: earlier ones, the oldest first.
        unheard: workers of which nothing is known of the time before; what they ended is not counted.
    """
    found: dict[Source, Ended] = {}
    for source, each in now.items():
        if source[0] in unheard:
            continue
        old = next((counts[source] for counts in before if source in counts), None)
        # An instance id is of one process, whose counts only grow; anything else is a stranger's.
        if old is None or each.count < old.count:
            found[source] = each
        elif each.count > old.count:
            buckets = [max(0, new - was) for new, was in zip(each.buckets, old.buckets or [0] * len(each.buckets), strict=False)]
            found[source] = Ended(max(0, each.failures - old.failures), max(0, each.cancelled - old.cancelled), buckets)
    return found


def rates(recent: Iterable[Ended], everything: Iterable[Ended], window: float) -> Rates:
    """Return rates over ``window`` seconds, and the latencies of what ended in them, or else of everything."""
    inside = list(recent)
    buckets = added(each.buckets for each in inside)
    if not any(buckets):
        buckets = added(each.buckets for each in everything)
    count, failures = sum(each.count for each in inside), sum(each.failures for each in inside)
    calls_per_s, failures_per_s = (round(each / window, 2) if window > 0 else 0.0 for each in (count, failures))
    return Rates(calls_per_s, failures_per_s, quantile(buckets, 0.5), quantile(buckets, 0.99))


def newest_error(tools: Iterable[ToolStatistics]) -> LastError | None:
    """Return the newest of the last failures."""
    errors = [tool.last_error for tool in tools if tool.last_error is not None]
    return max(errors, key=lambda error: error.at, default=None)
