"""``Mount``: the base class of services whose tools are somebody else's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Self

from toolbus import telemetry
from toolbus.mounts.described import Described, Run
from toolbus.mounts.options import Options, check_name
from toolbus.results import ToolbusError, ToolError, ToolResult
from toolbus.worker.definition.service import ToolService
from toolbus.worker.run.invocation import invocation


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
