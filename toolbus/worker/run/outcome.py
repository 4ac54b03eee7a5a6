"""From what a handler returned or raised to a result or an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from toolbus.broker.protocols import Delivery
from toolbus.descriptors import Publication
from toolbus.envelope import Frame, Request, encode
from toolbus.results import Blob, CallCancelled, EnvelopeError, ErrorInfo, ToolError, ToolResult

T = TypeVar("T")


class HandlerExit(Exception):
    """A user's code raised what would end the program or its task; ``raised`` is that."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__(f"the code raised {type(raised).__name__}, which ends neither the worker nor other calls")
        self.raised = raised


async def without_exits(work: Awaitable[T]) -> T:
    """Await a user's code. An event loop ends when a task of it raises SystemExit, and with it every call of the worker.

    Raises:
        HandlerExit: for SystemExit, KeyboardInterrupt and their like, and for a cancellation that did not come from outside.
    """
    try:
        return await work
    except Exception:
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        raise HandlerExit(error) from error


def said(error: BaseException) -> str:
    """Return the text of an exception, or its name: a class of a user's may raise when it is asked."""
    try:
        return str(error) or type(error).__name__
    except BaseException:  # noqa: BLE001 - as above, and whatever it is
        return type(error).__name__


def result_of(value: object) -> ToolResult:
    """Return what a handler returned, as a result."""
    if type(value) is str:
        return ToolResult(output=value)
    if isinstance(value, ToolResult):
        return value
    if value is None:
        return ToolResult(output="")
    if isinstance(value, str):
        return ToolResult(output=str(value))
    if isinstance(value, Blob):
        return ToolResult(output="", content=(value,))
    return ToolResult(data=value)


def error_of(error: BaseException) -> ErrorInfo:
    """Return what a handler raised, as a value."""
    if isinstance(error, HandlerExit):
        error = error.raised
    if isinstance(error, ToolError):
        return error.error
    if isinstance(error, CallCancelled):
        return ErrorInfo("cancelled", message=said(error))
    if isinstance(error, SystemExit):
        return ErrorInfo("tool_error", "SystemExit", "the handler tried to exit the worker")
    if isinstance(error, EnvelopeError):
        return ErrorInfo("tool_error", "unencodable_result", f"the result is {error}")
    if isinstance(error, asyncio.CancelledError):
        return ErrorInfo("tool_error", "CancelledError", "the handler was cancelled from within")
    return ErrorInfo("tool_error", type(error).__name__, said(error))


def mismatch(request: Request, publication: Publication, error: ErrorInfo) -> ErrorInfo:
    """Return the error of arguments that the caller may have checked against another revision of the descriptor; it names both digests."""
    if error.type != "invalid_arguments" or not request.digest or request.digest == publication.digest:
        return error
    message = f"{error.message} (the caller checked against descriptor {request.digest}, this worker serves {publication.digest})"
    return ErrorInfo(error.type, error.code, message, True, error.retry_after, error.details)


def encodable(error: ErrorInfo) -> ErrorInfo:
    """Return the error, or what stands for it when JSON can't express it."""
    try:
        encode(error)
    except EnvelopeError:
        return ErrorInfo(error.type, "unencodable_error", "the tool failed, and what it said can't be expressed in JSON")
    return error


def refusal(delivery: Delivery, worker: str, error: ErrorInfo | None) -> bytes:
    """Return the one frame of a delivery that is not run."""
    frame = Frame(delivery.request.id, delivery.run, delivery.attempt, kind="end", end_of_stream=True, error=error)
    frame.epoch = delivery.epoch
    frame.worker = worker
    frame.queued_ms = round(delivery.queued_ms, 1)
    return encode(frame)
