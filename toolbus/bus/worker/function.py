"""``@tool``: functions that are tools, and tools that are objects, such as those of a toolkit graph."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import MethodType
from typing import Any, Literal, NamedTuple, TypeGuard, TypeVar, overload

import msgspec

from toolbus.bus.support.safe_text import is_a, reason_of, type_name
from toolbus.bus.values import rules
from toolbus.bus.values.descriptors import Effect, effect_flaw
from toolbus.bus.values.naming import did_you_mean
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.worker.service import TOOL, Retry, ToolService

F = TypeVar("F", bound=Callable[..., Any])
Isolation = Literal["", "process"]
Task = Literal["always", "never", "auto"] | float | None


class Home(NamedTuple):
    """The place at which a tool is registered.

    Attributes:
        module: the module that registers it.
        loading: identifies the import of the module during which it is registered; None when that is done later.
        in_class: it is registered in the body of a class.
    """

    module: str
    loading: object = None
    in_class: bool = False


class FunctionTool(msgspec.Struct, eq=False, kw_only=True):
    """A function and the options of ``@tool`` at its definition, as ``defined_as`` makes it; those below, see ``tool``.

    Attributes:
        function: the function itself, unchanged; or a partial, or an object that can be called.
        module: the module that it belongs to, which may have the function from elsewhere.
        loading: see ``Home``.
        qualname: of the function, or of the object's class.
        origin: where the function, or the object's class, is defined, which tells a redefinition from a clash.
        service: id of the service it belongs to; empty for what a class's body registers.
    """

    function: Callable[..., Any]
    module: str
    loading: object
    qualname: str
    origin: str
    name: str
    service: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    category: str = "general"
    groups: tuple[str, ...] = ()
    effect: Effect = ""
    timeout: float = 0.0
    output_limit: int = 0
    confirm: bool = False
    tenants: tuple[str, ...] = ()
    retry: Retry | None = None
    cache: bool | None = None
    sequential: bool | None = None
    isolation: Isolation = ""
    memory_limit: int = 0
    task: Task = None
    output_schema: Mapping[str, Any] | None = None
    state: bool = False

    def check(self) -> None:
        """Refuse options that do not go together.

        Raises:
            ConfigurationError: says which, and of which tool.
        """
        flaw = effect_flaw(self.effect)
        if flaw:
            raise ConfigurationError(f"the tool {self.qualname!r} of {self.module}: {flaw}")
        for option, given in (("retry=...", self.retry is not None), ("cache=True", self.cache)):
            if given and self.effect == "once":
                raise ConfigurationError(f"the tool {self.qualname!r} has the effect 'once', which rules out {option}")
        if self.name in {"", "<lambda>"}:
            raise ConfigurationError(f"{self.module}.{self.qualname} has no name of its own: give it one, tool('name')(…)")
        where = f"the tool {self.name!r} ({self.origin})"
        if self.isolation not in {"", "process"}:
            raise ConfigurationError(f"{where} has the isolation {self.isolation!r}; there is 'process', or none")
        if self.isolation and not self.service:
            raise ConfigurationError(f"{where} is a method, whose object other processes do not have; isolation='process' is for functions")
        if self.isolation and self.state:
            raise ConfigurationError(f"{where} has isolation='process', where there is no state of a session; say state=True or isolation")
        if self.isolation and sys.platform == "win32":
            raise ConfigurationError(f"{where} has isolation='process', which needs the processes of a Unix system")
        if self.memory_limit and not self.isolation:
            raise ConfigurationError(f"{where} has memory_limit={self.memory_limit}, which needs isolation='process'")
        if self.memory_limit and not sys.platform.startswith("linux"):
            raise ConfigurationError(f"{where} has a memory_limit, which only Linux enforces")


_by_function: dict[tuple[int, ...], list[FunctionTool]] = {}
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
    state: bool = False,
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
    state: bool = False,
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
        state: its first parameter (``self`` of a toolkit's method, ``data`` of a function) is the state of the session, and no argument;
            its service makes one by ``open_session``.
        replace: take the place of another function's tool of that name in this process.
        unknown: further options, which there are none of; the error says which one may be meant.

    Raises:
        ConfigurationError: there is no option of that name, one has a value of another kind than it must have, another function of this
            process already has that name, or what is said does not go together.
    """
    for each in unknown:
        hint = did_you_mean(difflib.get_close_matches(each, TOOL, n=1))
        raise ConfigurationError(f"@tool has no option {each!r}{hint} (there are: {', '.join(TOOL)})")

    bare = callable(name) or isinstance(name, (staticmethod, classmethod))
    said = {
        "name": None if bare else name, "description": description, "parameters": parameters, "category": category, "groups": groups,
        "service": service, "effect": effect, "timeout": timeout, "output_limit": output_limit, "confirm": confirm, "tenants": tenants,
        "retry": retry, "cache": cache, "sequential": sequential, "isolation": isolation, "memory_limit": memory_limit, "task": task,
        "output_schema": output_schema, "state": state,
    }  # fmt: skip

    def decorate(decorated: F) -> F:
        # What a class's attribute gives when it is looked up is the function within.
        function: Callable[..., Any] = decorated.__func__ if isinstance(decorated, (staticmethod, classmethod)) else decorated
        register(defined_as(function, _home(function), **said), replace=replace)
        return decorated

    return decorate(name) if bare else decorate


def tool_of(function: object) -> FunctionTool | None:
    """Return what ``@tool`` was told about a function, the last time, or None when it was never decorated."""
    return next(reversed(definitions_of(function)), None)


def definitions_of(function: object) -> list[FunctionTool]:
    """Return all that ``@tool`` was told about a function, which may be several tools."""
    if is_a(function, Held):
        return [function.made]
    found = _by_function.get(_key(function))
    if found is None and is_a(function, MethodType):
        found = _by_function.get(_key(function.__func__))
    return found or []


def methods_of(cls: type[ToolService]) -> dict[FunctionTool, str]:
    """Return the tools among a class's attributes, and the attribute of each.

    An attribute is the tool of its own name, if its function is several ones; else all of them.
    """
    found: dict[FunctionTool, str] = {}
    for attribute in dir(cls):
        made = definitions_of(getattr(cls, attribute, None))
        named = [each for each in made if each.name == attribute]
        for each in named[-1:] or [each for each in made if each.module == made[-1].module]:
            found.setdefault(each, attribute)
    return found


def methods_in(module: str) -> set[FunctionTool]:
    """Return the tools that are attributes of the services that a module has."""
    loaded = sys.modules.get(module)
    values = [] if loaded is None else list(vars(loaded).values())
    classes = {id(cls): cls for value in values if issubclass(cls := value if is_a(value, type) else type(value), ToolService)}
    return {made for cls in classes.values() for made in methods_of(cls)}


class Held(functools.partial[Any]):
    """A callable and the definition that is meant, which no table of the process keeps, so that both end with their object."""

    made: FunctionTool


def held(method: Callable[..., Any], made: FunctionTool | None = None) -> Callable[..., Any]:
    """Return a callable as a tool: as it was defined, or an object's method that belongs to no service yet.

    Raises:
        ConfigurationError: it can't be a tool.
    """
    holder = Held(method)
    holder.made = made or defined_as(holder, name=getattr(method, "__name__", ""))
    return holder


def defined_as(function: Callable[..., Any], home: Home | None = None, **options: Any) -> FunctionTool:
    """Return a definition with options of ``@tool``, which no table has yet; without a home it belongs where the function is defined.

    Raises:
        ConfigurationError: it can't be a tool.
    """
    module, qualname = _defined(function)
    home = home or Home(module)
    rules.check(options, TOOL, f"the tool {qualname!r} of {home.module}")
    made = FunctionTool(
        **{
            **options,
            "function": function,
            "module": home.module,
            "loading": home.loading,
            "qualname": qualname,
            "origin": f"{module}.{qualname}",
            "name": options.get("name") or str(getattr(function, "__name__", "")),
            "service": "" if home.in_class else options.get("service") or service_name(home.module),
            "groups": rules.names(options.get("groups", ())),
            "tenants": rules.names(options.get("tenants", ())),
        }
    )
    made.check()
    return made


def tools_of_service(service: str) -> list[FunctionTool]:
    """Return the function tools of one service in this process, sorted by name."""
    return _functions(_by_service.get(service, {}).values())


def tools_of_module(module: str) -> list[FunctionTool]:
    """Return the function tools that belong to a module, or to a module of that package."""
    return _functions(made for tools in _by_service.values() for made in tools.values() if is_of(made.module, module))


def methods_of_module(module: str) -> list[FunctionTool]:
    """Return the tools that bodies of classes register in a module, or in a module of that package."""
    return [made for each in _by_function.values() for made in each if not made.service and is_of(made.module, module)]


def find_tool(module: str, qualname: str, name: str) -> FunctionTool | None:
    """Return the tool that a module defines under a name at a place, or None."""
    place = module, qualname, name
    return next((made for made in tools_of_module(module) if (made.module, made.qualname, made.name) == place), None)


def service_name(module: str) -> str:
    """Return the service that a module's functions form: the module's name, or its file's for a script."""
    if module == "__main__":
        path = getattr(sys.modules.get("__main__"), "__file__", None)
        # A program that is read from standard input has "<stdin>" for a file.
        return Path(path).stem if path and not path.startswith("<") else "main"
    return module


def register(made: FunctionTool, *, replace: bool = False) -> None:
    """Keep a definition, so that workers of this process serve it.

    Raises:
        ConfigurationError: its service has another tool of that name.
    """
    rules.check({"replace": replace}, TOOL, f"the tool {made.name!r} ({made.origin})")
    key = _key(made.function)
    if made.service:
        tools = _by_service.setdefault(made.service, {})
        before = tools.get(made.name)
        if before is not None and _key(before.function) != key and before not in methods_in(before.module):
            anew = before.origin == made.origin and (made.loading is None or made.loading is not before.loading)
            if not (replace or anew):
                other = "the second one" if before.origin == made.origin else made.origin
                raise ConfigurationError(
                    f"the tool {made.name!r} of service {made.service!r} is already {before.origin}; "
                    f"give {other} another name, or say replace=True"
                )
            _forget(before)
        tools[made.name] = made
    known = _by_function.setdefault(key, [])
    known[:] = [each for each in known if (each.name, each.service) != (made.name, made.service)] + [made]


def _forget(made: FunctionTool) -> None:
    key = _key(made.function)
    others = [each for each in _by_function.pop(key, ()) if each is not made]
    if others:
        _by_function[key] = others


def _key(function: object) -> tuple[int, ...]:
    """Return what tells callables apart, hashable or not; an object's method is another object each time."""
    return (id(function.__self__), id(function.__func__)) if is_a(function, MethodType) else (id(function),)


def _functions(found: Iterator[FunctionTool] | Collection[FunctionTool]) -> list[FunctionTool]:
    """Return those that are no methods, sorted by name."""
    tools = sorted(found, key=lambda made: made.name)
    methods = {each for module in {made.module for made in tools} for each in methods_in(module)}
    return [made for made in tools if made not in methods]


def is_of(module: str, package: str) -> bool:
    """Return whether a module is this one, or one of this package."""
    return module == package or module.startswith(f"{package}.")


def _home(function: Callable[..., Any]) -> Home:
    """Return where a tool belongs that is being registered: the module that is loaded, a program's own, or where it is defined."""
    frame = inspect.currentframe()
    registering, in_class = "", False
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if frame.f_code.co_name == "<module>" and name != "__main__" and name in sys.modules:
            return Home(name, getattr(sys.modules[name], "__spec__", None), in_class)
        # The body of a class has names of its own, and is no function.
        in_class = in_class or (not frame.f_code.co_flags & inspect.CO_OPTIMIZED and "__qualname__" in frame.f_locals)
        if not name.startswith("toolbus."):
            registering = registering or name
        frame = frame.f_back
    return Home("__main__" if registering == "__main__" else _defined(function)[0], None, in_class)


def _defined(function: Any) -> tuple[str, str]:
    """Return where a callable is defined, module and name: the function within partials, or the class of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return getattr(named, "__module__", None) or type(function).__module__, named.__qualname__


# -- tools that are objects ---------------------------------------------------------------------------

# Clients, locks and the like do not tell two tools apart.
_DATA = (str, int, float, bytes, type(None), list, tuple, dict, set, frozenset, Path, Enum)

METHOD = "__toolbus_tools__"
"""The name of the method by which an object names the tools that it stands for."""


class ToolObject(msgspec.Struct, frozen=True):
    """A tool that an object stands for.

    Attributes:
        name, description: for models; the function's docstring when the description is empty.
        parameters: JSON Schema of the arguments; None to derive it from the function.
        function: what runs.
        owner: the object itself.
    """

    name: str
    description: str
    parameters: Mapping[str, Any] | None
    function: Callable[..., Any]
    owner: object

    def is_like(self, other: ToolObject) -> bool:
        """Return whether both run the same: one function, or a method of objects of one class that hold equal data."""
        mine, others = _function_and_data(self.function), _function_and_data(other.function)
        try:
            return bool(mine == others)
        except Exception:  # noqa: BLE001 - comparing runs code of the user's values
            return False


def tools_held(value: object) -> list[ToolObject] | None:
    """Return the tools that an object stands for; None when it stands for none, of which the object is not asked."""
    return list(getattr(value, METHOD)()) if METHOD in _names(type(value)) else None


def is_tool_class(value: object) -> TypeGuard[type[Any]]:
    """Return whether the objects of a class stand for tools."""
    return is_a(value, type) and METHOD in _names(value)


def made_tools(cls: type[Any]) -> Iterable[ToolObject]:
    """Return the tools of a new object of a class.

    Raises:
        ConfigurationError: it can't be made without arguments.
    """
    try:
        return list(cls().__toolbus_tools__())
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's class
        message = f"{cls.__qualname__} can't be made without arguments ({reason_of(error)}): make an object of it in the module"
        raise ConfigurationError(message) from None


def functions_of(found: Iterable[ToolObject]) -> list[Callable[..., Any]]:
    """Register tools of objects, so that a worker can serve them, and return their functions.

    Raises:
        ConfigurationError: two different ones have the same name, or one can't be a tool.
    """
    by_name: dict[str, ToolObject] = {}
    for each in found:
        known = by_name.setdefault(each.name, each)
        if known is not each and not known.is_like(each):
            raise ConfigurationError(f"two different tools are named {each.name!r}, and names on a bus are unique: rename one of them")
    return [_registered(each) for each in by_name.values()]


def _registered(found: ToolObject) -> Callable[..., Any]:
    function = found.function
    if not callable(function):
        raise ConfigurationError(f"the function of the tool {found.name!r} is a {type_name(function)}, which can't be called")
    # One function may be several tools.
    held: Callable[..., Any] = functools.partial(function)
    description = inspect.cleandoc(found.description) or None
    register(defined_as(held, name=found.name, description=description, parameters=found.parameters), replace=True)
    return held


def _function_and_data(function: Callable[..., Any]) -> tuple[object, ...]:
    held = getattr(function, "__self__", None)
    kept = getattr(held, "__dict__", {}).items()
    return (
        getattr(function, "__func__", function),
        type(held),
        {key: value for key, value in kept if key != "_id" and isinstance(value, _DATA)},
    )


def _names(cls: type[Any]) -> set[str]:
    return {name for each in type.__getattribute__(cls, "__mro__") for name in type.__getattribute__(each, "__dict__") if name == METHOD}
