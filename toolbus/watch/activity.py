"""``Activity``: the calls that ended, by worker, service and tool; it remembers what is quiet."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from toolbus.broker.statistics.answers import InstanceAnswer, ToolStatistics
from toolbus.watch.counts import Counted, Ended, Rates, Source, counted, ended, rates, since, total

G = TypeVar("G", str, tuple[str, str])


class _Sample(NamedTuple):
    at: float
    instances: frozenset[str]
    tools: dict[Source, ToolStatistics]


class Speed(NamedTuple):
    """Attempts that a service has ended since its workers started, and how fast it is now."""

    ended: Ended
    rates: Rates


class Activity:
    """Takes in what workers answered, one time after the other.

    Args:
        most: seconds over which rates are computed.

    Attributes:
        window: the seconds over which they were computed now; 0 when there is only one answer.
        tools: the counts of each tool, one from each worker.
        recent: what ended of each tool within the window.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._samples: deque[_Sample] = deque()
        self._quiet: dict[str, Speed] = {}
        self._parts: Mapping[str, list[ToolStatistics]] = {}
        self._recent: Mapping[str, list[Ended]] = {}
        self._instances: Mapping[str, list[Ended]] = {}
        self.window = 0.0
        self.tools: Mapping[tuple[str, str], list[ToolStatistics]] = {}
        self.recent: Mapping[tuple[str, str], list[Ended]] = {}

    def take_in(self, answers: Mapping[str, InstanceAnswer], now: float | None = None) -> None:
        """Take in the present answers, by instance."""
        sample = _Sample(time.monotonic() if now is None else now, frozenset(answers), counted(answers.values()))
        samples = self._samples
        if samples and samples[-1].instances != sample.instances:
            self._quiet.clear()
        # One sample stays that is as old as the window.
        while len(samples) > 1 and samples[1].at <= sample.at - self._most:
            samples.popleft()
        earlier = list(samples)
        samples.append(sample)
        self.window = sample.at - samples[0].at
        before: dict[str, Counted] = {}
        for each in earlier:
            for instance in each.instances:
                before.setdefault(instance, each.tools)
        for instance, answer in answers.items():
            # A worker that was silent, and began before the window, would look as if it had done everything just now.
            if instance not in before and answer.uptime <= self.window:
                before[instance] = {}
        self._group(sample.tools, since(sample.tools, before) if earlier else {})

    def service(self, service: str) -> Speed:
        """Return the speed of a service."""
        recent = self._recent.get(service)
        if recent is None and service in self._quiet:
            return self._quiet[service]
        everything = total(map(ended, self._parts.get(service, ())))
        found = Speed(everything, rates(total(recent or ()), everything, self.window))
        if recent is None:
            self._quiet[service] = found
        return found

    def instance(self, instance: str) -> float:
        """Return how many attempts a second a worker ends."""
        recent = self._instances.get(instance, ())
        return round(sum(each.count for each in recent) / self.window, 2) if self.window else 0.0

    def tool(self, service: str, tool: str) -> Rates:
        """Return the speed of a tool."""
        everything = total(map(ended, self.tools.get((service, tool), ())))
        return rates(total(self.recent.get((service, tool), ())), everything, self.window)

    def _group(self, tools: Mapping[Source, ToolStatistics], recent: Mapping[Source, Ended]) -> None:
        parts: dict[str, list[ToolStatistics]] = defaultdict(list)
        by_tool: dict[tuple[str, str], list[ToolStatistics]] = defaultdict(list)
        for (_, service, tool), each in tools.items():
            parts[service].append(each)
            by_tool[service, tool].append(each)
        self._parts, self.tools = dict(parts), dict(by_tool)
        self._recent = _grouped((service, each) for (_, service, _), each in recent.items())
        self._instances = _grouped((instance, each) for (instance, _, _), each in recent.items())
        self.recent = _grouped(((service, tool), each) for (_, service, tool), each in recent.items())
        for service in self._recent:
            self._quiet.pop(service, None)


def _grouped(found: Iterable[tuple[G, Ended]]) -> dict[G, list[Ended]]:
    groups: dict[G, list[Ended]] = defaultdict(list)
    for group, each in found:
        groups[group].append(each)
    return dict(groups)
