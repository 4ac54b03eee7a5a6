"""Run what an adapter asks of an executor in the event loop of its bus, from whichever event loop or thread asks."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from toolbus.client.executor.executor import ToolExecutor
from toolbus.client.executor.observers import Observer, ToolEvent
from toolbus.results import ConfigurationError

T = TypeVar("T")

# Seconds after which an event loop that has not begun a call counts as one that waits for the call itself.
BEGIN_SECONDS = 10.0

_NOT_RUNNING = "the event loop of the bus does not run; keep it running while tools are called, or use toolbus.sync.ToolBus"
_CLOSED = "the bus was closed while the call ran"


class SynchronousExecutor(Protocol):
    """The executor of a ``toolbus.sync.ToolBus``."""

    @property
    def asynchronous(self) -> ToolExecutor:
        """The executor that it uses."""


AnyExecutor = ToolExecutor | SynchronousExecutor


def executor_of(executor: AnyExecutor) -> ToolExecutor:
    """Return the executor of the event loop, for that of a synchronous bus too."""
    return executor if isinstance(executor, ToolExecutor) else executor.asynchronous


def read_at_home(executor: ToolExecutor, function: Callable[[], T]) -> T:
    """Return what a function returns that reads the bus's tools, run in its event loop; blocks a caller in another one for a moment.

    Raises:
        ConfigurationError: the bus is not open, or its event loop does not run.
    """
    if _running() is executor.loop:
        return function()

    async def read() -> T:
        return function()

    return wait_at_home(executor, lambda _: read())


async def run_at_home(executor: ToolExecutor, start: Callable[[Observer | None], Awaitable[T]], observer: Observer | None = None) -> T:
    """Run a coroutine function in the bus's event loop and return what it returns; cancelling this cancels it there.

    Args:
        start: makes the coroutine, given the observer that it is to call with each event.
        observer: called with each event in the event loop, and the context, of the caller.

    Raises:
        ConfigurationError: the bus is not open, its event loop does not run, or it was closed meanwhile.
    """
    here, home = asyncio.get_running_loop(), executor.loop
    if here is home:
        return await start(observer)
    context = contextvars.copy_context()

    def tell(event: ToolEvent) -> None:
        here.call_soon_threadsafe(lambda: context.run(_told, observer, event))

    future = _submitted(home, start, None if observer is None else tell)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ConfigurationError(_CLOSED) from None


def wait_at_home(executor: ToolExecutor, start: Callable[[Observer | None], Awaitable[T]], observer: Observer | None = None) -> T:
    """Do the same from a thread that waits; Ctrl-C here cancels the coroutine there.

    Args:
        start: see ``run_at_home``.
        observer: called with each event in this thread.

    Raises:
        ConfigurationError: as ``run_at_home``; or the event loop is what waits for this thread, or is blocked by something else.
    """
    home = executor.loop
    if _running() is home:
        raise ConfigurationError("this blocks the event loop of the bus: use the asynchronous method (ainvoke, for example)")
    begun = threading.Event()
    arrived: SimpleQueue[ToolEvent | None] = SimpleQueue()

    async def run(observer: Observer | None) -> T:
        begun.set()
        return await start(observer)

    def ended(_: object) -> None:
        begun.set()
        arrived.put(None)

    future = _submitted(home, run, None if observer is None else arrived.put)
    try:
        future.add_done_callback(ended)
        _wait_for(begun)
        while (event := arrived.get()) is not None:
            _told(observer, event)
        return future.result()
    except CancelledError:
        raise ConfigurationError(_CLOSED) from None
    except BaseException:
        future.cancel()
        raise


def _wait_for(begun: threading.Event) -> None:
    if not begun.wait(BEGIN_SECONDS):
        message = f"the event loop of the bus did not begin the call within {BEGIN_SECONDS:g} s: it waits for this thread, perhaps"
        raise ConfigurationError(f"{message}; use the asynchronous methods (ainvoke, for example), or toolbus.sync.ToolBus")


def _submitted(home: asyncio.AbstractEventLoop, start: Callable[[Observer | None], Awaitable[T]], observer: Observer | None) -> Future[T]:
    async def run() -> T:
        return await start(observer)

    if not home.is_running():
        raise ConfigurationError(_NOT_RUNNING)
    coroutine: Coroutine[Any, Any, T] = run()
    try:
        return asyncio.run_coroutine_threadsafe(coroutine, home)
    except RuntimeError as error:
        coroutine.close()
        raise ConfigurationError(f"{_NOT_RUNNING} ({error})") from None


def _told(observer: Observer | None, event: ToolEvent) -> None:
    if observer is not None:
        observer(event)


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
