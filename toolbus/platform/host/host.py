"""``Host``: serves the recorded tools that this machine may run, and keeps its routes and claims alive."""

from __future__ import annotations

import asyncio
import os
import pkgutil
import random
import re
import socket
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.held.routes import MOST_LINES
from toolbus.bus.broker.protocols import HostId
from toolbus.bus.client.bus import ToolBus
from toolbus.bus.support.safe_text import described
from toolbus.bus.support.waiting import at_most
from toolbus.bus.telemetry.background import keep_running
from toolbus.bus.values.envelope import new_run
from toolbus.bus.values.results import BrokerError, ConfigurationError, ToolbusError
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.worker import Worker
from toolbus.platform.backends.runner import CannotStart, Instance, Line, Runner, impossible
from toolbus.platform.documents import check_locked, digest_of_folder
from toolbus.platform.host.pool import Pool, ServedTools
from toolbus.platform.records import RecordedTool, SourceType, ToolRoute, ToolSource
from toolbus.platform.store import LiveRecords

if TYPE_CHECKING:
    from toolbus.bus.broker.held.routes import Routes

# Seconds for which changes are gathered before they are told.
_GATHERED_FOR = 0.1
_A_LEASE = 3
# Leases after which a host that nobody can see ends.
_GIVEN_UP = 5


class HostLease:
    """Renews three times a lease, and tells changes soon.

    Args:
        routes: where they are kept.
        host: id of the host.
        lease: seconds.
        on_claims: called when the tools that this host may serve alone are others than before.
        reachable: returns whether the server can be reached over other connections.
    """

    def __init__(self, routes: Routes, host: HostId, lease: float, on_claims: Callable[[], None], reachable: Callable[[], bool]) -> None:
        self._kept = routes
        self._host = host
        self._lease = lease
        self._on_claims = on_claims
        self._reachable = reachable
        self._routes: dict[str, ToolRoute] = {}
        self._changed: set[str] = set()
        self._gone: set[str] = set()
        self._news = asyncio.Event()
        self._wanted: frozenset[str] = frozenset()
        self._until = 0.0
        self._claims: frozenset[str] = frozenset()

    @property
    def claims(self) -> frozenset[str]:
        """The tools that this host may serve alone; none while its lease may have ended."""
        return self._claims if time.monotonic() < self._until else frozenset()

    def put(self, route: ToolRoute) -> None:
        """Tell where a tool runs; returns at once."""
        self._routes[route.tool_id] = route
        self._changed.add(route.tool_id)
        self._gone.discard(route.tool_id)
        self._news.set()

    def remove(self, tool: str) -> None:
        """Tell that a tool is not served here any more; returns at once."""
        if self._routes.pop(tool, None) is not None:
            self._changed.discard(tool)
            self._gone.add(tool)
            self._news.set()

    def want(self, tools: Collection[str]) -> None:
        """Claim these tools, and no others, from now on; returns at once."""
        wanted = frozenset(tools)
        if wanted != self._wanted:
            self._wanted = wanted
            self._news.set()

    def look(self) -> None:
        """Renew soon: a tool may have become free."""
        self._news.set()

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            await at_most(self._lease / _A_LEASE * random.uniform(0.8, 1.0), self._news.wait())  # noqa: S311 - jitter
            if self._news.is_set():
                await asyncio.sleep(_GATHERED_FOR)
            await self.renew()

    async def renew(self) -> None:
        """Tell what has changed, and extend the lease; what the server does not take is told with the next renewal.

        Raises:
            ToolbusError: the server can be reached, and has not taken it for some leases.
        """
        self._news.clear()
        changed, gone, wanted = self._changed, self._gone, self._wanted
        self._changed, self._gone = set(), set()
        asked = time.monotonic()
        documents = {tool: msgspec.json.encode(self._routes[tool]) for tool in changed}
        try:
            renewed = await self._kept.renew(self._host, self._lease, changed=documents, gone=gone, claims=wanted)
        except BrokerError as error:
            telemetry.log.warning("host.not_renewed", error=str(error))
            self._changed |= changed & self._routes.keys()
            self._gone |= gone - self._routes.keys()
            if self._claims and not self.claims:
                # Another host may have them by now.
                self._claims = frozenset()
                self._on_claims()
            if self._until and asked > self._until + _GIVEN_UP * self._lease and self._reachable():
                raise ToolbusError(f"the routes of this host could not be renewed for {_GIVEN_UP} leases: {error}") from None
            return
        self._until = asked + self._lease
        if renewed.known < len(self._routes) - len(self._changed):
            # The server was away for longer than a lease, or has lost them.
            self._changed |= self._routes.keys()
            self._news.set()
        if renewed.claims != self._claims:
            self._claims = renewed.claims
            self._on_claims()

    async def release(self, tool: str) -> None:
        """Let another host serve a tool that this one has served alone; what goes wrong is told: the claim ends with its lease."""
        self._claims -= {tool}
        self._wanted -= {tool}
        await self._try(self._kept.release(self._host, [tool]))

    async def leave(self) -> None:
        """Forget this host's routes, and let others have its claims."""
        await self._try(self._kept.leave(self._host, self._wanted))

    async def _try(self, request: Awaitable[object]) -> None:
        try:
            await request
        except BrokerError as error:
            telemetry.log.warning("host.not_renewed", error=str(error))


Make = Callable[[SourceType], Awaitable[Runner]]
"""Makes the runner of a kind of source."""

_SHOWN = 12
_CLEANED_WITHIN = 15.0


class HostRunners(Runner):
    """The runners of a host, each of which is made for the first start of its kind.

    Args:
        make: makes one.
        folders: where the relative folders of sources are looked for, the first one first.
    """

    def __init__(self, make: Make, folders: Sequence[Path] = ()) -> None:
        self._make = make
        self._folders = folders
        self._made: dict[SourceType, Runner] = {}
        self._making: defaultdict[SourceType, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def start(self, tool: RecordedTool, source: ToolSource, line: Line) -> Instance:
        """Start an instance, unless its code is not what was approved."""
        source = found_in(source, self._folders)
        await check_code(tool, source)
        try:
            runner = await self._runner(source.type)
        except (ToolbusError, ImportError) as error:
            raise CannotStart(f"sources of the type {source.type!r} can't be used here: {error}") from None
        return await runner.start(tool, source, line)

    async def clean(self) -> list[str]:
        """End what dead hosts of this machine left; what can't be is told, and kept from nothing else."""
        found: list[str] = []
        for kind in get_args(SourceType):
            try:
                async with asyncio.timeout(_CLEANED_WITHIN):
                    lines = await (await self._runner(kind)).clean()
                for line in lines:
                    telemetry.log.warning("host.cleaned", kind=kind, left=line)
                found += lines
            except Exception as error:  # noqa: BLE001 - a machine without docker serves its other tools
                telemetry.log.info("host.not_cleaned", kind=kind, error=described(error))
        return found

    async def aclose(self) -> None:
        """Close all that were used."""
        for kind, runner in self._made.items():
            try:
                await runner.aclose()
            except Exception as error:  # noqa: BLE001 - the others are closed all the same
                telemetry.log.warning("host.not_closed", kind=kind, error=described(error))

    async def _runner(self, kind: SourceType) -> Runner:
        async with self._making[kind]:
            if kind not in self._made:
                self._made[kind] = await self._make(kind)
            return self._made[kind]


def found_in(source: ToolSource, folders: Sequence[Path]) -> ToolSource:
    """Return a source with the whole path of its folder, if that is relative and in one of these folders."""
    given = Path(source.host_dir)
    if not source.host_dir or given.is_absolute() or source.host_dir.startswith("~"):
        return source
    found = next((folder / given for folder in folders if (folder / given).is_dir()), None)
    return source if found is None else msgspec.structs.replace(source, host_dir=str(found.absolute()))


async def check_code(tool: RecordedTool, source: ToolSource) -> None:
    """Compare the code of a source with what was approved.

    Raises:
        CannotStart: it is another one, can't be read, or depends on code that can change.
    """
    if not tool.code or not source.host_dir:
        return
    try:
        found = await asyncio.to_thread(digest_of_folder, source.host_dir)
    except ConfigurationError as error:
        raise impossible(str(error)) from None
    if found != tool.code:
        raise impossible(
            f"the code in {source.host_dir} is not what was approved (digest {found[:_SHOWN]}…, approved {tool.code[:_SHOWN]}…);"
            f" put the approved code back, or record and approve this one"
        )
    if source.type == "local":
        try:
            await asyncio.to_thread(check_locked, source.host_dir)
        except ConfigurationError as error:
            raise CannotStart(str(error)) from None


_WRITTEN_EVERY = 0.2


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
            await asyncio.sleep(_WRITTEN_EVERY)
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


KINDS: Mapping[str, str] = {kind: f"toolbus.platform.backends.{kind}:{kind.title()}Runner" for kind in get_args(SourceType)}
"""The runner of each kind; its module is imported when a source of this kind is first used."""


async def make_runner(kind: str, host: str, allowed: Collection[str] = (), *, confine: bool = True) -> Runner:
    """Return the runner of a kind of source.

    Args:
        kind: see ``KINDS``.
        host: id of the host.
        allowed: hosts that APIs may be at although their addresses are not public.
        confine: whether programs that models wrote are confined, and refused where they can't be.
    """
    # A library such as aiohttp takes half a second, in which the host would answer nothing.
    make = await asyncio.to_thread(pkgutil.resolve_name, KINDS[kind])
    own: dict[str, dict[str, Any]] = {"docker": {"host": host}, "remote": {"allowed": allowed}, "local": {"confine": confine}}
    runner: Runner = make(**own[kind])
    return runner


def may_run(source: ToolSource, labels: Collection[str]) -> bool:
    """Return whether a host with these labels may run a source."""
    return not source.hosts or not set(source.hosts).isdisjoint(labels)


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
        self.id = HostId(f"{name or re.sub(r'[^A-Za-z0-9-]', '-', socket.gethostname())[:32]}-{os.getpid()}-{new_run()[:6]}")
        self.worker = Worker(None, settings=settings)
        self._settings = settings
        self._labels = frozenset(labels)
        usual: Make = partial(make_runner, host=self.id, allowed=allowed, confine=settings.confine)
        self._runners = HostRunners(make or usual, folders or (Path.cwd(),))
        self._look = asyncio.Event()
        # Records that can't be served, which are tried again after a while.
        self._refused: dict[str, RecordedTool] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}

    async def run(
        self,
        on_open: Callable[[], object] | None = None,
        on_drain: Callable[[], object] = lambda: None,
        *,
        on_connect: Callable[[], object] | None = None,
    ) -> None:
        """Serve until SIGTERM or SIGINT, then let running calls end, stop the programs, and return.

        Args:
            on_open: called once when everything that is recorded was looked at.
            on_drain: called once when it begins to drain.
            on_connect: called once when its worker has its ``instance``, before it can hold any call.

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
                await self._serve(on_open, on_drain, on_connect)
            finally:
                await self._stop()

    async def _serve(
        self, on_open: Callable[[], object] | None, on_drain: Callable[[], object], on_connect: Callable[[], object] | None
    ) -> None:
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

        serving = asyncio.create_task(self.worker.run(ready.set, drains, on_connect=on_connect), name="toolbus-host-worker")
        beside = [
            asyncio.create_task(self._after(ready, on_open), name="toolbus-host"),
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

    async def _after(self, ready: asyncio.Event, on_open: Callable[[], object] | None) -> None:
        """Follow the records once the worker is open."""
        await ready.wait()
        await self._runners.clean()
        telemetry.log.info("host.serving", host=self.id, labels=sorted(self._labels))
        await keep_running("host-records", partial(self._follow, on_open), every=0)

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
                await at_most(self._settings.lease if self._refused else None, self._look.wait())
                again = not self._look.is_set()
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
        """Return the tools that this host may serve, by id: those that are active, and have a source that may run here."""
        return {
            tool: record
            for tool, record in self._records.snapshot().tools.items()
            if record.meta.status == "active" and any(may_run(source, self._labels) for source in record.sources)
        }

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
        return Pool(record, self._runners, self.id, on_change, line, may_run=lambda source: may_run(source, labels))
