"""Results, errors and the exception tree."""

from __future__ import annotations

import inspect
import pickle
from typing import get_args

import msgspec
import pytest

from toolbus.bus.values import results
from toolbus.bus.values.results import (
    Blob,
    DescriptorError,
    ErrorInfo,
    Progress,
    RegistrationRefused,
    ResultMeta,
    ToolbusError,
    ToolError,
    ToolResult,
)


def test_ok_and_fail_build_results() -> None:
    """ok() is a success with data, fail() a failure whose plain string is a tool_error."""
    assert ToolResult.ok({"a": 1}, output="one") == ToolResult(data={"a": 1}, output="one")
    failed = ToolResult.fail("no luck", output="half")
    assert (failed.success, failed.output, failed.error) == (False, "half", ErrorInfo("tool_error", message="no luck"))
    assert ToolResult.fail(ErrorInfo("forbidden")).error == ErrorInfo("forbidden")


@pytest.mark.parametrize(
    ("result", "seen"),
    [
        (ToolResult(output="text", data={"a": 1}), "text"),
        (ToolResult.ok({"a": [1, None]}), '{"a":[1,null]}'),
        (ToolResult.ok("already text"), '"already text"'),
        (ToolResult(), ""),
        (ToolResult.fail("no luck"), "Error (tool_error): no luck"),
        (ToolResult.fail("no luck", output="half"), "half\nError (tool_error): no luck"),
        (ToolResult.fail(ErrorInfo("overloaded", code="E42")), "Error (overloaded): E42"),
        (ToolResult.fail(ErrorInfo("overloaded")), "Error (overloaded): the tool failed"),
    ],
)
def test_observation_is_what_a_model_sees(result: ToolResult, seen: str) -> None:
    """The text, else the data as JSON, and a failure after any partial text."""
    assert result.observation == seen
    assert str(result) == seen


def test_to_dict_has_exactly_three_keys() -> None:
    """to_dict() is success, data (the text when there is none) and the error as text."""
    assert ToolResult(output="text").to_dict() == {"success": True, "data": "text", "error": None}
    assert ToolResult.ok(0, output="text").to_dict() == {"success": True, "data": 0, "error": None}
    failed = ToolResult.fail(ErrorInfo("forbidden", message="not you"))
    assert failed.to_dict() == {"success": False, "data": None, "error": "forbidden: not you"}


def test_results_travel_as_json_and_pickle() -> None:
    """A full result survives JSON and pickling unchanged, blobs among it."""
    error = ErrorInfo("rate_limited", "E1", "slow", retryable=True, retry_after=1.5, details={"x": [1]})
    meta = ResultMeta("c1", 2, "w1", 3.5)
    result = ToolResult(False, "half", {"a": 1}, error, (Blob("image/png", b"\x00\xff"),), meta)
    assert msgspec.json.decode(msgspec.json.encode(result), type=ToolResult) == result
    assert pickle.loads(pickle.dumps(result)) == result


def test_results_are_frozen() -> None:
    """A result can't be changed after the fact."""
    with pytest.raises(AttributeError):
        ToolResult().success = False  # type: ignore[misc]


def test_error_types_are_a_closed_set() -> None:
    """Decoding an error of another type is refused."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"type":"surprise"}', type=ErrorInfo)
    assert {"tool_error"} < results.ERROR_TYPES == set(get_args(results.ErrorType)), "each word of ErrorType has a row in ERROR_KINDS"


def test_error_reads_as_type_and_message() -> None:
    """An error's text is its type, and its message when it has one."""
    assert str(ErrorInfo("not_found")) == "not_found"
    assert str(ErrorInfo("not_found", message="no such tool")) == "not_found: no such tool"


def test_tool_error_carries_an_error_info() -> None:
    """ToolError takes an ErrorInfo, or a message with its fields."""
    info = ErrorInfo("rate_limited", "E1", "slow", retryable=True, retry_after=2.0, details=[1])
    assert ToolError(info).error is info
    assert ToolError("slow", type="rate_limited", code="E1", retryable=True, retry_after=2.0, details=[1]).error == info
    assert str(ToolError("slow")) == "tool_error: slow"


def test_progress_knows_when_the_total_is_unknown() -> None:
    """Progress without a total leaves it out of its JSON."""
    assert msgspec.json.encode(Progress(3.0)) == b'{"done":3.0}'


def test_exception_tree_is_as_drawn() -> None:
    """Every exception of the module descends from ToolbusError and stands in the drawing at its top, under its parent."""
    drawing = [line for line in (results.__doc__ or "").splitlines() if "──" in line or line.strip() == "ToolbusError"]
    parents: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in drawing:
        name = line.replace("│", " ").lstrip(" ├└─").split()[0]
        depth = line.index(name)
        while path and path[-1][0] >= depth:
            path.pop()
        parents[name] = path[-1][1] if path else "Exception"
        path.append((depth, name))
    classes = [each for _, each in inspect.getmembers(results, inspect.isclass) if issubclass(each, Exception)]
    assert {each.__name__: each.__bases__[0].__name__ for each in classes} == parents
    assert all(issubclass(each, ToolbusError) for each in classes)


@pytest.mark.parametrize(
    "error",
    [
        ToolError(ErrorInfo("forbidden", message="not you")),
        ToolError("slow", type="rate_limited"),
        DescriptorError("wrong", path="$.name"),
        RegistrationRefused("taken", {"add": "other"}),
    ],
)
def test_exceptions_survive_pickling(error: ToolbusError) -> None:
    """Exceptions with fields of their own come back whole from another process."""
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
