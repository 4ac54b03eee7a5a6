"""Classes with one instance, which ``instance`` names."""

from __future__ import annotations

import threading
from abc import ABCMeta
from typing import Any

_lock = threading.RLock()
_instances: dict[type, Any] = {}


class Singleton(type):
    """A metaclass: calling the class makes its one instance, or returns it."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """The one instance; what is given counts only when it is made."""
        with _lock:
            if cls not in _instances:
                _instances[cls] = super().__call__(*args, **kwargs)
            return _instances[cls]

    @property
    def instance(cls) -> Any:
        """The one instance, or None before it is made."""
        return _instances.get(cls)


class AbcSingleton(Singleton, ABCMeta):
    """The same for abstract classes."""
