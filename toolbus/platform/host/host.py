"""``Host``: serves the recorded tools that this machine may run."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import socket
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from toolbus.bus import telemetry
from toolbus.bus.broker.held.routes import MOST_LINES
from toolbus.bus.broker.protocols import HostId
from toolbus.bus.client.bus import ToolBus
from toolbus.bus.telemetry.background import keep_running
from toolbus.bus.values.envelope import new_run
from toolbus.bus.values.results import BrokerError, ConfigurationError, ToolbusError
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.worker import Worker
from toolbus.platform.backends.runner import Line, Runner
from toolbus.platform.host.leases import HostLease, HostRunners, Make
from toolbus.platform.host.pool import Pool
from toolbus.platform.host.served import ServedTools
from toolbus.platform.records import RecordedTool, SourceType, ToolRoute, ToolSource
from toolbus.platform.store import LiveRecords

if TYPE_CHECKING:
    from toolbus.bus.broker.held.routes import Routes

_GATHERED_FOR = 0.2


class ProgramOutput:
    """Gathers lines; a program that prints faster than they are written loses the oldest ones.

    Args:
        routes: where they are written to.
        host: id of the host.
    """

    def __init__(self, routes: Routes, host: HostId) -> None:
        self._routes = routes
        self._host = host
        self._waiting: dict[str, deque[str]] = {}
        self._news = asyncio.Event()
        self._failing = False

    def of(self, tool: str) -> Line:
        """Return what takes in the lines of a tool's programs."""

        def take(line: str) -> None:
            self._waiting.setdefault(tool, deque(maxlen=MOST_LINES)).append(line)
            self._news.set()

        return take

    async def run(self) -> None:
        """Write what was gathered, a few times a second at most, until cancelled."""
        while True:
            await self._news.wait()
            await asyncio.sleep(_GATHERED_FOR)
            await self.write()

    async def write(self) -> None:
        """Write what was gathered; what the server does not take is lost, and that is told once."""
        self._news.clear()
        waiting, self._waiting = self._waiting, {}
        try:
            for tool, lines in waiting.items():
                await self._routes.write(tool, self._host, list(lines))
            self._failing = False
        except BrokerError as error:
            if not self._failing:
                telemetry.log.warning("host.output_lost", error=str(error))
            self._failing = True


KINDS: Mapping[str, str] = {kind: f"toolbus.platform.backends.{kind}" for kind in get_args(SourceType)}
"""The module of each kind, which has ``make_runner``; imported when a source of this kind is first used."""


async def make_runner(kind: str, host: str, allowed: Collection[str] = (), *, confine: bool = True) -> Runner:
    """Return the runner of a kind of source.

    Args:
        kind: see ``KINDS``.
        host: id of the host.
        allowed: hosts that APIs may be at although their addresses are not public.
        confine: whether programs that models wrote are confined, and refused where they can't be.
    """
    # A library such as aiohttp takes half a second, in which the host would answer nothing.
    make = (await asyncio.to_thread(importlib.import_module, KINDS[kind])).make_runner
    own: dict[str, dict[str, Any]] = {"remote": {"allowed": allowed}, "local": {"confine": confine}}
    runner: Runner = await make(host, **own.get(kind, {}))
    return runner


def may_run(source: ToolSource, labels: Collection[str]) -> bool:
    """Return whether a host with these labels may run a source."""
    return not source.hosts or not set(source.hosts).isdisjoint(labels)


def may_serve(record: RecordedTool, labels: Collection[str]) -> bool:
    """Return whether a host with these labels may serve a tool: it is active, and one of its sources may run there."""
    return record.meta.status == "active" and any(may_run(source, labels) for source in record.sources)


def to_serve(records: Mapping[str, RecordedTool], labels: Collection[str]) -> dict[str, RecordedTool]:
    """Return the tools that a host with these labels may serve, by id."""
    return {tool: record for tool, record in records.items() if may_serve(record, labels)}


# Seconds for telling the server that this host is gone.
_LEAVING = 3.0
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Host:
    """One process that serves recorded tools, each as a service of its own, and starts and stops their programs.

    Args:
        settings: of its worker and its bus.
        labels: sources that name hosts by label run here when one of theirs is among these.
        name: begins the id of the host; the machine's name when left out.
        allowed: hosts that APIs may be at although their addresses are not public.
        folders: where the relative folders of sources are looked for; the working directory when left out.
        make: makes the runner of a kind of source.

    Attributes:
        id: its name, a process number and random digits; not the id of its worker.
        worker: serves the tools.

    Raises:
        ConfigurationError: a label or the name has other characters than letters, digits, ``.``, ``_`` and ``-``.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        labels: Collection[str] = (),
        name: str = "",
        allowed: Collection[str] = (),
        folders: Sequence[Path] = (),
        make: Make | None = None,
    ) -> None:
        for word in (*labels, *([name] if name else [])):
            if _LABEL.fullmatch(word) is None:
                raise ConfigurationError(f"{word!r} is no label or name of a host: use up to 64 letters, digits, '.', '_' and '-'")
        self.id = HostId(f"{name or _machine()}-{os.getpid()}-{new_run()[:6]}")
        self.worker = Worker(None, settings=settings)
        self._settings = settings
        self._labels = frozenset(labels)
        usual: Make = partial(make_runner, host=self.id, allowed=allowed, confine=settings.confine)
        self._runners = HostRunners(make or usual, folders or (Path.cwd(),))
        self._look = asyncio.Event()
        # Records that can't be served, which are tried again after a while.
        self._refused: dict[str, RecordedTool] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}

    async def run(self, on_open: Callable[[], object] | None = None, on_drain: Callable[[], object] = lambda: None) -> None:
        """Serve until SIGTERM or SIGINT, then let running calls end, stop the programs, and return.

        Args:
            on_open: called once when everything that is recorded was looked at.
            on_drain: called once when it begins to drain.

        Raises:
            BrokerError: the server can't be reached or can't serve.
            ToolbusError: it could not go on.
        """
        async with ToolBus(settings=self._settings) as bus:
            worker = self.worker
            self._lease = HostLease(bus.routes, self.id, self._settings.lease, self._look.set, lambda: worker.healthy)
            self._output = ProgramOutput(bus.routes, self.id)
            self._served = ServedTools(worker, self._pool, self._lease.put, self._output.of)
            self._records, self._bus = LiveRecords(bus), bus
            try:
                await self._serve(on_open, on_drain)
            finally:
                await self._stop()

    async def _serve(self, on_open: Callable[[], object] | None, on_drain: Callable[[], object]) -> None:
        """Run the worker and what goes on beside it; the first one that ends, ends the others."""
        ready, draining = asyncio.Event(), asyncio.Event()

        def settled() -> None:
            # Nothing comes or goes while the worker drains: it would wait for steps that a server that is gone does not answer.
            draining.set()
            for task in (beside[0], *self._ending.values()):
                task.cancel()

        def drains() -> None:
            settled()
            on_drain()

        serving = asyncio.create_task(self.worker.run(ready.set, drains), name="toolbus-host-worker")
        beside = [asyncio.create_task(self._after(ready, serving, on_open), name="toolbus-host")]
        beside += [
            asyncio.create_task(keep_running("host-lease", self._lease.run, every=self._settings.lease / 3), name="toolbus-host-lease"),
            asyncio.create_task(keep_running("host-output", self._output.run, every=0), name="toolbus-host-output"),
        ]
        try:
            await asyncio.wait([serving, *beside], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not draining.is_set():
                settled()
                serving.cancel()
            # Leases are kept until its calls have ended.
            await asyncio.wait([serving])
            for task in beside:
                task.cancel()
            await asyncio.wait([*beside, *self._ending.values()])
        for task in (serving, *beside):
            if not task.cancelled():
                task.result()

    async def _after(self, ready: asyncio.Event, serving: asyncio.Task[None], on_open: Callable[[], object] | None) -> None:
        """Follow the records once the worker is open."""
        await ready.wait()
        await self._runners.clean()
        telemetry.log.info("host.serving", host=self.id, labels=sorted(self._labels))
        follow = partial(self._follow, on_open)
        await keep_running("host-records", follow, every=0)

    async def _stop(self) -> None:
        """Stop the programs, and tell that this host is gone."""
        await self._served.aclose()
        try:
            # A server that is gone does not answer.
            async with asyncio.timeout(_LEAVING):
                await self._output.write()
                await self._lease.leave()
        except TimeoutError:
            telemetry.log.warning("host.not_renewed", error="the server did not answer")
        await self._runners.aclose()
        telemetry.log.info("host.stopped", host=self.id)

    # -- following the records --------------------------------------------------------------------

    async def _follow(self, on_open: Callable[[], object] | None) -> None:
        """Serve what is recorded, again after each change, until cancelled."""
        again = False
        while True:
            self._look.clear()
            seen = self._seen()
            watching = asyncio.create_task(self._until_changed(seen))
            try:
                await self._settle(again=again)
                if on_open is not None:
                    on_open()
                    on_open = None
                # Names of others become free without a change of the records.
                async with asyncio.timeout(self._settings.lease if self._refused else None):
                    await self._look.wait()
                again = False
            except TimeoutError:
                again = True
            finally:
                watching.cancel()

    async def _until_changed(self, seen: object) -> None:
        await self._bus.tools.catalogue.wait(lambda: self._seen() != seen)
        if self._seen() != seen:
            self._lease.look()
        self._look.set()

    def _seen(self) -> tuple[int, frozenset[str]]:
        """Return what this depends on: the records, and which of the tools that one host serves alone are served by any."""
        alone = (tool for tool, record in self._may_serve().items() if record.running.single)
        return self._records.version, frozenset(tool for tool in alone if tool in self._bus.services)

    def _may_serve(self) -> dict[str, RecordedTool]:
        return to_serve(self._records.snapshot().tools, self._labels)

    async def _settle(self, *, again: bool) -> None:
        """Begin, revise and end services until they are what is recorded; ``again`` also those that were refused."""
        records = self._may_serve()
        claims = {tool for tool, record in records.items() if record.running.single}
        self._lease.want(claims | {tool for tool, record in self._served.records.items() if record.running.single})
        wanted = {tool: record for tool, record in records.items() if tool not in claims or tool in self._lease.claims}
        for tool in self._served.records.keys() - wanted.keys():
            self._end(tool)
        for tool in self._refused.keys() - wanted.keys():
            del self._refused[tool]
            self._lease.remove(tool)
        for tool, record in wanted.items():
            if tool not in self._ending and (again or self._refused.get(tool) != record):
                await self._serve_as(record)

    async def _serve_as(self, record: RecordedTool) -> None:
        tool, before = record.tool_id, self._served.records.get(record.tool_id)
        if before == record:
            return
        try:
            await (self._served.begin(record) if before is None else self._served.revise(record))
        except ToolbusError as error:
            telemetry.log.warning("host.tool_refused", tool=tool, error=str(error))
            self._refused[tool] = record
            if before is None:
                self._lease.put(ToolRoute(tool_id=tool, sources=record.sources, state="failed", host=self.id, last_error=str(error)))
        else:
            self._refused.pop(tool, None)

    def _end(self, tool: str) -> None:
        """End a service in the background: its calls may run on for long."""
        if tool in self._ending:
            return
        task = self._ending[tool] = asyncio.create_task(self._end_now(tool), name=f"end {tool}")
        task.add_done_callback(lambda _: self._ended(tool))

    async def _end_now(self, tool: str) -> None:
        try:
            await self._served.end(tool)
            self._lease.remove(tool)
            await self._lease.release(tool)
        except ToolbusError as error:
            telemetry.log.warning("host.tool_not_ended", tool=tool, error=str(error))
            # The next look tries again.
            await asyncio.sleep(1.0)

    def _ended(self, tool: str) -> None:
        del self._ending[tool]
        self._look.set()

    def _pool(self, record: RecordedTool, on_change: Callable[[ToolRoute], None], line: Line) -> Pool:
        labels = self._labels
        return Pool(record, self._runners.by_kind, self.id, on_change, line, may_run=lambda source: may_run(source, labels))


def _machine() -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:32]
