"""The event loop of a synchronous bus, and the methods by which other threads use the objects that live in it."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from anyio.from_thread import BlockingPortal

from toolbus.bus.values.results import ConfigurationError

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")

NOT_OPEN = "the bus is not open: use `with ToolBus(...) as bus`, or `bus.open()`"
_OWN_THREAD = "this waits for the event loop in which it runs (an observer does, for example): do it in another thread"


class Loop:
    """One event loop in a thread, from the opening of a bus to its close."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self._thread = portal.call(threading.get_ident)
        self._process = os.getpid()
        # What would wait for as long as the bus is open.
        self._lasting: set[Future[Any]] = set()
        # How many threads are about to begin such a thing.
        self._beginning = 0
        self._closing = False
        self._lock = threading.Condition()

    def check(self) -> None:
        """Check that this is the process in which the loop runs.

        Raises:
            ConfigurationError: it is not.
        """
        if self._process != os.getpid():
            raise ConfigurationError("this bus was opened before a fork; open one of its own in each process")

    def itself(self) -> Loop:
        """Return this loop, for what belongs to it and to none that runs later."""
        return self

    @property
    def is_here(self) -> bool:
        """True in the thread of the event loop itself."""
        return threading.get_ident() == self._thread

    @overload
    def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T: ...
    @overload
    def run(self, function: Callable[[], T]) -> T: ...
    def run(self, function: Callable[[], Any]) -> Any:
        """Run a function in the event loop and wait for it; Ctrl-C here cancels it there.

        Raises:
            ConfigurationError: the bus was closed, or this is the thread of the event loop.
        """
        return self._wait(self._start(function))

    def each(self, items: AsyncIterable[T], *, lasting: bool = False) -> Iterator[T]:
        """Yield what an asynchronous iterable yields.

        Args:
            items: the iterable.
            lasting: it has no end of its own, so it ends when the bus is closed.

        Raises:
            ConfigurationError: the bus was closed, unless it is lasting.
        """
        iterator: AsyncIterator[T] = aiter(items)

        async def following() -> tuple[T] | None:
            try:
                return (await anext(iterator),)
            except StopAsyncIteration:
                return None

        while True:
            try:
                item = self._wait(self._start(following, lasting=lasting))
            except ConfigurationError:
                if lasting and not self.is_here:
                    return
                raise
            if item is None:
                return
            yield item[0]

    def enter(self, context: AbstractAsyncContextManager[Any]) -> Callable[[], None]:
        """Enter an asynchronous context, in a task that leaves it again; return the function that leaves it and waits for that.

        Raises:
            ConfigurationError: the bus was closed, or this is the thread of the event loop.
        """
        entered: Future[None] = Future()
        ending = asyncio.Event()

        async def hold() -> None:
            try:
                async with context:
                    entered.set_result(None)
                    await ending.wait()
            except BaseException as error:
                if not entered.done():
                    entered.set_exception(error)
                raise

        held = self._start(hold, lasting=True)
        # A task that is cancelled before it begins tells nobody.
        held.add_done_callback(lambda _: None if entered.done() else entered.cancel())
        self._wait(entered)

        def leave() -> None:
            with suppress(ConfigurationError):
                self.run(ending.set)
            with suppress(CancelledError):
                held.result()

        return leave

    def close(self) -> None:
        """End what would wait for as long as the bus is open; from then on, nothing of the kind begins."""
        with self._lock:
            self._closing = True
            # The portal of a loop that has stopped cancels nothing any more, and waits for it for ever.
            self._lock.wait_for(lambda: not self._beginning)
            lasting = [*self._lasting]
        for future in lasting:
            future.cancel()

    def _start(self, function: Callable[[], Any], *, lasting: bool = False) -> Future[Any]:
        if self.is_here:
            raise ConfigurationError(_OWN_THREAD)
        try:
            return self._start_lasting(function) if lasting else self._portal.start_task_soon(function)
        except RuntimeError as error:
            if "not running" in str(error):
                raise ConfigurationError(NOT_OPEN) from None
            raise

    def _start_lasting(self, function: Callable[[], Any]) -> Future[Any]:
        with self._lock:
            if self._closing:
                raise ConfigurationError(NOT_OPEN)
            self._beginning += 1
        try:
            # It waits for the event loop, which may wait for the lock.
            future: Future[Any] = self._portal.start_task_soon(function)
            with self._lock:
                self._lasting.add(future)
        finally:
            with self._lock:
                self._beginning -= 1
                self._lock.notify_all()
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: Future[Any]) -> None:
        with self._lock:
            self._lasting.discard(future)

    def _wait(self, future: Future[Any]) -> Any:
        try:
            return future.result()
        except CancelledError:
            raise ConfigurationError(NOT_OPEN) from None
        except BaseException:
            future.cancel()
            raise


FindLoop = Callable[[], Loop]
"""Returns the event loop of a bus, and raises ``ConfigurationError`` while it is not open."""


class Mirror(Generic[A]):
    """An object of the event loop for other threads; its class has ``waiting``, ``following`` and ``making`` methods of the object's own.

    Attributes:
        asynchronous: the object of the event loop.
    """

    def __init__(self, loop: FindLoop, asynchronous: A) -> None:
        self._loop = loop
        self.asynchronous = asynchronous


M = TypeVar("M", bound=Mirror[Any])


class Reading(Generic[T]):
    """An attribute of an asynchronous object that any thread may read, also when the bus is closed."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, mirror: None, owner: type) -> Self: ...
    @overload
    def __get__(self, mirror: Mirror[Any], owner: type) -> T: ...
    def __get__(self, mirror: Mirror[Any] | None, owner: type) -> Any:
        return self if mirror is None else getattr(mirror.asynchronous, self._name)


@overload
def waiting(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Mirror[Any], P], T]: ...
@overload
def waiting(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Mirror[Any], P], T]: ...
def waiting(method: Callable[..., Any]) -> Any:
    """Return a method that runs an asynchronous object's one in the event loop, and waits for what it returns."""

    def wait(self: Mirror[Any], /, *args: Any, **options: Any) -> Any:
        return self._loop().run(_called(self, method, args, options))

    return _like(method, wait)


def following(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]], *, lasting: bool = False
) -> Callable[Concatenate[Mirror[Any], P], Iterator[T]]:
    """Return a method that yields what an asynchronous object's one yields, see ``Loop.each``."""

    def follow(self: Mirror[Any], /, *args: Any, **options: Any) -> Iterator[Any]:
        yield from self._loop().each(_called(self, method, args, options)(), lasting=lasting)

    made: Callable[Concatenate[Mirror[Any], P], Iterator[T]] = _like(method, follow)
    return made


def making(kind: type[M], method: Callable[Concatenate[Any, P], object]) -> Callable[Concatenate[Mirror[Any], P], M]:
    """Return a method that makes an object in the event loop, to which it belongs from then on; ``kind`` is its class for other threads."""

    def make(self: Mirror[Any], /, *args: Any, **options: Any) -> Any:
        loop = self._loop()
        return kind(loop.itself, loop.run(_called(self, method, args, options)))

    made: Callable[Concatenate[Mirror[Any], P], M] = _like(method, make)
    return made


def _called(mirror: Mirror[Any], method: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Callable[[], Any]:
    # By its name, since a bus has the methods of its views.
    return partial(getattr(mirror.asynchronous, method.__name__), *args, **options)


def _like(method: Callable[..., Any], own: Callable[..., Any]) -> Any:
    """Return a function with the name, the docstring and the parameters of a method."""
    made: Any = wraps(method)(own)
    signature = inspect.signature(method)
    made.__signature__ = signature.replace(return_annotation=str(signature.return_annotation).replace("AsyncIterator", "Iterator"))
    return made
