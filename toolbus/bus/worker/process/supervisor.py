"""Several processes of one command: started, restarted after a crash, reloaded, as many as their load asks for, and stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import math
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from toolbus.bus import telemetry
from toolbus.bus.broker.admin import Admin
from toolbus.bus.support.waiting import at_most, beside, either
from toolbus.bus.telemetry.background import keep_running
from toolbus.bus.values.results import ConfigurationError, ToolbusError
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.process.lifeline import EVERY, Bounds, ChildState, Lifeline, Load, ended_by

_BACKOFF_FIRST, _BACKOFF_MOST = 0.2, 10.0
_STABLE_AFTER = 30.0
_REFUSED = 1
_MARGIN = 5.0
# Seconds for telling the server of a dead child.
_RETIRING = 5.0


@dataclass(eq=False, slots=True)
class Child:
    """A slot of a supervisor, and the process that it has now.

    Attributes:
        slot: its number.
        ending: set when the process is to drain and to end for good.
        process: the latest one, which may have ended.
        starts: how many there have been.
        draining: whether the process was told to drain.
        state: what the process has told.
        awaited: the moment (monotonic seconds) since which a process that serves is awaited; None while one serves.
        load, reported: its last report, and the moment of it.
    """

    slot: int
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    process: asyncio.subprocess.Process | None = None
    starts: int = 0
    draining: bool = False
    state: ChildState = field(default_factory=ChildState)
    awaited: float | None = field(default_factory=time.monotonic)
    load: Load = field(default_factory=Load)
    reported: float = 0.0

    def begin(self, process: asyncio.subprocess.Process) -> None:
        """Take in that a process was started."""
        self.process, self.state, self.draining = process, ChildState(), False
        self.starts += 1

    def serve(self, now: float) -> None:
        """Take in that the process serves; until its first report, nothing of it is in use."""
        self.awaited, self.load, self.reported = None, Load(), now

    def end(self, now: float) -> None:
        """Take in that the process has ended."""
        self.state = ChildState()
        if self.awaited is None:
            self.awaited = now


class Supervisor:
    """Runs copies of a command, as many as the load asks for, or as ``add`` and ``dismiss`` say.

    Each child inherits one end of a lifeline. It tells its state there, and when this process dies in whatever way, the child stops.

    A child that ends is started again: at once after a change of the watched files, else after a delay that grows. While files can't be
    served, the next change is waited for. Everything ends when no child has ever served and no change of files can help.

    Args:
        command: of one child, without the lifeline.
        environment: the children's.
        settings: the server, and the grace period in which a child may drain before it is killed.
        complain: shows a user why a child does not serve; called once for all children that say the same.
        processes: the fewest, which are started first, and the most; the load decides, if they differ.
        watch: folders whose changes restart all children, or empty.
        after: words of the command that stand after the lifeline, because every later word is taken for an argument.
        descriptors: files that every child inherits.

    Attributes:
        settings: as given.
        children: by slot, those that are to go among them until they have ended.
        served: whether any child has served.
        restarts, added, dismissed: how often a child was started again, was added, and was let go.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        settings: Settings,
        *,
        complain: Callable[[str], None],
        processes: Bounds = Bounds(1, 1),  # noqa: B008 - it is frozen
        watch: Sequence[Path] = (),
        after: Sequence[str] = (),
        descriptors: Sequence[int] = (),
    ) -> None:
        self._command, self._after = list(command), list(after)
        self._environment = dict(environment)
        self.settings = settings
        self._complain = complain
        self.processes = processes
        self._watch = list(watch)
        self._descriptors = tuple(descriptors)
        self.children: dict[int, Child] = {}
        self.served = False
        self.restarts = self.added = self.dismissed = 0
        self._keepers: set[asyncio.Task[None]] = set()
        self._tasks: asyncio.TaskGroup | None = None
        self._stopping = asyncio.Event()
        # Set, and replaced by a fresh one, at each change of files; set for good when everything stops.
        self._changed = asyncio.Event()
        self._changes = 0
        self._complaints: set[str] = set()
        self._numbers = itertools.count()
        self._on_serving: Callable[[], object] = lambda: None
        self._on_stopping: Callable[[], object] = lambda: None

    async def run(self, on_serving: Callable[[], object], on_stopping: Callable[[], object]) -> int:
        """Supervise until SIGTERM or SIGINT; return the exit code: 1 when the children can't start at all.

        Args:
            on_serving: called once when the first child serves.
            on_stopping: called once when everything is to stop.
        """
        with ended_by(self.stop, self.stop):
            return await self.supervise(on_serving, on_stopping)

    async def supervise(self, on_serving: Callable[[], object] = lambda: None, on_stopping: Callable[[], object] = lambda: None) -> int:
        """Supervise until ``stop``; return as ``run`` does."""
        self._on_serving, self._on_stopping = on_serving, on_stopping
        async with _following(self), asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for _ in range(self.processes.least):
                self.add()
            watching = tasks.create_task(self._reload()) if self._watch else None
            while self._keepers:
                await asyncio.wait(self._keepers, return_when=asyncio.FIRST_COMPLETED)
                # The load may have added some meanwhile.
                self._keepers = {keeper for keeper in self._keepers if not keeper.done()}
            # Without a child there is nothing to reload; the thread that watches for changes ends by this event only.
            ended_by_signal = self._stopping.is_set()
            self.stop()
            if watching is not None:
                await watching
        return 0 if ended_by_signal else _REFUSED

    def stop(self) -> None:
        """End the children, which may drain first, and then ``supervise``."""
        if not self._stopping.is_set():
            self._on_stopping()
        self._stopping.set()
        self._changed.set()
        for child in self.children.values():
            child.ending.set()

    @property
    def wanted(self) -> list[Child]:
        """The children that are to stay."""
        return [child for child in self.children.values() if not child.ending.is_set()]

    def add(self) -> None:
        """Start one more child; does nothing once everything stops."""
        if self._tasks is None or self._stopping.is_set():
            return
        child = Child(next(self._numbers))
        self.children[child.slot] = child
        self.added += 1
        self._keepers.add(self._tasks.create_task(self._keep(child)))

    def dismiss(self, slot: int) -> None:
        """Let the child of a slot drain and end for good; does nothing once everything stops."""
        if not self._stopping.is_set():
            self.children[slot].ending.set()
            self.dismissed += 1

    async def _keep(self, child: Child) -> None:
        """Keep one child alive until it is to end."""
        delay = _BACKOFF_FIRST
        while not child.ending.is_set():
            started, changes = time.monotonic(), self._changes
            pid, code, state = await self._live(child)
            if child.ending.is_set() or changes != self._changes:
                delay = _BACKOFF_FIRST
                continue
            if state.refused and state.refused not in self._complaints:
                self._complaints.add(state.refused)
                self._complain(state.refused)
            if state.mendable and self._watch:
                await self._changed.wait()
            elif code == _REFUSED and not state.serving and not self.served:
                # The same start would be refused in the same way.
                return
            else:
                delay = _BACKOFF_FIRST if time.monotonic() - started > _STABLE_AFTER else min(delay * 2, _BACKOFF_MOST)
                telemetry.log.warning("supervisor.restarting", slot=child.slot, pid=pid, code=code, after=round(delay, 2))
                self.restarts += 1
                await at_most(delay * random.uniform(0.5, 1.0), self._changed.wait())  # noqa: S311 - jitter
            if changes != self._changes:
                delay = _BACKOFF_FIRST
        del self.children[child.slot]

    async def _live(self, child: Child) -> tuple[int, int, ChildState]:
        """Start a process and wait until it has ended; return its id, its exit code and what it told."""
        loop = asyncio.get_running_loop()
        with Lifeline() as line:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                *line.words,
                *self._after,
                env=self._environment,
                pass_fds=(line.theirs, *self._descriptors),
                # Ctrl-C reaches this process alone, which then stops the children in order.
                start_new_session=True,
            )
            line.started()
            child.begin(process)
            loop.add_reader(line.fileno(), self._read, child, line)
            try:
                code = await self._outlive(child, process)
            finally:
                loop.remove_reader(line.fileno())
                child.end(time.monotonic())
            state = line.read()
        if code != 0:
            await self._bury(process.pid, state)
        return process.pid, code, state

    def _read(self, child: Child, line: Lifeline) -> None:
        """Take in what a child has told."""
        before, child.state = child.state, line.read()
        if line.ended:
            # A closed end stays readable.
            asyncio.get_running_loop().remove_reader(line.fileno())
        if child.state.serving and not before.serving:
            child.serve(time.monotonic())
            self._complaints.clear()
            if not self.served:
                self.served = True
                self._on_serving()
        if child.state.load is not None and child.state.load is not before.load:
            child.load, child.reported = child.state.load, time.monotonic()

    async def retire(self, state: ChildState) -> None:
        """Give what a dead child held to others, by the ids that it had told.

        Raises:
            BrokerError: the server could not be asked; the leases end by themselves.
        """
        async with Admin(self.settings) as admin:
            if state.host:
                await admin.routes.retire(state.host)
            if state.instance:
                await admin.retire(state.instance)

    async def _bury(self, pid: int, state: ChildState) -> None:
        """Let others go on with what a dead child held, rather than wait for the end of its lease."""
        if not (state.instance or state.host):
            return
        try:
            async with asyncio.timeout(_RETIRING):
                await self.retire(state)
        except (ToolbusError, OSError) as error:
            # TimeoutError is an OSError.
            reason = str(error) or "the server did not answer"
            ids = {"instance": state.instance, "host": state.host}
            telemetry.log.warning("supervisor.not_retired", pid=pid, **ids, error=reason, advice="its lease ends by itself")

    async def _outlive(self, child: Child, process: asyncio.subprocess.Process) -> int:
        """Wait for a process's end; when its child is to end, ask it to drain, and kill it when it does not."""
        await either(process.wait(), child.ending.wait())
        if process.returncode is None:
            await self._end(child)
        return await process.wait()

    async def _end(self, child: Child) -> None:
        process = child.process
        if process is None:
            return
        # A second signal would end it at once: a reload may be over only after everything is to stop.
        if not child.draining:
            child.draining = True
            _signal(process, signal.SIGTERM)
        await at_most(self.settings.grace + _MARGIN, process.wait())
        if process.returncode is None:
            telemetry.log.error("supervisor.killing", pid=process.pid, grace=self.settings.grace)
            _signal(process, signal.SIGKILL)

    async def _reload(self) -> None:
        import watchfiles  # noqa: PLC0415 - an extra

        only = watchfiles.PythonFilter()
        async for _ in watchfiles.awatch(*self._watch, watch_filter=only, stop_event=self._stopping):
            telemetry.log.info("supervisor.reloading", processes=len(self.wanted))
            self._complaints.clear()
            self._changes += 1
            self._changed.set()
            self._changed = asyncio.Event()
            # One that is to go was told already, and one that starts from here on has the changed files.
            for child, process in [(child, child.process) for child in self.wanted]:
                if process is not None and process is child.process:
                    await self._end(child)


def check_reload() -> None:
    """Check that changes of files can be watched.

    Raises:
        ConfigurationError: they can't; the message says what to install.
    """
    if importlib.util.find_spec("watchfiles") is None:
        raise ConfigurationError("--reload needs watchfiles: pip install 'toolbus[reload]'")


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


# -- as many as the load asks for ----------------------------------------------------------------------


class Rules(NamedTuple):
    """The numbers of the decision.

    Attributes:
        high: share of each process that should be in use at most.
        low: share of each process that should be in use at least.
        rise: seconds for which more processes must be wanted before any is started.
        fall: seconds for which fewer must do before any goes.
        growth: processes for each present one at most.
    """

    high: float = 0.7
    low: float = 0.5
    rise: float = 1.0
    fall: float = 30.0
    growth: int = 2


RULES = Rules()


class Wanted(NamedTuple):
    """The decision: how many processes, and what it comes from.

    Attributes:
        processes: how many should run.
        use: processes in use, as the sum of their shares.
        backlog: requests that wait for a free slot.
    """

    processes: int
    use: float
    backlog: int


class _Lasting(NamedTuple):
    """Since when the number was to change in one direction, and the smallest change that was wanted in that time."""

    since: float
    wanted: int


@dataclass(eq=False, slots=True)
class Scaling:
    """Decides again and again; it remembers for how long more or fewer processes were wanted.

    Args:
        bounds: the fewest and the most.
        rules: the numbers.
    """

    bounds: Bounds
    rules: Rules = RULES
    _rising: _Lasting | None = None
    _falling: _Lasting | None = None

    def decide(self, now: float, processes: int, loads: Sequence[Load], *, starting: bool = False) -> Wanted:
        """Return how many processes should run.

        Args:
            now: monotonic seconds.
            processes: how many should run until now.
            loads: of those that serve.
            starting: whether some of them do not serve yet: until they do, nothing changes.
        """
        use, backlog = sum(load.use for load in loads), backlog_of(loads)
        if starting:
            self._rising = self._falling = None
            return Wanted(processes, use, backlog)
        more, fewer = self._more(processes, loads, backlog), self._fewer(processes, use)
        self._rising = _lasting(self._rising, now, more, min) if more > processes else None
        self._falling = _lasting(self._falling, now, fewer, max) if fewer < processes else None
        wanted = processes
        if self._rising is not None and now - self._rising.since >= self.rules.rise:
            wanted = self._rising.wanted
        elif self._falling is not None and now - self._falling.since >= self.rules.fall:
            wanted = self._falling.wanted
        if wanted != processes:
            self._rising = self._falling = None
        return Wanted(wanted, use, backlog)

    def _more(self, processes: int, loads: Sequence[Load], backlog: int) -> int:
        """Return how many processes keep each of them below the upper share."""
        wanted = _ceil(sum(load.use for load in loads) / self.rules.high)
        if backlog:
            slots = sum(load.slots for load in loads) / len(loads)
            wanted = max(wanted, _ceil((sum(load.running for load in loads) + backlog) / (slots * self.rules.high)))
        return max(self.bounds.least, min(wanted, processes * self.rules.growth, self.bounds.most))

    def _fewer(self, processes: int, use: float) -> int:
        """Return how many processes keep each of them at the lower share; at least half of those that run."""
        return min(self.bounds.most, max(self.bounds.least, _ceil(use / self.rules.low), (processes + 1) // 2))


def backlog_of(loads: Sequence[Load]) -> int:
    """Return how many requests wait for a free slot.

    The server tells how many requests of a service there are, wherever they run. So what these processes have not taken counts only
    while they had no free slot: otherwise others have it.
    """
    if not any(load.full for load in loads):
        return 0
    return max(0, max(load.depth for load in loads) - sum(load.held for load in loads))


def _lasting(before: _Lasting | None, now: float, wanted: int, least: Callable[[int, int], int]) -> _Lasting:
    return _Lasting(now, wanted) if before is None else _Lasting(before.since, least(before.wanted, wanted))


def _ceil(number: float) -> int:
    # What lies above a whole number by an error of rounding is that number.
    return math.ceil(number - 1e-9)


# Seconds without a report after which a process counts as one whose event loop is held.
_SILENT = 4 * EVERY
# Seconds for which a process that starts, or starts again, puts off decisions.
_STARTING = 10.0


def resize(supervisor: Supervisor, scaling: Scaling, now: float) -> None:
    """Decide once how many processes there are to be, and add or dismiss some.

    Args:
        supervisor: of the processes.
        scaling: decides.
        now: monotonic seconds.
    """
    children = supervisor.wanted
    loads = {child.slot: _load(child, now) for child in children if child.awaited is None}
    starting = any(child.awaited is not None and now - child.awaited < _STARTING for child in children)
    wanted = scaling.decide(now, len(children), list(loads.values()), starting=starting)
    for _ in range(wanted.processes - len(children)):
        supervisor.add()
    # Sessions live in their process, so one that has any stays.
    leaving = sorted((load.running, -slot) for slot, load in loads.items() if not load.sessions)
    for _, slot in leaving[: max(0, len(children) - wanted.processes)]:
        supervisor.dismiss(-slot)
    if (processes := len(supervisor.wanted)) != len(children):
        use = round(wanted.use, 2)
        telemetry.log.info("supervisor.scaled", processes=processes, before=len(children), use=use, backlog=wanted.backlog)


def _load(child: Child, now: float) -> Load:
    load = child.load
    return load if now - child.reported < _SILENT else Load(slots=load.slots, sessions=load.sessions, blocked=1.0)


@contextlib.asynccontextmanager
async def _following(supervisor: Supervisor) -> AsyncIterator[None]:
    """Let the load decide how many processes there are, if there may be fewer or more."""
    if supervisor.processes.least == supervisor.processes.most:
        yield
        return
    scaling = Scaling(supervisor.processes)

    async def follow() -> None:
        while True:
            await asyncio.sleep(EVERY)
            resize(supervisor, scaling, time.monotonic())

    async with beside(keep_running("scaling", follow, every=EVERY)):
        yield
