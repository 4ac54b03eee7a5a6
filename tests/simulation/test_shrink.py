"""Shortening: what is left fails as the whole did."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.chaos.history import History
from tests.chaos.oracle import Violation
from tests.chaos.schedule import Fault
from tests.simulation import shrink
from tests.simulation.driver import Outcome
from tests.simulation.scenario import Scenario, draw


def _outcome(*violations: Violation) -> Outcome:
    return Outcome(list(violations), "", [], History([]), 0, 0.0, Counter())


def test_a_short_scenario_fails_as_the_whole_one_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """What breaks the same rule in another way, or in a way that only the shortening made, is not what was looked for."""
    scenario = draw(1)
    scenario = Scenario(1, scenario.options, scenario.calls[:9], [Fault(0.1 * n, "kill", 0.0, 0.1 * n) for n in range(9)])
    wanted, culprit = scenario.calls[4], scenario.faults[6]

    def run(candidate: Scenario) -> Outcome:
        if wanted in candidate.calls and culprit in candidate.faults:
            number = len(candidate.calls)
            return _outcome(Violation("executions", f"attempt {number} still runs in process {1000 + number} although …", wanted.key))
        return _outcome(Violation("executions", "a handler ran for a call that nobody planned", "a0-000001"))

    monkeypatch.setattr(shrink, "run", run)
    short: Any = shrink.shrink(scenario, tries=100)
    assert ([call.key for call in short.calls], short.faults) == ([wanted.key], [culprit])


def test_the_kind_of_a_violation_is_what_it_says_without_names() -> None:
    """Calls, processes, times and texts differ from run to run."""
    one = Violation("one-end", "refused as unavailable/: 'a0-000012 is gone', but its handler began 2 times", "a0-000012")
    other = Violation("one-end", "refused as unavailable/: 'b', but its handler began 13 times", "a1-000001")
    assert shrink.kind(one) == shrink.kind(other)
    assert shrink.kind(one) != shrink.kind(Violation("one-end", "refused as unavailable/: 'b', but nobody ran it"))
    assert shrink.kind(one) != shrink.kind(Violation("shared", one.what))
