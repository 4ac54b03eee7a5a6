"""A failing scenario made short: faults and calls are taken out while it still fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from msgspec.structs import replace

from tests.chaos.oracle import Violation
from tests.simulation.driver import run
from tests.simulation.scenario import Scenario

T = TypeVar("T")

# Quoted texts, and words with a digit.
_NAMED = re.compile(r"""'[^']*'|"[^"]*"|[\w.:-]*\d[\w.:-]*""")


def shrink(scenario: Scenario, tries: int = 150) -> Scenario:
    """Return a short scenario in which the same goes wrong as in this one; it is run so many times at most."""
    left = tries
    kinds = {kind(violation) for violation in run(scenario, traced=False).violations} if left else set()

    def fails(candidate: Scenario) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and any(kind(violation) in kinds for violation in run(candidate, traced=False).violations)

    before = None
    while before != scenario and left > 0:
        before = scenario
        for part in ("faults", "calls"):
            scenario = _fewer(scenario, part, fails)
        for field, value in (("workers", 1), ("agents", 1), ("workers", 2)):
            if getattr(scenario.options, field) > value:
                candidate = _with(scenario, field, value)
                scenario = candidate if fails(candidate) else scenario
    return scenario


def kind(violation: Violation) -> tuple[str, str]:
    """Return what went wrong, without the calls, processes, texts and numbers that it names."""
    return violation.rule, _NAMED.sub("#", violation.what)


def _with(scenario: Scenario, field: str, value: int) -> Scenario:
    calls = [replace(call, agent=0) for call in scenario.calls] if field == "agents" else scenario.calls
    return replace(scenario, options=replace(scenario.options, **{field: value}), calls=calls)


def _fewer(scenario: Scenario, part: str, fails: Callable[[Scenario], bool]) -> Scenario:
    size = len(getattr(scenario, part))
    while size:
        size = (size + 1) // 2
        for kept in _without_each(getattr(scenario, part), size):
            candidate = _whole(replace(scenario, **{part: kept}))
            if fails(candidate):
                scenario = candidate
                break
        else:
            if size == 1:
                break
    return scenario


def _without_each(items: Sequence[T], size: int) -> Iterator[list[T]]:
    for start in range(0, len(items), size):
        yield [*items[:start], *items[start + size :]]


def _whole(scenario: Scenario) -> Scenario:
    """Let no call wait for one that was taken out."""
    names = {call.key for call in scenario.calls}
    return replace(scenario, calls=[replace(call, follows=call.follows if call.follows in names else "") for call in scenario.calls])
