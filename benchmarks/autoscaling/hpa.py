"""The autoscaler of Kubernetes (HPA), as its documentation describes it: how many replicas it wants.

- The formula, its tolerance and the period of 15 seconds: https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/
- Windows and policies: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/horizontal-pod-autoscaler-v2/
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.autoscaling.policy import Policy

SYNC_PERIOD = 15.0
"""Seconds between two decisions."""

TOLERANCE = 0.1
"""How far the ratio of a metric and its target may be from 1 without a change."""


class Rate(NamedTuple):
    """Most of a change within a period: a number of replicas, or a percentage of those at the period's beginning."""

    value: int
    seconds: float
    percent: bool = False


# The defaults of scaleUp: the one that allows more is taken.
UP = (Rate(4, 15.0), Rate(100, 15.0, percent=True))
_DOWN_PERIOD = 60.0


class Event(NamedTuple):
    """A change of the number of replicas."""

    at: float
    change: int


def desired(current: int, metric: float, target: float) -> int:
    """Return the replicas that a metric asks for, which is divided among them, and of which each is to have the target."""
    if current and abs(metric / (target * current) - 1.0) <= TOLERANCE:
        return current
    return math.ceil(metric / target)


def most_after(current: int, events: Sequence[Event], now: float, rates: Sequence[Rate] = UP) -> int:
    """Return how many replicas there may be now, after what was added within each rate's period; the rate that allows most counts."""
    found = []
    for rate in rates:
        start = current - _changed(events, now - rate.seconds)
        found.append(math.ceil(start * (1 + rate.value / 100)) if rate.percent else start + rate.value)
    return max(current, *found)


def least_after(current: int, events: Sequence[Event], now: float, rates: Sequence[Rate]) -> int:
    """Return how few replicas there may be now, after what went within each rate's period; the rate that allows fewest counts."""
    found = []
    for rate in rates:
        start = current - _changed(events, now - rate.seconds)
        found.append(int(start * (1 - rate.value / 100)) if rate.percent else start - rate.value)
    return min(current, *found)


def _changed(events: Sequence[Event], since: float) -> int:
    return sum(event.change for event in events if event.at > since)


class Autoscaler:
    """Decides at each period; it remembers what it recommended and did.

    Args:
        policy: the figures.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._down = (Rate(policy.scale_down_percent, _DOWN_PERIOD, percent=True),)
        self._recommended: list[tuple[float, int]] = []
        self._events: list[Event] = []

    def decide(self, now: float, current: int, metric: float) -> int:
        """Return how many replicas there should be; none are left alone, since from zero KEDA scales."""
        if not current:
            return 0
        policy = self._policy
        wanted = desired(current, metric, policy.stream_length)
        self._recommended = [each for each in self._recommended if each[0] > now - policy.scale_down_stabilization]
        self._recommended.append((now, wanted))
        # More at once; fewer only if no recommendation of the window asked for more.
        steady = max(wanted, min(current, max(each for _, each in self._recommended)))
        steady = min(max(steady, 1, policy.min_replicas), policy.max_replicas)
        if steady > current:
            steady = min(steady, most_after(current, self._events, now))
        elif steady < current:
            steady = max(steady, least_after(current, self._events, now, self._down), 1)
        self.changed(now, steady - current)
        return steady

    def changed(self, now: float, change: int) -> None:
        """Take in that the number of replicas changed."""
        self._events = [event for event in self._events if event.at > now - _DOWN_PERIOD]
        if change:
            self._events.append(Event(now, change))
