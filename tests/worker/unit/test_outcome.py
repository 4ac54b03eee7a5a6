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
from toolbus.bus.worker.outcome import (
    HandlerExit,
    checked,
    encodable,
    error_of,
    no_session,
    other_revision,
    pieces_of,
    refusal,
    result_of,
    said,
    without_exits,
)

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


PNG = b"\x89PNG\r\n\x1a\n"
_IMAGE, _OTHER = ({"attachment": 0, "media_type": kind, "bytes": 8} for kind in ("image/png", "application/octet-stream"))


def _at(place: int, noted: dict[str, Any]) -> dict[str, Any]:
    return {**noted, "attachment": place}


@pytest.mark.parametrize(
    ("value", "data", "content"),
    [
        (PNG, None, [Blob("image/png", PNG)]),
        (memoryview(bytearray(b"12345678")), None, [Blob("application/octet-stream", b"12345678")]),
        (ToolResult(data={"x": bytearray(PNG)}), {"x": _IMAGE}, [Blob("image/png", PNG)]),
        ({"a": {"b": [PNG, 1, {"c": None}]}}, {"a": {"b": [_IMAGE, 1, {"c": None}]}}, [Blob("image/png", PNG)]),
        ((b"1" * 8, [PNG]), [_OTHER, [_at(1, _IMAGE)]], [Blob("application/octet-stream", b"1" * 8), Blob("image/png", PNG)]),
        ([Blob("image/gif", b"12")], [{"attachment": 0, "media_type": "image/gif", "bytes": 2}], [Blob("image/gif", b"12")]),
        (ToolResult(data=[PNG], content=(BLOB,)), [_at(1, _IMAGE)], [BLOB, Blob("image/png", PNG)]),
        (ToolResult(output="o", data=[BLOB]), [{"attachment": 0, "media_type": "image/png", "bytes": 2}], [BLOB]),
        # What only looks like a blob is none.
        ([{"media_type": 1, "data": PNG}], [{"media_type": 1, "data": _IMAGE}], [Blob("image/png", PNG)]),
        (
            [{"media_type": "m", "data": "text"}, b"1" * 8],
            [{"media_type": "m", "data": "text"}, _OTHER],
            [Blob(_OTHER["media_type"], b"1" * 8)],
        ),
        ([{"media_type": "m", "data": PNG, "c": 1}], [{"media_type": "m", "data": _IMAGE, "c": 1}], [Blob("image/png", PNG)]),
    ],
)
def test_bytes_of_a_result_travel_beside_it(value: object, data: Any, content: list[Blob]) -> None:
    """Base64 within data is of no use to a model: in their place stands which part of the content they are."""
    made = result_of(value)
    assert (made.data, list(made.content)) == (data, content)
    assert all(type(blob.data) is bytes for blob in made.content)
    assert made.output == (value.output if isinstance(value, ToolResult) else "" if data is None else None)


def test_bytes_are_counted_on_from_what_a_stream_has_sent() -> None:
    """Places of attachments count on from the content that the call has sent before."""
    assert checked(ToolResult(data=[PNG, PNG], content=(BLOB,)), 3).data == [_at(4, _IMAGE), _at(5, _IMAGE)]
    assert list(pieces_of({"a": PNG}, 2)) == ['{"a":{"attachment":2,"media_type":"image/png","bytes":8}}', Blob("image/png", PNG)]
    assert list(pieces_of(PNG, 2)) == [Blob("image/png", PNG)]
    assert list(pieces_of(None, 2)) == []


class Odd:
    """A class whose values raise when they are asked for anything."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.mark.parametrize("value", [[1, {"a": (2.5, None)}], {"n": 10**20}, [Odd(), b"1"], {"t": {"é": Title("t")}}])
def test_values_without_bytes_stay_as_they_are(value: object) -> None:
    """Data without bytes is not copied, and neither is what can't be encoded, so that the encoder says why."""
    made = result_of(value)
    assert made.data is value
    assert made.content == ()


def test_bytes_are_found_at_any_depth() -> None:
    """Bytes are found below thirty levels, and a value that refers to itself is left to the encoder."""
    deep: Any = PNG
    for _ in range(30):
        deep = [deep, 1]
    assert result_of(deep).content == (Blob("image/png", PNG),)
    ring: list[Any] = []
    ring += [ring, ring, 1]
    assert result_of(ring).data is ring


@pytest.mark.parametrize(
    ("result", "rule"),
    [
        (ToolResult(output=1), "output is a text or None, not int"),  # type: ignore[arg-type]
        (ToolResult(error="no"), "error is an ErrorInfo or None (ToolResult.fail(…) takes a text), not str"),  # type: ignore[arg-type]
        (ToolResult(content="ab"), "content is a tuple of Blobs, not str"),  # type: ignore[arg-type]
        (ToolResult(content=("ab",)), "content is a tuple of Blobs, not str"),  # type: ignore[arg-type]
        (ToolResult(content={}), "content is a tuple of Blobs, not dict"),  # type: ignore[arg-type]
    ],
)
def test_a_result_with_a_field_of_another_type_is_the_handlers_failure(result: ToolResult, rule: str) -> None:
    """The error is the tool's bad_result, and says which field is wrong and what it must be."""
    with pytest.raises(ToolError) as raised:
        result_of(result)
    assert raised.value.error == ErrorInfo("tool_error", "bad_result", f"the tool's ToolResult can't be sent: {rule}")


def test_a_result_is_made_whole() -> None:
    """Subclasses of text become text, a list of blobs a tuple, an error the tool's; a result that is right is not copied."""
    error = ErrorInfo("unavailable", "c", "m", origin="bus")
    made = result_of(ToolResult(False, Title("t"), None, error, [BLOB]))  # type: ignore[arg-type]
    assert made == ToolResult(False, "t", None, msgspec.structs.replace(error, origin="tool"), (BLOB,))
    assert type(made.output) is str
    assert result_of(RESULT) is RESULT


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


def test_a_call_without_the_session_that_its_tool_needs_is_refused() -> None:
    """The error no_session names the tool and says how to call it in a session."""
    error = no_session(Request("c", "a", "unit", "look")).error
    assert (error.type, error.code) == ("invalid_arguments", "no_session")
    assert error.message == (
        "'look' keeps a state for each session, and this call names none: call it in one, with bus.session() or bus.bind(session=…)"
    )


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
