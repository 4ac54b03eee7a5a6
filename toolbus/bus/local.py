"""``ToolRegistry``: tools of this process, run as they are over a bus."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self, Unpack

from toolbus.bus.broker.protocols import ServiceRecord
from toolbus.bus.client.bus import ToolBus
from toolbus.bus.client.executor.executor import ToolExecutor
from toolbus.bus.client.executor.observers import EventBus
from toolbus.bus.client.tools.catalogue import Catalogue
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.client.tools.view import ToolView
from toolbus.bus.values.options import CallOptions
from toolbus.bus.values.results import ConfigurationError, RegistrationRefused, ToolResult
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.collect import collect
from toolbus.bus.worker.function import held, tool, tool_of
from toolbus.bus.worker.service import ToolService
from toolbus.bus.worker.worker import Worker


class ToolRegistry:
    """A table of tools, by name, and their execution: the executor of a bus over ``memory://``.

    What is registered here runs unchanged in workers, with the same results. Listing works at any time; ``execute`` and
    ``executor`` within ``async with``, whose end runs every clean-up.

    Args:
        targets: registered at once, see ``register``.
        user: calls the tools; tools for other tenants are not listed.
        session: of the calls.
        settings: limits and times; the transport is always this process.
        provide: what handlers' parameters of these types are filled in with, as for ``Worker``.
    """

    def __init__(
        self,
        *targets: object,
        user: str = "",
        session: str = "",
        settings: Settings | None = None,
        provide: Mapping[type, object] | None = None,
    ) -> None:
        # A random namespace keeps the registries of one process apart.
        namespace = f"local-{secrets.token_hex(8)}"
        # Nobody approves what a program gives itself.
        self._settings = Settings.load(base=settings or Settings.load(), url="memory://", namespace=namespace, require_approval=False)
        self._options: dict[str, Any] = {"user": user, "session": session}
        self._provide = provide
        self._targets: dict[str, object] = {}
        self._catalogue = Catalogue()
        self._tools = ToolView(self._catalogue, user=user)
        self._stack: AsyncExitStack | None = None
        self._bus: ToolBus | None = None
        for target in targets:
            self.register(target)

    # -- the table --------------------------------------------------------------------------------

    def register(self, target: object, *, replace: bool = False) -> None:
        """Add a function or an object's method (decorated with ``@tool`` or as it is), a ``ToolService``, or a module: all or nothing.

        Args:
            target: the function, method, service or module.
            replace: take the place of what has one of the names; the first keeps it otherwise.

        Raises:
            RegistrationRefused: a tool has the name already.
            ConfigurationError: it is no tool, or the registry is open.
        """
        if self._stack is not None:
            raise ConfigurationError("register tools before the registry is opened")
        if callable(target) and not isinstance(target, (type, ToolService)):
            target = _served_alone(target)
        served = collect(target, self._settings)
        known = self._catalogue.tools
        taken = {each.name: known[each.name].service for one in served for each in one.publication.tools if each.name in known}
        taken |= {one.id: one.id for one in served if one.id in self._targets}
        if taken and not replace:
            names = ", ".join(sorted(taken))
            raise RegistrationRefused(f"not registered: {names} is here already; say replace=True to take its place", taken)
        for service in set(taken.values()):
            self._forget(service)
        for one in served:
            self._targets[one.id] = target
            self._catalogue.on_service(one.id, ServiceRecord(one.publication, live=True))

    def get(self, name: str) -> Tool | None:
        """Return a tool, or None when the user has none of that name."""
        return self._tools.get(name)

    def list_tools(self) -> list[Tool]:
        """Every tool that the user may call, sorted by name."""
        return list(self._tools.values())

    def function_definitions(self) -> list[dict[str, Any]]:
        """``{name, description, parameters}`` of each of these tools, the same bytes each time; empty without any."""
        return self._tools.definitions("bare")

    @property
    def tools(self) -> ToolView:
        """The tools by name, for filters and definitions in other formats."""
        return self._tools

    # -- running them -----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._stack is not None:
            raise ConfigurationError("the registry is open already")
        async with AsyncExitStack() as stack:
            if self._targets:
                await stack.enter_async_context(Worker(self._unique(), settings=self._settings, provide=self._provide))
            self._bus = await stack.enter_async_context(ToolBus(settings=self._settings))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        stack, self._stack, self._bus = self._stack, None, None
        if stack is not None:
            await stack.aclose()

    async def execute(self, name: str, arguments: Mapping[str, Any] | None = None) -> ToolResult:
        """Run a tool; whatever goes wrong is a failed result, and is logged.

        Raises:
            ConfigurationError: the registry is not open.
        """
        return await self.executor().execute(name, dict(arguments or {}))

    def executor(self, **options: Unpack[CallOptions]) -> ToolExecutor:
        """Return an executor of a model's tool calls, see ``ToolBus.executor``.

        Raises:
            ConfigurationError: the registry is not open.
        """
        return self._opened().executor(**{**self._options, **options})

    @property
    def events(self) -> EventBus:
        """Tells observers of every execution's start, its frames, and its end.

        Raises:
            ConfigurationError: the registry is not open.
        """
        return self._opened().events

    # -- inside -----------------------------------------------------------------------------------

    def _opened(self) -> ToolBus:
        if self._bus is None:
            raise ConfigurationError("the registry is not open: use `async with registry:`")
        return self._bus

    def _forget(self, service: str) -> None:
        target = self._targets[service]
        for other in [known for known, registered in self._targets.items() if registered is target]:
            del self._targets[other]
            self._catalogue.on_service(other, None)

    def _unique(self) -> list[object]:
        return list({id(target): target for target in self._targets.values()}.values())


def _served_alone(function: Any) -> type[ToolService]:
    """Return a service of one function or method, since a module's functions are served whole."""
    made = tool_of(function)
    if made is None and inspect.ismethod(function):
        function = held(function)
    elif made is None:
        tool(function)
    made = tool_of(function)
    name = function.__name__ if made is None else made.name
    module = function.__module__ if made is None else made.module
    served: Callable[..., Any] = staticmethod(function)
    return type(f"Local_{name}", (ToolService,), {"id": f"local.{name}"[:128], "__module__": module, "tool": served})
