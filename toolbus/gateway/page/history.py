"""``History``: counts of the last hour, in a bounded number of samples."""

from __future__ import annotations

from collections import deque

from toolbus.watch.views import Snapshot

Sample = tuple[float, int, int, float, float, float | None, float | None, int, int, int, int]
"""at, queued, running, calls/s, failures/s, p50, p99, workers, live services, dead letters, confirmations."""

HOUR = 3600.0
_FINE = 300.0
_COARSE_STEP = 10.0
_MOST_FINE = 400
_MOST_COARSE = int(HOUR / _COARSE_STEP) + 1


class History:
    """Samples of the last hour: all of the last minutes, and one every ten seconds before."""

    def __init__(self) -> None:
        self._fine: deque[Sample] = deque(maxlen=_MOST_FINE)
        self._coarse: deque[Sample] = deque(maxlen=_MOST_COARSE)

    def add(self, snapshot: Snapshot) -> Sample:
        """Keep the counts of a snapshot, and return them."""
        sample = sample_of(snapshot)
        self._fine.append(sample)
        if not self._coarse or sample[0] - self._coarse[-1][0] >= _COARSE_STEP:
            self._coarse.append(sample)
        return sample

    def samples(self) -> list[Sample]:
        """Return the samples of the last hour, the oldest first."""
        if not self._fine:
            return []
        now = self._fine[-1][0]
        fine = [sample for sample in self._fine if sample[0] > now - _FINE]
        return [sample for sample in self._coarse if now - HOUR < sample[0] < fine[0][0]] + fine


def sample_of(snapshot: Snapshot) -> Sample:
    """Return the counts of a snapshot: sums over its services, the mean of their medians by calls, and the highest p99."""
    services = snapshot.services
    calls = sum(service.calls_per_s for service in services)
    busy = [service for service in services if service.calls_per_s > 0 and service.p50_ms is not None]
    weight = sum(service.calls_per_s for service in busy)
    return (
        round(snapshot.at, 3),
        sum(service.queued for service in services),
        sum(service.running for service in services),
        round(calls, 3),
        round(sum(service.failures_per_s for service in services), 3),
        round(sum((service.p50_ms or 0.0) * service.calls_per_s for service in busy) / weight, 3) if busy else None,
        round(max(service.p99_ms or 0.0 for service in busy), 3) if busy else None,
        len(snapshot.instances),
        sum(1 for service in services if service.live),
        sum(service.dead for service in services),
        len(snapshot.confirmations),
    )
