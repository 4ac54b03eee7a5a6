"""The states of a worker's taking."""

from __future__ import annotations

from enum import IntEnum

from toolbus.worker.transitions import by_state


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


TRANSITIONS = {
    TakingState.READY: (TakingState.POLLING, TakingState.FULL, TakingState.CLEARING, TakingState.MAKING_ROOM, TakingState.STOPPED),
    TakingState.POLLING: (TakingState.READY, TakingState.STOPPED),
    TakingState.FULL: (TakingState.READY, TakingState.STOPPED),
    TakingState.MAKING_ROOM: (TakingState.READY, TakingState.STOPPED),
    # Back to READY when the suspect was taken away meanwhile.
    TakingState.CLEARING: (TakingState.ALONE, TakingState.READY, TakingState.STOPPED),
    TakingState.ALONE: (TakingState.READY, TakingState.STOPPED),
    TakingState.STOPPED: (),
}

NEXT = by_state(TRANSITIONS)
