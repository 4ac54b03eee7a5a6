"""Write tasks as the extension wants them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from toolbus.client.tasks.state import TaskState
from toolbus.client.tasks.tasks import Task
from toolbus.client.tools.tool import Tool
from toolbus.confirmations import ConfirmationRequest
from toolbus.display import shortened
from toolbus.mcp.content import content_of
from toolbus.mcp.questions import form

TEXT_KEY = "toolbus/text"
"""The key of a task's text in its ``_meta``: ``{"from": offset, "text": …}``; offsets are in characters."""

POLL_MS = 1_000
"""Milliseconds that a client should wait between two looks at a task."""

_MOST_STATUS = 500


def created(task: Task) -> dict[str, Any]:
    """Return the result of a call that has become a task."""
    return {"resultType": "task", "status": "working", **_about(task, task.record.created)}


def document_of(
    task: Task, state: TaskState, tool: Tool | None, question: ConfirmationRequest | None, *, elicits: bool, start: int | None = None
) -> dict[str, Any]:
    """Return what is known of a task.

    Args:
        task: the task.
        state: what is known.
        tool: what was called; None when it is gone.
        question: what waits for a person.
        elicits: the client can ask its user.
        start: the first character of its text that is wanted; None for none of it.
    """
    found = _about(task, state.updated)
    result = state.result
    if result is not None:
        error = result.error
        # Cancelled `once` work has begun, so that its outcome is unknown.
        if error is not None and (error.type == "cancelled" or (error.type == "outcome_unknown" and task.record.cancelled)):
            found |= {"status": "cancelled", "statusMessage": f"{error.type}: {error.message}" if error.message else error.type}
        else:
            found |= {"status": "completed", "result": content_of(result, tool, modern=True)}
    elif question is not None and elicits:
        found |= {"status": "input_required", "statusMessage": question.question, "inputRequests": {question.id: form(str(question))}}
    else:
        found |= {"status": "working", "statusMessage": _working(state, question, cancelled=task.record.cancelled > 0)}
    if start is not None:
        found["_meta"] = {TEXT_KEY: {"from": start, "text": state.text[start:], "attempt": state.attempt}}
    return found


def _about(task: Task, updated: float) -> dict[str, Any]:
    record = task.record
    return {
        "taskId": task.id,
        "createdAt": _time(record.created),
        "lastUpdatedAt": _time(max(updated, record.created)),
        "ttlMs": int(record.kept * 1000),
        "pollIntervalMs": POLL_MS,
    }


def _working(state: TaskState, question: ConfirmationRequest | None, *, cancelled: bool) -> str:
    if cancelled:
        return "is being cancelled"
    if question is not None:
        return shortened(f"waits for a person: {question.question} (toolbus confirm allow {question.id})", _MOST_STATUS)
    if state.progress is not None:
        total = "" if state.progress.total is None else f"/{state.progress.total:g}"
        said = f": {state.progress.message}" if state.progress.message else ""
        return shortened(f"{state.progress.done:g}{total}{said}", _MOST_STATUS)
    if state.text:
        return state.text[-_MOST_STATUS:]
    return "runs" if state.started else "waits for a worker"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
