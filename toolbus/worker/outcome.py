"""What becomes of a handler's end: from what it returned or raised to a result or an error, and to the frame that ends a call."""

from __future__ import annotations

from toolbus.broker.protocols import Delivery
from toolbus.descriptors import Publication
from toolbus.envelope import Frame, Request, encode
from toolbus.results import Blob, CallCancelled, EnvelopeError, ErrorInfo, ToolError, ToolResult


def result_of(value: object) -> ToolResult:
    """What a handler returned, as a result."""
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
    """What a handler raised, as a value."""
    if isinstance(error, ToolError):
        return error.error
    if isinstance(error, CallCancelled):
        return ErrorInfo("cancelled", message=str(error))
    if isinstance(error, SystemExit):
        return ErrorInfo("tool_error", "SystemExit", "the handler tried to exit the worker")
    if isinstance(error, EnvelopeError):
        return ErrorInfo("tool_error", "unencodable_result", f"the result is {error}")
    return ErrorInfo("tool_error", type(error).__name__, str(error) or type(error).__name__)


def mismatch(request: Request, publication: Publication, error: ErrorInfo) -> ErrorInfo:
    """The error of arguments that were checked against another revision of the descriptor: names both digests."""
    if error.type != "invalid_arguments" or not request.digest or request.digest == publication.digest:
        return error
    message = f"{error.message} (the caller checked against descriptor {request.digest}, this worker serves {publication.digest})"
    return ErrorInfo(error.type, error.code, message, True, error.retry_after, error.details)


def encodable(error: ErrorInfo) -> ErrorInfo:
    """The error, or what stands for it when JSON can't express what the tool said."""
    try:
        encode(error)
    except EnvelopeError:
        return ErrorInfo(error.type, "unencodable_error", "the tool failed, and what it said can't be expressed in JSON")
    return error


def refusal(delivery: Delivery, worker: str, error: ErrorInfo | None) -> bytes:
    """The one frame of a delivery that is not run."""
    frame = Frame(delivery.request.id, delivery.run, delivery.attempt, kind="end", end_of_stream=True, error=error)
    frame.epoch = delivery.epoch
    frame.worker = worker
    frame.queued_ms = round(delivery.queued_ms, 1)
    return encode(frame)
