"""The errors of calls that were not published."""

from __future__ import annotations

import pytest

from toolbus.broker.protocols import Verdict
from toolbus.client.calls.refusals import refusal_of, unknown_tool
from toolbus.client.tools.catalogue import Catalogue


@pytest.mark.parametrize(
    ("verdict", "type", "code", "retryable"),
    [
        (Verdict("full", depth=7), "overloaded", "", True),
        (Verdict("absent"), "unavailable", "", True),
        (Verdict("conflict"), "invalid_arguments", "idempotency_conflict", False),
        (Verdict("unknown", message="gone"), "outcome_unknown", "", False),
        (Verdict("failed", message="OOM command not allowed"), "overloaded", "", True),
        (Verdict("failed", message="the server refuses"), "unavailable", "", True),
    ],
)
def test_each_verdict_has_its_error(verdict: Verdict, type: str, code: str, retryable: bool) -> None:
    """A call that the broker did not publish ends with the error of its reason."""
    error = refusal_of(verdict, "s")
    assert (error.type, error.code, error.retryable) == (type, code, retryable)


def test_a_full_queue_tells_its_depth() -> None:
    """The error of a full queue names the service and the number of requests."""
    error = refusal_of(Verdict("full", depth=7), "s")
    assert "'s' holds 7 requests" in error.message
    assert error.details == {"depth": 7}


def test_an_unknown_tool_has_no_hint_in_an_empty_catalogue() -> None:
    """Without similar names the error only says that there is no such tool."""
    error = unknown_tool("adder", Catalogue())
    assert (error.type, error.message, error.details) == ("not_found", "there is no tool 'adder'", None)
