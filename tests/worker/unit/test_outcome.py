"""Outcomes: from what a handler returned or raised to a result or an error."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.worker.unit.fakes import Bench, echo, frame_of
from toolbus import Blob, ErrorInfo, ToolError, ToolResult
from toolbus.bus.values.envelope import Request
from toolbus.bus.values.results import CallCancelled, EnvelopeError, ErrorType
from toolbus.bus.worker.outcome import HandlerExit, encodable, error_of, other_revision, refusal, result_of, said, without_exits

pytestmark = pytest.mark.anyio

BLOB = Blob("image/png", b"12")
RESULT = ToolResult(output="o", data=1)


class Title(str):
    """A text of a class of its own."""

    __slots__ = ()


class Unspeakable(Exception):
    """An exception that can't be told."""

    def __str__(self) -> str:
        raise SystemExit(3)


# -- results ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ("text", ToolResult(output="text")),
        (Title("title"), ToolResult(output="title")),
        (None, ToolResult(output="")),
        (BLOB, ToolResult(output="", content=(BLOB,))),
        ({"a": 1}, ToolResult(data={"a": 1})),
        (0, ToolResult(data=0)),
        (RESULT, RESULT),
    ],
)
def test_a_returned_value_becomes_a_result(value: object, result: ToolResult) -> None:
    """Text is output, nothing is empty output, a blob is content, a result is itself, and anything else is data."""
    assert result_of(value) == result
    assert type(result_of(value).output) in (str, type(None))


# -- errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (ToolError("no", code="refused"), ErrorInfo("tool_error", "refused", "no")),
        (HandlerExit(ToolError("no", code="refused")), ErrorInfo("tool_error", "refused", "no")),
        (CallCancelled("gone"), ErrorInfo("cancelled", message="gone")),
        (ValueError("broken"), ErrorInfo("tool_error", "ValueError", "broken")),
        (ValueError(), ErrorInfo("tool_error", "ValueError", "ValueError")),
        (KeyboardInterrupt(), ErrorInfo("tool_error", "KeyboardInterrupt", "KeyboardInterrupt")),
        (Unspeakable(), ErrorInfo("tool_error", "Unspeakable", "Unspeakable")),
    ],
)
def test_an_exception_becomes_an_error(raised: BaseException, error: ErrorInfo) -> None:
    """The error says what the exception says, or its name when it says nothing or can't be asked."""
    assert error_of(raised) == msgspec.structs.replace(error, origin="tool")


@pytest.mark.parametrize(
    ("raised", "code", "says"),
    [
        (SystemExit(3), "SystemExit", "exit"),
        (HandlerExit(SystemExit(3)), "SystemExit", "exit"),
        (asyncio.CancelledError(), "CancelledError", "cancelled"),
        (EnvelopeError("too deep"), "unencodable_result", "too deep"),
    ],
)
def test_an_exit_becomes_an_error_with_an_explanation(raised: BaseException, code: str, says: str) -> None:
    """Its text alone would not tell the caller anything."""
    error = error_of(raised)
    assert (error.type, error.code) == ("tool_error", code)
    assert says in error.message


def test_an_exception_is_told_by_its_text_or_its_name() -> None:
    """Also when its class raises what would end the program."""
    assert [said(ValueError("broken")), said(ValueError()), said(Unspeakable())] == ["broken", "ValueError", "Unspeakable"]


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (KeyError("missing"), "KeyError: 'missing'"),
        (KeyError(), "KeyError"),
        (ValueError(" "), "ValueError"),
        (ValueError(3), "ValueError: 3"),
        (IndexError(()), "IndexError: ()"),
        (AssertionError(), "AssertionError"),
        (ValueError("é"), "é"),
    ],
)
def test_a_text_that_says_nothing_alone_is_told_with_the_name(raised: Exception, told: str) -> None:
    """A key, a number or nothing does not tell a model what went wrong."""
    assert error_of(raised) == ErrorInfo("tool_error", type(raised).__name__, told, origin="tool")


def test_an_error_type_that_does_not_exist_is_told() -> None:
    """The message names it, for the log and the caller, and the error is a tool_error."""
    error = error_of(ToolError("hm", type="no_such_type", code="c"))  # type: ignore[arg-type]
    assert error == ErrorInfo("tool_error", "c", "hm (its error type, 'no_such_type', does not exist)", origin="tool")


# -- arguments that another descriptor allowed --------------------------------------------------------


@pytest.mark.parametrize("type_", ["invalid_arguments", "not_found"])
async def test_a_call_for_another_revision_is_not_the_callers_mistake(type_: ErrorType) -> None:
    """The call may succeed once the caller knows this revision; the message has the reason and both digests."""
    publication = Bench(echo).slots._served["unit"].publication
    told = other_revision(ErrorInfo(type_, message="not a number"), Request("c", "a", "unit", digest="other"), publication)
    assert (told.type, told.code, told.retryable) == ("unavailable", "other_revision", True)
    for part in ("not a number", "other", publication.digest):
        assert part in told.message


async def test_other_errors_do_not_speak_of_descriptors() -> None:
    """The same descriptor, a caller that checked nothing, and a failure of another kind leave the error as it is."""
    publication = Bench(echo).slots._served["unit"].publication
    error = ErrorInfo("invalid_arguments", "bad", "not a number")
    assert other_revision(error, Request("c", "a", "unit", digest=publication.digest), publication) is error
    assert other_revision(error, Request("c", "a", "unit"), publication) is error
    for failure in (ErrorInfo("tool_error", "bad", "broken"), ErrorInfo("not_found", message="no order", origin="tool")):
        assert other_revision(failure, Request("c", "a", "unit", digest="other"), publication) is failure


# -- what is sent -------------------------------------------------------------------------------------


def test_an_error_that_json_can_not_express_is_replaced() -> None:
    """Its type stays, and the text says why it says no more."""
    plain = ErrorInfo("rate_limited", "slow", "later", details={"at": 1})
    assert encodable(plain) is plain
    replaced = encodable(ErrorInfo("rate_limited", "slow", "later", details=object()))
    assert (replaced.type, replaced.code) == ("rate_limited", "unencodable_error")
    assert "JSON" in replaced.message


async def test_a_refusal_is_one_last_frame() -> None:
    """It names the delivery, the worker and the time that the request waited."""
    delivery = Bench(echo).delivery("echo", epoch=4, attempt=2, queued_ms=12.34)
    frame = frame_of(refusal(delivery, "worker-1", ErrorInfo("not_found")))
    assert (frame.id, frame.run, frame.attempt, frame.epoch) == ("call-1", "run-1", 2, 4)
    assert (frame.kind, frame.end_of_stream, frame.error) == ("end", True, ErrorInfo("not_found"))
    assert (frame.worker, frame.queued_ms) == ("worker-1", 12.3)


# -- exits --------------------------------------------------------------------------------------------


async def leave(error: BaseException) -> None:
    """Raise an exception."""
    raise error


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_an_exit_of_a_users_code_is_contained(error: BaseException) -> None:
    """It ends neither the program nor its task; the exception names it and keeps it."""
    with pytest.raises(HandlerExit, match=type(error).__name__) as caught:
        await without_exits(leave(error))
    assert caught.value.raised is error
    assert caught.value.__cause__ is error


async def test_results_and_exceptions_of_a_users_code_pass() -> None:
    """Only exits are contained."""

    async def work() -> int:
        return 7

    assert await without_exits(work()) == 7
    with pytest.raises(ValueError, match=r"^broken$"):
        await without_exits(leave(ValueError("broken")))


async def test_a_cancellation_from_outside_passes() -> None:
    """A cancellation from outside reaches the caller, and an exit that a user's code raises instead of it is contained."""

    async def wait(answer: BaseException | None) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if answer is not None:
                raise answer from None
            raise

    ends: list[Any] = []
    for answer in (None, SystemExit(3)):
        task = asyncio.get_running_loop().create_task(without_exits(wait(answer)))
        await asyncio.sleep(1)
        task.cancel()
        ends += await asyncio.gather(task, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError, HandlerExit]
