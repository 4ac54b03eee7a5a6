"""``@tool``: functions that are tools."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

from toolbus.descriptors import Effect
from toolbus.results import ConfigurationError
from toolbus.worker.retry import Retry

F = TypeVar("F", bound=Callable[..., Any])


class FunctionTool:
    """A function and what was said about it at its definition.

    Attributes:
        function: the function itself, unchanged.
        name: the tool's name.
        service: id of the service it belongs to; empty for a method of a ``ToolService``.
        origin: module and qualified name, which tell a redefinition from a clash.
    """

    __slots__ = (
        "category", "confirm", "description", "effect", "function", "groups", "name", "origin", "output_limit", "parameters",
        "retry", "service", "tenants", "timeout",
    )  # fmt: skip

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None,
        description: str | None,
        parameters: Mapping[str, Any] | None,
        category: str,
        groups: Iterable[str],
        service: str | None,
        effect: Effect,
        timeout: float,
        output_limit: int,
        confirm: bool,
        tenants: Iterable[str],
        retry: Retry | None,
    ) -> None:
        if retry is not None and effect == "once":
            raise ConfigurationError(f"the tool {function.__qualname__!r} has the effect 'once', which rules out retry=...")
        self.function = function
        self.name = name or function.__name__
        self.description = description
        self.parameters = parameters
        self.category = category
        self.groups = tuple(groups)
        self.effect: Effect = effect
        self.timeout = timeout
        self.output_limit = output_limit
        self.confirm = confirm
        self.tenants = (tenants,) if isinstance(tenants, str) else tuple(tenants)
        self.retry = retry
        self.origin = f"{function.__module__}.{function.__qualname__}"
        self.service = "" if _is_method(function) else service or service_name(function.__module__)


_by_function: dict[Callable[..., Any], FunctionTool] = {}
_by_service: dict[str, dict[str, FunctionTool]] = {}


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    category: str = "general",
    *,
    groups: Iterable[str] = (),
    service: str | None = None,
    effect: Effect = "",
    timeout: float = 0.0,
    output_limit: int = 0,
    confirm: bool = False,
    tenants: Iterable[str] = (),
    retry: Retry | None = None,
    replace: bool = False,
) -> Callable[[F], F]: ...
def tool(
    name: Any = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    category: str = "general",
    *,
    groups: Iterable[str] = (),
    service: str | None = None,
    effect: Effect = "",
    timeout: float = 0.0,
    output_limit: int = 0,
    confirm: bool = False,
    tenants: Iterable[str] = (),
    retry: Retry | None = None,
    replace: bool = False,
) -> Any:
    """Make a function a tool, with or without parentheses; the function itself is returned unchanged.

    Without ``parameters`` the schema comes from the signature, its annotations and the docstring.
    A module's functions form one service named after the module. In a ``ToolService`` the
    decorated methods are tools of that service.

    Args:
        name: the tool's name; the function's when left out.
        description: what the model reads; the docstring when left out.
        parameters: JSON Schema of the arguments, enforced as given.
        category, groups: for filtering in agents.
        service: id of another service to belong to.
        effect: ``read``, ``idempotent`` or ``once``: what a second execution would do.
        timeout: seconds a call may take unless the caller says otherwise.
        output_limit: characters of an observation.
        confirm: a person approves each call before it runs.
        tenants: the only users who may see and call it; everybody when left out.
        retry: run failed calls again, see ``Retry``; not for ``once``.
        replace: take the place of another function's tool of that name in this process.

    :raises ConfigurationError: another function of this process already has that name in that service.
    """

    def register(function: F) -> F:
        made = FunctionTool(
            function,
            name=name if isinstance(name, str) else None,
            description=description,
            parameters=parameters,
            category=category,
            groups=groups,
            service=service,
            effect=effect,
            timeout=timeout,
            output_limit=output_limit,
            confirm=confirm,
            tenants=tenants,
            retry=retry,
        )
        _register(made, replace=replace)
        return function

    if callable(name):
        return register(name)
    return register


def tool_of(function: object) -> FunctionTool | None:
    """What ``@tool`` was told about a function, or None when it was never decorated."""
    if inspect.ismethod(function):
        function = function.__func__
    try:
        return _by_function.get(function)  # type: ignore[call-overload, no-any-return] # any hashable may be asked about
    except TypeError:
        return None


def tools_of_service(service: str) -> list[FunctionTool]:
    """The function tools of one service in this process, by name."""
    return [found for _, found in sorted(_by_service.get(service, {}).items())]


def tools_of_module(module: str) -> list[FunctionTool]:
    """The function tools that a module, or a module of that package, defines."""
    return [
        found
        for tools in _by_service.values()
        for _, found in sorted(tools.items())
        if found.function.__module__ == module or found.function.__module__.startswith(f"{module}.")
    ]


def service_name(module: str) -> str:
    """The service that a module's functions form: the module's name, or its file's for a script."""
    if module == "__main__":
        path = getattr(sys.modules.get("__main__"), "__file__", None)
        return Path(path).stem if path else "main"
    return module


def _register(made: FunctionTool, *, replace: bool) -> None:
    if made.service:
        tools = _by_service.setdefault(made.service, {})
        before = tools.get(made.name)
        if before is not None and before.origin != made.origin and not replace:
            raise ConfigurationError(
                f"the tool {made.name!r} of service {made.service!r} is already {before.origin}; "
                f"give {made.origin} another name, or say replace=True"
            )
        if before is not None:
            _by_function.pop(before.function, None)
        tools[made.name] = made
    _by_function[made.function] = made


def _is_method(function: Callable[..., Any]) -> bool:
    scope = function.__qualname__.rpartition(".")[0]
    return bool(scope) and not scope.endswith("<locals>")
