"""``Measures``: count the calls that came over HTTP."""

from __future__ import annotations

from bisect import bisect_left

from toolbus.results import ErrorInfo

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Upper bounds of the durations' buckets (seconds)."""
OTHER = "_OTHER"
"""Stands for tools that are not known, and for those beyond the first thousand."""

_MOST_NAMES = 1_000


class Durations:
    """The durations of one tool's calls with one outcome."""

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0

    @property
    def count(self) -> int:
        """The number of calls."""
        return sum(self.buckets)


class Measures:
    """The counts of one gateway.

    Attributes:
        calls: durations by tool and type of error, which is empty for a success.
        in_flight: calls that have not ended.
        streams: those of them whose events are sent as they happen.
    """

    def __init__(self) -> None:
        self.calls: dict[tuple[str, str], Durations] = {}
        self.in_flight = 0
        self.streams = 0
        self._names: set[str] = set()

    def ended(self, tool: str, seconds: float, error: ErrorInfo | None, *, known: bool = True) -> None:
        """Count a call.

        Args:
            tool: its name.
            seconds: how long it took.
            error: why it failed.
            known: whether there is such a tool; anybody may make up names without end.
        """
        if tool not in self._names:
            if known and len(self._names) < _MOST_NAMES:
                self._names.add(tool)
            else:
                tool = OTHER
        key = (tool, "" if error is None else error.type)
        found = self.calls.get(key)
        if found is None:
            found = self.calls[key] = Durations()
        found.buckets[bisect_left(BUCKETS, seconds)] += 1
        found.seconds += seconds
