"""The states of a run and of taking, and tables of transitions: which state may follow which."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TypeVar

from toolbus.bus.support.safe_text import type_name

S = TypeVar("S", bound=IntEnum)


class BadTransitionError(RuntimeError):
    """A move that the table of transitions does not have: a bug of the worker's own."""

    def __init__(self, before: IntEnum, after: IntEnum) -> None:
        super().__init__(f"{type_name(before)}: {before.name} is not followed by {after.name}")


def by_state(table: Mapping[S, tuple[S, ...]]) -> tuple[tuple[S, ...], ...]:
    """Return the table as a tuple that a state indexes: hashing a state would run Python code on the path of each call."""
    return tuple(table[state] for state in sorted(table))


class RunState(IntEnum):
    """The state of a run. Every state before ``ANSWERED`` still owes the caller its last frame.

    Attributes:
        CREATED: its task has not taken a step yet.
        RUNNING: its handler runs, or is about to; another run may take its place.
        MARKED: ``once`` work that the server may have marked as begun; its handler was not called yet.
        ENTERED: ``once`` work whose handler was called: it may have had its effect.
        ANSWERED: the last frame was sent, or is no longer this worker's to send; the handler may still run.
        ENDED: its slot is free.
    """

    CREATED = 0
    RUNNING = 1
    MARKED = 2
    ENTERED = 3
    ANSWERED = 4
    ENDED = 5


RUN_TRANSITIONS = {
    # Stopped or abandoned before its first step, it never runs.
    RunState.CREATED: (RunState.RUNNING, RunState.ANSWERED, RunState.ENDED),
    # A run of a worker that goes down ends without an answer.
    RunState.RUNNING: (RunState.ANSWERED, RunState.MARKED, RunState.ENDED),
    RunState.MARKED: (RunState.ENTERED, RunState.ANSWERED, RunState.ENDED),
    RunState.ENTERED: (RunState.ANSWERED, RunState.ENDED),
    RunState.ANSWERED: (RunState.ENDED,),
    RunState.ENDED: (),
}

NEXT_OF_RUN = by_state(RUN_TRANSITIONS)


class TakingState(IntEnum):
    """The state of a worker that takes requests.

    Attributes:
        READY: it is about to look what to do next.
        POLLING: it waits for requests, as many as it has free slots.
        FULL: it waits for a free slot.
        MAKING_ROOM: it takes nothing until nothing runs, so that a request that must run alone finds an idle worker.
        CLEARING: it holds a suspect, and waits until nothing else runs.
        ALONE: a suspect runs, and nothing starts beside it.
        STOPPED: it takes nothing more.
    """

    READY = 0
    POLLING = 1
    FULL = 2
    MAKING_ROOM = 3
    CLEARING = 4
    ALONE = 5
    STOPPED = 6


TAKING_TRANSITIONS = {
    TakingState.READY: (TakingState.POLLING, TakingState.FULL, TakingState.CLEARING, TakingState.MAKING_ROOM, TakingState.STOPPED),
    TakingState.POLLING: (TakingState.READY, TakingState.STOPPED),
    TakingState.FULL: (TakingState.READY, TakingState.STOPPED),
    TakingState.MAKING_ROOM: (TakingState.READY, TakingState.STOPPED),
    # Back to READY when the suspect was taken away meanwhile.
    TakingState.CLEARING: (TakingState.ALONE, TakingState.READY, TakingState.STOPPED),
    TakingState.ALONE: (TakingState.READY, TakingState.STOPPED),
    TakingState.STOPPED: (),
}

NEXT_OF_TAKING = by_state(TAKING_TRANSITIONS)
