"""``HostLease``: keeps a host's routes and claims alive with one write for all of them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import HostId
from toolbus.bus.support.safe_text import described
from toolbus.bus.values.results import BrokerError, ConfigurationError, ToolbusError
from toolbus.platform.backends.runner import CannotStart, Instance, Line, Runner
from toolbus.platform.documents import digest_of_folder
from toolbus.platform.lockfiles import check_locked
from toolbus.platform.records import RecordedTool, SourceType, ToolRoute, ToolSource

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
            try:
                async with asyncio.timeout(self._lease / _A_LEASE * random.uniform(0.8, 1.0)):  # noqa: S311 - jitter
                    await self._news.wait()
                await asyncio.sleep(_GATHERED_FOR)
            except TimeoutError:
                pass
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
        try:
            await self._kept.release(self._host, [tool])
        except BrokerError as error:
            telemetry.log.warning("host.not_renewed", error=str(error))

    async def leave(self) -> None:
        """Forget this host's routes, and let others have its claims."""
        try:
            await self._kept.leave(self._host, self._wanted)
        except BrokerError as error:
            telemetry.log.warning("host.not_renewed", error=str(error))


Make = Callable[[SourceType], Awaitable[Runner]]
"""Makes the runner of a kind of source."""

_SHOWN = 12
_CLEANED_WITHIN = 15.0


class _OfKind:
    """A ``Runner`` that makes the proper one for its first start."""

    def __init__(self, kind: SourceType, make: Make, folders: Sequence[Path]) -> None:
        self._kind = kind
        self._make = make
        self._folders = folders
        self._made: Runner | None = None
        self._one = asyncio.Lock()

    async def start(self, tool: RecordedTool, source: ToolSource, line: Line) -> Instance:
        """Start an instance, unless its code is not what was approved."""
        source = found_in(source, self._folders)
        await check_code(tool, source)
        try:
            runner = await self.runner()
        except (ToolbusError, ImportError) as error:
            raise CannotStart(f"sources of the type {self._kind!r} can't be used here: {error}") from None
        return await runner.start(tool, source, line)

    async def runner(self) -> Runner:
        """Return the proper one."""
        async with self._one:
            if self._made is None:
                self._made = await self._make(self._kind)
            return self._made

    async def clean(self) -> list[str]:
        """End what dead hosts of this machine left."""
        return await (await self.runner()).clean()

    async def aclose(self) -> None:
        """Close what was made."""
        if self._made is not None:
            await self._made.aclose()


class HostRunners:
    """The runners of a host.

    Args:
        make: makes one.
        folders: where the relative folders of sources are looked for, the first one first.

    Attributes:
        by_kind: the runner of each kind of source.
    """

    def __init__(self, make: Make, folders: Sequence[Path] = ()) -> None:
        self._kinds = {kind: _OfKind(kind, make, folders) for kind in get_args(SourceType)}
        self.by_kind: Mapping[SourceType, Runner] = dict(self._kinds)

    async def clean(self) -> None:
        """End what dead hosts of this machine left; what can't be is told, and kept from nothing else."""
        for kind, runner in self._kinds.items():
            try:
                async with asyncio.timeout(_CLEANED_WITHIN):
                    lines = await runner.clean()
                for line in lines:
                    telemetry.log.warning("host.cleaned", kind=kind, left=line)
            except Exception as error:  # noqa: BLE001 - a machine without docker serves its other tools
                telemetry.log.info("host.not_cleaned", kind=kind, error=described(error))

    async def aclose(self) -> None:
        """Close all that were used."""
        for kind, runner in self._kinds.items():
            try:
                await runner.aclose()
            except Exception as error:  # noqa: BLE001 - the others are closed all the same
                telemetry.log.warning("host.not_closed", kind=kind, error=described(error))


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
        raise CannotStart(str(error), permanent=True) from None
    if found != tool.code:
        raise CannotStart(
            f"the code in {source.host_dir} is not what was approved (digest {found[:_SHOWN]}…, approved {tool.code[:_SHOWN]}…);"
            f" put the approved code back, or record and approve this one",
            permanent=True,
        )
    if source.type == "local":
        try:
            await asyncio.to_thread(check_locked, source.host_dir)
        except ConfigurationError as error:
            raise CannotStart(str(error)) from None
