"""Say what is known of a call that an instance did not answer, and what its caller is told."""

from __future__ import annotations

from typing import Literal

from toolbus.backends.runner import CONNECTION_LOST, NOT_REACHED
from toolbus.host.pool.member import Cut
from toolbus.results import ToolError, deadline_exceeded

CLOSED = "tool_closed"
"""The code of calls to a pool that was closed before they began."""

Loss = Literal["", "not_run", "unknown"]
"""``not_run``: the program was not reached; ``unknown``: the program may have run the call; empty: it has answered."""


def loss_of(error: Exception) -> Loss:
    """Return what is known of a call that ended with an error."""
    if isinstance(error, Cut):
        return "unknown"
    info = error.error if isinstance(error, ToolError) else None
    if info is None:
        return ""
    if info.type == "unavailable" and info.code == NOT_REACHED:
        return "not_run"
    return "unknown" if info.code == CONNECTION_LOST else ""


def lost(tool: str, effect: str, loss: Loss, error: Exception, *, streamed: bool) -> ToolError:
    """Return the error of a call that is not run again.

    Args:
        tool: its name.
        effect: what a second run would do.
        loss: what is known of the call.
        error: how it ended.
        streamed: whether a part of the answer was passed on.
    """
    said = f" ({error.error.message})" if isinstance(error, ToolError) else ""
    if loss == "not_run":
        return ToolError(f"{tool} could not be reached{said}", type="unavailable", code=NOT_REACHED, retryable=True)
    if effect == "once":
        message = f"{tool} ended during the call, so it is unknown whether the call had its effect{said}"
        return ToolError(message, type="outcome_unknown", code="program_ended")
    after = " after a part of its answer" if streamed else " again"
    return ToolError(f"{tool} ended during the call{after}{said}", code="program_ended", retryable=True)


def down(tool: str, reason: str, wait: float, *, permanent: bool) -> ToolError:
    """Return the error of a call to a tool that can't be started; ``permanent`` when no further try can help."""
    if permanent:
        return ToolError(f"{tool} can't be started ({reason})", type="unavailable", code="tool_failed")
    after = f"; the next start may be in {wait:.1f} s" if wait > 0 else ""
    message = f"{tool} can't be started now ({reason or 'it failed'}){after}"
    return ToolError(message, type="unavailable", code="tool_failed", retryable=True, retry_after=round(wait, 2) or None)


def closed(tool: str) -> ToolError:
    """Return the error of a call to a tool that is no longer served here."""
    return ToolError(f"{tool} is no longer served here", type="unavailable", code=CLOSED, retryable=True)


def too_late(tool: str, reason: str) -> ToolError:
    """Return the error of a call whose deadline passed before it had an instance."""
    why = f": {reason}" if reason else ""
    return ToolError(deadline_exceeded(f"{tool} had no instance for the call within its time{why}", "not_started"))


def overran(tool: str) -> ToolError:
    """Return the error of a call whose deadline passed while it ran."""
    return ToolError(deadline_exceeded(f"{tool} did not answer within the call's time"))
