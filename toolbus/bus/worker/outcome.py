"""From what a handler returned or raised to a result or an error, to the frame that ends its call, and to the report of its end."""

from __future__ import annotations

import asyncio
import datetime
import logging
import re
from bisect import bisect_left
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import Beginning, Ending, Outcome
from toolbus.bus.support.display import shortened
from toolbus.bus.support.safe_text import is_a, reason_of, type_name
from toolbus.bus.values.descriptors import Publication
from toolbus.bus.values.encoding import MOST_LEVELS, exact_text, is_numbers, simpler, whole_text
from toolbus.bus.values.envelope import NOT_BEGUN, NOT_TAKEN, Frame, Request, encode, encode_data, late_code, waited_for
from toolbus.bus.values.media import media_type_of
from toolbus.bus.values.results import (
    ERROR_TYPES,
    Blob,
    BrokerError,
    CallCancelled,
    CallRefused,
    EnvelopeError,
    ErrorInfo,
    Origin,
    Progress,
    ToolError,
    ToolResult,
    deadline_exceeded,
)
from toolbus.bus.worker.statistics import SECONDS, Sampling, ToolCounts
from toolbus.bus.worker.transitions import RunState

if TYPE_CHECKING:
    from toolbus.bus.broker.take.requests import Delivery

T = TypeVar("T")

# Bytes of an error; half of them its details, at most. An entry of the reply stream must hold it.
_MOST_ERROR = 131_072
_MOST_MESSAGE = 8_000
_MOST_CODE = 200
# Characters of an error's message in a log line.
_MOST_LOGGED = 400
# Seconds until which a caller may be told to wait.
_MOST_AFTER = 1e9

# A text without any letter, such as the number that was raised, says nothing alone.
_WORD = re.compile(r"[^\W\d_]")
_CONTENT = "content is a tuple of Blobs"

_decode = msgspec.json.Decoder(ErrorInfo).decode


class HandlerExit(Exception):
    """A user's code raised what would end the program or its task; ``raised`` is that."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__(f"the code raised {type_name(raised)}, which ends neither the worker nor other calls")
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
        if is_a(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        raise HandlerExit(error) from error


def original(error: BaseException) -> BaseException:
    """Return what a user's code raised: not the ``HandlerExit`` around it, nor a group that has nothing else."""
    if is_a(error, HandlerExit):
        return error.raised
    if is_a(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        return original(error.exceptions[0])
    return error


def said(error: BaseException) -> str:
    """Return the text of an exception, with its name where the text alone says nothing, as that of a KeyError."""
    name, text = type_name(error), reason_of(error)
    if not text.strip() or text == name:
        return name
    return f"{name}: {text}" if is_a(error, KeyError) or not _WORD.search(text) else text


def result_of(value: object) -> ToolResult:
    """Return what a handler returned, as a result.

    Raises:
        ToolError: it is a ToolResult with fields of other types than they must have.
    """
    if type(value) is str:
        return ToolResult(output=value)
    if isinstance(value, ToolResult):
        return checked(value)
    if value is None:
        return ToolResult(output="")
    if isinstance(value, str):
        return ToolResult(output=exact_text(value))
    if isinstance(value, Blob):
        return ToolResult(output="", content=(value,))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return ToolResult(output="", content=(blob_of(value),))
    data, blobs = detached(value)
    return ToolResult(data=data, content=blobs)


def checked(result: ToolResult, sent: int = 0) -> ToolResult:
    """Return a handler's own result, with fields that every caller can read.

    Args:
        result: the handler's.
        sent: how many blobs the caller was sent before.

    Raises:
        ToolError: one has another type than it must have.
    """
    output, error, content = result.output, result.error, result.content
    if output is not None and type(output) is not str:
        if not isinstance(output, str):
            raise _bad_result("output is a text or None", output)
        output = exact_text(output)
    if error is not None:
        if not isinstance(error, ErrorInfo):
            raise _bad_result("error is an ErrorInfo or None (ToolResult.fail(…) takes a text)", error)
        error = encodable(msgspec.structs.replace(error, origin="tool"))
    if content or type(content) is not tuple:
        if not isinstance(content, (tuple, list)):
            raise _bad_result(_CONTENT, content)
        for blob in content:
            if not isinstance(blob, Blob):
                raise _bad_result(_CONTENT, blob)
        content = tuple(content)
    data, blobs = (None, ()) if result.data is None else detached(result.data, sent + len(content))
    content += blobs
    if output is result.output and error is result.error and content is result.content:
        return result
    return ToolResult(result.success, output, data, error, content)


def _bad_result(rule: str, value: object) -> ToolError:
    return ToolError(f"the tool's ToolResult can't be sent: {rule}, not {type_name(value)}", code="bad_result")


# Bytes within a value become blobs, since base64 within a text is of no use to a model.
_RAW = (bytes, bytearray, memoryview)
_SCALARS = frozenset({str, int, float, bool, type(None), Decimal, UUID})
_PLAIN = _SCALARS | {datetime.datetime, datetime.date, datetime.time, datetime.timedelta}
_HOLDERS = frozenset({dict, list, tuple})
_KNOWN = _PLAIN | _HOLDERS
# Levels of objects and lists that most values have at most.
_USUAL_LEVELS = 8
_BLOB = frozenset(Blob.__struct_fields__)


def blob_of(data: bytes | bytearray | memoryview) -> Blob:
    """Return bytes as a blob, with the media type that they say."""
    plain = bytes(memoryview(data))
    return Blob(media_type_of(plain), plain)


def pieces_of(item: object, sent: int) -> Iterator[object]:
    """Yield what an item of a stream is told as: texts, blobs, ``Progress`` and ``ToolResult``; nothing for None.

    Args:
        item: what the handler yielded.
        sent: how many blobs the caller was sent before.

    Raises:
        EnvelopeError: it can't be expressed in JSON.
    """
    if isinstance(item, (Blob, Progress, ToolResult)):
        yield item
    elif isinstance(item, str):
        yield exact_text(item)
    elif isinstance(item, _RAW):
        yield blob_of(item)
    elif item is not None:
        value, blobs = detached(item, sent)
        yield encode_data(value).decode()
        yield from blobs


def detached(value: Any, first: int = 0) -> tuple[Any, tuple[Blob, ...]]:
    """Return a value and its blobs: bytes and blobs in it become ``{"attachment", "media_type", "bytes"}``.

    A value that can't be encoded is returned as it is; the encoder says why.

    Args:
        first: the number of the first attachment, which is its place in the content of the call's result.
    """
    if _is_plain(value):
        return value, ()
    blobs: list[Blob] = []
    try:
        plain = msgspec.to_builtins(value, builtin_types=_RAW, enc_hook=simpler)
        made = plain if _is_plain(plain) else _without(plain, blobs, first)
    except Exception:  # noqa: BLE001 - a class of a user's may raise anything when it is asked for its value
        return value, ()
    return (made, tuple(blobs)) if blobs else (value, ())


def _is_plain(value: Any) -> bool:
    """Return whether there can be no bytes in it: nothing but plain values in objects and lists."""
    level: list[Any] = [value]
    if type(value) not in _HOLDERS:
        return type(value) in _PLAIN or is_numbers(value)
    for depth in range(MOST_LEVELS):
        # All of a level at once: one by one, large results took several times as long.
        kinds = set(map(type, _parts(level)))
        if kinds <= _PLAIN:
            return True
        if not kinds <= _KNOWN:
            return False
        level = [part for part in _parts(level) if type(part) in _HOLDERS]
        if depth >= _USUAL_LEVELS:
            # Each once, or what contains itself twice would grow without end.
            level = list({id(part): part for part in level}.values())
    return True


def _parts(level: list[Any]) -> Iterable[Any]:
    return chain.from_iterable([part.values() if type(part) is dict else part for part in level])


def _without(part: Any, blobs: list[Blob], first: int) -> Any:
    if isinstance(part, dict):
        if part.keys() == _BLOB and isinstance(part["data"], _RAW) and isinstance(part["media_type"], str):
            return _attachment(Blob(part["media_type"], bytes(memoryview(part["data"]))), blobs, first)
        return {key: _without(each, blobs, first) for key, each in part.items()}
    if isinstance(part, (list, tuple)):
        return [_without(each, blobs, first) for each in part]
    return _attachment(blob_of(part), blobs, first) if isinstance(part, _RAW) else part


def _attachment(blob: Blob, blobs: list[Blob], first: int) -> dict[str, Any]:
    blobs.append(blob)
    return {"attachment": first + len(blobs) - 1, "media_type": blob.media_type, "bytes": len(blob.data)}


def error_of(error: BaseException) -> ErrorInfo:
    """Return what a handler raised, as a value that every caller can read.

    What it raised of another call is its own failure all the same.
    """
    origin: Origin = "bus" if is_a(error, CallRefused) else "tool"
    return encodable(msgspec.structs.replace(_error_of(error), origin=origin))


def _error_of(error: BaseException) -> ErrorInfo:
    if is_a(error, HandlerExit):
        error = error.raised
    if is_a(error, ToolError):
        return error.error
    if is_a(error, CallCancelled):
        return ErrorInfo("cancelled", message=said(error))
    if is_a(error, SystemExit):
        return ErrorInfo("tool_error", "SystemExit", "the handler tried to exit the worker")
    if is_a(error, EnvelopeError):
        return ErrorInfo("tool_error", "unencodable_result", f"the result is {error}")
    if is_a(error, asyncio.CancelledError):
        return ErrorInfo("tool_error", "CancelledError", "the handler was cancelled from within")
    return ErrorInfo("tool_error", type_name(error), said(error))


def other_revision(error: ErrorInfo, request: Request, publication: Publication) -> ErrorInfo:
    """Return a refusal, or what it means when the caller chose the arguments by another revision than this worker's."""
    of_caller = error.origin == "bus" and error.type in {"invalid_arguments", "not_found"}
    if not of_caller or not request.digest or request.digest == publication.digest:
        return error
    message = (
        f"{error.message} (the arguments are for revision {request.digest} of {publication.service.id}, of which no worker is left;"
        f" this one serves {publication.digest}): look at the tool again"
    )
    return ErrorInfo("unavailable", "other_revision", message, retryable=True)


def encodable(error: ErrorInfo) -> ErrorInfo:
    """Return the error, or what is left of it without what no caller could read."""
    try:
        document = encode_data(error)
        if len(document) <= _MOST_ERROR:
            _decode(document)
            return error
    except (EnvelopeError, msgspec.ValidationError):
        pass
    details, note = error.details, ""
    try:
        if len(encode_data(details)) > _MOST_ERROR // 2:
            details, note = None, f"its details are over the limit of {_MOST_ERROR // 2} bytes"
    except EnvelopeError as problem:
        details, note = None, f"its details are {problem}"
    message = error.message if isinstance(error.message, str) else "the tool failed, and what it said is no text"
    message = shortened(whole_text(message), _MOST_MESSAGE)
    if error.type not in ERROR_TYPES:
        message = f"{message} (its error type, {shortened(whole_text(repr(error.type)), _MOST_CODE)}, does not exist)"
    after = error.retry_after
    return ErrorInfo(
        error.type if error.type in ERROR_TYPES else "tool_error",
        "unencodable_error" if note or not isinstance(error.code, str) else shortened(whole_text(error.code), _MOST_CODE),
        f"{message} ({note})" if note else message,
        error.retryable is True,
        float(after) if isinstance(after, (int, float)) and 0 <= after <= _MOST_AFTER else None,
        details,
        error.origin,
    )


def refusal(delivery: Delivery, worker: str, error: ErrorInfo | None) -> bytes:
    """Return the one frame of a delivery that is not run."""
    frame = Frame(delivery.request.id, delivery.run, delivery.attempt, kind="end", end_of_stream=True, error=error)
    frame.epoch = delivery.epoch
    frame.worker = worker
    frame.queued_ms = round(delivery.queued_ms, 1)
    return encode(frame)


def is_crash(error: BaseException, info: ErrorInfo) -> bool:
    """Return whether a handler failed without having said so itself."""
    return info.type == "tool_error" and not is_a(error, ToolError)


def is_retryable(error: BaseException, info: ErrorInfo) -> bool:
    """Return whether what a handler raised may go well at the next attempt."""
    return error.error.retryable if is_a(error, ToolError) else is_crash(error, info)


# -- errors of runs that are not their handlers' own ---------------------------------------------------

_UNKNOWN: dict[Beginning, str] = {
    "began": "an earlier attempt began, and its worker is gone or has lost it; it may or may not have taken effect",
    "unsure": "another server process took the call, and this one may have forgotten that it ran",
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


def not_run(error: ErrorInfo, delivery: Delivery, *, once: bool) -> ErrorInfo:
    """Return the error of a delivery that this worker does not run for a reason; of ``once`` work an earlier attempt may have begun."""
    if not once or error.type == "outcome_unknown" or not delivery.may_have_begun:
        return error
    return ErrorInfo("outcome_unknown", error.type, f"{error.message}; an earlier attempt may have begun, so {_MAYBE}")


def cancelled_waiting(why: str) -> ErrorInfo:
    """Return the error of a request that its caller gave up before it ran."""
    message = f"{_GIVEN_UP.get(why, f'its caller gave it up ({why})')} before the tool began"
    return deadline_exceeded(message, NOT_TAKEN) if why == "deadline_exceeded" else ErrorInfo("cancelled", NOT_BEGUN, message)


def session_closed(state: RunState) -> ErrorInfo:
    """Return the error of a run whose session was closed."""
    message = "the session was closed, maybe by another agent, while the call ran"
    if state is RunState.ENTERED:
        return ErrorInfo("outcome_unknown", "session_closed", f"{message}; {_MAYBE}")
    return ErrorInfo("cancelled", "session_closed", message)


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


def unmarked(error: BrokerError, delivery: Delivery) -> CallRefused:
    """Return the failure of ``once`` work of which the server did not take the mark: this attempt did not begin."""
    if not delivery.may_have_begun:
        message = f"the tool did not begin, since the server did not take the note of it: {error}"
        return CallRefused(message, type="unavailable", code=NOT_BEGUN, retryable=True)
    message = f"an earlier attempt may have begun, and the server did not say: {error}"
    return CallRefused(message, type="outcome_unknown")


def not_begun(beginning: Beginning) -> CallRefused:
    """Return the failure of ``once`` work that must not begin."""
    if beginning == "unconfirmed":
        return CallRefused(_UNCONFIRMED, type="unavailable", code="not_replicated", retryable=True)
    return CallRefused(_UNKNOWN[beginning], type="outcome_unknown")


# -- ends ---------------------------------------------------------------------------------------------

End = Literal["finished", "failed", "retried", "dead", "cancelled", "handed_back", "lost", "refused", "withdrawn", "buried"]
"""An end of an attempt at a worker; its error says why.

``finished``; ``failed`` (the handler did, the time was up, or the worker was stopped); ``retried`` (it failed, and is tried again here);
``dead`` (it failed, and became a dead letter); ``cancelled`` (by its caller, or the caller is gone); ``handed_back`` (to other workers);
``lost`` (another worker has it); and of requests that did not run here: ``refused``, ``withdrawn`` (by their caller), and ``buried``.
"""


class EndKind(NamedTuple):
    """Hold how one kind of end is told.

    Attributes:
        outcome: among the recent calls; empty when another worker tells of it.
        counted: ``ended`` with its latency, ``cancelled``, or ``refused``.
        event: of its log line. A crash has one of its own.
    """

    outcome: Outcome | Literal[""]
    counted: Literal["ended", "cancelled", "refused"]
    event: Literal["call.finished", "call.failed", "call.cancelled", "call.handed_back", "call.lost"]


ENDS: Mapping[End, EndKind] = {
    "finished": EndKind("succeeded", "ended", "call.finished"),
    "failed": EndKind("failed", "ended", "call.failed"),
    "retried": EndKind("retried", "ended", "call.failed"),
    "dead": EndKind("dead", "ended", "call.failed"),
    "cancelled": EndKind("cancelled", "cancelled", "call.cancelled"),
    "handed_back": EndKind("lost", "cancelled", "call.handed_back"),
    "lost": EndKind("", "cancelled", "call.lost"),
    "refused": EndKind("failed", "refused", "call.failed"),
    "withdrawn": EndKind("cancelled", "refused", "call.cancelled"),
    "buried": EndKind("dead", "refused", "call.failed"),
}
"""All ends."""


def report_end(
    end: End,
    delivery: Delivery,
    counts: ToolCounts | None,
    sampling: Sampling,
    now: float,
    began: float = 0.0,
    first: float = 0.0,
    frames: int = 0,
    error: ErrorInfo | None = None,
    exception: BaseException | None = None,
) -> None:
    """Report the end of an attempt, whichever it is.

    Args:
        end: which one.
        delivery: what was run, or not.
        counts: of its tool; None when this worker does not know the tool.
        sampling: takes in what is told of among the recent calls.
        now: monotonic seconds.
        began: when it began to run; 0 when it did not.
        first: when its first text was sent; 0 when there was none.
        frames: how many frames it made.
        error: why it did not succeed; None when another worker goes on with it.
        exception: what its handler raised, when that was not meant as an answer; its traceback is logged.
    """
    kind = ENDS[end]
    elapsed = now - began if began else 0.0
    if counts is not None:
        if kind.counted == "ended":
            counts.buckets[bisect_left(SECONDS, elapsed)] += 1
            counts.seconds += elapsed
        elif kind.counted == "cancelled":
            counts.cancelled += 1
        if error is not None and kind.counted != "cancelled":
            counts.count(error, delivery.request.id, ran=kind.counted == "ended")
    if kind.outcome == "succeeded":
        if now >= sampling.due:
            sampling.note_success(delivery, began, first, now)
        else:
            sampling.left_out += 1
    elif kind.outcome:
        sampling.note(delivery, Ending(kind.outcome, began, first, now, error))
    if telemetry.metering():
        # Nobody gets those of a request without a reply stream.
        frames = frames if delivery.replies else 0
        if began:
            reason = end if error is None and end != "finished" else "" if error is None else error.type
            telemetry.record_run(delivery.request.service, elapsed, delivery.queued_ms / 1000, frames, reason)
        elif frames:
            telemetry.count("toolbus.frames", frames, messaging__destination__name=delivery.request.service)
    if end != "finished" or telemetry.logs(logging.INFO):
        _log(kind, delivery, elapsed, error, exception)


def _log(kind: EndKind, delivery: Delivery, elapsed: float, error: ErrorInfo | None, exception: BaseException | None) -> None:
    request = delivery.request
    fields = {
        "tool": request.tool or request.service,
        "user": request.user,
        "id": request.id,
        "attempt": delivery.attempt,
        "ms": round(elapsed * 1000, 1),
    }
    if error is not None:
        # A refusal of arguments quotes them, and logs hold no arguments.
        message = "" if error.type == "invalid_arguments" else shortened(error.message, _MOST_LOGGED)
        failure = {"error": error.type, "code": error.code, **({"message": message} if message else {}), **fields}
    if error is None:
        if kind.event == "call.finished":
            telemetry.log.info("call.finished", **fields)
        elif kind.event == "call.lost":
            telemetry.log.warning("call.lost", **fields)
        else:
            telemetry.log.info("call.handed_back", **fields)
    elif kind.event == "call.cancelled":
        telemetry.log.info("call.cancelled", **failure)
    elif exception is None or is_a(exception, EnvelopeError):
        # The traceback of a result that can't be sent has no line of the handler.
        telemetry.log.warning("call.failed", **failure)
    else:
        telemetry.log.error("call.crashed", error=error.code, exc_info=exception, **fields)


def report_buried(delivery: Delivery, reason: str) -> None:
    """Log that a request was set aside as a dead letter."""
    request = delivery.request
    telemetry.log.error("request.buried", service=request.service, tool=request.tool, id=request.id, reason=reason)
