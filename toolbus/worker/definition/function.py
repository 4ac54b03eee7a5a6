"""``@tool``: functions that are tools."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from toolbus import rules
from toolbus.effects import Effect, effect_flaw
from toolbus.results import ConfigurationError
from toolbus.worker.definition.options import TOOL
from toolbus.worker.definition.retry import Retry

F = TypeVar("F", bound=Callable[..., Any])
Isolation = Literal["", "process"]
Task = Literal["always", "never", "auto"] | float | None


class FunctionTool:
    """A function and what was said about it at its definition.

    Attributes:
        function: the function itself, unchanged; or a partial, or an object that can be called.
        name: the tool's name.
        module, qualname: where the function, or the object's class, is defined.
        service: id of the service it belongs to; empty for a method of a ``ToolService``.
        origin: module and qualified name, which tell a redefinition from a clash.
    """

    __slots__ = (
        "cache", "category", "confirm", "description", "effect", "function", "groups", "isolation", "memory_limit", "module", "name",
        "origin", "output_limit", "output_schema", "parameters", "qualname", "retry", "sequential", "service", "task", "tenants", "timeout",
    )  # fmt: skip

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None,
        description: str | None,
        parameters: Mapping[str, Any] | None,
        category: str,
        groups: Collection[str],
        service: str | None,
        effect: Effect,
        timeout: float,
        output_limit: int,
        confirm: bool,
        tenants: Collection[str],
        retry: Retry | None,
        cache: bool | None,
        sequential: bool | None,
        isolation: Isolation,
        memory_limit: int,
        task: Task,
        output_schema: Mapping[str, Any] | None,
    ) -> None:
        defined = _defined(function)
        self.module: str = defined.__module__
        self.qualname: str = defined.__qualname__
        said = {
            "name": name, "description": description, "parameters": parameters, "category": category, "groups": groups,
            "service": service, "effect": effect, "timeout": timeout, "output_limit": output_limit, "confirm": confirm,
            "tenants": tenants, "retry": retry, "cache": cache, "sequential": sequential, "isolation": isolation,
            "memory_limit": memory_limit, "task": task, "output_schema": output_schema,
        }  # fmt: skip
        rules.check(said, TOOL, f"the tool {self.qualname!r} of {self.module}")
        flaw = effect_flaw(effect)
        if flaw:
            raise ConfigurationError(f"the tool {self.qualname!r} of {self.module}: {flaw}")
        if retry is not None and effect == "once":
            raise ConfigurationError(f"the tool {self.qualname!r} has the effect 'once', which rules out retry=...")
        if cache and effect == "once":
            raise ConfigurationError(f"the tool {self.qualname!r} has the effect 'once', which rules out cache=True")
        self.function = function
        self.name: str = name or str(getattr(function, "__name__", ""))
        if self.name in {"", "<lambda>"}:
            raise ConfigurationError(f"{self.module}.{self.qualname} has no name of its own: give it one, tool('name')(…)")
        self.description = description
        self.parameters = parameters
        self.category = category
        self.groups = rules.names(groups)
        self.effect: Effect = effect
        self.timeout = timeout
        self.output_limit = output_limit
        self.confirm = confirm
        self.tenants = rules.names(tenants)
        self.retry = retry
        self.cache = cache
        self.sequential = sequential
        self.origin = f"{self.module}.{self.qualname}"
        self.isolation = isolation
        self.memory_limit = memory_limit
        self.task = task
        self.output_schema = output_schema
        self.service = "" if _is_method(function) else service or service_name(self.module)
        self._check_isolation()

    def _check_isolation(self) -> None:
        where = f"the tool {self.name!r} ({self.origin})"
        if self.isolation not in {"", "process"}:
            raise ConfigurationError(f"{where} has the isolation {self.isolation!r}; there is 'process', or none")
        if self.isolation and not self.service:
            raise ConfigurationError(f"{where} is a method, whose object other processes do not have; isolation='process' is for functions")
        if self.isolation and sys.platform == "win32":
            raise ConfigurationError(f"{where} has isolation='process', which needs the processes of a Unix system")
        if self.memory_limit and not self.isolation:
            raise ConfigurationError(f"{where} has memory_limit={self.memory_limit}, which needs isolation='process'")
        if self.memory_limit and not sys.platform.startswith("linux"):
            raise ConfigurationError(f"{where} has a memory_limit, which only Linux enforces")


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
    groups: Collection[str] = (),
    service: str | None = None,
    effect: Effect = "",
    timeout: float = 0.0,
    output_limit: int = 0,
    confirm: bool = False,
    tenants: Collection[str] = (),
    retry: Retry | None = None,
    cache: bool | None = None,
    sequential: bool | None = None,
    isolation: Isolation = "",
    memory_limit: int = 0,
    task: Task = None,
    output_schema: Mapping[str, Any] | None = None,
    replace: bool = False,
) -> Callable[[F], F]: ...
def tool(
    name: Any = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    category: str = "general",
    *,
    groups: Collection[str] = (),
    service: str | None = None,
    effect: Effect = "",
    timeout: float = 0.0,
    output_limit: int = 0,
    confirm: bool = False,
    tenants: Collection[str] = (),
    retry: Retry | None = None,
    cache: bool | None = None,
    sequential: bool | None = None,
    isolation: Isolation = "",
    memory_limit: int = 0,
    task: Task = None,
    output_schema: Mapping[str, Any] | None = None,
    replace: bool = False,
    **unknown: Any,
) -> Any:
    """Make a function a tool, with or without parentheses; the function itself is returned unchanged.

    Without ``parameters`` the schema comes from the signature, its annotations and the docstring.
    A module's functions form one service named after the module. In a ``ToolService`` the
    decorated methods are tools of that service.

    Args:
        name: the tool's name; the function's when left out.
        description: what the model reads; the docstring when left out.
        parameters: JSON Schema of the arguments, enforced as given.
        category: for filtering in agents.
        groups: for filtering in agents; one may be given as a text.
        service: id of another service to belong to.
        effect: ``read``, ``idempotent`` or ``once``: what a second execution would do.
        timeout: seconds a call may take unless the caller says otherwise.
        output_limit: characters of an observation.
        confirm: a person approves each call before it runs.
        tenants: the only users who may see and call it; every user when left out.
        retry: run failed calls again, see ``Retry``; not for ``once``.
        cache: whether the cache middleware may answer it; left out, only where ``effect`` is ``read``. Not for ``once``.
        sequential: run its calls one after another: in a turn, after the calls before it and before those after it; False lets it run
            beside the other calls of a sticky session, which are in order otherwise. See docs/how-to/models.md.
        isolation: ``process`` runs each call in a child process, which is killed when the call is cancelled or its time is up.
        memory_limit: bytes that an isolated call may take beyond what its process has at the start; 0 for no limit. Linux only.
        task: whether an MCP client that has tasks gets one in place of the result: ``always``, ``never``, ``auto`` (when the call takes
            long), or the seconds after which it does. Left out, never.
        output_schema: JSON Schema of the data that it returns, for MCP clients; data that does not fit it is a failure there.
        replace: take the place of another function's tool of that name in this process.
        unknown: further options, which there are none of; the error says which one may be meant.

    Raises:
        ConfigurationError: there is no option of that name, one has a value of another kind than it must have, another function of this
            process already has that name, or what is said does not go together.
    """
    for each in unknown:
        near = difflib.get_close_matches(each, TOOL, n=1)
        raise ConfigurationError(
            f"@tool has no option {each!r}{f'; did you mean {near[0]!r}?' if near else ''} (there are: {', '.join(TOOL)})"
        )

    def register(decorated: F) -> F:
        # What a class's attribute gives when it is looked up is the function within.
        function: Callable[..., Any] = decorated.__func__ if isinstance(decorated, (staticmethod, classmethod)) else decorated
        made = FunctionTool(
            function,
            name=None if bare else name,
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
            cache=cache,
            sequential=sequential,
            isolation=isolation,
            memory_limit=memory_limit,
            task=task,
            output_schema=output_schema,
        )
        rules.check({"replace": replace}, TOOL, f"the tool {made.name!r} ({made.origin})")
        _register(made, replace=replace)
        return decorated

    bare = callable(name) or isinstance(name, (staticmethod, classmethod))
    return register(name) if bare else register


def tool_of(function: object) -> FunctionTool | None:
    """Return what ``@tool`` was told about a function, or None when it was never decorated."""
    if isinstance(function, _Held):
        return function.made
    if inspect.ismethod(function):
        function = function.__func__
    try:
        return _by_function.get(function)  # type: ignore[call-overload, no-any-return] # any hashable may be asked about
    except TypeError:
        return None


class _Held(functools.partial[Any]):
    """An object's method and its definition, which no table of the process keeps, so that both end with the object."""

    made: FunctionTool


def held(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return an object's method as a tool that belongs to no service yet.

    Raises:
        ConfigurationError: it can't be a tool.
    """
    options = {name: option.default for name, option in inspect.signature(tool).parameters.items() if name in TOOL and name != "replace"}
    made = _Held(method)
    made.made = FunctionTool(made, **{**options, "name": getattr(method, "__name__", "")})
    return made


def tools_of_service(service: str) -> list[FunctionTool]:
    """Return the function tools of one service in this process, sorted by name."""
    return [found for _, found in sorted(_by_service.get(service, {}).items())]


def tools_of_module(module: str) -> list[FunctionTool]:
    """Return the function tools that a module, or a module of that package, defines."""
    return [
        found
        for tools in _by_service.values()
        for _, found in sorted(tools.items())
        if found.module == module or found.module.startswith(f"{module}.")
    ]


def find_tool(module: str, qualname: str, name: str) -> FunctionTool | None:
    """Return the tool that a module defines under a name at a place, or None."""
    for made in tools_of_module(module):
        if (made.module, made.qualname, made.name) == (module, qualname, name):
            return made
    return None


def service_name(module: str) -> str:
    """Return the service that a module's functions form: the module's name, or its file's for a script."""
    if module == "__main__":
        path = getattr(sys.modules.get("__main__"), "__file__", None)
        # A program that is read from standard input has "<stdin>" for a file.
        return Path(path).stem if path and not path.startswith("<") else "main"
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


def _defined(function: Any) -> Any:
    """Return what says where a callable is defined: the function within partials, or the class of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if hasattr(function, "__qualname__") else type(function)


def _is_method(function: Callable[..., Any]) -> bool:
    if not inspect.isfunction(function):
        return False
    scope = function.__qualname__.rpartition(".")[0]
    return bool(scope) and not scope.endswith("<locals>")
