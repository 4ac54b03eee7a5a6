"""Sums of what workers answered, and the rates between two of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

import msgspec

from toolbus.broker.statistics.answers import InstanceAnswer, LastError, ToolStatistics
from toolbus.broker.statistics.latency import added, quantile

Source = tuple[str, str, str]
"""An instance, a service and a tool."""

Counted = Mapping[Source, ToolStatistics]


class Ended(msgspec.Struct, frozen=True, gc=False):
    """Attempts that ended: all, those that failed, and the latencies of those that were not cancelled."""

    count: int = 0
    failures: int = 0
    buckets: Sequence[int] = ()


class Rates(msgspec.Struct, frozen=True):
    """The speed and the latencies of calls."""

    calls_per_s: float = 0.0
    failures_per_s: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None


def counted(answers: Iterable[InstanceAnswer]) -> dict[Source, ToolStatistics]:
    """Return the counts of each tool at each worker."""
    return {(each.instance, tool.service, tool.tool): tool for each in answers for tool in each.tools}


def ended(tool: ToolStatistics) -> Ended:
    """Return what a tool at a worker has ended."""
    return Ended(sum(tool.buckets) + tool.cancelled, sum(tool.failed.values()), tool.buckets)


def total(parts: Iterable[Ended]) -> Ended:
    """Return the sum of what ended in several places."""
    found = list(parts)
    if len(found) == 1:
        return found[0]
    return Ended(sum(each.count for each in found), sum(each.failures for each in found), added(each.buckets for each in found))


def since(now: Counted, before: Mapping[str, Counted]) -> dict[Source, Ended]:
    """Return what ended since the earlier counts, where anything did.

    Args:
        now: the present counts.
        before: earlier ones for each worker; what other workers ended is not counted.
    """
    found: dict[Source, Ended] = {}
    for source, tool in now.items():
        counts = before.get(source[0])
        if counts is None:
            continue
        old = counts.get(source)
        # Most tools are quiet.
        if tool == old:
            continue
        difference = _difference(ended(tool), Ended() if old is None else ended(old))
        if difference.count:
            found[source] = difference
    return found


def _difference(new: Ended, old: Ended) -> Ended:
    # An instance id is of one process, whose counts only grow; anything else is a stranger's.
    if new.count < old.count:
        return new
    buckets = [max(0, now - was) for now, was in zip_longest(new.buckets, old.buckets, fillvalue=0)]
    return Ended(new.count - old.count, max(0, new.failures - old.failures), buckets)


def rates(recent: Ended, everything: Ended, window: float) -> Rates:
    """Return rates over ``window`` seconds, and the latencies of what ended in them, or else of everything."""
    buckets = recent.buckets if any(recent.buckets) else everything.buckets
    calls_per_s, failures_per_s = (round(each / window, 2) if window > 0 else 0.0 for each in (recent.count, recent.failures))
    return Rates(calls_per_s, failures_per_s, quantile(buckets, 0.5), quantile(buckets, 0.99))


def newest_error(tools: Iterable[ToolStatistics]) -> LastError | None:
    """Return the newest of the last failures."""
    errors = [tool.last_error for tool in tools if tool.last_error is not None]
    return max(errors, key=lambda error: error.at, default=None)
