"""The states of a run, and the errors of runs that are not their handlers' own."""

from __future__ import annotations

from enum import IntEnum

from toolbus.bus.broker.protocols import Beginning
from toolbus.bus.values.envelope import NOT_BEGUN, NOT_TAKEN, Request, late_code, waited_for
from toolbus.bus.values.results import BrokerError, CallRefused, ErrorInfo, deadline_exceeded
from toolbus.bus.worker.transitions import by_state


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


_UNKNOWN: dict[Beginning, str] = {
    "began": "an earlier attempt began and its worker is gone; it may or may not have taken effect",
    "unsure": "the server was replaced or restored after it took the call and may have forgotten that it ran",
}
_UNCONFIRMED = "too few replicas of the server have confirmed the call in time, so it did not run"
_MAYBE = "it may or may not have taken effect"
_GIVEN_UP = {"cancelled": "cancelled by the caller", "deadline_exceeded": "its caller's time was up"}

MOVED = ErrorInfo("cancelled", message="the call moved to another worker")
LEAVING = ErrorInfo("cancelled", message="the worker is going away")
GIVEN_UP = ErrorInfo("cancelled", message="the middleware around the handler gave it up")


def deadline_passed(state: RunState, timeout: float, queued_ms: float = 0.0) -> ErrorInfo:
    """Return the error of a run that did not end within ``timeout`` seconds, of which it had waited ``queued_ms`` milliseconds."""
    message = f"the tool did not finish within {timeout:g} s{waited_for(queued_ms)}"
    if state is RunState.ENTERED:
        return ErrorInfo("outcome_unknown", "deadline_exceeded", f"{message}; {_MAYBE}")
    return deadline_exceeded(message, late_code(timeout, queued_ms))


def given_up(state: RunState, why: str, timeout: float = 0.0, queued_ms: float = 0.0, *, once: bool) -> ErrorInfo:
    """Return the error of a run that its caller gave up; it says whether ``once`` work can have had its effect.

    Args:
        state: how far the run has come.
        why: the type of the error with which the call ended at its caller.
        timeout, queued_ms: seconds that the call had, and milliseconds of them that it had waited for a worker.
        once: whether it is ``once`` work.
    """
    message = _GIVEN_UP.get(why, f"its caller gave it up ({why})")
    if state is RunState.ENTERED:
        return ErrorInfo("outcome_unknown", why, f"{message} while the tool ran; {_MAYBE}")
    if why == "deadline_exceeded":
        return deadline_exceeded(f"{message} before the tool had finished{waited_for(queued_ms)}", late_code(timeout, queued_ms))
    if once:
        return ErrorInfo("cancelled", NOT_BEGUN, f"{message} before the tool began")
    return ErrorInfo("cancelled", "" if why == "cancelled" else why, message)


def given_up_waiting(why: str) -> ErrorInfo:
    """Return the error of a request that its caller gave up before it ran."""
    message = f"{_GIVEN_UP.get(why, f'its caller gave it up ({why})')} before the tool began"
    return deadline_exceeded(message, NOT_TAKEN) if why == "deadline_exceeded" else ErrorInfo("cancelled", NOT_BEGUN, message)


def worker_stopped(state: RunState) -> ErrorInfo | None:
    """Return the error of a run whose worker leaves; None when another worker may run the request."""
    if state is RunState.ENTERED:
        return ErrorInfo("outcome_unknown", "worker_stopped", f"the worker was stopped while the tool ran; {_MAYBE}")
    if state is RunState.MARKED:
        # The next worker would find the mark, and could not know that the handler was never called.
        return ErrorInfo("unavailable", "worker_stopped", "the worker was stopped before the tool began", retryable=True)
    return None


def no_session(request: Request) -> CallRefused:
    """Return the failure of a handler that asks for the state of a session, in a call that names none."""
    step = "call it in one, with bus.session() or bus.bind(session=…)"
    message = f"{request.tool!r} keeps a state for each session, and this call names none: {step}"
    return CallRefused(message, type="invalid_arguments", code="no_session")


def unmarked(error: BrokerError, attempt: int) -> CallRefused:
    """Return the failure of ``once`` work of which the server did not take the mark: this attempt did not begin."""
    if attempt == 1:
        message = f"the tool did not begin, since the server did not take the note of it: {error}"
        return CallRefused(message, type="unavailable", code=NOT_BEGUN, retryable=True)
    message = f"an earlier attempt may have begun, and the server did not say: {error}"
    return CallRefused(message, type="outcome_unknown")


def not_begun(beginning: Beginning) -> CallRefused:
    """Return the failure of ``once`` work that must not begin."""
    if beginning == "unconfirmed":
        return CallRefused(_UNCONFIRMED, type="unavailable", code="not_replicated", retryable=True)
    return CallRefused(_UNKNOWN[beginning], type="outcome_unknown")
