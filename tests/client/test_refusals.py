"""The errors of calls that were not published."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from toolbus.bus.broker.protocols import Verdict
from toolbus.bus.client.calls.refusals import (
    refusal_of,
    unavailable,
    unfinished,
    unknown_service,
    unknown_tool,
    untaken,
    withdrawn,
    wrong_arguments,
)
from toolbus.bus.client.tools.catalogue import Catalogue, Documents
from toolbus.bus.values.results import ErrorInfo

NOTHING = SimpleNamespace(tools={}, reason=lambda name: "")
"""No tool is withheld."""


@pytest.mark.parametrize(
    ("verdict", "type", "code", "retryable", "retry_after", "names"),
    [
        (Verdict("full", depth=7), "overloaded", "", True, 1.0, "'s'"),
        (Verdict("absent"), "unavailable", "", True, None, "'s'"),
        (Verdict("conflict"), "invalid_arguments", "idempotency_conflict", False, None, "idempotency key"),
        (Verdict("late", message="too late"), "deadline_exceeded", "not_taken", True, None, "too late"),
        (Verdict("unknown", message="gone"), "outcome_unknown", "", False, None, "gone"),
        (Verdict("failed", message="OOM command not allowed"), "overloaded", "", True, 1.0, "OOM command not allowed"),
        (Verdict("failed", message="the server refuses"), "unavailable", "", True, None, "the server refuses"),
    ],
)
def test_each_verdict_has_its_error(verdict: Verdict, type: str, code: str, retryable: bool, retry_after: float | None, names: str) -> None:
    """A call that the broker did not publish ends with the error of its reason, which names the service or what the server said."""
    error = refusal_of(verdict, "s")
    assert (error.type, error.code, error.retryable, error.retry_after) == (type, code, retryable, retry_after)
    assert names in error.message


def test_a_full_queue_tells_its_depth() -> None:
    """The error of a full queue names the service and the number of requests."""
    error = refusal_of(Verdict("full", depth=7), "s")
    assert "'s' holds 7 requests" in error.message
    assert error.details == {"depth": 7}


def test_an_unknown_tool_has_no_hint_in_an_empty_catalogue() -> None:
    """Without similar names the error only says that there is no such tool."""
    error = unknown_tool("adder", Catalogue())
    assert (error.type, error.message, error.details) == ("not_found", "there is no tool 'adder'", None)


def test_a_refused_tool_is_told_with_the_reason() -> None:
    """A tool whose descriptor can't be used is not found, for the reason of its own refusal and not of another tool's."""
    others = SimpleNamespace(name="other", service="o", reason="too long")
    refused = SimpleNamespace(name="adder", service="calc", reason="no name")
    error = unknown_tool("adder", SimpleNamespace(refused=lambda: [others, refused], tools={}, withholding=NOTHING))
    assert (error.type, error.code, error.retryable) == ("not_found", "refused", False)
    assert all(word in error.message for word in ("'adder'", "'calc'", "no name"))


def test_a_tool_that_waits_for_approval_says_so() -> None:
    """The error names the command that approves it; another name is unknown."""
    catalogue = Catalogue()
    catalogue.on_item("pending/adder", b"{}")
    error = unknown_tool("adder", catalogue)
    assert (error.type, error.code, error.retryable) == ("not_found", "pending", False)
    assert "`toolbus secure approve adder`" in error.message
    assert unknown_tool("other", catalogue).code == "unknown_tool"


def test_similar_names_are_suggested() -> None:
    """The names of similar tools are in the message, for a model, and in the details, for a program."""
    near = {("ader", ""): ["adder", "reader"]}
    error = unknown_tool(
        "ader",
        SimpleNamespace(refused=list, near=lambda *asked: near[asked], tools={}, former={}, withholding=NOTHING, documents=Documents()),
    )
    assert (error.type, error.code, error.details) == ("not_found", "unknown_tool", {"near": ["adder", "reader"]})
    assert "'adder', 'reader'" in error.message


@pytest.mark.parametrize(("ago", "said"), [(0.2, "1 s"), (61.6, "62 s")])
def test_a_tool_that_is_gone_says_since_when(ago: float, said: str) -> None:
    """A withdrawn tool may come back, so the call may be retried; one that is withheld says the reason of that."""
    tool = SimpleNamespace(name="adder", service="calc")
    reasons = {"adder": ""}
    former = {"adder": (tool, time.monotonic() - ago)}
    catalogue = SimpleNamespace(former=former, withholding=SimpleNamespace(reason=reasons.get))
    expected = f"the tool 'adder' was there until {said} ago; its service 'calc' has stopped, or offers it no more"
    assert withdrawn(tool, catalogue) == ErrorInfo("unavailable", "withdrawn", expected, retryable=True)
    reasons["adder"] = "no name"
    assert withdrawn(tool, catalogue) == ErrorInfo("not_found", "refused", "the tool 'adder' of 'calc' can't be used: no name")


def test_an_unknown_service_is_named() -> None:
    """A service that nobody registered is not found."""
    error = unknown_service("calc")
    assert (error.type, error.code, error.retryable) == ("not_found", "unknown_service", False)
    assert "'calc'" in error.message


def test_what_nobody_serves_may_be_tried_again() -> None:
    """A known tool without a worker is unavailable for now, and the message says what to do."""
    error = unavailable("tool 'add'", "calc")
    assert (error.type, error.code, error.retryable) == ("unavailable", "no_worker", True)
    assert all(word in error.message for word in ("tool 'add'", "'calc'", "wait="))


@pytest.mark.parametrize(
    ("available", "why"),
    [(True, "every worker of 'calc' was busy or did not answer, or the service is paused"), (False, "no live worker serves 'calc' now")],
)
def test_what_no_worker_took_did_not_run(available: bool, why: str) -> None:
    """The error says that the call did not run, and why no worker took it."""
    error = untaken(ErrorInfo("deadline_exceeded", message="late"), "calc", available=available)
    assert error == ErrorInfo("deadline_exceeded", "not_taken", f"late: no worker took the call, so it did not run; {why}")


@pytest.mark.parametrize(
    ("waited", "available", "code", "said"),
    [
        (0.0, True, "not_finished", "late: a worker took it and did not finish it in time"),
        (8_000.0, True, "began_late", "late: a worker took it and did not finish it in time"),
        (0.0, False, "worker_lost", "late: the worker that took it has stopped, and no live worker serves 'calc' now"),
    ],
)
def test_what_a_worker_did_not_finish_says_what_kept_it(waited: float, available: bool, code: str, said: str) -> None:
    """The code tells a call that took too long from one that began late and one whose worker was lost."""
    error = unfinished(ErrorInfo("deadline_exceeded", message="late"), "calc", 9.0, waited, available=available)
    assert (error.type, error.code) == ("deadline_exceeded", code)
    assert error.message.startswith(said)


def test_arguments_that_are_no_object_are_named_by_their_type() -> None:
    """Arguments that can't be checked at all are the caller's mistake."""
    error = wrong_arguments([1])
    assert (error.type, error.retryable) == ("invalid_arguments", False)
    assert "list" in error.message
