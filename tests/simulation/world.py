"""The world of a simulation: one event loop with virtual time, one source of randomness, one server, and processes that live in it."""

from __future__ import annotations

import _thread
import asyncio
import contextvars
import functools
import gc
import heapq
import random as randomness
import sys
import warnings
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar, TypeVarTuple, Unpack

from tests.simulation import seams
from tests.simulation.network import Network, Transport
from tests.simulation.server import Server
from tests.simulation.threads import Thread

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_BEGINS = 1_800_000_000.0
EARLIEST = 1000.0
"""The local time at which a world begins."""
# More callbacks at one instant are a loop that goes round without waiting.
_MOST_AT_ONCE = 200_000

_strand: contextvars.ContextVar[Strand] = contextvars.ContextVar("strand")


class Moment(NamedTuple):
    """A part of the trace: when, in which process, what happened, and more about it."""

    at: float
    who: str
    what: str
    about: str


class Stuck(Exception):
    """Nothing will ever happen again, or everything at once."""


class Strand:
    """A part of a process that goes on, or stands still, as one: the event loop of a process, or its threads."""

    __slots__ = ("held", "paused", "process")

    def __init__(self, process: Process) -> None:
        self.process = process
        self.paused = False
        self.held: list[Any] = []


class Process:
    """A simulated process: the tasks that run in its context, its threads and its connections.

    Attributes:
        context: whatever runs in a copy of it belongs to the process.
        skew: seconds by which its clock of the day is ahead.
        dead: whether it was killed.
    """

    def __init__(self, world: World, name: str, number: int) -> None:
        self._world = world
        self.name = name
        self.number = number
        self.pid = 1000 + number
        self.dead = False
        self.skew = 0.0
        self._kept: set[asyncio.Task[Any]] = set()
        self._loop_strand, self._thread_strand = Strand(self), Strand(self)
        self.context = contextvars.Context()
        self.context.run(_strand.set, self._loop_strand)

    def context_of_threads(self) -> contextvars.Context:
        """Return a context for a thread of it."""
        context = self.context.copy()
        context.run(_strand.set, self._thread_strand)
        return context

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin a task of it."""
        return self._world.loop.create_task(work, context=self.context.copy())

    def kill(self) -> None:
        """End it at once, as SIGKILL does: nothing of it runs any more, and the system closes its connections."""
        self.dead = True
        # What nobody refers to any more would be cleared away now, and its clean-ups would run.
        self._kept = asyncio.all_tasks(self._world.loop)
        for connection in [each for each in self._world.network.connections if each.process is self]:
            connection.close()

    def drop(self) -> None:
        """Forget what was held back, and what was kept."""
        self._kept = set()
        self._loop_strand.held.clear()
        self._thread_strand.held.clear()

    def stop(self, *, loop: bool = True, threads: bool = True) -> None:
        """Hold it back, as SIGSTOP does; or its event loop alone, as a handler that blocks does."""
        self._loop_strand.paused |= loop
        self._thread_strand.paused |= threads

    def go_on(self) -> None:
        """Let it go on where it stood."""
        for strand in (self._loop_strand, self._thread_strand):
            strand.paused = False
            held, strand.held = strand.held, []
            self._world.loop.append(held)


class _Task(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address."""

    __slots__ = ("_number",)
    _made = 0

    def __init__(self, *args: Any, **named: Any) -> None:
        _Task._made += 1
        self._number = _Task._made
        super().__init__(*args, **named)

    def __hash__(self) -> int:
        return self._number


class _Handle(asyncio.Handle):
    """A callback; nothing is asked about debugging."""

    __slots__ = ()

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], loop: Loop, context: contextvars.Context | None) -> None:
        self._callback, self._args, self._loop = callback, args, loop
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled, self._repr, self._source_traceback = False, None, None


class _Timer(_Handle, asyncio.TimerHandle):
    """A callback at a time."""

    __slots__ = ()

    def __init__(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], loop: Loop, context: contextvars.Context | None
    ) -> None:
        super().__init__(callback, args, loop, context)
        self._when, self._scheduled = when, False


class Loop(asyncio.BaseEventLoop):
    """An event loop whose time goes to the next timer whenever nothing else is to be done.

    Attributes:
        now: seconds of virtual time.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.now = EARLIEST
        self._at_once = 0
        # By time, then by number: tuples compare faster than the timers of asyncio.
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._made = 0
        # The order of a set follows from these numbers: they must not go on from another world's.
        _Task._made = 0
        self.set_task_factory(lambda loop, work, context=None: _Task(work, loop=loop, context=context))

    def time(self) -> float:
        """Return the virtual time."""
        return self.now

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Call a function at a time, behind what is called at the same."""
        timer = _Timer(when, callback, args, self, context)
        self._made += 1
        heapq.heappush(self._timers, (when, self._made, timer))
        return timer

    def call_soon(self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None) -> asyncio.Handle:
        """Call a function at once, behind what is called already."""
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def append(self, handles: list[Any]) -> None:
        """Run handles that were held back, in their order."""
        self._ready.extend(handles)

    def drop(self) -> None:
        """Forget everything that was to be called."""
        self._ready.clear()
        self._timers.clear()

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Call a function soon, in the loop of the process whose thread asks."""
        self._check_closed()
        return self.call_soon(callback, *args, context=context or self._world.current.context)

    def run_in_executor(self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts) -> asyncio.Future[T]:
        """Run a function in a thread of the process."""
        future = self.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if not future.done():
                future.set_result(result) if error is None else future.set_exception(error)

        def run() -> None:
            try:
                result = func(*args)
            except Exception as error:
                self.call_soon_threadsafe(settle, None, error)
            else:
                self.call_soon_threadsafe(settle, result, None)

        Thread(self._world, target=run).start()
        return future

    async def create_connection(self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, **_: Any) -> Any:
        """Connect to the server of the world."""
        protocol = protocol_factory()
        transport = Transport(self._world, self._world.current, protocol)
        await asyncio.sleep(transport.connection.opening)
        if transport.connection.refused:
            raise ConnectionRefusedError(111, f"Connect call failed ({host!r}, {port})")
        protocol.connection_made(transport)
        return transport, protocol

    def _take_timers(self) -> None:
        """Make ready what is due, or, if nothing is ready, what is due first."""
        ready, timers = self._ready, self._timers
        if not ready:
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not timers:
                raise Stuck("nothing is left that could happen")
            if timers[0][0] > self.now:
                self.now = timers[0][0]
                self._at_once = 0
        while timers and timers[0][0] <= self.now:
            timer = heapq.heappop(timers)[2]
            if not timer._cancelled:
                ready.append(timer)

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        if not ready or (timers and timers[0][0] <= self.now):
            self._take_timers()
        self._at_once += len(ready)
        if self._at_once > _MOST_AT_ONCE:
            raise Stuck(f"{self._at_once} callbacks at one instant, the next: {ready[0]!r}")
        for _ in range(len(ready)):
            handle = ready.popleft()
            strand = handle._context.get(_strand)
            if handle._cancelled or (strand is not None and strand.process.dead):
                continue
            if strand is not None and strand.paused:
                strand.held.append(handle)
                continue
            try:
                handle._context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": f"Exception in callback {handle!r}", "exception": error, "handle": handle})

    def _process_events(self, event_list: Any) -> None:
        """Nothing comes from outside."""

    def _write_to_self(self) -> None:
        """Nobody waits in a selector."""


@functools.cache
def _keep_modules() -> None:
    """Let nobody look at the modules again at the end of each world: they stay."""
    gc.collect()
    gc.freeze()


class World:
    """A world from a seed.

    Attributes:
        loop, network, server: its parts.
        random: the random numbers of everything that runs in it.
        trace: what happened, if it is ``traced``.
        processes: all that were ever started.
        current: the process whose code runs.
        server_skew: seconds by which the server's clock is ahead.
        server_stands: when the server's clock was stopped, in virtual time; None while it goes.
        exited: called with a process that has ended itself, and its status.
        ended: whether it is over; what is heard of it while it is dropped follows no seed.
    """

    def __init__(self, seed: int, *, traced: bool = True) -> None:
        self.seed = seed
        self.traced = traced
        self.random = randomness.Random(f"{seed} world")
        self.loop = Loop(self)
        self.context = contextvars.Context()
        self.trace: list[Moment] = []
        self.processes: list[Process] = []
        self.threads: list[Thread] = []
        self.running_thread: Thread | None = None
        self.ended = False
        self.turn = _thread.allocate_lock()
        self.turn.acquire()
        self.exited: Callable[[Process, int], None] = lambda process, status: None
        self._outside = Process(self, "world", 0)
        self.server_skew = 0.0
        self.server_stands: float | None = None
        self.network = Network(self)
        self.server = Server(self._server_clock, self._later, randomness.Random(f"{seed} server"))

    @property
    def current(self) -> Process:
        """The process whose code runs; one of no name outside of all."""
        strand = _strand.get(None)
        return self._outside if strand is None else strand.process

    def wall(self) -> float:
        """Return the clock of the day of the process whose code runs, in seconds since 1970."""
        return _BEGINS + self.loop.now + self.current.skew

    def start(self, name: str) -> Process:
        """Start a process."""
        process = Process(self, name, len(self.processes) + 1)
        self.processes.append(process)
        return process

    def exit(self, status: int) -> None:
        """End the process whose code runs."""
        process = self.current
        self.context.run(self.exited, process, status)

    def note(self, what: str, about: str = "", who: str = "") -> None:
        """Add to the trace."""
        if self.ended or not self.traced:
            return
        self.trace.append(Moment(self.loop.now, who or self.current.name, what, about))

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run until some work is done, and end everything."""
        seed = f"{self.seed} product"
        randomness.seed(seed)
        seams.world = self
        _keep_modules()
        gc.disable()
        try:
            self.loop.run_until_complete(work)
        finally:
            self._end()
            seams.world = None
            gc.enable()

    def _end(self) -> None:
        """Drop what still waits, as the end of a process does: what its clean-ups would say reaches nobody."""
        self.ended = True
        for process in self.processes:
            process.dead = True
        for thread in self.threads:
            thread.go_on()
        self.loop.set_exception_handler(lambda loop, context: None)
        usual, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            with warnings.catch_warnings():
                # Clean-ups that still run make coroutines, and nobody is there to await them.
                warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)
                self._drop()
        finally:
            sys.unraisablehook = usual

    def _drop(self) -> None:
        self.loop.drop()
        for process in self.processes:
            process.drop()
        self.threads.clear()
        self.network.connections.clear()
        self.server.sessions.clear()
        self.server.waiting.clear()
        for _ in range(5):
            # Clean-ups make objects, which the next collection finds.
            if gc.collect() == 0:
                break

    def _server_clock(self) -> int:
        now = self.loop.now if self.server_stands is None else self.server_stands
        return int((_BEGINS + now + self.server_skew) * 1e6)

    def _later(self, seconds: float, callback: Callable[[], Any]) -> Any:
        return self.loop.call_later(seconds, callback, context=self.context)
