"""Metaclasses for classes with one instance."""

from __future__ import annotations

import threading
from abc import ABCMeta
from typing import Any

from toolbus.bus.worker.provide import provide

_lock = threading.RLock()
_instances: dict[type, Any] = {}


class Singleton(type):
    """A metaclass of classes with one instance: calling the class creates or returns it."""

    def __init__(cls, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # A tool's parameter that is annotated with the class is filled in with the one instance.
        provide(cls, cls)  # type: ignore[arg-type] # the type of the instances is not known here

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return the one instance; the arguments are used only when it is created."""
        with _lock:
            if cls not in _instances:
                _instances[cls] = super().__call__(*args, **kwargs)
            return _instances[cls]

    @property
    def instance(cls) -> Any:
        """The one instance, or None before it is created."""
        return _instances.get(cls)


class AbcSingleton(Singleton, ABCMeta):
    """The same metaclass for abstract classes."""
