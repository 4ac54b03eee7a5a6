"""Metaclasses for classes with one instance."""

from __future__ import annotations

import threading
from abc import ABCMeta
from typing import Any

_lock = threading.RLock()
_instances: dict[type, Any] = {}


class Singleton(type):
    """A metaclass of classes with one instance: calling the class creates or returns it."""

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
