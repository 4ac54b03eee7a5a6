"""The states of a run."""

from __future__ import annotations

from enum import IntEnum

from toolbus.worker.transitions import by_state


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


TRANSITIONS = {
    # Stopped or abandoned before its first step, it never runs.
    RunState.CREATED: (RunState.RUNNING, RunState.ANSWERED, RunState.ENDED),
    # A run of a worker that goes down ends without an answer.
    RunState.RUNNING: (RunState.ANSWERED, RunState.MARKED, RunState.ENDED),
    RunState.MARKED: (RunState.ENTERED, RunState.ANSWERED, RunState.ENDED),
    RunState.ENTERED: (RunState.ANSWERED, RunState.ENDED),
    RunState.ANSWERED: (RunState.ENDED,),
    RunState.ENDED: (),
}

NEXT = by_state(TRANSITIONS)
