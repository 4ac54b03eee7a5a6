"""The next step that a model is told after each failure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import toolbus
from toolbus import ErrorInfo, ToolResult
from toolbus.bus.client.calls import refusals
from toolbus.bus.client.executor.observers import AFTER, next_step, observe, waiting
from toolbus.bus.values import envelope
from toolbus.bus.values.results import ERROR_KINDS, ErrorType, deadline_exceeded
from toolbus.middleware.limits import Quota, RateLimit

PACKAGE = Path(toolbus.__file__).parent
# What a model can't do or know: options of programs, names of Python, keys.
NOT_FOR_MODELS = re.compile(r"wait=|--|\btoolbus\b|idempotency key|await |None\b|[{}]")
# Codes of which the type already says what is true.
BY_TYPE = {
    ("unavailable", "withdrawn"), ("unavailable", "no_worker"), ("unavailable", "circuit_open"), ("unavailable", "not_replicated"),
    ("unavailable", "no_process"), ("unavailable", "rate_limit"), ("unavailable", "quota"), ("rate_limited", "rate_limit"),
    ("rate_limited", "quota"), ("overloaded", "confirmations"), ("forbidden", "denied"), ("cancelled", envelope.NOT_BEGUN),
    ("deadline_exceeded", "idle_timeout"), ("slow_consumer", "gateway_buffer"),
    ("invalid_arguments", "bad_json"), ("invalid_arguments", "bad_reference"),
    ("invalid_arguments", "malformed_request"), ("tool_error", "max_deliveries"), ("tool_error", "process_died"),
    ("unavailable", "frames_refused"), ("tool_error", "CancelledError"), ("tool_error", "SystemExit"),
    # Of recorded tools.
    ("unavailable", "tool_failed"), ("unavailable", "tool_closed"), ("unavailable", "not_reached"),
    # Of mounted servers and APIs.
    ("forbidden", "forbidden_address"), ("invalid_arguments", "unfit"), ("not_found", "unknown_host"), ("not_found", "unmounted"),
    ("tool_error", "bad_answer"), ("tool_error", "bad_redirect"), ("tool_error", "mcp_tool_error"), ("tool_error", "redirect_refused"),
    ("tool_error", "too_long"), ("tool_error", "too_many_redirects"), ("unavailable", "connection_lost"), ("unavailable", "mount_down"),
    ("unavailable", "mount_ended"), ("unavailable", "no_network"), ("unavailable", "no_secret"), ("unavailable", "unreachable"),
    # Of recorded tools.
    ("tool_error", "program"), ("unavailable", "no_token"), ("unavailable", "not_reached"), ("unavailable", "tool_closed"),
    ("unavailable", "tool_failed"),
    # Of the coding agent.
    ("forbidden", "no_docker"), ("forbidden", "no_network"), ("forbidden", "not_yours"),
    ("invalid_arguments", "bad_example"), ("invalid_arguments", "bad_project"),
    ("invalid_arguments", "bad_record"), ("invalid_arguments", "bad_schema"), ("invalid_arguments", "bad_text"),
    ("invalid_arguments", "id_taken"), ("not_found", "no_environment"), ("not_found", "no_file"), ("not_found", "no_handle"),
    ("not_found", "no_project"), ("not_found", "no_task"), ("overloaded", "creations"), ("tool_error", "docker_failed"),
    ("tool_error", "exists"), ("tool_error", "io_error"), ("tool_error", "no_text"), ("tool_error", "too_many"),
    ("tool_error", "too_many_programs"), ("tool_error", "uv_failed"), ("tool_error", "workspace_full"),
}  # fmt: skip
CONSTANTS = {"WORKER_LOST": refusals.WORKER_LOST, **{name: getattr(envelope, name) for name in ("NOT_BEGUN", "NOT_TAKEN", "NOT_FINISHED")}}


def said_by_code() -> set[tuple[str, str]]:
    """Return the types and codes of all errors that toolbus itself makes, as its source says them."""
    found = {(kind, made.code) for made in (RateLimit, Quota) for kind in ("rate_limited", "unavailable")}
    for path in PACKAGE.rglob("*.py"):
        if not {"compat", "cli", "demo"} & set(path.relative_to(PACKAGE).parts):
            for node in calls(path, "ErrorInfo", "ToolError", "deadline_exceeded"):
                if isinstance(node.func, ast.Name):
                    found |= set(of_call(node))
    return {(kind, code) for kind, code in found if code}


def calls(path: Path, *names: str) -> list[ast.Call]:
    """Return the calls of a file that has one of these names."""
    text = path.read_text("utf-8")
    tree = ast.parse(text if any(name in text for name in names) else "")
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def of_call(node: ast.Call) -> Iterator[tuple[str, str]]:
    """Yield the type and code of an error that is made here."""
    assert isinstance(node.func, ast.Name)
    named = {each.arg: each.value for each in node.keywords}
    if node.func.id == "ErrorInfo" and node.args:
        code = node.args[1] if len(node.args) > 1 else named.get("code")
        yield from ((kind, text) for kind in texts(node.args[0]) for text in texts(code))
    elif node.func.id == "deadline_exceeded":
        code = node.args[1] if len(node.args) > 1 else named.get("code")
        yield from (("deadline_exceeded", text) for text in texts(code))
    elif node.func.id == "ToolError":
        kinds = list(texts(named.get("type"))) or ["tool_error"]
        yield from ((kind, text) for kind in kinds for text in texts(named.get("code")))


@pytest.mark.usefixtures("slow")
def test_the_bus_makes_timeouts_in_one_place() -> None:
    """So they are retryable wherever they come from."""
    made = deadline_exceeded("late")
    assert (made.type, made.retryable) == ("deadline_exceeded", True)
    elsewhere = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for node in calls(path, "ErrorInfo", "ToolError")
        if isinstance(node.func, ast.Name) and node.func.id in {"ErrorInfo", "ToolError"}
        for kind in (*node.args[:1], *(each.value for each in node.keywords if each.arg == "type"))
        if "deadline_exceeded" in texts(kind) and path.name != "results.py"
    ]
    assert elsewhere == []


def texts(node: ast.expr | None) -> Iterator[str]:
    """Yield the texts that an expression can be, as far as the source says them."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Name) and node.id in CONSTANTS:
        yield CONSTANTS[node.id]
    elif isinstance(node, ast.IfExp):
        yield from texts(node.body)
        yield from texts(node.orelse)


@pytest.mark.usefixtures("slow")
def test_every_code_has_been_thought_of() -> None:
    """Each error that toolbus makes has a next step of its own, or is listed here because its type's is true of it."""
    unknown = said_by_code() - AFTER.keys() - BY_TYPE
    # That a once call may have had its effect is true for every reason.
    assert {(kind, code) for kind, code in unknown if kind != "outcome_unknown"} == set()
    assert not BY_TYPE & AFTER.keys()
    assert ERROR_KINDS.keys() == set(get_args(ErrorType))


@pytest.mark.parametrize(("kind", "code"), sorted({*AFTER, *BY_TYPE, *((kind, "of_a_tools_own") for kind in ERROR_KINDS)}))
def test_every_failure_is_told_with_a_next_step(kind: ErrorType, code: str) -> None:
    """Each type and code ends with a step that a model can take, without words for programs, and with whole waits."""
    for retry_after in (None, 0.0004, 12.3456):
        error = ErrorInfo(kind, code, "it went wrong", retryable=kind == "unavailable", retry_after=retry_after)
        failure, step = observe(ToolResult.fail(error)).split("\n")
        assert failure == f"Error ({kind}): it went wrong"
        assert re.fullmatch(r"Next: [a-z].{15,}[a-z]\.", step), step
        assert not NOT_FOR_MODELS.search(step)
        assert not re.search(r"\d\.\d|\d\d\d", step)
        if retry_after and (kind, code) not in AFTER and "{" in ERROR_KINDS[kind].next_step:
            assert waiting(retry_after) in step


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.0004, "1 second"), (1, "1 second"), (1.0001, "1 second"), (1.2, "2 seconds"), (29.99, "30 seconds"), (180, "180 seconds"),
        (181, "4 minutes"), (10_800, "180 minutes"), (10_801, "4 hours"), (86_400, "24 hours"), (259_201, "4 days"),
        (1e300, "a long time"), (float("inf"), "a long time"), (float("nan"), "a long time"),
    ],
)  # fmt: skip
def test_waits_are_whole(seconds: float, told: str) -> None:
    """A wait is rounded up to whole seconds, minutes, hours or days."""
    assert waiting(seconds) == told


@pytest.mark.parametrize(
    ("type", "code", "untrue"),
    [
        # A tool's own not_found is about a page or a file.
        ("not_found", "no_file", "use a tool that you were given"),
        # Nobody answered; the task was not too large.
        ("deadline_exceeded", "unconfirmed", "ask for less"),
        # The worker died; the tool did not run too long.
        ("deadline_exceeded", "worker_lost", "ask for less,"),
        ("tool_error", "unencodable_result", "change the arguments"),
        ("tool_error", "session_lost", "the same call is likely to fail again"),
        ("invalid_arguments", "idempotency_conflict", "fix the arguments"),
    ],
)
def test_what_is_not_true_is_not_said(type: ErrorType, code: str, untrue: str) -> None:
    """A code with another reason than its type usually has does not get the usual advice."""
    assert untrue not in next_step(ErrorInfo(type, code, "no"))
