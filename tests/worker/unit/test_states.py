"""The tables of states: what may follow what."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import pytest

from tests.worker.unit.fakes import Bench
from toolbus import tool
from toolbus.bus.worker import outcome
from toolbus.bus.worker.run import Run
from toolbus.bus.worker.transitions import NEXT_OF_RUN as AFTER_RUN
from toolbus.bus.worker.transitions import NEXT_OF_TAKING as AFTER_TAKING
from toolbus.bus.worker.transitions import RUN_TRANSITIONS as RUN
from toolbus.bus.worker.transitions import TAKING_TRANSITIONS as TAKING
from toolbus.bus.worker.transitions import BadTransitionError, RunState, TakingState, by_state

pytestmark = pytest.mark.anyio


@tool(service="unit_states", replace=True)
async def noop() -> str:
    """Do nothing."""
    return ""


@pytest.mark.parametrize(("states", "table", "indexed"), [(RunState, RUN, AFTER_RUN), (TakingState, TAKING, AFTER_TAKING)])
def test_a_table_has_every_state_at_its_own_place(
    states: type[IntEnum], table: Mapping[Any, tuple[Any, ...]], indexed: tuple[tuple[Any, ...], ...]
) -> None:
    """A state indexes the tuple that holds what may follow it."""
    assert set(table) == set(states)
    assert by_state(table) == indexed
    for state in states:
        assert indexed[state] == table[state]
        assert state not in indexed[state]


def test_every_run_can_end_and_none_comes_back() -> None:
    """Every run may end next, whatever it does, and its states only ever advance."""
    for state, following in RUN.items():
        assert all(after > state for after in following)
        assert state is RunState.ENDED or RunState.ENDED in following


def test_a_stopped_worker_takes_nothing_more() -> None:
    """Every state may be followed by STOPPED, and STOPPED by none."""
    for state, following in TAKING.items():
        assert (TakingState.STOPPED in following) is (state is not TakingState.STOPPED)


async def test_a_move_that_is_not_in_the_table_is_an_error() -> None:
    """A run can't begin twice, and taking can't go from polling to running alone; the error names both states."""
    bench = Bench(noop)
    delivery = bench.delivery("noop")
    served = bench.slots._served["unit_states"]
    run = Run(bench.slots, bench.loop, delivery, served, served.handler(delivery.request), state=RunState.ANSWERED)
    with pytest.raises(BadTransitionError, match=r"^RunState: ANSWERED is not followed by RUNNING$"):
        await run.execute()
    assert run.state is RunState.ANSWERED
    taking = bench.slots._taking
    taking._move(TakingState.POLLING)
    with pytest.raises(BadTransitionError, match=r"^TakingState: POLLING is not followed by ALONE$"):
        taking._move(TakingState.ALONE)
    assert taking.state is TakingState.POLLING
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("state", "once", "kinds"),
    [
        (
            RunState.RUNNING,
            False,
            (("deadline_exceeded", "not_finished"), ("cancelled", ""), None),
        ),
        (
            RunState.MARKED,
            True,
            (("deadline_exceeded", "not_finished"), ("cancelled", "not_begun"), ("unavailable", "worker_stopped")),
        ),
        (
            RunState.ENTERED,
            True,
            (("outcome_unknown", "deadline_exceeded"), ("outcome_unknown", "cancelled"), ("outcome_unknown", "worker_stopped")),
        ),
    ],
)
def test_a_run_ends_as_its_state_says(state: RunState, once: bool, kinds: tuple[tuple[str, str] | None, ...]) -> None:
    """Work that may have taken effect has an unknown outcome; what was only marked is safe to call again."""
    errors = [outcome.deadline_passed(state, 2.0), outcome.given_up(state, "cancelled", once=once), outcome.worker_stopped(state)]
    assert [None if error is None else (error.type, error.code) for error in errors] == [*kinds]
    for error in errors:
        assert error is None or error.message
        if error is not None and error.type == "outcome_unknown":
            assert error.message.endswith("it may or may not have taken effect")
            assert not error.retryable
