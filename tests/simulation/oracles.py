"""The rules of every run: the promises, as the oracle of the chaos runs has them, and what only a simulated server can see."""

from __future__ import annotations

from tests.chaos import oracle
from tests.chaos.history import History
from tests.chaos.oracle import Violation
from tests.simulation.scenario import Scenario


def judge(scenario: Scenario, history: History) -> list[Violation]:
    """Return every violation in a run."""
    return oracle.judge(scenario.options, scenario.calls, history)
