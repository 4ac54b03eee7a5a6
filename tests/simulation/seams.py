"""Clocks, random bytes, threads and blocking sockets, as the product asks for them, answered by the world that runs.

Without a world everything is as it was.
"""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import redis

if TYPE_CHECKING:
    from tests.simulation.world import World

world: World | None = None
"""The world that runs now."""

_thread, _event = threading.Thread, threading.Event
_urandom, _end = os.urandom, os._exit
_connect, _can_read = redis.Connection._connect, redis.Connection.can_read


def install() -> None:
    """Ask the world from now on; called before the product is imported, in a process of the simulation alone."""
    # redis-py reads its package's metadata for each connection, which takes longer than everything else that a connection needs.
    importlib.metadata.version = functools.cache(importlib.metadata.version)
    _clock("monotonic", lambda world: world.loop.now)
    _clock("perf_counter", lambda world: world.loop.now)
    _clock("process_time", lambda world: 0.0)
    _clock("time", lambda world: world.wall())
    datetime.datetime = _Datetime  # type: ignore[misc]
    os.urandom = random._urandom = _random_bytes  # type: ignore[attr-defined]
    os.getpid = _in_world(os.getpid, lambda world: world.current.pid)
    os._exit = _exit  # type: ignore[assignment]
    socket.gethostname = _in_world(socket.gethostname, lambda world: world.current.name)
    threading.Thread = _made("Thread", _thread)  # type: ignore[misc,assignment]
    threading.Event = _made("Event", _event)  # type: ignore[misc,assignment]
    patched: Any = redis.Connection
    patched._connect = _connected
    patched.can_read = lambda self, timeout=0: _can_read(self, timeout) if world is None else self._sock.can_read()


def _in_world(real: Callable[[], Any], answer: Callable[[World], Any]) -> Callable[[], Any]:
    def ask() -> Any:
        return real() if world is None else answer(world)

    return ask


def _clock(name: str, answer: Callable[[World], float]) -> None:
    setattr(time, name, _in_world(getattr(time, name), answer))
    setattr(time, f"{name}_ns", _in_world(getattr(time, f"{name}_ns"), lambda world: int(answer(world) * 1e9)))


class _Datetime(datetime.datetime):
    """The day and time by the clock of the process whose code runs."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> _Datetime:
        """Return the current time."""
        return super().now(tz) if world is None else cls.fromtimestamp(world.wall(), tz)


def leave(status: int) -> None:
    """End the program itself, at once, also while a world runs."""
    _end(status)


def _exit(status: int) -> None:
    """End the process whose code runs; the step that it is in goes on, but nobody hears of it."""
    if world is None:
        _end(status)
    else:
        world.exit(status)


def _random_bytes(count: int) -> bytes:
    return _urandom(count) if world is None else world.random.randbytes(count)


def _made(name: str, real: Any) -> Any:
    def make(cls: type, *args: Any, **named: Any) -> Any:
        from tests.simulation import threads

        # Python's own threads, which are of classes derived from the real one, stay as they are.
        return object.__new__(cls) if world is None or cls is not ours else getattr(threads, name)(world, *args, **named)

    ours = type(name, (real,), {"__new__": make})
    return ours


def _connected(self: redis.Connection) -> Any:
    from tests.simulation.threads import Socket

    return _connect(self) if world is None else Socket(world, self.socket_connect_timeout)
