"""Parts that several facades need: modules at other projects' paths, and coroutines for synchronous callers."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from typing import Any

from toolbus.bus.support.lazy import lazily


def make_modules(package: str, homes: Mapping[str, tuple[str, str]]) -> None:
    """Make modules at the paths that another project uses; each name in them is imported from its home when it is first used.

    Args:
        package: our package, below which the paths begin.
        homes: for each path (``core.toolkit.tool``) the module that defines its names, and these names with spaces between them.
    """
    for path, (home, names) in homes.items():
        name, parent = package, sys.modules[package]
        for part in path.split("."):
            name = f"{name}.{part}"
            if name not in sys.modules:
                # Without a loader it is a package whose folder is nowhere.
                made = module_from_spec(ModuleSpec(name, None, is_package=True))
                made.__doc__ = "A module at the path that another project uses."
                sys.modules[name] = made
                setattr(parent, part, made)
            parent = sys.modules[name]
        parent.__dict__["__all__"] = names.split()
        parent.__dict__["__getattr__"], parent.__dict__["__dir__"] = lazily(parent.__dict__, {home: names.split()})


def finished(value: Any) -> Any:
    """Return a function's result, awaited when it is a coroutine: in a thread with its own loop, since a loop may run here."""
    if not inspect.iscoroutine(value):
        return value
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, value).result()
