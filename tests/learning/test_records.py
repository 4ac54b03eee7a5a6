"""Executions as they travel: checked in both directions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.learning.samples import execution
from toolbus import ErrorInfo, ToolResult
from toolbus.toolkit.learning import RecordError
from toolbus.toolkit.learning.stores import MAX_RECORD, decode, encode, outcome_of


def test_a_record_is_what_was_written() -> None:
    """Every field survives, and the version stands in every record."""
    whole = execution(
        1, shown={"sql": 0.5, "grep": 1.0}, next_shown={"report": 0.25}, query="How many?\n", revision="0001-abcdef01", ms=2.5
    )
    assert decode(encode(whole), "here") == whole
    assert json.loads(encode(execution()))["v"] == 1
    assert b"\n" not in encode(whole)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tool": ""}, "$.tool"),
        ({"episode": "e" * 257}, "$.episode"),
        ({"position": -1}, "$.position"),
        ({"at": float("nan")}, "$.at"),
        ({"ms": -1.0}, "$.ms"),
        ({"outcome": "great"}, "$.outcome"),
        ({"shown": {"sql": 0.0}}, "$.shown"),
        ({"shown": {"sql": 1.5}}, "$.shown"),
        ({"shown": {str(number): 1.0 for number in range(1001)}}, "$.shown"),
        ({"query": "q" * 4097}, "$.query"),
    ],
)
def test_a_field_out_of_bounds_is_named(fields: dict[str, Any], said: str) -> None:
    """A value that can't be recorded is refused when it is written, and the error names its path."""
    with pytest.raises(RecordError, match="execution 'x0'") as refused:
        encode(execution(**fields))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (b"", "no execution"),
        (b"null", "no execution"),
        (b"[" * 100_000, "no execution"),
        (b'{"v":1', "no execution"),
        (b'{"v":2,"id":"x"}', "version 2; this release reads version 1"),
        (b'{"v":1,"id":"x","episode":"\xff"}', "no execution"),
        (b'{"v":1,"id":"x","at":1e999}', "no execution"),
        (b" " * (MAX_RECORD + 1), "at most"),
    ],
)
def test_what_is_no_record_is_refused_with_its_place(document: bytes, said: str) -> None:
    """Hostile documents end in one error that says where."""
    with pytest.raises(RecordError, match=r"^log\.jsonl:17: ") as refused:
        decode(document, "log.jsonl:17")
    assert said in str(refused.value)


def test_only_what_is_the_tools_own_doing_is_a_failure() -> None:
    """A busy pool, a refusal and a cancellation do not count against a tool."""
    found = {kind: outcome_of(ToolResult.fail(ErrorInfo(kind))) for kind in ("tool_error", "invalid_arguments", "deadline_exceeded")}
    assert set(found.values()) == {"failure"}
    others = {kind: outcome_of(ToolResult.fail(ErrorInfo(kind))) for kind in ("cancelled", "forbidden", "overloaded", "rate_limited")}
    assert others == {"cancelled": "cancelled", "forbidden": "refused", "overloaded": "unavailable", "rate_limited": "unavailable"}
    assert outcome_of(ToolResult.ok(1)) == "success"
