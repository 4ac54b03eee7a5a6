"""``Mount``: the base class of services whose tools are somebody else's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

from toolbus.bus import telemetry
from toolbus.bus.middleware.chain import Middleware
from toolbus.bus.values.results import ToolbusError, ToolError, ToolResult
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.invocation import invocation
from toolbus.bus.worker.service import ToolService
from toolbus.bus.worker.worker import Worker
from toolbus.edges.mounts.described import Described, Run
from toolbus.edges.mounts.options import Options, check_name

_HOMES = frozenset({("fastmcp", "FastMCP"), ("mcp", "MCPServer")})


class Mount(ToolService, ABC):
    """A service to be given to a ``Worker`` while it is open: ``async with MountedServer(…) as mount``.

    Args:
        name: the name of the mount, which is the service's id.
        shown: what is mounted, for people.
        options: which tools are served, and how.

    Attributes:
        options: those that were given.
        republish: called when the tools have changed; ``serve`` sets it to the worker's.
        left_out: tools that can't be published, and why.
    """

    effect = "once"

    def __init__(self, name: str, shown: str, options: Options | None = None) -> None:
        self.options = options or Options()
        self.republish: Callable[[ToolService], Awaitable[object]] | None = None
        self.left_out: dict[str, str] = {}
        self._runs: dict[str, tuple[str, Run]] = {}
        # Class variables of services that are written down.
        self.__dict__.update(id=check_name(name), description=f"mounted: {shown}", tools=())
        self.owner_label = f"mount:{name}"

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Begin, and find the tools.

        Raises:
            ConfigurationError: there is nothing that can be mounted; says why.
        """

    @abstractmethod
    async def __aexit__(self, *error: object) -> None:
        """End what was begun."""

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> ToolResult:
        """Run one call where the tool is.

        Raises:
            ToolError: there is no such tool any more, or the call failed.
        """
        call = invocation()
        found = self._runs.get(call.tool)
        if found is None:
            raise ToolError(f"{self.id!r} has no tool {call.tool!r} any more", type="not_found", code="unmounted")
        return await found[1](arguments, call)

    def names(self) -> dict[str, str]:
        """Return the tools' own names by their names on the bus."""
        return {published: name for published, (name, _) in self._runs.items()}

    async def publish(self, described: Described) -> None:
        """Serve these tools from now on."""
        # Old ones are run until the new ones are published.
        self._runs = {**self._runs, **described.runs}
        documents = tuple(described.documents)
        changed, self.__dict__["tools"] = documents != self.tools, documents
        self.left_out = described.left_out
        if self.republish is not None and changed:
            try:
                await self.republish(self)
            except ToolbusError as error:
                telemetry.log.error("mount.not_republished", mount=self.id, error=str(error))
        self._runs = dict(described.runs)


_MOST_PAGES = 1_000


@asynccontextmanager
async def mounted(services: Sequence[object]) -> AsyncIterator[Callable[[Worker], None]]:
    """Start mounted servers, and end them at the exit; call what is provided with the worker that is to serve them.

    Raises:
        ConfigurationError: one can't be started, or does not answer; says why.
    """
    servers = [service for service in services if isinstance(service, Mount)]

    def serve_with(worker: Worker) -> None:
        for server in servers:
            server.republish = worker.republish

    async with AsyncExitStack() as stack:
        for server in servers:
            await stack.enter_async_context(server)
        try:
            yield serve_with
        finally:
            for server in servers:
                server.republish = None


@asynccontextmanager
async def serve(
    *services: ToolService, settings: Settings | None = None, middleware: Sequence[Middleware] = (), **options: Any
) -> AsyncIterator[Worker]:
    """Start mounted servers and a worker that serves them; both end at the exit.

    Args:
        services: mounted servers, and any other services.
        settings: as for ``Worker``.
        middleware: as for ``Worker``, and so are further options.

    Raises:
        ConfigurationError: a server can't be started, or does not answer; says why.
        ToolbusError: the worker can't serve.
    """
    async with mounted(services) as serve_with:
        worker = Worker(list(services), settings=settings, middleware=middleware, **options)
        serve_with(worker)
        async with worker:
            yield worker


def is_server(value: object) -> bool:
    """Return whether a value is a server object; neither package is imported for it."""
    return any((cls.__module__.partition(".")[0], cls.__name__) in _HOMES for cls in type.__getattribute__(type(value), "__mro__"))
