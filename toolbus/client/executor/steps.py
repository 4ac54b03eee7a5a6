"""The next step that a model can take after a failure, for every type of error and every code of toolbus's own."""

from __future__ import annotations

import math
from collections.abc import Mapping

from toolbus.client.calls.refusals import WORKER_LOST
from toolbus.envelope import BEGAN_LATE, NOT_FINISHED, NOT_TAKEN, SESSION_LOST
from toolbus.results import ErrorInfo, ErrorType

# Units of waits in seconds, each for waits up to so many.
_UNITS = ((1, "second", 180), (60, "minute", 10_800), (3600, "hour", 259_200), (86_400, "day", math.inf))
# Nobody waits for years.
_LONG = 1e8

NEXT: Mapping[ErrorType, str] = {
    "not_found": "check the name or id that you asked for, or find out first what there is",
    "invalid_arguments": "fix the arguments and call the tool again",
    "unavailable": "try again{later}, or use another tool",
    "overloaded": "wait{wait} and try again, or use another tool",
    "deadline_exceeded": "it may be busy or have stopped, or the task too large: ask for less, try again later, or use another tool",
    "cancelled": "do not repeat the call unless you are asked to",
    "rate_limited": "wait{wait} before you try again, or use another tool",
    "forbidden": "do not try again; go on without it, or ask the user",
    "outcome_unknown": "it may have taken effect: find out before you repeat it",
    "slow_consumer": "ask for less at once, and try again",
    "tool_error": "change the arguments or use another tool; the same call is likely to fail again",
}
"""By type, for errors without a code and codes of tools' own."""

_GIVEN = "use a tool that you were given, by its exact name"
_LESS = "ask for less at once, or use another tool"
_FAULT = "the fault is in the tool, not in your arguments: use another tool, and tell the user"
_NOBODY = "nobody allowed it: ask the user, or go on without it"
_AGAIN = "call the tool again"
_TOO_LONG = "it runs too long: ask for less, or use another tool"

_WITHIN = "use a file or folder of the workspace, by its path within it"
_OPERATOR = "tell the user that whoever runs this has to mend it, and go on without it"

AFTER: Mapping[tuple[ErrorType, str], str] = {
    ("not_found", "unknown_tool"): _GIVEN,
    ("not_found", "unknown_service"): _GIVEN,
    ("not_found", "refused"): "use another tool; this one can't be used until its author has mended it",
    ("not_found", "pending"): "tell the user that a person has to approve this tool, and go on without it",
    ("invalid_arguments", "bad_call"): "call a tool by its name, with an object of arguments",
    ("invalid_arguments", "idempotency_conflict"): "call the tool again, as a new call",
    ("invalid_arguments", "unreadable"): "call the tool with fewer or shorter arguments, which a person can read",
    ("invalid_arguments", "no_session"): "tell the user that this tool works only in a session, which their program has to open",
    ("unavailable", "revised"): "read the tool's definition again, and call it as it is now",
    ("unavailable", "other_revision"): _AGAIN,
    ("unavailable", "unconfirmed"): "nobody could be asked for permission: ask the user, or go on without it",
    ("unavailable", "worker_stopped"): _AGAIN,
    ("unavailable", "state_unread"): _AGAIN,
    ("unavailable", "not_open"): "tell the user that the tools can't be used now",
    ("unavailable", "bus_failed"): "tell the user that the tools can't be used now",
    ("deadline_exceeded", NOT_TAKEN): (
        "its workers are busy or have stopped: try again later, or use another tool; asking for less does not help"
    ),
    ("deadline_exceeded", BEGAN_LATE): "its workers are busy: try again later, or use another tool; asking for less does not help",
    ("deadline_exceeded", NOT_FINISHED): _TOO_LONG,
    ("deadline_exceeded", "timeout"): _TOO_LONG,
    ("deadline_exceeded", WORKER_LOST): "its worker has stopped: try again later, or use another tool; asking for less does not help",
    ("deadline_exceeded", "unconfirmed"): _NOBODY,
    ("deadline_exceeded", "not_started"): "it has not started in time: try again later, or use another tool; asking for less does not help",
    ("forbidden", "unconfirmed"): _NOBODY,
    ("cancelled", "session_closed"): "go on without the call; the session that it belongs to is closed",
    ("cancelled", "purged"): "the call did not run: repeat it only if it is still needed",
    **{("forbidden", code): _WITHIN for code in ("hard_link", "not_a_file", "not_a_folder", "outside")},
    **{
        ("unavailable", code): _OPERATOR
        for code in ("bad_root", "cant_confine", "cant_start", "network_open", "no_docker", "no_tools_folder", "no_uv")
    },
    ("tool_error", "code_changed"): _AGAIN,
    ("tool_error", "conversation"): _AGAIN,
    ("tool_error", "endpoint"): "the model behind it did not answer: try again later",
    ("tool_error", "program_ended"): "its program ended during the call: try again once, or use another tool",
    ("tool_error", "repeated"): "do something else: the same call was made before, with the same result",
    ("tool_error", "trial_failed"): "mend the tool's code, try it, and register it again",
    ("tool_error", SESSION_LOST): "what the session held is gone: repeat the earlier steps that this call builds on, then call it again",
    ("tool_error", "session_moved"): _AGAIN,
    ("tool_error", "output_limit"): _LESS,
    ("tool_error", "memory_limit"): _LESS,
    **{
        ("tool_error", code): _FAULT
        for code in (
            "bad_data", "bad_middleware", "bad_result", "bad_schema", "bad_stream", "no_nested_calls", "no_questions",
            "not_called", "unencodable_error", "unencodable_result",
        )
    },
}  # fmt: skip
"""By type and code, where the type alone would say what is not true, or too little."""


def next_step(error: ErrorInfo) -> str:
    """Return the next step that the model can take after this failure, without a full stop."""
    found = AFTER.get((error.type, error.code))
    if found is not None:
        return found
    wait = error.retry_after
    if error.type == "tool_error" and error.retryable:
        return f"wait {waiting(wait)} and try again, or use another tool" if wait else "try again, or use another tool"
    said = NEXT[error.type]
    return said.replace("{wait}", f" {waiting(wait)}" if wait else "").replace("{later}", f" in {waiting(wait)}" if wait else " later")


def waiting(seconds: float) -> str:
    """Return a time to wait in whole seconds, minutes, hours or days, rounded up."""
    if not seconds < _LONG:
        return "a long time"
    seconds = round(seconds, 3)
    size, unit = next((size, unit) for size, unit, most in _UNITS if seconds <= most)
    whole = max(1, math.ceil(seconds / size))
    return f"{whole} {unit}{'' if whole == 1 else 's'}"
