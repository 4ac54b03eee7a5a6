"""Quantiles of latencies, from the counts of buckets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toolbus.broker.statistics.answers import BOUNDS, BUCKETS


def added(histograms: Iterable[Sequence[int]]) -> list[int]:
    """Return the sum of histograms, each of which may lack zeros at its end."""
    total = [0] * BUCKETS
    for histogram in histograms:
        for at, count in enumerate(histogram):
            total[at] += count
    return total


def quantile(buckets: Sequence[int], share: float) -> float | None:
    """Return the latency in milliseconds that a share of the calls did not exceed, interpolated within its bucket; None without calls.

    What took longer than the last bound counts as that bound.
    """
    total = sum(buckets)
    if not total:
        return None
    rank, seen = share * total, 0
    for at, count in enumerate(buckets):
        if count and seen + count >= rank:
            if at >= len(BOUNDS):
                break
            low = BOUNDS[at - 1] if at else 0.0
            return round(low + (BOUNDS[at] - low) * max(0.0, rank - seen) / count, 3)
        seen += count
    return BOUNDS[-1]
