"""Several worker processes under one: started, restarted after a crash, reloaded, added, dismissed, and stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from toolbus.bus import telemetry
from toolbus.bus.values.results import ConfigurationError, ToolbusError
from toolbus.bus.worker.process.lifeline import Lifeline, Told
from toolbus.bus.worker.process.load import Load

_BACKOFF_FIRST, _BACKOFF_MOST = 0.2, 10.0
_STABLE_AFTER = 30.0
_REFUSED = 1
_MARGIN = 5.0
# Seconds for telling the server of a dead child.
_RETIRING = 5.0


class ChildWatcher(Protocol):
    """A listener to the lives of children, each of which has a slot."""

    def serving(self, slot: int, told: Told) -> None:
        """Take in what a child told when it began to serve."""

    def ended(self, slot: int) -> None:
        """Take in that a child has ended."""

    def restarting(self) -> None:
        """Take in that a child that had ended is started again."""

    def reported(self, slot: int, load: Load) -> None:
        """Take in how busy a child says that it is."""

    def resized(self, slots: frozenset[int]) -> None:
        """Take in which slots are to have a child from now on."""


class Supervisor:
    """Runs ``processes`` copies of a command, and as many as ``add`` and ``dismiss`` say from then on.

    Each child inherits one end of a lifeline. It tells its state there, and when this process dies in whatever way, the child stops.

    A child that ends is started again: at once after a change of the watched files, else after a delay that grows. While files can't be
    served, the next change is waited for. Everything ends when no child has ever served and no change of files can help.

    Args:
        command: of one child, without the lifeline.
        environment: the children's.
        processes: how many at the start.
        grace: seconds a child may take to drain before it is killed.
        retire: gives what a dead child held to others, by the ids that it has told.
        complain: shows a user why a child does not serve; called once for all children that say the same.
        on_serving: called once when the first child serves.
        watch: folders whose changes restart all children, or empty.
        after: words of the command that stand after the lifeline, because every later word is taken for an argument.
        watchers: are told of the children.
        on_stopping: called once when everything is to stop.
        descriptors: files that every child inherits.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        processes: int,
        grace: float,
        retire: Callable[[Told], Awaitable[object]],
        complain: Callable[[str], None],
        on_serving: Callable[[], object] = lambda: None,
        watch: Sequence[Path] = (),
        after: Sequence[str] = (),
        watchers: Sequence[ChildWatcher] = (),
        on_stopping: Callable[[], object] = lambda: None,
        descriptors: Sequence[int] = (),
    ) -> None:
        self._descriptors = tuple(descriptors)
        self._command = list(command)
        self._after = list(after)
        self._environment = dict(environment)
        self._processes = processes
        self._grace = grace
        self._retire = retire
        self._complain = complain
        self._on_serving = on_serving
        self._watch = list(watch)
        self._watchers = list(watchers)
        self._on_stopping = on_stopping
        self._children: dict[int, asyncio.subprocess.Process] = {}
        # Those that were told to drain.
        self._told: set[asyncio.subprocess.Process] = set()
        self._numbers = itertools.count()
        self._keepers: dict[int, asyncio.Task[None]] = {}
        # By slots that are to have a child: set when it is to end.
        self._ending: dict[int, asyncio.Event] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._stopping = asyncio.Event()
        # Set, and replaced by a fresh one, at each change of files; set for good when everything stops.
        self._changed = asyncio.Event()
        self._changes = 0
        self._served = False
        self._complaints: set[str] = set()

    async def run(self) -> int:
        """Supervise until SIGTERM or SIGINT; return the exit code: 1 when the children can't start at all."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        return await self.supervise()

    async def supervise(self) -> int:
        """Supervise until ``stop``; return as ``run`` does."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for _ in range(self._processes):
                self.add()
            watching = tasks.create_task(self._reload()) if self._watch else None
            while self._keepers:
                await asyncio.wait(list(self._keepers.values()), return_when=asyncio.FIRST_COMPLETED)
                self._keepers = {slot: keeper for slot, keeper in self._keepers.items() if not keeper.done()}
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
        for ending in self._ending.values():
            ending.set()

    @property
    def slots(self) -> frozenset[int]:
        """The slots that are to have a child."""
        return frozenset(self._ending)

    def add(self) -> None:
        """Start one more child; does nothing once everything stops."""
        if self._tasks is None or self._stopping.is_set():
            return
        slot = next(self._numbers)
        ending = self._ending[slot] = asyncio.Event()
        self._keepers[slot] = self._tasks.create_task(self._keep(slot, ending))
        self._resized()

    def dismiss(self, slot: int) -> None:
        """Let the child of a slot drain and end for good; does nothing once everything stops."""
        if not self._stopping.is_set():
            self._ending.pop(slot).set()
            self._resized()

    def _resized(self) -> None:
        for watcher in self._watchers:
            watcher.resized(self.slots)

    async def _keep(self, slot: int, ending: asyncio.Event) -> None:
        """Keep one child alive until it is to end."""
        delay = _BACKOFF_FIRST
        while not ending.is_set():
            started, changes = time.monotonic(), self._changes
            pid, code, told = await self._live(slot, ending)
            if ending.is_set():
                return
            if changes != self._changes:
                delay = _BACKOFF_FIRST
                continue
            if told.refused:
                self._tell(told.refused)
            if told.mendable and self._watch:
                await self._changed.wait()
                delay = _BACKOFF_FIRST
                continue
            if code == _REFUSED and not told.serving and not self._served:
                # The same start would be refused in the same way.
                return
            delay = _BACKOFF_FIRST if time.monotonic() - started > _STABLE_AFTER else min(delay * 2, _BACKOFF_MOST)
            telemetry.log.warning("supervisor.restarting", slot=slot, pid=pid, code=code, after=round(delay, 2))
            for watcher in self._watchers:
                watcher.restarting()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay * random.uniform(0.5, 1.0)):  # noqa: S311 - jitter
                    await self._changed.wait()
            if changes != self._changes:
                delay = _BACKOFF_FIRST

    async def _live(self, slot: int, ending: asyncio.Event) -> tuple[int, int, Told]:
        """Start a child and wait until it has ended; return its process id, its exit code and what it told."""
        loop = asyncio.get_running_loop()
        with Lifeline() as line:
            child = await asyncio.create_subprocess_exec(
                *self._command,
                *line.words,
                *self._after,
                env=self._environment,
                pass_fds=(line.theirs, *self._descriptors),
                # Ctrl-C reaches this process alone, which then stops the children in order.
                start_new_session=True,
            )
            line.started()
            loop.add_reader(line.fileno(), self._hear, slot, line)
            self._children[slot] = child
            try:
                code = await self._outlive(child, ending)
            finally:
                loop.remove_reader(line.fileno())
                self._told.discard(child)
                for watcher in self._watchers:
                    watcher.ended(slot)
            del self._children[slot]
            told = line.read()
        if code != 0:
            await self._bury(child.pid, told)
        return child.pid, code, told

    def _hear(self, slot: int, line: Lifeline) -> None:
        before, told = line.told, line.read()
        if line.ended:
            # A closed end stays readable.
            asyncio.get_running_loop().remove_reader(line.fileno())
        if told.serving and not before.serving:
            self._announce(slot, told)
        if told.load is not None and told.load is not before.load:
            for watcher in self._watchers:
                watcher.reported(slot, told.load)

    def _announce(self, slot: int, told: Told) -> None:
        """Tell that a child serves."""
        for watcher in self._watchers:
            watcher.serving(slot, told)
        self._complaints.clear()
        if not self._served:
            self._served = True
            self._on_serving()

    def _tell(self, complaint: str) -> None:
        if complaint in self._complaints:
            return
        self._complaints.add(complaint)
        self._complain(complaint)

    async def _bury(self, pid: int, told: Told) -> None:
        """Let others go on with what a dead child held, rather than wait for the end of its lease."""
        if not (told.instance or told.host):
            return
        try:
            async with asyncio.timeout(_RETIRING):
                await self._retire(told)
        except (ToolbusError, OSError) as error:
            # TimeoutError is an OSError.
            reason = str(error) or "the server did not answer"
            ids = {"instance": told.instance, "host": told.host}
            telemetry.log.warning("supervisor.not_retired", pid=pid, **ids, error=reason, advice="its lease ends by itself")

    async def _outlive(self, child: asyncio.subprocess.Process, ending: asyncio.Event) -> int:
        """Wait for a child's end; when it is to end, ask it to drain, and kill it when it does not."""
        ended = asyncio.ensure_future(child.wait())
        stopping = asyncio.ensure_future(ending.wait())
        try:
            await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        if not ended.done():
            await self._end(child)
        return await ended

    async def _end(self, child: asyncio.subprocess.Process) -> None:
        # A second signal would end it at once: a reload may be over only after everything is to stop.
        if child not in self._told:
            self._told.add(child)
            _signal(child, signal.SIGTERM)
        try:
            async with asyncio.timeout(self._grace + _MARGIN):
                await child.wait()
        except TimeoutError:
            telemetry.log.error("supervisor.killing", pid=child.pid, grace=self._grace)
            _signal(child, signal.SIGKILL)

    async def _reload(self) -> None:
        async for _ in _changes(self._watch, self._stopping):
            telemetry.log.info("supervisor.reloading", processes=len(self.slots))
            self._complaints.clear()
            self._changes += 1
            self._changed.set()
            self._changed = asyncio.Event()
            for slot, child in list(self._children.items()):
                # One that is dismissed was told already, and a second signal would end it at once.
                if slot in self._ending:
                    await self._end(child)


def check_reload() -> None:
    """Check that changes of files can be watched.

    Raises:
        ConfigurationError: they can't; the message says what to install.
    """
    if importlib.util.find_spec("watchfiles") is None:
        raise ConfigurationError("--reload needs watchfiles: pip install 'toolbus[reload]'")


async def _changes(folders: Sequence[Path], stop: asyncio.Event) -> AsyncIterator[None]:
    import watchfiles  # noqa: PLC0415 - an extra

    async for _ in watchfiles.awatch(*folders, watch_filter=watchfiles.PythonFilter(), stop_event=stop):
        yield


def _signal(child: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(number)
