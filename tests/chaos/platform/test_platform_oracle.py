"""The judge of the platform's chaos: it passes what may happen, and names what may not."""

from __future__ import annotations

import pytest

from tests.chaos.platform.history import Ended, History
from tests.chaos.platform.oracle import judge
from tests.chaos.platform.tools import Planned


def ended(number: int, tool: str, how: str, code: str = "") -> Ended:
    """A call that ended."""
    return Ended(Planned(number, tool, {}), how, code)


def test_what_may_happen_passes() -> None:
    """Answers, refusals, losses of calls that may run again, and unknown outcomes of those that may not, are no flaws."""
    history = History(
        [
            ended(1, "reader", "ok"),
            ended(2, "payer", "outcome_unknown", "program_ended"),
            ended(3, "reader", "tool_error", "program_ended"),
            ended(4, "payer", "unavailable", "tool_failed"),
        ],
        runs={1: 2, 2: 1, 3: 1},
        host_exits=[0, -15],
    )
    assert judge(history) == []


@pytest.mark.parametrize(
    ("flaw", "history"),
    [
        ("call 1 of payer ran 2 times", History([ended(1, "payer", "ok")], runs={1: 2})),
        ("call 1 of reader was answered and has never run", History([ended(1, "reader", "ok")])),
        ("ended as outcome_unknown", History([ended(1, "reader", "outcome_unknown")])),
        ("ended as wrong", History([ended(1, "reader", "wrong")])),
        ("ended as deadline_exceeded", History([ended(1, "reader", "deadline_exceeded")])),
        ("failed although no call of it can", History([ended(1, "reader", "tool_error", "KeyError")])),
        ("and yet it ran", History([ended(1, "payer", "unavailable")], runs={1: 1})),
        ("call 2 of plain has not ended", History(unended=[Planned(2, "plain", {})])),
        ("process 5 outlived", History(orphans=["process 5 outlived its host"])),
        ("routes of the dead host", History(stale=["routes of the dead host h are left"])),
        ("process 6 is left", History(left=["process 6 is left"])),
        ("exited with 1", History(host_exits=[1])),
        ("no call was answered", History()),
    ],
)
def test_what_must_not_happen_is_named(flaw: str, history: History) -> None:
    """Each broken promise is told in a line."""
    assert any(flaw in line for line in judge(history))
