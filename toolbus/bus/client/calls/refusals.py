"""The errors of calls that were not published, not taken or not finished."""

from __future__ import annotations

import time

import msgspec

from toolbus.bus.broker.protocols import Verdict
from toolbus.bus.client.tools.catalogue import Catalogue
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.envelope import NOT_TAKEN, late_code, waited_for
from toolbus.bus.values.naming import did_you_mean
from toolbus.bus.values.results import ConfigurationError, ErrorInfo, deadline_exceeded
from toolbus.bus.values.rules import told


def check_name(name: object) -> None:
    """Refuse what can't be a tool's name.

    Raises:
        ConfigurationError: it is no text.
    """
    if not isinstance(name, str):
        raise ConfigurationError(f"the name of a tool is a text, not {told(name)}")


FOR_PROGRAMS = "; pass wait=… to wait for one"
"""The end of a message that is of no use to a model."""
WORKER_LOST = "worker_lost"
"""The code of a call whose time was up after its worker had stopped."""


def unknown_tool(name: str, catalogue: Catalogue, user: str = "") -> ErrorInfo:
    """Return ``not_found`` for a tool: refused, waiting for approval, or unknown, then with similar names that the user may see.

    One that this bus has known is ``unavailable``.

    Raises:
        ConfigurationError: the name is no text.
    """
    check_name(name)
    # One that is there is hidden from this user, who learns nothing of what became of its name.
    withheld = catalogue.withholding.tools.get(name)
    if name not in catalogue.tools and (withheld is None or withheld[0].is_for(user)):
        for refused in catalogue.refused():
            if refused.name == name:
                return ErrorInfo("not_found", "refused", f"the tool {name!r} of {refused.service!r} can't be used: {refused.reason}")
        former = catalogue.former.get(name)
        if former is not None and former[0].is_for(user):
            return withdrawn(former[0], catalogue)
    if f"pending/{name}" in catalogue.documents.by_key:
        message = f"the tool {name!r} waits for a person's approval; `toolbus secure approve {name}` shows it and asks"
        return ErrorInfo("not_found", "pending", message)
    near = catalogue.near(name, user)
    message = f"there is no tool {name!r}{did_you_mean(near)}"
    return ErrorInfo("not_found", "unknown_tool", message, details={"near": near} if near else None)


def withdrawn(tool: Tool, catalogue: Catalogue) -> ErrorInfo:
    """Return ``unavailable`` for a tool that this bus has known and nobody offers now, or the reason why it is withheld."""
    reason = catalogue.withholding.reason(tool.name)
    if reason:
        return ErrorInfo("not_found", "refused", f"the tool {tool.name!r} of {tool.service!r} can't be used: {reason}")
    ago = time.monotonic() - catalogue.former[tool.name][1]
    message = (
        f"the tool {tool.name!r} was there until {max(1.0, ago):.0f} s ago; its service {tool.service!r} has stopped, or offers it no more"
    )
    return ErrorInfo("unavailable", "withdrawn", message, retryable=True)


def unknown_service(service: str) -> ErrorInfo:
    """Return ``not_found`` for a service."""
    return ErrorInfo("not_found", "unknown_service", f"there is no service {service!r}")


def unavailable(what: str, service: str) -> ErrorInfo:
    """Return ``unavailable`` for a tool or service that no live worker serves."""
    message = f"{what} is known, but no live worker serves {service!r}{FOR_PROGRAMS}"
    return ErrorInfo("unavailable", "no_worker", message, retryable=True)


def untaken(error: ErrorInfo, service: str, *, available: bool) -> ErrorInfo:
    """Return the error of a call whose time was up before a worker took it; ``available`` when workers of its service live."""
    why = (
        f"every worker of {service!r} was busy or did not answer, or the service is paused"
        if available
        else f"no live worker serves {service!r} now"
    )
    return msgspec.structs.replace(error, code=NOT_TAKEN, message=f"{error.message}: no worker took the call, so it did not run; {why}")


def unpublished(error: ErrorInfo) -> ErrorInfo:
    """Return the error of a call whose time was up before it was published."""
    return msgspec.structs.replace(error, code=NOT_TAKEN, message=f"{error.message}: it did not run")


def unfinished(error: ErrorInfo, service: str, timeout: float = 0.0, queued_ms: float = 0.0, *, available: bool) -> ErrorInfo:
    """Return the error of a call whose time was up while a worker had it.

    Args:
        error: what the caller knows.
        service: that was called.
        timeout, queued_ms: seconds that the call had, and milliseconds of them that it had waited for a worker, as far as it was told.
        available: whether workers of the service live.
    """
    if available:
        message = f"{error.message}: a worker took it and did not finish it in time{waited_for(queued_ms)}"
        return msgspec.structs.replace(error, code=late_code(timeout, queued_ms), message=message)
    why = f"the worker that took it has stopped, and no live worker serves {service!r} now"
    return msgspec.structs.replace(error, code=WORKER_LOST, message=f"{error.message}: {why}")


def wrong_arguments(arguments: object) -> ErrorInfo:
    """Return ``invalid_arguments`` for arguments that are no object."""
    return ErrorInfo("invalid_arguments", message=f"arguments must be an object, not {type_name(arguments)}")


def refusal_of(verdict: Verdict, service: str) -> ErrorInfo:
    """Return the error of a call that the broker did not publish to a service, or may not have."""
    if verdict.status == "full":
        message = f"the queue of {service!r} holds {verdict.depth} requests and takes no more now"
        return ErrorInfo("overloaded", message=message, retryable=True, retry_after=1.0, details={"depth": verdict.depth})
    if verdict.status == "absent":
        return ErrorInfo("unavailable", message=f"service {service!r} has no queue: none of its workers is registered", retryable=True)
    if verdict.status == "conflict":
        message = (
            "the idempotency key stands for a call of another tool or session, or with other arguments; use another key for other work"
        )
        return ErrorInfo("invalid_arguments", "idempotency_conflict", message)
    if verdict.status == "late":
        return deadline_exceeded(verdict.message, NOT_TAKEN)
    if verdict.status == "unknown":
        return ErrorInfo("outcome_unknown", message=f"the call may or may not have been published: {verdict.message}")
    if verdict.message.startswith("OOM"):
        return ErrorInfo("overloaded", message=f"the server is out of memory: {verdict.message}", retryable=True, retry_after=1.0)
    return ErrorInfo("unavailable", message=verdict.message, retryable=True)
