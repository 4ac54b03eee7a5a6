"""Import a package's public names when they are first used, and load much without looking for garbage."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any


@contextmanager
def without_collection(wanted: bool = True) -> Iterator[None]:
    """Pause the garbage collector while many lasting objects are made, which halves the time that this takes.

    What was made is then among the old objects, so that the collector does not go through all of it at once. An application
    that has frozen objects keeps them frozen, and pays for that one collection.
    """
    if not wanted or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()


def lazily(package: dict[str, Any], homes: Mapping[str, Iterable[str]]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``, see https://peps.python.org/pep-0562/.

    Args:
        package: the package's ``globals()``, in which a name stays once it was used.
        homes: for each module the names that it defines.
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def get(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        # What is loaded lasts, so that looking for garbage meanwhile would only take a tenth longer.
        with without_collection():
            value = package[name] = getattr(import_module(home_of[name]), name)
        return value

    return get, lambda: sorted({*package, *package["__all__"]})
