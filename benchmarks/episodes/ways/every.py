"""List the ways by name, and import each when it is used."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Awaitable, Callable

from benchmarks.episodes.player import Player
from toolbus.bus.client.bus import BusView
from toolbus.bus.client.executor.executor import ToolExecutor

Way = Callable[[BusView, Player], Awaitable[None]]
"""Plays an episode to its end with the view of its session."""

PACKAGES = {
    "bus": "",
    "executor": "",
    "openai": "openai",
    "openai-responses": "openai",
    "anthropic": "anthropic",
    "openai-agents": "agents",
    "pydantic-ai": "pydantic_ai",
    "langchain": "langchain_core",
    "langgraph": "langgraph",
}
"""The package that each needs."""

MOST_TURNS = 20


def executor_of(view: BusView, player: Player) -> ToolExecutor:
    """Return an executor with the tools of an episode's services."""
    return view.executor(tools=view.tools.filter(groups=list(player.episode.services)), model="scripted")


def way(name: str) -> Way:
    """Return a way by its name."""
    module = importlib.import_module(f"benchmarks.episodes.ways.{name.replace('-', '_')}")
    found: Way = module.play
    return found


def installed(name: str) -> bool:
    """Return whether the package of a way is there."""
    return not PACKAGES[name] or importlib.util.find_spec(PACKAGES[name]) is not None
