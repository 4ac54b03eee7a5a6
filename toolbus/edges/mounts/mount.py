"""``Mount``: the base class of services whose tools are somebody else's, and how these are described on the bus."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import MappingProxyType
from typing import Any, Self

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.middleware import Middleware
from toolbus.bus.schema.arguments import preparer_for
from toolbus.bus.schema.mend import mended_document
from toolbus.bus.values.descriptors import ServiceDescriptor, check_types, parse_tool
from toolbus.bus.values.results import DescriptorError, ToolbusError, ToolError, ToolResult
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.invocation import Invocation, invocation
from toolbus.bus.worker.service import ToolService
from toolbus.bus.worker.worker import Worker
from toolbus.edges.mounts.options import Options, bus_name, check_name

_HOMES = frozenset({("fastmcp", "FastMCP"), ("mcp", "MCPServer")})


_MOST_DESCRIPTION = 16_384
# Bytes of one tool's descriptor, and of all of a mount: every agent reads them.
_MOST_DOCUMENT = 262_144
_MOST_TOGETHER = 1_500_000

Run = Callable[[dict[str, Any], Invocation], Awaitable[ToolResult]]
"""Runs one call of a tool."""


class Described:
    """Collects descriptors; one that can't be published is left out and named in the log.

    Args:
        mount: the name of the mount, which is the service's id.
        options: how its tools are served.
        known: tools that were left out before, and why; the log has named them.

    Attributes:
        documents: the descriptors in the two-tier form.
        left_out: the reasons by tool.
    """

    def __init__(self, mount: str, options: Options, known: Mapping[str, str] = MappingProxyType({})) -> None:
        self._mount = mount
        self._service = ServiceDescriptor(mount)
        self._options = options
        self._known = known
        # By name on the bus, the tool's own name and what runs it.
        self.runs: dict[str, tuple[str, Run]] = {}
        self._size = 0
        self.documents: list[dict[str, Any]] = []
        self.left_out: dict[str, str] = {}

    def add(self, name: str, description: str, parameters: Mapping[str, Any] | None, effect: str, run: Run, about: dict[str, Any]) -> None:
        """Add a tool.

        Args:
            name: the tool's own name.
            description: for models.
            parameters: the schema of its arguments.
            effect: of a second execution.
            run: what runs its calls.
            about: what else is known of it, for those who look at its descriptor.
        """
        options = self._options
        if not options.selects(name):
            return
        published, text = bus_name(options.prefix + name), description.strip() or name
        fields: dict[str, Any] = {
            "name": published,
            "description": text if len(text) <= _MOST_DESCRIPTION else f"{text[: _MOST_DESCRIPTION - 1]}…",
            "parameters": dict(parameters) if parameters else {"type": "object"},
            "effect": effect,
            "groups": list(options.groups),
            "category": options.category,
            "timeout": options.timeout,
            "output_limit": options.output_limit,
            "external": options.external,
            "x-toolbus": about,
        }
        document = {key: value for key, value in fields.items() if value or key == "parameters"}
        reason = self._flaw(published, document)
        if reason:
            self.leave_out(name, reason)
            return
        self.runs[published] = (name, run)
        self.documents.append(document)

    def leave_out(self, name: str, reason: str) -> None:
        """Name a tool that can't be published, unless it is not selected anyway."""
        if not self._options.selects(name):
            return
        self.left_out[name] = reason
        if self._known.get(name) != reason:
            telemetry.log.warning("mount.tool_left_out", mount=self._mount, tool=name, reason=reason)

    def _flaw(self, published: str, document: dict[str, Any]) -> str:
        """Return why a descriptor can't be published, or an empty text."""
        if published in self.runs:
            return f"its name on the bus, {published!r}, is that of {self.runs[published][0]!r}"
        try:
            size = len(msgspec.json.encode(document))
            if size > _MOST_DOCUMENT:
                return f"its description and schemas have more than {_MOST_DOCUMENT:,} bytes"
            if self._size + size > _MOST_TOGETHER:
                return f"the tools before it have {_MOST_TOGETHER:,} bytes of descriptions and schemas; serve some of them: --include"
            preparer_for(check_types(parse_tool(mended_document(document)[0], self._service)))
        except (DescriptorError, TypeError, ValueError, RecursionError) as error:
            return str(error) or "it is nested too deeply"
        self._size += size
        return ""


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
