"""The kinds of sources, and how the runner of each is made."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Collection, Mapping
from typing import Any, get_args

from toolbus.backends.runner import Runner
from toolbus.platform.records import SourceType

KINDS: Mapping[str, str] = {kind: f"toolbus.backends.{kind}" for kind in get_args(SourceType)}
"""The module of each kind, which has ``make_runner``; imported when a source of this kind is first used."""


async def make_runner(kind: str, host: str, allowed: Collection[str] = (), *, confine: bool = True) -> Runner:
    """Return the runner of a kind of source.

    Args:
        kind: see ``KINDS``.
        host: id of the host.
        allowed: hosts that APIs may be at although their addresses are not public.
        confine: whether programs that models wrote are confined, and refused where they can't be.
    """
    # A library such as aiohttp takes half a second, in which the host would answer nothing.
    make = (await asyncio.to_thread(importlib.import_module, KINDS[kind])).make_runner
    own: dict[str, dict[str, Any]] = {"remote": {"allowed": allowed}, "local": {"confine": confine}}
    runner: Runner = await make(host, **own.get(kind, {}))
    return runner
