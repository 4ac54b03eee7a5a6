"""Errors for callers whose tool lost its process."""

from __future__ import annotations

import signal

from toolbus.results import ErrorInfo, ToolError
from toolbus.worker.definition.function import FunctionTool
from toolbus.worker.isolation.messages import Report


class HandlerCrashed(Exception):
    """A handler in a child raised something of its own; ``info`` is what its caller is told, the text is the traceback."""

    def __init__(self, info: ErrorInfo, crashed: str) -> None:
        super().__init__(f"in a child process:\n{crashed}")
        self.info = info


def deviation(made: FunctionTool, said: str, *, once: bool) -> ToolError:
    """Return the failure of a call whose child broke the protocol; with ``once`` its outcome is unknown."""
    message = f"the process of the tool {made.name!r} said {said}, and was ended"
    if once:
        return ToolError(f"{message}; it may or may not have taken effect", type="outcome_unknown", code="process_died")
    return ToolError(message, code="process_died")


def death(report: Report | None, made: FunctionTool, *, once: bool) -> ToolError:
    """Return the failure of a call whose child has died; with ``once`` its outcome is unknown."""
    report = report or Report("died")
    if report.error:
        return no_process(report.error)
    status = report.status
    how = "ended"
    if status is not None and status < 0:
        how = f"was ended by {_signal_name(-status)}"
    elif status is not None:
        how = f"ended itself with exit code {status}"
    why = ""
    if status == -signal.SIGKILL:
        why = ", most likely by the system for want of memory"
    elif made.memory_limit:
        why = f", perhaps at its memory limit of {made.memory_limit} bytes"
    message = f"the process of the tool {how}{why}"
    if once:
        return ToolError(f"{message}; it may or may not have taken effect", type="outcome_unknown", code="process_died")
    return ToolError(message, code="process_died")


def no_process(why: str) -> ToolError:
    """Return the failure of a call for which no child could be started."""
    return ToolError(f"the tool's process can't be started: {why}; try again later", type="unavailable", code="no_process", retryable=True)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
