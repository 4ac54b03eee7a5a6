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
from toolbus.bus.values.descriptors import Effect

DECLARED = "BENCH_DECLARED"
"""Variable of the environment: the services declare that their calls run one after another."""

LOST = "BENCH_LOST"
"""Variable of the environment: the services' ``session_lost``."""

_COROUTINES = ("calculator", "cart", "tickets", "travel")
"""Worlds whose tools are coroutine functions; those of the others are plain functions, which run in threads."""

_WORK_SECONDS = 0.002


class Sessions(ToolService):
    """Keeps one world for each session."""

    world: type[World]

    async def open_session(self, session: Session, initial: dict[str, Any]) -> World:
        """Return the world with which an episode begins."""
        return self.world(initial["episode"])

    async def save_session(self, session: Session, state: World) -> dict[str, Any]:
        """Return the attributes of a world."""
        return vars(state)

    async def load_session(self, session: Session, saved: dict[str, Any]) -> World:
        """Return the world that had these attributes."""
        state = self.world.__new__(self.world)
        vars(state).update(saved)
        return state


def served(*, declared: bool, lost: str = "") -> list[Sessions]:
    """Return a service for each world.

    Args:
        declared: the calls of each service are declared to run one after another.
        lost: the services' ``session_lost``.
    """
    return [_service(world, declared, lost)() for world in WORLDS.values()]


def _service(world: type[World], declared: bool, lost: str) -> type[Sessions]:
    body: dict[str, Any] = {"id": world.name, "world": world, "__doc__": world.__doc__, "__module__": __name__}
    if declared:
        body["sequential"] = True
    if lost:
        body["session_lost"] = lost
    make = _coroutine if world.name in _COROUTINES else _plain
    for name, method in world.methods().items():
        effect: Effect = "read" if name == world.audit_tool() else ""
        body[name] = tool(name, effect=effect, groups=[world.name])(make(name, method))
    return type(world.__name__, (Sessions,), body)


def _plain(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(self: Sessions, **arguments: Any) -> Any:
        time.sleep(_WORK_SECONDS)
        return copy.deepcopy(invocation().state._call(name, arguments))

    return run


def _coroutine(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def run(self: Sessions, **arguments: Any) -> Any:
        await asyncio.sleep(_WORK_SECONDS)
        return copy.deepcopy(invocation().state._call(name, arguments))

    return run


SERVICES = served(declared=bool(os.environ.get(DECLARED)), lost=os.environ.get(LOST, ""))
