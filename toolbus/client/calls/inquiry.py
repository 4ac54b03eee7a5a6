"""Find out whether a call that is given up was begun, and end it accordingly."""

from __future__ import annotations

import time

from toolbus.broker.protocols import Fate
from toolbus.client.calls.call import Call
from toolbus.client.calls.connection import BusConnection
from toolbus.client.calls.refusals import unfinished, untaken
from toolbus.results import ErrorInfo

# Seconds that a `once` call whose time is up waits to learn whether it began.
_INQUIRY = 1.0
# Seconds that another call whose time is up waits to learn whether a worker took it.
_MOMENT = 0.2


def inquire(call: Call, error: ErrorInfo, connection: BusConnection) -> None:
    """End a call when it is known whether a worker took it, and after a moment in any case."""
    once, expired = call.request is not None and call.request.effect == "once", error.type == "deadline_exceeded"

    def heard(fate: Fate) -> None:
        if fate in {"removed", "signalled"}:
            # The broker has cancelled it.
            call.entry = ""
        if fate == "removed":
            call.complete_with(untaken(error, _service(call), available=_is_served(call, connection)) if expired else error)
        elif fate != "gone" or not connection.is_open:
            # When it is gone it was answered, and the answer may be on its way.
            end(unfinished_of(call, error, connection) if expired and fate == "signalled" else error)

    def end(error: ErrorInfo) -> None:
        unknown = ErrorInfo("outcome_unknown", error.type, f"{error.message}; it may or may not have taken effect")
        call.complete_with(unknown if once else error)

    connection.deadlines.add(time.monotonic() + (_INQUIRY if once else _MOMENT), (call.id, "inquiry"), lambda: end(error))
    if call.request is not None and connection.is_open:
        connection.broker.cancel(call.request, call.queue, call.entry, heard, waited=call.waited_in_all, why=error.type)


def unfinished_of(call: Call, error: ErrorInfo, connection: BusConnection | None) -> ErrorInfo:
    """Return the error of a call whose time was up while a worker had it."""
    timeout = 0.0 if call.request is None else call.request.timeout
    return unfinished(error, _service(call), timeout, call.queued_ms, available=connection is None or _is_served(call, connection))


def _service(call: Call) -> str:
    return call.target.service if call.request is None else call.request.service


def _is_served(call: Call, connection: BusConnection) -> bool:
    return connection.catalogue.service(_service(call))[1]
