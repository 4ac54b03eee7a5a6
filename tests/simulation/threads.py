"""Threads of simulated processes: each runs until it waits, and only while nothing else does."""

from __future__ import annotations

import _thread
import contextvars
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.world import World


# It reports event loops that take real time, of which there is none here, and asks four times a second.
_WATCH = "toolbus-loop-watch"


class Ended(BaseException):
    """The process of a thread is no more, so that the thread ends where it waits."""


class Thread:
    """Takes the place of ``threading.Thread``. The event loop stands still while it runs, and it stands still while the loop runs."""

    def __init__(
        self,
        world: World,
        group: None = None,
        target: Callable[..., object] = lambda: None,
        name: str = "",
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._world = world
        self._process = world.current
        self._target, self._args, self._kwargs = target, tuple(args), kwargs or {}
        self.name = name
        self.daemon = daemon
        self.ident: int | None = None
        self._context = self._process.context_of_threads()
        self._turn = _thread.allocate_lock()
        self._turn.acquire()
        self._over = Event(world)
        self._timer: Any = None

    def start(self) -> None:
        """Run, as soon as the loop has come to it."""
        if self.name == _WATCH:
            return
        self._world.threads.append(self)
        self._world.loop.call_soon(self._begin, context=self._context)

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended."""
        self._over.wait(timeout)

    def is_alive(self) -> bool:
        """Return whether it has not ended."""
        return not self._over.is_set()

    def wait(self, timeout: float | None) -> None:
        """Let the loop go on until ``wake``, or for so many seconds. Called in the thread."""
        if timeout is not None:
            self._timer = self._world.loop.call_later(max(0.0, timeout), self.go_on, context=self._context)
        self._pass_back()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def wake(self) -> None:
        """Let it go on, soon."""
        self._world.loop.call_soon(self.go_on, context=self._context)

    def go_on(self) -> None:
        """Let it run until it waits again, if it has begun. Called in the loop."""
        if self.ident is not None and self.is_alive() and self._world.running_thread is None:
            self._world.running_thread = self
            self._turn.release()
            self._world.turn.acquire()

    # -- inside -----------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._world.running_thread = self
        self.ident = _thread.start_new_thread(contextvars.Context.run, (self._context.copy(), self._run))
        self._world.turn.acquire()

    def _run(self) -> None:
        try:
            self._target(*self._args, **self._kwargs)
        except Ended:
            pass
        finally:
            self._over.set()
            self._world.running_thread = None
            self._world.turn.release()

    def _pass_back(self) -> None:
        self._world.running_thread = None
        self._world.turn.release()
        self._turn.acquire()
        if self._process.dead:
            raise Ended


class Event:
    """Takes the place of ``threading.Event``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._set = False
        self._waiting: list[Thread] = []

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._set

    def set(self) -> None:
        """Set it."""
        self._set = True
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            thread.wake()

    def clear(self) -> None:
        """Be not set."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, in a thread of a process."""
        thread = self._world.running_thread
        if not self._set and thread is not None:
            self._waiting.append(thread)
            thread.wait(timeout)
            if thread in self._waiting:
                self._waiting.remove(thread)
        return self._set


class Socket:
    """Takes the place of a blocking socket to the server, in a thread."""

    def __init__(self, world: World, timeout: float | None) -> None:
        self._world = world
        self._timeout = timeout
        self._data = bytearray()
        self._ended = False
        self._arrived = Event(world)
        thread = world.running_thread
        if thread is None:
            raise OSError("a blocking socket outside of a thread")
        self._connection = world.network.connect(world.current, self._receive, self._lost)
        thread.wait(self._connection.opening)
        if self._connection.refused:
            raise ConnectionRefusedError(111, "Connection refused")

    def gettimeout(self) -> float | None:
        """Return the seconds that a read may take."""
        return self._timeout

    def settimeout(self, seconds: float | None) -> None:
        """Set the seconds that a read may take."""
        self._timeout = seconds

    def setsockopt(self, *_: object) -> None:
        """Accept it."""

    def sendall(self, data: bytes) -> None:
        """Send bytes."""
        if self._ended:
            raise BrokenPipeError(32, "Broken pipe")
        self._connection.send(bytes(data))

    def can_read(self) -> bool:
        """Return whether a read would not wait."""
        return bool(self._data) or self._ended

    def recv_into(self, buffer: Any) -> int:
        """Read what there is, after waiting for it."""
        if not self._data and not self._ended:
            self._arrived.clear()
            if not self._arrived.wait(self._timeout):
                raise TimeoutError("timed out")
        size = min(len(buffer), len(self._data))
        buffer[:size] = self._data[:size]
        del self._data[:size]
        return size

    def shutdown(self, how: int) -> None:
        """End it, also for a thread that reads."""
        self._connection.close()
        self._lost(None)

    def close(self) -> None:
        """End it."""
        self._connection.close()
        self._ended = True

    def _receive(self, data: bytes) -> None:
        self._data += data
        self._arrived.set()

    def _lost(self, error: Exception | None) -> None:
        self._ended = True
        self._arrived.set()
