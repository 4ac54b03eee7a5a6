"""The worlds as services for workers: ``toolbus worker benchmarks.episodes.services:SERVICES``."""

from __future__ import annotations

import asyncio
import copy
import functools
import os
import time
from collections.abc import Callable
from typing import Any

from benchmarks.episodes.worlds.every import WORLDS
from benchmarks.episodes.worlds.world import World
from toolbus import Session, ToolService, invocation, tool
from toolbus.descriptors import Effect

DECLARED = "BENCH_DECLARED"
"""Variable of the environment: the services declare that their calls run one after another."""

_COROUTINES = ("calculator", "cart", "tickets", "travel")
"""Worlds whose tools are coroutine functions; those of the others are plain functions, which run in threads."""

_WORK_SECONDS = 0.002


class Sessions(ToolService):
    """Keeps one world for each session."""

    sticky_sessions = True
    world: type[World]

    def __init__(self) -> None:
        self.worlds: dict[tuple[str, str], World] = {}

    def now(self) -> World:
        """Return the world of the call's session."""
        call = invocation()
        return self.worlds.setdefault((call.user, call.session), self.world(call.session))

    async def cleanup(self, session: Session | None = None) -> None:
        """Forget a session."""
        if session is not None:
            self.worlds.pop(session, None)


def service(world: type[World], *, declared: bool) -> type[Sessions]:
    """Return the class of a service whose tools are the methods of a world; declared, its calls run one after another."""
    body: dict[str, Any] = {"id": world.name, "world": world, "__doc__": world.__doc__, "__module__": __name__}
    if declared:
        body["sequential"] = True
    make = _coroutine if world.name in _COROUTINES else _plain
    for name, method in world.methods().items():
        effect: Effect = "read" if name == world.audit_tool() else ""
        body[name] = tool(name, effect=effect, groups=[world.name])(make(name, method))
    return type(world.__name__, (Sessions,), body)


def _plain(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(self: Sessions, **arguments: Any) -> Any:
        time.sleep(_WORK_SECONDS)
        return copy.deepcopy(self.now()._call(name, arguments))

    return run


def _coroutine(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def run(self: Sessions, **arguments: Any) -> Any:
        await asyncio.sleep(_WORK_SECONDS)
        return copy.deepcopy(self.now()._call(name, arguments))

    return run


def served(*, declared: bool) -> list[Sessions]:
    """Return a service for each world."""
    return [service(world, declared=declared)() for world in WORLDS.values()]


SERVICES = served(declared=bool(os.environ.get(DECLARED)))
