"""Run what an adapter asks of an executor in the event loop of its bus, from whichever event loop or thread asks."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Union
from weakref import WeakKeyDictionary

from toolbus.bus.client.executor.executor import ToolExecutor
from toolbus.bus.client.executor.observers import Observer, ToolEvent
from toolbus.bus.client.executor.toolcalls import ModelCall, Observation, Place
from toolbus.bus.values.envelope import new_id
from toolbus.bus.values.results import ConfigurationError, ToolResult

if TYPE_CHECKING:
    from toolbus.sync import ToolExecutor as SynchronousExecutor

T = TypeVar("T")

# Seconds after which an event loop that has not begun a call counts as one that waits for the call itself.
BEGIN_SECONDS = 10.0

_NOT_RUNNING = "the event loop of the bus does not run; keep it running while tools are called, or use toolbus.sync.ToolBus"
_CLOSED = "the bus was closed while the call ran"


AnyExecutor = Union[ToolExecutor, "SynchronousExecutor"]
"""The executor of a bus, or of a ``toolbus.sync.ToolBus``."""


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


# Seconds for which a call that the framework has not started, and may have answered itself, holds up those after it.
UNUSED_SECONDS = 2.0
_MOST_TURNS = 256


class Asked(NamedTuple):
    """A call as a part of its turn.

    Attributes:
        message: the model's message, the same object for each call of the turn.
        calls: the id and the tool's name of each call in it, in order.
        id: the call's own id.
    """

    message: object
    calls: Sequence[tuple[str, str]]
    id: str


class _Turn:
    """The places of one message's calls: those that calls have claimed, and those that are left for them."""

    def __init__(self, executor: ToolExecutor, asked: Asked) -> None:
        # Kept, so that no other object has its id meanwhile.
        self.message = asked.message
        self._free: dict[str, list[Place]] = {}
        self._claimed: set[str] = set()
        for (call, _), place in zip(asked.calls, executor.reserve([name for _, name in asked.calls]), strict=True):
            self._free.setdefault(call, []).append(place)
        self._timer = asyncio.get_running_loop().call_later(UNUSED_SECONDS, self.leave)

    def claim(self, id: str) -> Place | None:
        """Return the place of a call, or None when it has none any more."""
        self._claimed.add(id)
        places = self._free.get(id)
        if not places:
            return None
        place = places.pop(0)
        if not any(self._free.values()):
            self._timer.cancel()
        return place

    def has_claimed(self, id: str) -> bool:
        """Return whether all places of this id are claimed: then the framework runs the turn once more."""
        return id in self._claimed and not self._free.get(id)

    def leave(self) -> None:
        """Let others go on that wait for what was not claimed."""
        self._timer.cancel()
        for places in self._free.values():
            for place in places:
                place.leave()
            places.clear()


# The latest turns of each executor, by the ids of their messages.
_turns: WeakKeyDictionary[ToolExecutor, OrderedDict[int, _Turn]] = WeakKeyDictionary()


def _place_of(executor: ToolExecutor, asked: Asked) -> Place | None:
    """Return the place of a call, taken with those of the whole turn when its first call came; None for the next one.

    It is called in the event loop of the executor.
    """
    known, message = _turns.setdefault(executor, OrderedDict()), id(asked.message)
    turn = known.get(message)
    if turn is None or turn.has_claimed(asked.id):
        if turn is not None:
            turn.leave()
        turn = known[message] = _Turn(executor, asked)
        known.move_to_end(message)
        if len(known) > _MOST_TURNS:
            known.popitem(last=False)[1].leave()
    return turn.claim(asked.id)


MAX_TURNS = 12


Outcome = tuple[Observation, ToolResult]


def calling(
    executor: ToolExecutor, name: str, arguments: object, call: str = "", place: Asked | Place | None = None
) -> Callable[[Observer | None], Awaitable[Outcome]]:
    """Return what ``run_at_home`` and ``wait_at_home`` start: a call of a model, which returns its observation and its result.

    Starting it raises a ``ConfigurationError`` when an option of the executor is wrong, or the bus is not open.

    Args:
        call: the model's id of the call; a new one when left out.
        place: the turn that the call is a part of where the framework tells it, or a place that was taken before.
    """
    wanted = ModelCall(call or new_id(), name, arguments)
    return lambda told: _run(executor, wanted, told, place)


def turns(most: int) -> Iterator[bool]:
    """Yield for each turn of a conversation whether it is the last one, in which the model may call no tool.

    Raises:
        ConfigurationError: ``most`` is less than 1.
    """
    if most < 1:
        raise ConfigurationError(f"max_turns must be at least 1, not {most}")
    return (turn == most for turn in range(1, most + 1))


async def _run(executor: ToolExecutor, wanted: ModelCall, observer: Observer | None, place: Asked | Place | None) -> Outcome:
    if isinstance(place, Asked):
        place = _place_of(executor, place)
    # Without an observer no person sees a question, so handlers may not ask one.
    turn = executor.turn([wanted], streaming=observer is not None, places=() if place is None else (place,))
    if observer is not None:
        async with turn:
            async for event in turn:
                observer(event)
    (observation,) = await turn.observations()
    (result,) = await turn.results()
    return observation, result
