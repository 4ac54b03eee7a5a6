"""Names under which another process finds the function of a tool."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from toolbus.bus.schema.derivation import derive
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.worker.definition.function import FunctionTool, find_tool
from toolbus.bus.worker.definition.provide import Services, has_factory, injected
from toolbus.bus.worker.isolation.messages import Target

MAIN = "__main__"
# The name under which another process imports the main module, so that its `if __name__ == "__main__":` does not run.
_MAIN_AGAIN = "__mp_main__"


class ChildTool:
    """A tool as a child runs it."""

    def __init__(self, made: FunctionTool) -> None:
        self.function: Callable[..., Any] = made.function
        self._services = Services()
        derived = derive(made.function, parameters=made.parameters, injected=injected(made.parameters, made.function, self._services))
        self._bind = derived.bind
        self._spared = derived.spared
        self._given = {name: type_ for name, type_ in derived.injected.items() if self._services.provides(type_)}
        for name, type_ in derived.injected.items():
            if not has_factory(type_) if name in self._given else name not in self._spared:
                raise ConfigurationError(f"{made.origin} needs {type_.__qualname__} in each child: provide a function that makes one")
        self._made: dict[str, Any] | None = None if self._given else {}

    def arguments(self, given: Mapping[str, Any], runner: asyncio.Runner) -> dict[str, Any]:
        """Return the handler's keyword arguments; the first time, its services are made, which then live as long as the child.

        Raises:
            ToolError: they do not fit.
            ConfigurationError: a service can't be made.
        """
        bound = self._bind(given)
        if self._made is None:
            self._made = runner.run(self._make())
        return {**bound, **self._spared, **self._made}

    async def _make(self) -> dict[str, Any]:
        return {name: await self._services.make(type_) for name, type_ in self._given.items()}


def target_of(made: FunctionTool) -> Target:
    """Return how another process finds a tool again.

    Raises:
        ConfigurationError: it could not.
    """
    where = f"the tool {made.name!r} ({made.origin}) has isolation='process'"
    if "<" in made.qualname:
        raise ConfigurationError(f"{where}, so another process must find it: define it at the top of a module, not in a function")
    if made.module == MAIN and getattr(sys.modules.get(MAIN), "__file__", None) is None:
        raise ConfigurationError(f"{where}, so another process must find it: define it in a file, not in a console or notebook")
    return Target(made.module, made.qualname, made.name)


def find(targets: Iterable[Target]) -> tuple[ChildTool, ...]:
    """Import the tools' modules and find the tools.

    Raises:
        ConfigurationError: a tool is not there.
    """
    found: list[ChildTool] = []
    for target in targets:
        module = _MAIN_AGAIN if target.module == MAIN else target.module
        importlib.import_module(module)
        made = find_tool(module, target.qualname, target.name)
        if made is None:
            raise ConfigurationError(f"importing {target.module} afresh defines no tool {target.name!r} at {target.qualname}")
        found.append(ChildTool(made))
    return tuple(found)
