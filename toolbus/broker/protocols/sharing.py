"""Frames of calls that several callers share."""

from __future__ import annotations

import msgspec

from toolbus.envelope import BEGAN_LATE, NOT_BEGUN, NOT_FINISHED, NOT_TAKEN, Frame

_ENDS_OF_ANOTHER = frozenset({("cancelled", NOT_BEGUN), *(("deadline_exceeded", code) for code in (NOT_TAKEN, BEGAN_LATE, NOT_FINISHED))})


def ended_for_another(frame: Frame) -> bool:
    """Return whether a shared call ended before it began, since no caller waited for it, or because its first caller's time was up."""
    error = frame.error
    return error is not None and frame.end_of_stream and (error.type, error.code) in _ENDS_OF_ANOTHER


def readdressed(frame: Frame, call: str, attempts: int) -> Frame:
    """Return a shared call's frame for one of its callers, which had ``attempts`` attempts before."""
    if frame.id == call and not attempts:
        return frame
    return msgspec.structs.replace(frame, id=call, attempt=frame.attempt + attempts)
