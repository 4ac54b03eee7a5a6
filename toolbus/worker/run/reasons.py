"""The errors of runs that are not their handlers' own."""

from __future__ import annotations

from toolbus.broker.protocols import Beginning
from toolbus.envelope import NOT_BEGUN, NOT_FINISHED, Request
from toolbus.results import CallRefused, ErrorInfo
from toolbus.worker.run.states import RunState

_UNKNOWN: dict[Beginning, str] = {
    "began": "an earlier attempt began and its worker is gone; it may or may not have taken effect",
    "unsure": "the server was replaced or restored after it took the call and may have forgotten that it ran",
}
_UNCONFIRMED = "too few replicas of the server have confirmed the call in time, so it did not run"
_MAYBE = "it may or may not have taken effect"

MOVED = ErrorInfo("cancelled", message="the call moved to another worker")
LEAVING = ErrorInfo("cancelled", message="the worker is going away")
GIVEN_UP = ErrorInfo("cancelled", message="the middleware around the handler gave it up")


def deadline_passed(state: RunState, timeout: float) -> ErrorInfo:
    """Return the error of a run that did not end within ``timeout`` seconds."""
    message = f"the tool did not finish within {timeout:g} s"
    if state is RunState.ENTERED:
        return ErrorInfo("outcome_unknown", "deadline_exceeded", f"{message}; {_MAYBE}")
    return ErrorInfo("deadline_exceeded", NOT_FINISHED, message)


def cancelled(state: RunState, *, once: bool) -> ErrorInfo:
    """Return the error of a run that its caller cancelled; it says whether ``once`` work can have had its effect."""
    if state is RunState.ENTERED:
        return ErrorInfo("outcome_unknown", "cancelled", f"cancelled by the caller while the tool ran; {_MAYBE}")
    if once:
        return ErrorInfo("cancelled", NOT_BEGUN, "cancelled by the caller before the tool began")
    return ErrorInfo("cancelled", message="cancelled by the caller")


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


def not_begun(beginning: Beginning) -> CallRefused:
    """Return the failure of ``once`` work that must not begin."""
    if beginning == "unconfirmed":
        return CallRefused(_UNCONFIRMED, type="unavailable", code="not_replicated", retryable=True)
    return CallRefused(_UNKNOWN[beginning], type="outcome_unknown")
