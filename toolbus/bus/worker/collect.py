"""Collect what a worker serves from services, functions and modules, and say who owns it."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.schema.arguments import preparer_for
from toolbus.bus.schema.casting import summary
from toolbus.bus.schema.derivation import derive
from toolbus.bus.schema.mend import mended, mended_document
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.descriptors import (
    Effect,
    Publication,
    ServiceDescriptor,
    ToolDescriptor,
    check_tool,
    check_types,
    parse_service,
    parse_tool,
)
from toolbus.bus.values.envelope import OLDEST, VERSION, Request
from toolbus.bus.values.results import ConfigurationError, DescriptorError
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.function import FunctionTool, definitions_of, functions_of, methods_of, tool_of, tools_held, tools_of_service
from toolbus.bus.worker.handlers import Handler, Served, filling_in, starting
from toolbus.bus.worker.isolation.pool import target_of
from toolbus.bus.worker.loading import defined_in, normal_name
from toolbus.bus.worker.provide import Services, injected
from toolbus.bus.worker.service import Retry, ToolService, check_service, failure_named, overrides, place_of, returns_unseen

if TYPE_CHECKING:
    from importlib.metadata import Distribution

_MOST_DESCRIPTION = 16_384
# What a function says of itself in its descriptor's ``x-toolbus``.
_EXTENSIONS = ("cache", "sequential", "task", "output_schema")


def collect(targets: object, settings: Settings, services: Services | None = None, left_out: dict[str, str] | None = None) -> list[Served]:
    """Return what to serve.

    A tool with a parameter for a service that is not provided is left out, and named in the log.

    Args:
        targets: services (classes or instances), decorated functions, modules, packages, or lists of them.
        settings: the worker's.
        services: what handlers' parameters are filled in with; those of the process when left out.
        left_out: gets the tools that are not served though they are there, and why.

    Raises:
        ConfigurationError: a target is not a tool, or two services have one id.
    """
    services = Services() if services is None else services
    left_out = {} if left_out is None else left_out
    instances: dict[str, ToolService] = {}
    functions: dict[str, dict[str, FunctionTool]] = {}
    # Services are made before: they may define tools.
    flat, whole = list(_flat(targets, left_out)), functools.cache(tools_of_service)
    for target in flat:
        if isinstance(target, ToolService):
            check_service(target)
            name = target.id or type_name(target)
            if instances.get(name, target) is not target:
                raise ConfigurationError(f"two services have the id {name!r}")
            instances[name] = target
            continue
        for found in _functions(target, whole):
            functions.setdefault(found.service, {})[found.name] = found
    methods = {made for each in instances.values() for made in methods_of(type(each))}
    functions = {name: left for name, tools in functions.items() if (left := {k: v for k, v in tools.items() if v not in methods})}
    for name in functions.keys() & instances.keys():
        raise ConfigurationError(f"both a ToolService and decorated functions form the service {name!r}")
    served = [_served_service(name, service, settings, services, left_out) for name, service in instances.items()]
    for name, tools in functions.items():
        served += filter(None, [_served_functions(name, list(tools.values()), settings, services, left_out)])
    if not served and functions:
        raise ConfigurationError("there is nothing to serve: every tool needs a service that nobody provides; see toolbus.provide()")
    if not served:
        raise ConfigurationError("there is nothing to serve: give a ToolService, functions decorated with @tool, or a module with them")
    return served


def _flat(targets: object, left_out: dict[str, str]) -> Iterable[object]:
    if isinstance(targets, (list, tuple, set, frozenset)):
        for target in targets:
            yield from _flat(target, left_out)
    elif isinstance(targets, type) and issubclass(targets, ToolService):
        with failure_named(targets, "made"):
            made = targets()
        yield made
    elif isinstance(targets, ModuleType):
        yield from _flat(defined_in(targets, left_out), left_out)
    elif (held := tools_held(targets)) is not None:
        yield from functions_of(held)
    else:
        yield targets


def _functions(target: object, whole: Callable[[str], list[FunctionTool]]) -> list[FunctionTool]:
    found = definitions_of(target)
    if not found and callable(target) and tool_of(inspect.unwrap(target)) is not None:
        raise ConfigurationError(f"{target!r} wraps a tool: put @tool above the other decorators, so that the tool is what they make")
    if not found:
        raise ConfigurationError(f"{target!r} is not a tool: decorate it with @tool, or give a ToolService or a module")
    # What other modules made of the same function is theirs; and a service is served whole, or replicas would differ.
    services = {made.service for made in found if made.module == found[-1].module}
    tools = [made for service in sorted(services - {""}) for made in whole(service)]
    if not any(made in found for made in tools):
        raise ConfigurationError(f"{found[-1].origin} is a method; give its ToolService instead")
    return tools


class _Tools(msgspec.Struct, eq=False):
    """The tools of one service while they are collected.

    Args:
        service: its id.
        services: what handlers' parameters are filled in with.
        left_out: gets the tools that are not served, and why.

    Attributes:
        handlers: by tool.
    """

    service: str
    services: Services
    left_out: dict[str, str]
    _descriptors: dict[str, ToolDescriptor] = {}
    _corrections: dict[str, list[str]] = {}
    handlers: dict[str, Handler] = {}

    def note(self, tool: str, changes: list[str]) -> None:
        """Remember what was corrected in a tool's schema, for one line in the log."""
        if changes:
            self._corrections[tool] = changes

    def add(self, tool: ToolDescriptor, handler: Handler, sequential: bool | None = None) -> None:
        """Add a tool; what it does not say of its order is as its service says, ``sequential``.

        Raises:
            ConfigurationError: there is one of its name.
            DescriptorError: readers would refuse it; names the field.
        """
        if tool.name in self._descriptors:
            raise ConfigurationError(f"service {tool.service!r} defines the tool {tool.name!r} twice")
        if sequential is not None and "sequential" not in tool.extensions:
            tool = msgspec.structs.replace(tool, extensions={**tool.extensions, "sequential": sequential})
        self._descriptors[tool.name] = check_types(tool)
        handler.beside = tool.sequential is False
        self.handlers[tool.name] = handler

    def add_function(
        self, made: FunctionTool, bound: Callable[..., Any], effect: Effect = "", retry: Retry | None = None, sequential: bool | None = None
    ) -> None:
        """Add a function, ``bound`` to its object if it is a method; it is left out when it needs a service that is not provided.

        Raises:
            ConfigurationError: it can't be a tool; says why.
            DescriptorError: readers would refuse it; names the field.
        """
        services, parameters = self.services, made.parameters
        if parameters is not None:
            parameters, changes = mended(parameters)
            self.note(made.name, changes)
        derived = derive(bound, parameters=parameters, injected=injected(made.parameters, bound, services), skip_self=made.state)
        given = {name: type_ for name, type_ in derived.injected.items() if services.provides(type_)}
        spared = {name: value for name, value in derived.spared.items() if name not in given}
        for name, type_ in derived.injected.items():
            if name not in given and name not in spared:
                telemetry.log.warning("tool.left_out", tool=made.name, service=self.service, parameter=name, needs=type_.__qualname__)
                self.left_out[made.name] = f"nobody provides the {type_.__qualname__} of its parameter {name}"
                return
        for name, error in derived.unresolved.items():
            telemetry.log.warning("tool.unresolved_annotation", tool=made.name, service=self.service, parameter=name, error=error)
        _warn_unseen(made.name, self.service, bound)
        description = made.description or derived.description or made.name.replace("_", " ")
        if len(description) > _MOST_DESCRIPTION:
            raise ConfigurationError(
                f"the description of the tool {made.name!r} has {len(description):,} characters, more than {_MOST_DESCRIPTION:,}: "
                "every model reads all of it; say less, or give description=…"
            )
        tool = check_tool(
            ToolDescriptor(
                name=made.name,
                description=description,
                service=self.service,
                parameters=derived.parameters,
                groups=made.groups,
                category=made.category,
                timeout=made.timeout,
                effect=made.effect or effect,
                output_limit=made.output_limit,
                confirm=made.confirm,
                tenants=made.tenants,
                extensions={name: said for name in _EXTENSIONS if (said := getattr(made, name)) is not None},
            )
        )
        isolated = made if made.isolation else None
        if isolated is not None:
            # Refused here, before anything starts.
            target_of(isolated)
            for type_ in filter(services.own, given.values()):
                message = f"{made.origin} runs in a child process, which has no {type_.__qualname__} of this worker's own"
                raise ConfigurationError(f"{message}: say toolbus.provide({type_.__qualname__}, …) at the top of a module")
        else:
            services.want(given.values())
        bind = filling_in(derived.bind, spared, given, services) if derived.injected else derived.bind
        start = starting(bound, bind, state=made.state)
        self.add(
            tool, Handler(bound, start, tool.effect, made.retry or retry, isolated, derived.bind, made.tenants, tool.cacheable), sequential
        )

    def served(
        self,
        descriptor: ServiceDescriptor,
        settings: Settings,
        module: str,
        untyped: Handler | None = None,
        service: ToolService | None = None,
    ) -> Served:
        """Return the service with these tools, and log what was corrected in them; ``module`` is where it is defined."""
        if self._corrections:
            telemetry.log.warning("descriptor.mended", service=descriptor.id, **summary(self._corrections))
        tools = tuple(self._descriptors[name] for name in sorted(self._descriptors))
        qualname = "" if service is None else type(service).__qualname__
        owner = settings.owner or getattr(service, "owner_label", "") or owner_of(module, qualname)
        publication = Publication(descriptor, tools, owner, versions=None if VERSION == 1 else (OLDEST, VERSION)).with_digest()
        served = Served(publication, self.handlers, untyped, service)
        served.origin = "" if settings.owner else origin_of(module)
        return served


# -- services -----------------------------------------------------------------------------------------


def _served_service(name: str, service: ToolService, settings: Settings, services: Services, left_out: dict[str, str]) -> Served:
    cls = type(service)
    descriptor = parse_service(
        {
            "id": name,
            "config-params": list(service.config_params),
            "description": service.description or _first_line(cls.__doc__),
            "request-queue": service.request_queue,
            "response-queue": service.response_queue,
            "scale_to_zero": service.scale_to_zero,
            "queue_limit": service.queue_limit,
            "sticky_sessions": service.sticky_sessions or overrides(cls, "open_session"),
        }
    )
    invoke = None if cls.invoke is ToolService.invoke else service.invoke
    tools = _Tools(name, services, left_out)
    for index, document in enumerate(service.tools):
        if invoke is None:
            raise ConfigurationError(f"{cls.__name__} lists tools but does not override invoke()")
        try:
            proper, changes = mended_document(document)
            tools.note(str(document.get("name")), changes)
            tool = parse_tool({"effect": service.effect, **proper}, descriptor)
        except DescriptorError as error:
            raise DescriptorError(f"{cls.__name__}.tools[{index}]: {error}", path=error.path) from None
        tools.add(tool, _invoke_handler(invoke, tool, service), service.sequential)
    for made, attribute in methods_of(cls).items():
        if made.state and not overrides(cls, "open_session"):
            raise ConfigurationError(
                f"the tool {made.name!r} wants the state of a session (state=True), which {cls.__name__}.open_session makes"
            )
        bound = made.function if made.state else getattr(service, attribute)
        tools.add_function(made, bound, service.effect, service.retry, service.sequential)
    for base in filter(lambda each: issubclass(each, ToolService), cls.__mro__[1:]):
        for made, attribute in methods_of(base).items():
            if not definitions_of(getattr(cls, attribute, None)):
                left_out[made.name] = f"{cls.__name__}.{attribute} overrides it without @tool"
    if invoke is not None:
        _warn_unseen("", name, invoke)
    untyped = None if invoke is None else _invoke_handler(invoke, None, service)
    return tools.served(descriptor, settings, cls.__module__, untyped, service)


def _invoke_handler(invoke: Callable[..., Any], tool: ToolDescriptor | None, service: ToolService) -> Handler:
    arity = _arity(invoke, type(service))
    prepare = None
    if tool is not None and (tool.parameters is not None or tool.arguments is not None):
        prepare = preparer_for(tool).prepare

    def start(request: Request) -> Any:
        arguments = request.arguments if prepare is None else prepare(request.arguments)
        if arity == 2:
            return invoke(request.config, arguments)
        return invoke(request.user, request.config, arguments)

    return Handler(
        invoke,
        start,
        service.effect if tool is None else tool.effect,
        service.retry,
        check=prepare,
        tenants=() if tool is None else tool.tenants,
        cache=None if tool is None else tool.cacheable,
    )


def _arity(invoke: Callable[..., Any], cls: type) -> int:
    parameters = inspect.signature(invoke).parameters.values()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return 3
    taken = [p for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD} and p.default is p.empty]
    if len(taken) not in {2, 3}:
        raise ConfigurationError(
            f"{cls.__name__}.invoke takes (user, config, arguments) or (config, arguments), not {len(taken)} arguments"
        )
    return len(taken)


# -- functions ----------------------------------------------------------------------------------------


def _served_functions(
    name: str, functions: list[FunctionTool], settings: Settings, services: Services, left_out: dict[str, str]
) -> Served | None:
    about = _first_line(getattr(sys.modules.get(functions[0].module), "__doc__", None))
    try:
        descriptor = parse_service({"id": name, "description": about})
    except DescriptorError as error:
        advice = "the functions of a file form a service of its name: say @tool(service=…), or rename the file"
        raise DescriptorError(f"{error}; {advice}", path=error.path) from None
    tools = _Tools(name, services, left_out)
    for made in functions:
        if made.state:
            raise ConfigurationError(
                f"the tool {made.name!r} wants the state of a session (state=True), which its service makes: "
                "set it as an attribute of a ToolService that has open_session()"
            )
        tools.add_function(made, made.function)
    return tools.served(descriptor, settings, functions[0].module) if tools.handlers else None


def _warn_unseen(tool: str, service: str, function: Callable[..., Any]) -> None:
    if returns_unseen(function):
        telemetry.log.warning("tool.return_ignored", tool=tool, service=service, place=place_of(function).removeprefix(", "))


def _first_line(document: str | None) -> str:
    return inspect.cleandoc(document or "").partition("\n")[0]


# -- owners -------------------------------------------------------------------------------------------

_INSTALLED = frozenset({"site-packages", "dist-packages"})


def owner_of(module: str, qualname: str = "") -> str:
    """Return who may change the names that a module publishes.

    This is the installed distribution that holds the module's file, else the project that the nearest ``pyproject.toml`` above the
    file names. A module of neither is owned by its topmost package, or by itself, together with ``qualname``. Host, path and
    process never count, so that replicas on other machines have the same owner.

    Args:
        module: a module's name, as in ``sys.modules``.
        qualname: the class that is published, if any.
    """
    file = _file_of(module)
    return _unowned(module, qualname) if file is None else _named(module, file) or _unowned(_top_of(module, file), qualname)


def origin_of(module: str) -> str:
    """Return the file of a module that belongs to no project; nothing else tells programs apart whose files have the same name."""
    file = _file_of(module)
    return "" if file is None or _named(module, file) else str(file)


def _named(module: str, file: Path) -> str:
    """Return the distribution or project that a file belongs to, or an empty text."""
    if not _INSTALLED.isdisjoint(file.parts):
        # A virtual environment may lie inside another project's folder.
        return _distribution_of(module, file)
    return _project_of(file.parent) or _distribution_of(module, file)


def _file_of(module: str) -> Path | None:
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None) or next(iter(getattr(loaded, "__path__", ())), None)
    return Path(file).resolve() if file else None


@functools.cache
def _distribution_of(module: str, file: Path) -> str:
    """Return the installed distribution that holds a file; another project may have a top-level package of the same name."""
    # Most files lie where nothing is installed, and listing what is installed everywhere takes a tenth of a second.
    places = [place for place in dict.fromkeys(sys.path) if file.is_relative_to(Path(place).resolve()) and _has_distributions(place)]
    if not places:
        return ""
    import importlib.metadata  # noqa: PLC0415 - as above

    top = module.partition(".")[0]
    names = sorted(each.name for each in importlib.metadata.distributions(path=places) if _provides(each, top))
    return normal_name(names[0]) if names else ""


def _has_distributions(place: str) -> bool:
    """Return whether distributions may be installed in a folder or archive on Python's path."""
    try:
        return any(each.suffix in {".dist-info", ".egg-info"} for each in Path(place).iterdir())
    except OSError:
        return Path(place).is_file()


def _provides(distribution: Distribution, top: str) -> bool:
    """Return whether a distribution has a topmost package or module; its list of files is searched, not parsed, since there are many."""
    declared = (distribution.read_text("top_level.txt") or "").split()
    if declared:
        return top in declared
    files = distribution.read_text("RECORD") or distribution.read_text("SOURCES.txt") or ""
    return re.search(rf"^{re.escape(top)}(/|\.py\b)", files, re.MULTILINE) is not None


@functools.cache
def _project_of(folder: Path) -> str:
    for each in (folder, *folder.parents):
        place = each / "pyproject.toml"
        if place.is_file():
            document = _read(place)
            name = document.get("project", {}).get("name") or document.get("tool", {}).get("poetry", {}).get("name")
            if isinstance(name, str) and name:
                return normal_name(name)
    return ""


def _read(place: Path) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - only projects have such a file

    try:
        return tomllib.loads(place.read_text("utf-8"))
    except (OSError, ValueError) as error:
        telemetry.log.warning("project.unreadable", file=str(place), error=str(error))
        return {}


def _top_of(module: str, file: Path) -> str:
    """Return the topmost package around a file, or the file's own name; an installed module's name says it, too."""
    if not _INSTALLED.isdisjoint(file.parts):
        return module
    top = file.parent if file.name == "__init__.py" else file
    while (top.parent / "__init__.py").is_file():
        top = top.parent
    return top.stem


def _unowned(module: str, qualname: str) -> str:
    top = module.partition(".")[0]
    return f"{top}:{qualname}" if qualname else top
