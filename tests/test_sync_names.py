"""The synchronous bus has every public name of the asynchronous one, with the same parameters."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import toolbus
from toolbus import sync
from toolbus.bus.broker.held.confirmations import Confirmations
from toolbus.bus.broker.held.limits import Tallies
from toolbus.bus.client.bus import BusView, ServiceView
from toolbus.bus.client.calls.call import Call
from toolbus.bus.client.confirmations import Confirmation, PendingConfirmations
from toolbus.bus.client.executor.executor import ToolExecutor
from toolbus.bus.client.executor.observers import EventBus, Watch
from toolbus.bus.client.executor.turn import Turn
from toolbus.bus.client.tools.view import ToolView
from toolbus.sync.bus import SharedConfirmations
from toolbus.sync.bus import Tallies as SyncTallies

# For the parts of the client alone, and no user's.
# fmt: off
_OF_CALLS = {
    "arguments", "attached", "complete_with", "deadline", "drop", "ends", "entry", "expire", "feed", "gap_slot", "give_up", "grant",
    "idle_slot", "idle_timeout", "last_heard", "lasting", "look_for", "lost", "options", "pause", "queue", "queued_ms", "request",
    "resume_from", "settle", "slot", "span", "state", "streaming", "target", "unread", "waited", "waited_in_all", "withdrawn",
}
# fmt: on
_OF_EXECUTORS = {
    "answered",
    "observed",
    "is_ordered",
    "is_sequential",
    "keyed",
    "loop",
    "patience",
    "place",
    "reserve",
    "retention",
    "stream",
    "turn",
    "until_callable",
}
_OF_CONFIRMATIONS = {"answered", "nudge", "supersede"}
# What the broker alone gives.
_OF_BROKER = {"address", "opened"}
_OF_VIEWS = {"by_wire_name", "catalogue", "former", "subscribe", "within"}

# Each asynchronous class, the synchronous one, and the names that it does not have, each with the one that it has instead.
CLASSES: list[tuple[type, type, dict[str, str]]] = [
    (
        toolbus.ToolBus,
        sync.ToolBus,
        {
            "aclose": "close",
            "for_handlers": "",
            "tasks": "",
            "chats": "",
            "routes": "",
            "creations": "",
            "replace": "",
            "tokens": "",
            "mcp_sessions": "",
        },
    ),
    (BusView, sync.BoundBus, {}),
    (ServiceView, sync.Service, {}),
    (Call, sync.Call, dict.fromkeys(_OF_CALLS, "")),
    (ToolView, sync.Tools, dict.fromkeys(_OF_VIEWS, "")),
    (ToolExecutor, sync.ToolExecutor, dict.fromkeys(_OF_EXECUTORS, "")),
    (Turn, sync.Turn, {}),
    (EventBus, sync.EventBus, {}),
    (Watch, sync.Watch, {}),
    (PendingConfirmations, sync.PendingConfirmations, {"relay": "", "settled": ""}),
    (Confirmation, sync.Confirmation, {"answer_of": "", "is_for": ""}),
    (Confirmations, SharedConfirmations, dict.fromkeys(_OF_CONFIRMATIONS, "")),
    (Tallies, SyncTallies, {}),
]


def public(kind: type) -> set[str]:
    """Return the public names of a class."""
    return {name for name in dir(kind) if not name.startswith("_")}


def parameters(function: Any) -> list[str]:
    """Return the names of a function's parameters."""
    return [name for name in inspect.signature(function).parameters if not name.startswith("_") and name not in _OF_BROKER]


@pytest.mark.parametrize(("aio", "own", "absent"), CLASSES, ids=[f"{aio.__module__}.{aio.__name__}" for aio, _, _ in CLASSES])
def test_each_public_name_is_there(aio: type, own: type, absent: dict[str, str]) -> None:
    """A new public name of the asynchronous class is missing here until the synchronous one has it, or it is said why not."""
    assert public(aio) - public(own) == absent.keys()
    assert {instead for instead in absent.values() if instead} <= public(own)


@pytest.mark.parametrize(("aio", "own", "absent"), CLASSES, ids=[f"{aio.__module__}.{aio.__name__}" for aio, _, _ in CLASSES])
def test_each_function_takes_the_same_and_needs_no_await(aio: type, own: type, absent: dict[str, str]) -> None:
    """Functions of the same name have the same parameters, and none is a coroutine function."""
    for name in sorted(public(aio) & public(own)):
        function = getattr(own, name)
        if inspect.isfunction(function):
            assert parameters(function) == parameters(getattr(aio, name)), name
            assert not inspect.iscoroutinefunction(function), name
            assert not inspect.isasyncgenfunction(function), name


def test_the_package_exports_what_its_functions_return() -> None:
    """Users can name the classes that they get."""
    exported = {getattr(sync, name) for name in sync.__all__}
    assert {own for _, own, _ in CLASSES} - exported == {SharedConfirmations, SyncTallies}
