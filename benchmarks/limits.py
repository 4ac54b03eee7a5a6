"""Compare figures with limits: print a table with PASS or FAIL, and write the same as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Limit:
    """A figure that must not be above a limit (or, with ``least``, not below it).

    Attributes:
        name: name of the figure.
        value: measured value.
        limit: its limit.
        unit: unit of both.
        least: whether the limit is a minimum.
        detail: spread or origin of the figure.
    """

    name: str
    value: float
    limit: float
    unit: str
    least: bool = False
    detail: str = ""

    @property
    def passed(self) -> bool:
        """True if the figure keeps its limit."""
        return self.value >= self.limit if self.least else self.value <= self.limit


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Return the median, and the range from least to most."""
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def report(limits: Sequence[Limit], figures: dict[str, Any], path: Path | None) -> int:
    """Print the limits, write everything to ``path`` when there is one, and return the exit code."""
    width = max(len(limit.name) for limit in limits)
    for limit in limits:
        verdict, sign = "PASS" if limit.passed else "FAIL", "≥" if limit.least else "≤"
        print(f"{verdict}  {limit.name:<{width}}  {limit.value:>9,.2f} {sign} {limit.limit:,g} {limit.unit}  {limit.detail}".rstrip())
    if path is not None:
        judged = [{**asdict(limit), "passed": limit.passed} for limit in limits]
        path.write_text(json.dumps({"limits": judged, **figures}, indent=1) + "\n")
    return int(not all(limit.passed for limit in limits))
